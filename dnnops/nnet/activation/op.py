"""Activations and their gradients: relu, clipped relu, tanh, sigmoid, elu and swish.

All of them are elementwise, support any number of dimensions and propagate NaN. The slopes of relu
at 0, and of clipped relu at 0 and at the ceiling, are defined as 0. The slope of elu at 0 is alpha.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import DisconnectedType, disconnected_type
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.tensor.variable import TensorVariable

from dnnops.compat import shape_inference
from dnnops.errors import DnnValueError
from dnnops.nnet.expressions import ExpandableOp, compared
from dnnops.nnet.operands import real_operands
from dnnops.nnet.validate import (
    accumulator_dtype,
    as_floating,
    check_broadcast,
    float_tensor,
    merge_shapes,
    number,
    one_of,
    require_same_dtype,
)

__all__ = [
    "ACTIVATION_MODES",
    "SWISH_BOUNDS",
    "Activation",
    "ActivationGrad",
    "clipped_relu",
    "elu",
    "relu",
    "sigmoid",
    "swish",
    "tanh",
]

#: Name of the coefficient of each mode, or None if the mode has none (then it must be 0).
ACTIVATION_MODES: dict[str, str | None] = {
    "relu": None,
    "clipped_relu": "ceiling",
    "tanh": None,
    "sigmoid": None,
    "elu": "alpha",
    "swish": "beta",
}

#: Limits of ``beta * x`` in the slope of swish, by dtype. Beyond them, the slope is 0 or 1, but its
#: formula would multiply 0 by infinity.
SWISH_BOUNDS = {"float16": 128.0, "float32": 128.0, "float64": 1024.0}


class ActivationBase(Op):
    """Base class of `Activation` and `ActivationGrad`.

    Parameters
    ----------
    mode : {'relu', 'clipped_relu', 'tanh', 'sigmoid', 'elu', 'swish'}
        Activation to compute.
    coef : float
        Ceiling of clipped relu, alpha of elu or beta of swish; 0 for the other modes.

    Raises
    ------
    DnnTypeError
        If `coef` is not a number.
    DnnValueError
        If `mode` is unknown, if `coef` is not finite, if the ceiling is not positive, or if `coef`
        is nonzero for a mode without a coefficient.
    """

    __props__: tuple[str, ...] = ("mode", "coef")

    def __init__(self, mode: str, coef: float = 0.0):
        name = type(self).__name__
        one_of(name, "mode", mode, ACTIVATION_MODES)
        self.mode = mode
        self.coef = _coefficient(name, "coef", mode, coef)

    @shape_inference
    def infer_shape(self, node: Apply, shapes: Any) -> list[Any]:
        return [shapes[0]]


def _coefficient(where: str, name: str, mode: str, value: Any) -> float:
    """Check a coefficient and return it as a float; `name` is the argument that holds it."""
    found = number(where, name, value)
    if mode == "clipped_relu" and found <= 0:
        raise DnnValueError(f"{where}: {name} must be positive, got {found}")
    if ACTIVATION_MODES[mode] is None and found:
        raise DnnValueError(f"{where}: {mode} has no coefficient, so coef must be 0, got {found}")
    return found


class Activation(ExpandableOp, ActivationBase):
    """Apply an activation: ``Activation(mode, coef)(x)``.

    See `ActivationBase` for the parameters.
    """

    expands_elementwise = True

    def make_node(self, x: Any) -> Apply:  # type: ignore[override]
        x = float_tensor(type(self).__name__, "x", x)
        return Apply(self, [x], [pt.tensor(dtype=x.type.dtype, shape=x.type.shape)])

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        return [ActivationGrad(self.mode, self.coef)(inputs[0], outputs[0], cotangents[0])]

    def pushforward(self, inputs: Any, outputs: Any, tangents: Any) -> list[Any]:
        if isinstance(tangents[0].type, DisconnectedType):
            return [disconnected_type()]
        return self.pullback(inputs, outputs, tangents)  # the Jacobian is diagonal

    def _expressions(self, x: Any) -> list[Any]:
        dtype = x.type.dtype
        x = pt.cast(x, accumulator_dtype(dtype))
        coef, zero = _constants(x, self.coef, 0)
        if self.mode == "relu":
            y = pt.switch(x <= zero, zero, x)
        elif self.mode == "clipped_relu":
            y = pt.switch(x <= zero, zero, pt.switch(x >= coef, coef, x))
        elif self.mode == "tanh":
            y = pt.tanh(x)
        elif self.mode == "sigmoid":
            y = pt.sigmoid(x)
        elif self.mode == "elu":
            y = pt.switch(x > zero, x, coef * pt.expm1(x))
        else:
            gate = pt.sigmoid(x if self.coef == 1 else coef * x)
            # The limit, where the product of 0 and infinity would be NaN.
            y = pt.switch(gate <= zero, zero, x * gate)
        return [pt.cast(y, dtype)]

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        (x,) = inputs
        wide = x.astype(accumulator_dtype(x.dtype), copy=False)
        coef = wide.dtype.type(self.coef)
        if self.mode == "relu":
            y = np.maximum(wide, 0)
        elif self.mode == "clipped_relu":
            y = np.clip(wide, 0, coef)
        elif self.mode == "tanh":
            y = np.tanh(wide)
        elif self.mode == "sigmoid":
            y = _sigmoid(wide)
        elif self.mode == "elu":
            y = np.where(wide > 0, wide, coef * np.expm1(np.minimum(wide, 0)))
        else:
            with np.errstate(over="ignore"):
                gate = _sigmoid(coef * wide)
            y = gate * np.where(gate == 0, np.sign(wide), wide)
        output_storage[0][0] = np.asarray(y, dtype=x.dtype)


class ActivationGrad(ExpandableOp, ActivationBase):
    """Compute the gradient of an activation: ``ActivationGrad(mode, coef)(x, y, gy)``.

    `gy` is the gradient with respect to the output `y`. The slope is computed from `y` for tanh
    and sigmoid, and from `x` for the other modes. See `ActivationBase` for the parameters.
    """

    expands_elementwise = True

    def make_node(self, x: Any, y: Any, gy: Any) -> Apply:  # type: ignore[override]
        name = type(self).__name__
        x = float_tensor(name, "x", x)
        operands = {
            "x": x,
            "y": float_tensor(name, "y", y, x.type.ndim),
            "gy": float_tensor(name, "gy", gy, x.type.ndim),
        }
        dtype = require_same_dtype(name, **operands)
        shape = merge_shapes(name, **{key: v.type.shape for key, v in operands.items()})
        return Apply(self, list(operands.values()), [pt.tensor(dtype=dtype, shape=shape)])

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        return [[True], [True], [True]]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        (x, y, gy), (g,) = inputs, cotangents
        return [self._by_x(x, gy, g), self._by_y(y, gy, g), self(x, y, g)]

    def pushforward(self, inputs: Any, outputs: Any, tangents: Any) -> list[Any]:
        # Each Jacobian is diagonal, so tangents are multiplied by the same factors as cotangents.
        x, y, gy = inputs
        makers = (
            lambda t: self._by_x(x, gy, t),
            lambda t: self._by_y(y, gy, t),
            lambda t: self(x, y, t),
        )
        terms = [
            make(tangent)
            for make, tangent in zip(makers, tangents, strict=True)
            if not isinstance(tangent.type, DisconnectedType)
        ]
        return [sum(terms[1:], terms[0]) if terms else disconnected_type()]

    def _by_x(self, x: Any, gy: Any, g: Any) -> Any:
        if self.mode == "elu":
            zero, alpha = _constants(x, 0, self.coef)
            return pt.switch(x > zero, zero, gy * g * alpha * pt.exp(pt.minimum(x, zero)))
        if self.mode != "swish":
            return pt.zeros_like(x)
        beta, one, two = _constants(x, self.coef, 1, 2)
        scaled = _scaled(x, self.coef)
        s, rest = Activation("sigmoid")(scaled), Activation("sigmoid")(-scaled)
        return gy * g * beta * s * rest * (two + scaled * (one - two * s))

    def _by_y(self, y: Any, gy: Any, g: Any) -> Any:
        one, two = _constants(y, 1, 2)
        if self.mode == "tanh":
            return -two * y * gy * g
        if self.mode == "sigmoid":
            return gy * g * (one - two * y)
        return pt.zeros_like(y)

    def _expressions(self, x: Any, y: Any, gy: Any) -> list[Any]:
        dtype = x.type.dtype
        x, y, gy = (pt.cast(v, accumulator_dtype(dtype)) for v in (x, y, gy))
        coef, zero, one = _constants(x, self.coef, 0, 1)
        if self.mode == "relu":
            gx = pt.switch(x <= zero, zero, gy)
        elif self.mode == "clipped_relu":
            gx = pt.switch((x <= zero) | (x >= coef), zero, gy)
        elif self.mode == "tanh":
            gx = gy * ((one - y) * (one + y))
        elif self.mode == "sigmoid":
            gx = gy * (y * (one - y))
        elif self.mode == "elu":
            # Not y + coef, which has lost the digits of a small slope.
            gx = pt.switch(x > zero, gy, gy * coef * pt.exp(pt.minimum(x, zero)))
        else:
            scaled = _scaled(x, self.coef)
            gx = gy * (pt.sigmoid(scaled) * (one + scaled * pt.sigmoid(-scaled)))
        return [pt.cast(gx, dtype)]

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        name = type(self).__name__
        merge_shapes(name, **{k: v.shape for k, v in zip(("x", "y", "gy"), inputs, strict=True)})
        dtype = inputs[0].dtype
        x, y, gy = (v.astype(accumulator_dtype(dtype), copy=False) for v in inputs)
        coef = x.dtype.type(self.coef)
        if self.mode == "relu":
            gx = np.where(x <= 0, 0, gy)
        elif self.mode == "clipped_relu":
            gx = np.where((x <= 0) | (x >= coef), 0, gy)
        elif self.mode == "tanh":
            gx = gy * ((1 - y) * (1 + y))
        elif self.mode == "sigmoid":
            gx = gy * y * (1 - y)
        elif self.mode == "elu":
            gx = gy * np.where(x > 0, 1, coef * np.exp(np.minimum(x, 0)))
        else:
            bound = SWISH_BOUNDS[x.dtype.name]
            with np.errstate(over="ignore"):
                scaled = np.clip(coef * x, -bound, bound)
            gx = gy * _sigmoid(scaled) * (1 + scaled * _sigmoid(-scaled))
        output_storage[0][0] = np.asarray(gx, dtype=dtype)


def _scaled(x: Any, coef: float) -> Any:
    """Return ``coef * x``, limited to where the slope of swish is neither 0 nor 1."""
    bound = SWISH_BOUNDS[x.type.dtype]
    factor, low, high = _constants(x, coef, -bound, bound)
    return pt.clip(factor * x, low, high)


def _constants(x: Any, *numbers: float) -> list[Any]:
    """Return constants with the dtype and rank of `x`, so that they fuse and don't widen it."""
    shape = (1,) * x.type.ndim
    return [pt.constant(np.full(shape, number, dtype=x.type.dtype)) for number in numbers]


def _sigmoid(x: np.ndarray) -> np.ndarray:
    """Compute the logistic function without overflow in the exponentials."""
    small = np.exp(-np.abs(x))
    return np.where(x < 0, small, 1) / (1 + small)


def _apply(where: str, mode: str, x: Any, coef: Any = 0.0) -> TensorVariable:
    x = as_floating(where, "x", x)
    op: Any = Activation(mode, _coefficient(where, ACTIVATION_MODES[mode] or "coef", mode, coef))
    return op(x)


def relu(x: Any, alpha: Any = 0) -> TensorVariable:
    """Apply the rectified linear unit: `x` where it is positive, ``alpha * x`` elsewhere.

    Parameters
    ----------
    x : tensor_like
        Input of any number of dimensions: float16, float32, float64 or integers, which are
        converted to float32 or float64.
    alpha : float or tensor_like
        Slope for negative `x`. A nonzero slope gives a leaky rectifier. A variable, which
        broadcasts against `x`, can be learned. Numbers, lists and integers get the dtype of `x`.

    Returns
    -------
    TensorVariable
        Result with the shape and dtype of `x`. If `alpha` is a variable or an array of floats, the
        shapes of `x` and `alpha` are broadcast and their dtypes promoted. The gradient at 0 is
        `alpha`.

    Raises
    ------
    DnnTypeError
        If an operand is not a real tensor.
    """
    if isinstance(alpha, (int, float, np.number)):
        alpha = number("relu", "alpha", alpha)
        if alpha == 0:
            return _apply("relu", "relu", x)
    operands = real_operands("relu", x=x, alpha=alpha)
    check_broadcast("relu", **operands)
    x, alpha = operands.values()
    return pt.switch(pt.gt(compared(x), 0), x, alpha * x)


def clipped_relu(x: Any, ceiling: float) -> TensorVariable:
    """Apply the rectified linear unit with an upper bound, ``min(max(x, 0), ceiling)``.

    Parameters
    ----------
    x : tensor_like
        Input, as for `relu`.
    ceiling : float
        Upper bound of the result; must be positive.

    Returns
    -------
    TensorVariable
        Result with the shape and dtype of `x`. The gradient at 0 and at the ceiling is 0.

    Raises
    ------
    DnnTypeError
        If `x` is not a real tensor or `ceiling` is not a number.
    DnnValueError
        If `ceiling` is not finite or not positive.
    """
    return _apply("clipped_relu", "clipped_relu", x, ceiling)


def tanh(x: Any) -> TensorVariable:
    """Apply the hyperbolic tangent.

    See `relu` for the type of `x` and the errors.
    """
    return _apply("tanh", "tanh", x)


def sigmoid(x: Any) -> TensorVariable:
    """Apply the logistic function, ``1 / (1 + exp(-x))``.

    See `relu` for the type of `x` and the errors.
    """
    return _apply("sigmoid", "sigmoid", x)


def elu(x: Any, alpha: float = 1.0) -> TensorVariable:
    """Apply the exponential linear unit: `x` if positive, else ``alpha * (exp(x) - 1)``.

    Parameters
    ----------
    x : tensor_like
        Input, as for `relu`.
    alpha : float
        Scale of the negative part. The result tends to ``-alpha`` as `x` tends to minus infinity.

    Returns
    -------
    TensorVariable
        Result with the shape and dtype of `x`. The gradient at 0 is `alpha`.

    Raises
    ------
    DnnTypeError
        If `x` is not a real tensor or `alpha` is not a number.
    DnnValueError
        If `alpha` is not finite.
    """
    return _apply("elu", "elu", x, alpha)


def swish(x: Any, beta: float = 1.0) -> TensorVariable:
    """Apply swish, ``x * sigmoid(beta * x)``, which is also called SiLU if `beta` is 1.

    Parameters
    ----------
    x : tensor_like
        Input, as for `relu`.
    beta : float
        Factor inside the sigmoid.

    Returns
    -------
    TensorVariable
        Result with the shape and dtype of `x`. At the infinity where the sigmoid is 0, it is the
        limit, 0; PyTorch's is NaN.

    Raises
    ------
    DnnTypeError
        If `x` is not a real tensor or `beta` is not a number.
    DnnValueError
        If `beta` is not finite.
    """
    return _apply("swish", "swish", x, beta)
