"""Initial values of parameters, with PyTorch's distributions.

An initializer is a function of a random generator and a shape. The first axis of a shape counts
outputs, the second inputs, and the others are those of a filter.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod, sqrt
from typing import Any

import numpy as np

from dnnops.arguments import is_int, shown
from dnnops.errors import DnnTypeError, DnnValueError

__all__ = [
    "Initializer",
    "constant",
    "generator",
    "glorot_normal",
    "glorot_uniform",
    "he_normal",
    "he_uniform",
    "normal",
    "orthogonal",
    "seed",
    "uniform",
]

Initializer = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]

_generator = np.random.default_rng()


def seed(value: int) -> None:
    """Seed the generator of all layers that are not given one, existing ones included.

    Parameters
    ----------
    value : int
        Non-negative seed.

    Raises
    ------
    DnnTypeError
        If `value` is not an int.
    DnnValueError
        If `value` is negative.
    """
    if not is_int(value):
        raise DnnTypeError(f"seed: value must be an int, got {shown(value)}")
    if value < 0:
        raise DnnValueError(f"seed: value must not be negative, got {value}")
    _generator.bit_generator.state = np.random.default_rng(value).bit_generator.state


def generator(rng: Any = None) -> np.random.Generator:
    """Return `rng`, or the generator of all layers; an int is the seed of a new one.

    Parameters
    ----------
    rng : numpy.random.Generator or int, optional
        A generator, or a non-negative seed.

    Returns
    -------
    numpy.random.Generator

    Raises
    ------
    DnnTypeError
        If `rng` is anything else.
    """
    if rng is None:
        return _generator
    if isinstance(rng, np.random.Generator):
        return rng
    if is_int(rng) and rng >= 0:
        return np.random.default_rng(rng)
    raise DnnTypeError(
        f"rng must be a numpy.random.Generator or a non-negative seed, got {shown(rng)}"
    )


def _fans(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the numbers of inputs and outputs that an element of the result depends on."""
    if len(shape) < 2:
        raise DnnValueError(f"this initializer needs two or more dimensions, got shape {shape}")
    area = prod(shape[2:])
    return shape[1] * area, shape[0] * area


def constant(value: float) -> Initializer:
    """Fill with a number.

    Parameters
    ----------
    value : float
        The value of all elements.

    Returns
    -------
    callable
        Function of a `numpy.random.Generator` and a shape that returns a float64 array.
    """
    return lambda rng, shape: np.full(shape, value, dtype="float64")


def uniform(bound: float) -> Initializer:
    """Draw from the uniform distribution between ``-bound`` and ``bound``.

    Parameters
    ----------
    bound : float
        Largest magnitude of an element.

    Returns
    -------
    callable
        Function of a `numpy.random.Generator` and a shape that returns a float64 array.
    """
    return lambda rng, shape: rng.uniform(-bound, bound, shape)


def normal(std: float = 1.0) -> Initializer:
    """Draw from the normal distribution with mean 0.

    Parameters
    ----------
    std : float
        Standard deviation.

    Returns
    -------
    callable
        Function of a `numpy.random.Generator` and a shape that returns a float64 array.
    """
    return lambda rng, shape: std * rng.standard_normal(shape)


def _he_std(shape: tuple[int, ...], negative_slope: float) -> float:
    return sqrt(2 / (1 + negative_slope**2) / _fans(shape)[0])


def he_normal(negative_slope: float = 0.0) -> Initializer:
    """Draw from He's normal distribution, for layers before relu.

    Parameters
    ----------
    negative_slope : float
        Slope of a leaky relu for negative elements.

    Returns
    -------
    callable
        Function of a `numpy.random.Generator` and a shape that returns a float64 array.

    Raises
    ------
    DnnValueError
        When the initializer is called, if the shape has fewer than two axes.

    References
    ----------
    He, Zhang, Ren and Sun, Delving Deep into Rectifiers (2015); ``kaiming_normal_`` in PyTorch.
    """
    return lambda rng, shape: _he_std(shape, negative_slope) * rng.standard_normal(shape)


def he_uniform(negative_slope: float = 0.0) -> Initializer:
    """Draw from He's uniform distribution; see `he_normal`.

    With a slope of ``sqrt(5)``, the bounds are ``1 / sqrt(inputs)``, the default of PyTorch's
    linear layers and convolutions.
    """
    return lambda rng, shape: uniform(sqrt(3) * _he_std(shape, negative_slope))(rng, shape)


def _glorot_std(shape: tuple[int, ...], gain: float) -> float:
    return gain * sqrt(2 / sum(_fans(shape)))


def glorot_normal(gain: float = 1.0) -> Initializer:
    """Draw from Glorot's normal distribution.

    Its standard deviation is ``gain * sqrt(2 / (inputs + outputs))``.

    Parameters
    ----------
    gain : float
        Factor of all elements, such as 5/3 for layers before tanh.

    Returns
    -------
    callable
        Function of a `numpy.random.Generator` and a shape that returns a float64 array.

    Raises
    ------
    DnnValueError
        When the initializer is called, if the shape has fewer than two axes.

    References
    ----------
    Glorot and Bengio, Understanding the Difficulty of Training Deep Feedforward Neural Networks
    (2010); ``xavier_normal_`` in PyTorch.
    """
    return lambda rng, shape: _glorot_std(shape, gain) * rng.standard_normal(shape)


def glorot_uniform(gain: float = 1.0) -> Initializer:
    """Draw from Glorot's uniform distribution; see `glorot_normal`."""
    return lambda rng, shape: uniform(sqrt(3) * _glorot_std(shape, gain))(rng, shape)


def orthogonal(gain: float = 1.0) -> Initializer:
    """Draw a random matrix with orthogonal rows or columns, whichever are fewer.

    All axes but the first count as one.

    Parameters
    ----------
    gain : float
        Factor of all elements.

    Returns
    -------
    callable
        Function of a `numpy.random.Generator` and a shape that returns a float64 array.

    Raises
    ------
    DnnValueError
        When the initializer is called, if the shape has fewer than two axes.

    References
    ----------
    Saxe, McClelland and Ganguli, Exact Solutions to the Nonlinear Dynamics of Learning in Deep
    Linear Neural Networks (2013); ``orthogonal_`` in PyTorch.
    """

    def draw(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        _fans(shape)
        rows, columns = shape[0], prod(shape[1:])
        q, r = np.linalg.qr(rng.standard_normal((max(rows, columns), min(rows, columns))))
        q = q * np.sign(np.diag(r))  # makes the distribution uniform
        return gain * (q if rows >= columns else q.T).reshape(shape)

    return draw
