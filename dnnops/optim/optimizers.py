"""Optimizers: functions of a loss and its parameters that return the updates of a step."""

from __future__ import annotations

from typing import Any

import pytensor.tensor as pt

from dnnops.arguments import number, switch
from dnnops.errors import DnnValueError
from dnnops.optim.updates import Rate, Step, Updates

__all__ = ["adam", "adamw", "rmsprop", "sgd"]


def sgd(
    loss: Any,
    parameters: Any,
    learning_rate: Rate,
    momentum: float = 0.0,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    *,
    name: str = "",
) -> Updates:
    """Stochastic gradient descent, with momentum or Nesterov's momentum.

    With the gradient ``g``, to which ``weight_decay * p`` is added, the velocity is
    ``v = momentum * v + g``, and the step ``p -= learning_rate * v``, or
    ``p -= learning_rate * (g + momentum * v)`` with `nesterov`.

    Parameters
    ----------
    loss : scalar variable, or sequence of variables
        Loss to minimize, or the gradients with respect to `parameters`, such as those of
        `clip_by_norm` or of a `GradScaler`.
    parameters : Layer, mapping of str to shared variable, or sequence of shared variables
        What to train.
    learning_rate : number, scalar variable, or schedule
        Learning rate. A schedule is a function of the number of earlier steps; see `linear`.
    momentum : float
        Decay of the velocity, from 0 to 1.
    nesterov : bool
        Whether to use Nesterov's momentum.
    weight_decay : float
        Non-negative factor of the penalty of large parameters.
    name : str
        What the names of the states begin with, to tell optimizers apart whose updates are joined.

    Returns
    -------
    Updates
        Updates for `pytensor.function`. Their state can be stored.

    Raises
    ------
    DnnTypeError
        If an argument has the wrong type.
    DnnValueError
        If a number is out of bounds, a parameter is given twice, the loss does not depend on one,
        or the number of gradients is wrong.

    Notes
    -----
    The step is that of ``torch.optim.SGD`` without dampening.

    Examples
    --------
    >>> updates = sgd(loss, net, cosine(0.1, steps=1000), momentum=0.9)
    >>> train = pytensor.function([x, y], loss, updates=updates | net.updates())
    """
    where = "sgd"
    decay = number(where, "momentum", momentum, 0.0, 1.0)
    penalty = number(where, "weight_decay", weight_decay, 0.0)
    if switch(where, "nesterov", nesterov) and not decay:
        raise DnnValueError(f"{where}: nesterov needs a momentum")
    step = Step(where, loss, parameters, learning_rate, name)
    for (key, p), g in zip(step.parameters.items(), step.gradients, strict=True):
        g = _penalized(step, p, g, penalty)
        if decay:
            velocity = step.slot("momentum", key)
            new = step.number(decay, p) * velocity + g
            step.set(velocity, new)
            g = g + step.number(decay, p) * new if nesterov else new
        step.set(p, step.wide(p) - step.number(step.rate, p) * g)
    return step.updates


def _penalized(step: Step, p: Any, g: Any, penalty: float) -> Any:
    return g + step.number(penalty, p) * step.wide(p) if penalty else g


def adam(
    loss: Any,
    parameters: Any,
    learning_rate: Rate = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    *,
    name: str = "",
) -> Updates:
    """Adam, with bias correction.

    Parameters
    ----------
    loss, parameters, learning_rate
        See `sgd`.
    betas : tuple of two floats
        Decays of the averages of gradients and of their squares, each less than 1.
    eps : float
        Non-negative number added to the root of the average square.
    weight_decay, name
        See `sgd`.

    Returns
    -------
    Updates

    Raises
    ------
    DnnTypeError, DnnValueError
        As for `sgd`.

    Notes
    -----
    The step is that of ``torch.optim.Adam``.

    References
    ----------
    Kingma and Ba, Adam: A Method for Stochastic Optimization (2015).
    """
    return _adam("adam", loss, parameters, learning_rate, betas, eps, weight_decay, False, name)


def adamw(
    loss: Any,
    parameters: Any,
    learning_rate: Rate = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 1e-2,
    *,
    name: str = "",
) -> Updates:
    """Adam with decoupled weight decay: ``p -= learning_rate * weight_decay * p`` in each step.

    See `adam` for the arguments.

    Notes
    -----
    The step is that of ``torch.optim.AdamW``.

    References
    ----------
    Loshchilov and Hutter, Decoupled Weight Decay Regularization (2019).
    """
    return _adam("adamw", loss, parameters, learning_rate, betas, eps, weight_decay, True, name)


def _adam(
    where: str,
    loss: Any,
    parameters: Any,
    learning_rate: Any,
    betas: Any,
    eps: float,
    weight_decay: float,
    decoupled: bool,
    name: str,
) -> Updates:
    try:
        first, second = betas
    except (TypeError, ValueError) as error:
        raise DnnValueError(f"{where}: betas must be two numbers, got {betas!r}") from error
    b1, b2 = (_decay(where, "betas", beta) for beta in (first, second))
    least = number(where, "eps", eps, 0.0)
    penalty = number(where, "weight_decay", weight_decay, 0.0)
    step = Step(where, loss, parameters, learning_rate, name)
    n = step.count() + 1
    # As scalars on the host, once for all parameters.
    size = step.rate / (1 - b1**n)
    correction = 1 / pt.sqrt(1 - b2**n)
    for (key, p), g in zip(step.parameters.items(), step.gradients, strict=True):
        mean, square = step.slot("mean", key), step.slot("square", key)
        if not decoupled:
            g = _penalized(step, p, g, penalty)
        new_mean = step.number(b1, p) * mean + step.number(1 - b1, p) * g
        new_square = step.number(b2, p) * square + step.number(1 - b2, p) * pt.sqr(g)
        root = pt.sqrt(new_square) * step.number(correction, p) + step.number(least, p)
        kept = step.wide(p)
        if decoupled and penalty:
            kept = kept * step.number(1 - step.rate * penalty, p)
        step.set(mean, new_mean)
        step.set(square, new_square)
        step.set(p, kept - step.number(size, p) * new_mean / root)
    return step.updates


def _decay(where: str, name: str, value: Any) -> float:
    found = number(where, name, value, 0.0, 1.0)
    if found == 1.0:
        raise DnnValueError(f"{where}: {name} must be less than 1, got {value}")
    return found


def rmsprop(
    loss: Any,
    parameters: Any,
    learning_rate: Rate = 1e-2,
    alpha: float = 0.99,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    momentum: float = 0.0,
    centered: bool = False,
    *,
    name: str = "",
) -> Updates:
    """Normalize each gradient: divide it by the root of the average of its squares.

    Parameters
    ----------
    loss, parameters, learning_rate, weight_decay, name
        See `sgd`.
    alpha : float
        Decay of the averages, less than 1.
    eps : float
        Non-negative number added to the root.
    momentum : float
        Decay of the velocity; see `sgd`.
    centered : bool
        Whether to divide by the standard deviation of the gradients instead.

    Returns
    -------
    Updates

    Raises
    ------
    DnnTypeError, DnnValueError
        As for `sgd`.

    Notes
    -----
    The step is that of ``torch.optim.RMSprop``.

    References
    ----------
    Tieleman and Hinton, Lecture 6.5 of Neural Networks for Machine Learning (2012); Graves,
    Generating Sequences with Recurrent Neural Networks (2013), for `centered`.
    """
    where = "rmsprop"
    a, least = _decay(where, "alpha", alpha), number(where, "eps", eps, 0.0)
    penalty = number(where, "weight_decay", weight_decay, 0.0)
    decay = number(where, "momentum", momentum, 0.0, 1.0)
    centered = switch(where, "centered", centered)
    step = Step(where, loss, parameters, learning_rate, name)
    for (key, p), g in zip(step.parameters.items(), step.gradients, strict=True):
        g = _penalized(step, p, g, penalty)
        square = step.slot("square", key)
        new_square = step.number(a, p) * square + step.number(1 - a, p) * pt.sqr(g)
        step.set(square, new_square)
        variance = new_square
        if centered:
            mean = step.slot("mean", key)
            new_mean = step.number(a, p) * mean + step.number(1 - a, p) * g
            step.set(mean, new_mean)
            # Both are averages of rounded numbers, so the difference can be negative.
            variance = pt.maximum(new_square - pt.sqr(new_mean), step.number(0, p))
        change = g / (pt.sqrt(variance) + step.number(least, p))
        if decay:
            velocity = step.slot("momentum", key)
            change = step.number(decay, p) * velocity + change
            step.set(velocity, change)
        step.set(p, step.wide(p) - step.number(step.rate, p) * change)
    return step.updates
