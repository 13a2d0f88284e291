"""Loss scaling for training in float16 with the flag ``dnn.mixed_precision``.

The smallest positive float16 number is 6e-8. Smaller gradients would be zero where they are stored
in 16 bits. A loss that is multiplied by a large number has larger gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.graph.type import HasDataType

from dnnops.arguments import is_int, number, switch
from dnnops.config import flag_value
from dnnops.errors import DnnTypeError, DnnValueError

__all__ = ["GradScaler"]

#: Bounds of the scale. Beyond them, the loss itself would no longer be accurate in float32.
MIN_SCALE, MAX_SCALE = 1.0, 2.0**32


class GradScaler:
    """Dynamic loss scaling, as in PyTorch's class of this name.

    ``grad`` computes gradients of the loss times a scale, and divides them by it. ``updates`` skips
    a step whose gradients are not all finite, and then halves the scale. After many finite steps in
    a row, it doubles the scale. The scale is a shared variable, so that no Python runs in a step.

    bfloat16 has the range of float32 and needs no scale.

    Parameters
    ----------
    init_scale : float
        First scale.
    growth_factor : float
        Factor of the scale after `growth_interval` finite steps in a row.
    backoff_factor : float
        Factor of the scale after a step that was skipped.
    growth_interval : int
        Number of finite steps in a row after which the scale grows.
    enabled : bool, optional
        Whether to scale at all. If not, ``grad`` is `pytensor.grad`, and ``updates`` returns its
        argument. Default: whether the flag ``dnn.mixed_precision`` is float16 now.

    Raises
    ------
    DnnTypeError, DnnValueError
        If an argument is invalid.

    Examples
    --------
    >>> scaler = dnnops.mixed_precision.GradScaler()
    >>> gradients = scaler.grad(loss, parameters)
    >>> updates = scaler.updates(sgd(parameters, gradients))
    >>> train = pytensor.function([x, y], loss, updates=updates)
    """

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool | None = None,
    ):
        where = type(self).__name__
        self.init_scale = number(where, "init_scale", init_scale, MIN_SCALE, MAX_SCALE)
        self.growth_factor = number(where, "growth_factor", growth_factor, 1.0)
        self.backoff_factor = number(where, "backoff_factor", backoff_factor, 0.0, 1.0)
        if not is_int(growth_interval) or growth_interval < 1:
            raise DnnValueError(
                f"{where}: growth_interval must be a positive int, got {growth_interval!r}"
            )
        self.growth_interval = int(growth_interval)
        if enabled is None:
            enabled = flag_value("dnn.mixed_precision") == "float16"
        self.enabled = switch(where, "enabled", enabled)
        # Vectors of one number, because scalars would stay on the host. The inverse has a variable
        # of its own: PyTensor would cancel a quotient of the scale by itself.
        self._scale = _state(self.init_scale, "loss_scale")
        self._inverse = _state(1 / self.init_scale, "inverse_loss_scale")
        self._finite_steps = _state(0.0, "finite_steps")
        self._scaled: list[Any] = []

    @property
    def scale(self) -> float:
        """Current scale; 1 if scaling is not enabled."""
        return float(self._scale.get_value()[0]) if self.enabled else 1.0

    def grad(self, loss: Variable, wrt: Any, **options: Any) -> Any:
        """Return the gradients of a loss; those in 16 bits are computed with the scale.

        Parameters
        ----------
        loss : Variable
            Scalar loss.
        wrt : Variable or sequence of Variable
            Variables to differentiate with respect to.
        **options
            Options of `pytensor.grad`, except ``known_grads``.

        Returns
        -------
        Variable or list of Variable
            Gradients without the scale; a list if `wrt` is a sequence.
        """
        if not self.enabled:
            return pytensor.grad(loss, wrt, **options)
        if "known_grads" in options:
            raise DnnValueError("GradScaler.grad: known_grads would not be scaled")
        scaled = pytensor.grad(loss * _number(self._scale, loss.type.dtype), wrt, **options)
        if not isinstance(scaled, Sequence):
            self._scaled.append(scaled)
            return self._unscaled(scaled)
        self._scaled += scaled
        return [self._unscaled(g) for g in scaled]

    def _unscaled(self, gradient: Any) -> Any:
        host = pt.as_tensor_variable(gradient)
        return host * _number(self._inverse, host.type.dtype)

    def updates(self, updates: Any) -> Any:
        """Return updates that skip steps with infinite gradients, and update the scale.

        Parameters
        ----------
        updates : dict or sequence of (SharedVariable, Variable)
            Updates of an optimizer, which may use the results of ``grad``. Updates that are to
            happen in each step, such as those of running averages, need not be among them. States
            of random number generators are updated in each step.

        Returns
        -------
        dict or list of (SharedVariable, Variable)
            A dict if `updates` is one.

        Raises
        ------
        DnnValueError
            If ``grad`` has not been called.
        """
        if not self.enabled:
            return updates
        if not self._scaled:
            raise DnnValueError("GradScaler.updates: call grad first, whose gradients are checked")
        pairs = list(updates.items() if isinstance(updates, dict) else updates)
        finite = self._are_finite()
        pairs = [(old, _chosen(finite, new, old)) for old, new in pairs]
        pairs += self._own_updates(finite)
        return dict(pairs) if isinstance(updates, dict) else pairs

    def _are_finite(self) -> Any:
        """Return whether all scaled gradients are finite, as a scalar."""
        # A sum of absolute values is one kernel for each gradient. It is not finite if a number is
        # not, and cannot overflow with gradients that 16 bits can express.
        sums = [
            abs(pt.as_tensor_variable(g)).sum(dtype="float32", acc_dtype="float32")
            for g in self._scaled
        ]
        total = pt.add(*sums) if len(sums) > 1 else sums[0]
        return pt.lt(total, np.float32(np.inf))

    def _own_updates(self, finite: Any) -> list[tuple[Any, Any]]:
        scale, steps = self._scale, self._finite_steps
        grows = pt.ge(pt.as_tensor_variable(steps) + np.float32(1), self.growth_interval)
        grown = pt.minimum(scale * np.float32(self.growth_factor), np.float32(MAX_SCALE))
        reduced = pt.maximum(scale * np.float32(self.backoff_factor), np.float32(MIN_SCALE))
        new = pt.switch(finite, pt.switch(grows, grown, scale), reduced)
        goes_on = pt.and_(finite, pt.invert(grows))
        return [
            (scale, new),
            (self._inverse, np.float32(1) / new),
            (steps, pt.switch(goes_on, steps + np.float32(1), np.float32(0))),
        ]


def _state(value: float, name: str) -> Any:
    return pytensor.shared(np.full(1, value, "float32"), name, shape=(1,))


def _number(state: Any, dtype: str) -> Any:
    """Return a vector of one number as a scalar."""
    return pt.as_tensor_variable(state).dimshuffle().astype(dtype)


def _chosen(finite: Any, new: Any, old: Any) -> Any:
    if not isinstance(old, Variable):
        raise DnnTypeError(f"GradScaler.updates: expected pairs of variables, got {old!r}")
    # A generator's state has no dtype.
    return pt.switch(finite, new, old) if isinstance(old.type, HasDataType) else new
