"""Softmax, log-softmax and their gradients.

User graphs contain PyTensor's own `pytensor.tensor.special.Softmax` and `LogSoftmax`. Newer
releases of PyTensor expand them into arithmetic, which is fused with the surrounding operations. If
a library is to compute them, `WholeSoftmax` replaces them before that happens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytensor.tensor as pt
from numpy.exceptions import AxisError
from numpy.lib.array_utils import normalize_axis_tuple
from pytensor.gradient import DisconnectedType, disconnected_type
from pytensor.graph.basic import Apply
from pytensor.tensor.variable import TensorVariable

from dnnops.arguments import shown, switch
from dnnops.compat import shape_inference
from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.nnet.expressions import ExpandableOp
from dnnops.nnet.operands import float_operands
from dnnops.nnet.validate import (
    accumulator_dtype,
    check_broadcast,
    float_tensor,
    is_int,
    merge_shapes,
    require_same_dtype,
)

__all__ = [
    "LogSoftmaxGrad",
    "SoftmaxGrad",
    "WholeSoftmax",
    "log_softmax",
    "logsoftmax",
    "softmax",
    "softmax_graph",
    "softmax_with_bias",
]


class WholeSoftmax(ExpandableOp):
    """Softmax, or its logarithm, as one Op: ``WholeSoftmax(axis, log)(x)``.

    Parameters
    ----------
    axis : tuple of int
        Axes over which the softmax sums to one.
    log : bool
        Whether to return the logarithm.
    """

    __props__: tuple[str, ...] = ("axis", "log")

    def __init__(self, axis: tuple[int, ...], log: bool = False):
        self.axis = tuple(int(a) for a in axis)
        self.log = switch(type(self).__name__, "log", log)

    def make_node(self, x: Any) -> Apply:
        x = float_tensor(type(self).__name__, "x", x)
        return Apply(self, [x], [pt.tensor(dtype=x.type.dtype, shape=x.type.shape)])

    @shape_inference
    def infer_shape(self, node: Apply, shapes: Any) -> list[Any]:
        return [shapes[0]]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        gradient = LogSoftmaxGrad if self.log else SoftmaxGrad
        return [gradient(self.axis)(cotangents[0], outputs[0])]

    def pushforward(self, inputs: Any, outputs: Any, tangents: Any) -> list[Any]:
        (tangent,) = tangents
        if isinstance(tangent.type, DisconnectedType):
            return [disconnected_type()]
        if not self.log:  # its Jacobian is symmetric
            return self.pullback(inputs, outputs, tangents)
        weighted = pt.exp(outputs[0]) * tangent
        return [tangent - weighted.sum(axis=self.axis, keepdims=True)]

    def _expressions(self, x: Any) -> list[Any]:
        shifted = x - x.max(axis=self.axis, keepdims=True)
        total = pt.exp(shifted).sum(axis=self.axis, keepdims=True)
        return [shifted - pt.log(total) if self.log else pt.exp(shifted) / total]

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        (x,) = inputs
        exponents = x.astype(accumulator_dtype(x.dtype), copy=False)
        if not x.size:
            output_storage[0][0] = exponents.astype(x.dtype)
            return
        exponents = exponents - exponents.max(axis=self.axis, keepdims=True)
        # Sum the other terms separately from the largest, which is 1, to keep their digits.
        is_largest = exponents == 0
        terms = np.where(is_largest, 0, np.exp(exponents))
        rest = (is_largest.sum(axis=self.axis, keepdims=True) - 1).astype(terms.dtype)
        rest += terms.sum(axis=self.axis, keepdims=True)
        result = exponents - np.log1p(rest) if self.log else np.exp(exponents) / (1 + rest)
        output_storage[0][0] = np.asarray(result, dtype=x.dtype)


def _int_axes(where: str, axis: Any) -> tuple[int, ...]:
    axes: Any = (axis,) if is_int(axis) else axis
    if not isinstance(axes, (tuple, list)) or not all(is_int(a) for a in axes):
        raise DnnTypeError(
            f"{where}: axis must be None, an int or a tuple of ints, got {shown(axis)}"
        )
    return tuple(int(a) for a in axes)


def _checked_axes(where: str, axis: Any, ndim: int, name: str = "x") -> tuple[int, ...]:
    """Return `axis` as non-negative axes of an operand with `ndim` dimensions."""
    axes = _int_axes(where, axis)
    try:
        return normalize_axis_tuple(axes, ndim)
    except (AxisError, ValueError, OverflowError) as error:
        raise DnnValueError(
            f"{where}: axis {axis} does not fit {ndim} dimensions of {name}: {error}"
        ) from error


class SoftmaxGradBase(ExpandableOp):
    """Base class of the gradients of softmax and log-softmax.

    Parameters
    ----------
    axis : None, int or tuple of int
        Axes over which the softmax is taken; None for all.

    Raises
    ------
    DnnTypeError
        If `axis` has another type.
    """

    __props__ = ("axis",)
    #: Name of the second operand in error messages.
    output_name: str

    # Defined by subclasses: the two gradients, the tangent along the second operand (the Op is
    # linear in the first), and the NumPy implementation.
    _by_gz: Callable[[Any, Any], Any]
    _by_output: Callable[[Any, Any], Any]
    _tangent_by_output: Callable[[Any, Any], Any]
    _compute: Callable[[np.ndarray, np.ndarray], np.ndarray]

    def __init__(self, axis: int | tuple[int, ...] | None):
        self.axis = None if axis is None else _int_axes(type(self).__name__, axis)

    def make_node(self, gz: Any, output: Any) -> Apply:  # type: ignore[override]
        name = type(self).__name__
        gz = float_tensor(name, "gz", gz)
        output = float_tensor(name, self.output_name, output, gz.type.ndim)
        dtype = require_same_dtype(name, **{"gz": gz, self.output_name: output})
        if self.axis is not None:
            _checked_axes(name, self.axis, gz.type.ndim, "gz")
        shape = merge_shapes(name, **{"gz": gz.type.shape, self.output_name: output.type.shape})
        return Apply(self, [gz, output], [pt.tensor(dtype=dtype, shape=shape)])

    @shape_inference
    def infer_shape(self, node: Apply, shapes: Any) -> list[Any]:
        return [shapes[1]]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        return [[True], [True]]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        (g,) = cotangents
        return [self._by_gz(inputs, g), self._by_output(inputs, g)]

    def pushforward(self, inputs: Any, outputs: Any, tangents: Any) -> list[Any]:
        terms: list[Any] = []
        if not isinstance(tangents[0].type, DisconnectedType):
            terms.append(self(tangents[0], inputs[1]))
        if not isinstance(tangents[1].type, DisconnectedType):
            terms.append(self._tangent_by_output(inputs, tangents[1]))
        if not terms:
            return [disconnected_type()]
        return [terms[0] if len(terms) == 1 else terms[0] + terms[1]]

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        gz, output = inputs
        merge_shapes(type(self).__name__, **{"gz": gz.shape, self.output_name: output.shape})
        dtype = accumulator_dtype(gz.dtype)
        result = self._compute(gz.astype(dtype, copy=False), output.astype(dtype, copy=False))
        output_storage[0][0] = np.asarray(result, dtype=gz.dtype)

    def _sum(self, x: Any) -> Any:
        return x.sum(axis=self.axis, keepdims=True)


class SoftmaxGrad(SoftmaxGradBase):
    """Gradient of softmax: ``SoftmaxGrad(axis)(gz, sm)``.

    `gz` is the gradient with respect to the output `sm`; the result is
    ``sm * (gz - sum(gz * sm, axis))``. See `SoftmaxGradBase` for the parameters.
    """

    output_name = "sm"

    def _by_gz(self, inputs: Any, g: Any) -> Any:
        # The Jacobian of softmax is symmetric.
        return self(g, inputs[1])

    def _by_output(self, inputs: Any, g: Any) -> Any:
        gz, sm = inputs
        return g * (gz - self._sum(gz * sm)) - gz * self._sum(g * sm)

    def _tangent_by_output(self, inputs: Any, tangent: Any) -> Any:
        gz, sm = inputs
        return tangent * (gz - self._sum(gz * sm)) - sm * self._sum(gz * tangent)

    def _expressions(self, gz: Any, sm: Any) -> list[Any]:
        return [sm * (gz - self._sum(gz * sm))]

    def _compute(self, gz: np.ndarray, sm: np.ndarray) -> np.ndarray:
        return sm * (gz - self._sum(gz * sm))


class LogSoftmaxGrad(SoftmaxGradBase):
    """Gradient of log-softmax: ``LogSoftmaxGrad(axis)(gz, logsm)``.

    `gz` is the gradient with respect to the output `logsm`; the result is
    ``gz - exp(logsm) * sum(gz, axis)``. See `SoftmaxGradBase` for the parameters.
    """

    output_name = "logsm"

    def _by_gz(self, inputs: Any, g: Any) -> Any:
        return g - self._sum(g * pt.exp(inputs[1]))

    def _by_output(self, inputs: Any, g: Any) -> Any:
        gz, logsm = inputs
        return -g * pt.exp(logsm) * self._sum(gz)

    def _tangent_by_output(self, inputs: Any, tangent: Any) -> Any:
        # This Jacobian is diagonal: each element of `logsm` affects one element of the result.
        return self._by_output(inputs, tangent)

    def _expressions(self, gz: Any, logsm: Any) -> list[Any]:
        return [gz - pt.exp(logsm) * self._sum(gz)]

    def _compute(self, gz: np.ndarray, logsm: np.ndarray) -> np.ndarray:
        return gz - np.exp(logsm) * self._sum(gz)


def softmax(x: Any, axis: int | tuple[int, ...] | None = None) -> TensorVariable:
    """Compute the softmax ``exp(x) / sum(exp(x))`` along `axis`.

    Parameters
    ----------
    x : tensor_like
        A float16, float32 or float64 tensor.
    axis : int or tuple of int, optional
        Axes over which the result sums to one. Without it, `x` must be a matrix, whose rows then
        sum to one, or a vector, which is converted to a matrix with one row, as in Theano. A scalar
        counts as a vector of one entry, as in PyTorch: its softmax is 1.

    Returns
    -------
    TensorVariable
        Probabilities with the dtype and shape of `x`, or the shape (1, n) for a vector of n entries
        without `axis`.

    Raises
    ------
    DnnTypeError
        If the dtype is invalid, or if `axis` is neither an int nor a tuple of ints.
    DnnValueError
        If `axis` is out of range, or missing for an operand of more than two dimensions.

    Notes
    -----
    `pytensor.tensor.special.softmax` differs only in the default of `axis`, which is all axes.

    If all entries along `axis` are minus infinity, or one is infinity or NaN, the result is NaN, as
    in NumPy and PyTorch. Only on a GPU, cuDNN returns 0 if all entries are minus infinity.
    """
    return _along_axis(pt.special.softmax, "softmax", x, axis)


def log_softmax(x: Any, axis: int | tuple[int, ...] | None = None) -> TensorVariable:
    """Compute the logarithm of `softmax` accurately.

    See `softmax` for the parameters and errors. `logsoftmax` is an alias from Theano.
    """
    return _along_axis(pt.special.log_softmax, "log_softmax", x, axis)


logsoftmax = log_softmax


def softmax_graph(c: Any) -> TensorVariable:
    """Return the expression ``exp(c) / sum(exp(c))`` of a softmax along the last axis.

    Parameters
    ----------
    c : tensor_like
        A float16, float32 or float64 tensor.

    Returns
    -------
    TensorVariable

    Raises
    ------
    DnnTypeError
        If the dtype is invalid.
    """
    exponentials = pt.exp(float_tensor("softmax_graph", "c", c))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def softmax_with_bias(x: Any, b: Any) -> TensorVariable:
    """Compute ``softmax(x + b)`` of the rows of a matrix.

    Parameters
    ----------
    x : tensor_like, (rows, classes)
        Scores.
    b : tensor_like, (classes,)
        Bias added to each row.

    Returns
    -------
    TensorVariable, (rows, classes)

    Raises
    ------
    DnnTypeError
        If a rank or dtype is invalid.
    """
    where = "softmax_with_bias"
    x, b = float_operands(where, {"x": x, "b": b}, {"x": 2, "b": 1})
    check_broadcast(where, x=x, b=b)
    return softmax(x + b)


def _along_axis(function: Callable[..., Any], where: str, x: Any, axis: Any) -> TensorVariable:
    x = float_tensor(where, "x", x)
    if x.type.ndim == 0:
        if axis is not None:
            _checked_axes(where, axis, 1)
        return function(x[None], axis=0)[0]
    if axis is not None:
        return function(x, axis=_checked_axes(where, axis, x.type.ndim))
    if x.type.ndim not in (1, 2):
        raise DnnValueError(
            f"{where}: axis must be given for an x of {x.type.ndim} dimensions; it is optional only"
            " for scalars, vectors and matrices"
        )
    return function(x[None, :] if x.type.ndim == 1 else x, axis=1)
