"""Reductions on cuDNN: sums, products, means, extrema and norms, over any axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytensor.tensor as pt
from pytensor.gradient import disconnected_type
from pytensor.graph.basic import Apply

import dnnops.gpu.kernels  # noqa: F401 - registers what C code calls
from dnnops.arguments import shown
from dnnops.compat import shape_inference
from dnnops.dtypes import DTYPE_CODES, dtype_name
from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.gpu.base import device_operands, gradient_like
from dnnops.gpu.derivatives import GpuExpressionOp
from dnnops.gpuarray.type import GpuArrayType
from dnnops.nnet.expressions import is_connected
from dnnops.nnet.validate import is_int, switch

__all__ = ["REDUCTIONS", "GpuDnnReduction"]

#: Theano's names in the order of ``cudnnReduceTensorOp_t``.
REDUCTIONS = ("add", "mul", "minimum", "maximum", "absmax", "mean", "norm1", "norm2")
_OTHER_NAMES = {
    "sum": "add",
    "prod": "mul",
    "min": "minimum",
    "max": "maximum",
    "amax": "absmax",
    "avg": "mean",
}
_WITH_INDICES = ("minimum", "maximum")


class GpuDnnReduction(GpuExpressionOp):
    """Reduce an array over axes, called as ``GpuDnnReduction(red_op, axis, ...)(x)``.

    `x` is float16, float32 or float64, and is copied if it isn't contiguous. Minima and maxima are
    NaN if any element is NaN, and raise an error if there are no elements.

    Parameters
    ----------
    red_op : str
        'add' or 'sum', 'mul' or 'prod', 'mean' or 'avg', 'maximum' or 'max', 'minimum' or 'min',
        'absmax' or 'amax' (the largest absolute value), 'norm1' (the sum of absolute values) or
        'norm2' (the root of the sum of squares).
    axis : int, tuple of int, or None
        Axes to reduce; None reduces all axes.
    acc_dtype : str, optional
        Dtype to accumulate in. cuDNN uses float64 for float64, and float32 for other dtypes;
        float16 is accepted as another name for float32.
    dtype : str, optional
        Dtype of the result: the dtype of `x` (the default), or float32 if `x` is float16.
    return_indices : bool
        Whether to return the positions of minima or maxima as a second result. They are int64 and
        count in C order over the reduced axes. cuDNN doesn't specify which of several equal
        elements it takes.

    Raises
    ------
    DnnTypeError, DnnValueError
        If a parameter is invalid.

    Notes
    -----
    Rewrites that move reductions to the GPU use `dnnops.gpuarray.reduction` instead, which supports
    every dtype and accumulates in the dtype that the graph specifies.
    """

    __props__ = ("red_op", "axis", "acc_dtype", "dtype", "return_indices")
    function = "dnnops_cudnn_reduction"
    contiguous_only = True

    def __init__(
        self,
        red_op: str,
        axis: Any = None,
        acc_dtype: str | None = None,
        dtype: str | None = None,
        return_indices: bool = False,
    ):
        name = type(self).__name__
        self.red_op = _OTHER_NAMES.get(red_op, red_op) if isinstance(red_op, str) else ""
        if self.red_op not in REDUCTIONS:
            known = ", ".join((*REDUCTIONS, *_OTHER_NAMES))
            raise DnnValueError(f"{name}: red_op must be one of {known}, got {shown(red_op)}")
        if is_int(axis):
            axis = (axis,)
        if axis is not None:
            if not isinstance(axis, tuple | list) or not all(is_int(a) for a in axis):
                raise DnnTypeError(
                    f"{name}: axis must be None, an int or a tuple of ints, got {shown(axis)}"
                )
            axis = tuple(int(a) for a in axis)
        self.axis: tuple[int, ...] | None = axis
        self.acc_dtype = _dtype(name, "acc_dtype", acc_dtype)
        self.dtype = _dtype(name, "dtype", dtype)
        self.return_indices = switch(type(self).__name__, "return_indices", return_indices)
        if self.return_indices and self.red_op not in _WITH_INDICES:
            raise DnnValueError(
                f"{name}: return_indices=True requires minima or maxima, got red_op={red_op}"
            )

    def make_node(self, x: Any) -> Apply:
        name = type(self).__name__
        (x,) = device_operands(name, None, x=x)
        ndim, dtype = x.type.ndim, x.type.dtype
        if dtype == "bfloat16":
            raise DnnTypeError(f"{name}: cuDNN cannot reduce bfloat16 (cast x to float32)")
        if ndim > 8:
            raise DnnTypeError(
                f"{name}: cuDNN supports at most 8 dimensions, got {ndim} ({x.type})"
            )
        acc_dtype = "float64" if dtype == "float64" else "float32"
        if self.acc_dtype not in (None, acc_dtype, dtype):
            raise DnnTypeError(
                f"{name}: {dtype} is accumulated in {acc_dtype}, got acc_dtype={self.acc_dtype}"
            )
        if self.dtype not in (None, dtype, "float32" if dtype == "float16" else dtype):
            raise DnnTypeError(
                f"{name}: {dtype} cannot be reduced to dtype {self.dtype}; cast the result"
            )
        axes = _normalized(name, self.axis, ndim)
        # The C functions need the axes and the dtypes, so make them part of the Op.
        op = type(self)(self.red_op, axes, acc_dtype, self.dtype or dtype, self.return_indices)
        shape = tuple(n for i, n in enumerate(x.type.shape) if i not in axes)
        dtypes = (op.dtype, "int64")[: 1 + self.return_indices]
        return Apply(op, [x], [GpuArrayType(d, shape, x.type.device)() for d in dtypes])

    def parameters(self) -> list[int]:
        return [
            REDUCTIONS.index(self.red_op),
            sum(1 << axis for axis in self.axis or ()),
            DTYPE_CODES[self.dtype or "float32"],
            int(self.return_indices),
        ]

    @shape_inference
    def infer_shape(self, node: Apply, shapes: Any) -> list[Any]:
        axes = node.op.axis
        shape = tuple(n for i, n in enumerate(shapes[0]) if i not in axes)
        return [shape for _ in node.outputs]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        return [[True, False][: len(node.outputs)]]

    def pushforward(self, inputs: Any, outputs: Any, tangents: Any) -> list[Any]:
        # PyTensor has no pushforward for products, and for maxima only one for matrices. Each
        # element belongs to one result, so a result's tangent is the sum of tangents times the
        # gradient.
        (tangent,) = tangents
        moved: list[Any] = [disconnected_type() for _ in outputs]
        if is_connected(tangent):
            (slopes,) = self.pullback(inputs, outputs, [pt.ones_like(outputs[0]), *moved[1:]])
            products = pt.as_tensor_variable(slopes) * pt.as_tensor_variable(tangent)
            moved[0] = gradient_like(products.sum(axis=self.axis or ()), outputs[0])
        return moved

    def host_expressions(self, x: Any) -> list[Any]:
        value, *indices = self._expressions(x)
        if indices and self.axis:
            indices = [pt.argmax(x if self.red_op == "maximum" else -x, axis=self.axis)]
        return [value, *indices]

    def _expressions(self, x: Any) -> list[Any]:
        """Return the results as PyTensor expressions, from which the derivatives are taken."""
        axes = self.axis
        if not axes:
            value = abs(x) if self.red_op in ("absmax", "norm1", "norm2") else x
        else:
            value = _EXPRESSIONS[self.red_op](x, axes)
        value = pt.cast(value, self.dtype)
        return [value, pt.zeros_like(value, dtype="int64")][: 1 + self.return_indices]


_EXPRESSIONS: dict[str, Callable[[Any, tuple[int, ...]], Any]] = {
    "add": lambda x, axes: x.sum(axis=axes),
    "mul": lambda x, axes: x.prod(axis=axes),
    "minimum": lambda x, axes: x.min(axis=axes),
    "maximum": lambda x, axes: x.max(axis=axes),
    "absmax": lambda x, axes: abs(x).max(axis=axes),
    "mean": lambda x, axes: x.mean(axis=axes),
    "norm1": lambda x, axes: abs(x).sum(axis=axes),
    "norm2": lambda x, axes: pt.sqrt(pt.sqr(x).sum(axis=axes)),
}


def _dtype(where: str, name: str, value: Any) -> str | None:
    try:
        return None if value is None else dtype_name(value)
    except DnnTypeError as error:
        raise DnnTypeError(f"{where}: {name} must be a dtype or None: {error}") from None


def _normalized(where: str, axis: tuple[int, ...] | None, ndim: int) -> tuple[int, ...]:
    """Return the axes as non-negative numbers in ascending order."""
    if axis is None:
        return tuple(range(ndim))
    if not all(-ndim <= a < ndim for a in axis) or len({a % ndim for a in axis}) < len(axis):
        raise DnnValueError(
            f"{where}: axis={axis} does not fit an array of {ndim} dimensions; axes must exist and"
            " not be given twice"
        )
    return tuple(sorted(a % ndim for a in axis))
