"""Reductions on the device: sums, products, extrema, logical reductions and argmax."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.graph.traversal import ancestors
from pytensor.scalar.basic import (
    AND,
    OR,
    XOR,
    Add,
    Cast,
    Composite,
    Mul,
    ScalarMaximum,
    ScalarMinimum,
    ScalarOp,
)
from pytensor.tensor.basic import cast as host_cast
from pytensor.tensor.elemwise import CAReduce

from dnnops.dtypes import DTYPES, FLOAT_DTYPES, compute_dtype
from dnnops.errors import DnnNotSupportedError, DnnValueError
from dnnops.gpuarray.column_reduction import ColumnReduction
from dnnops.gpuarray.layout import dense_order
from dnnops.gpuarray.op import MirrorOp
from dnnops.gpuarray.reduction_source import Arithmetic
from dnnops.gpuarray.row_reduction import RowReduction, split_axes
from dnnops.runtime.scalar_code import PREAMBLE, c_literal

if TYPE_CHECKING:
    from dnnops.gpuarray.prepared.call import PreparedCall

#: From this size on, reducing the last axes first and then the others is faster than one reduction.
MIN_TWO_STEPS_BYTES = 1 << 20


class _Reduction(NamedTuple):
    expression: str  # combines a and b
    identity: float | str  # "lowest" or "highest" of the dtype: empty input is then an error
    accumulates: bool  # whether a wider accumulator changes the result


_EXTREMUM = "((a != a || a {} b) ? a : b)"  # NaN wins, as in NumPy

_REDUCTIONS: dict[type[ScalarOp], _Reduction] = {
    Add: _Reduction("(a + b)", 0, True),
    Mul: _Reduction("(a * b)", 1, True),
    ScalarMaximum: _Reduction(_EXTREMUM.format(">"), "lowest", False),
    ScalarMinimum: _Reduction(_EXTREMUM.format("<"), "highest", False),
    AND: _Reduction("(a & b)", -1, False),
    OR: _Reduction("(a | b)", 0, False),
    XOR: _Reduction("(a ^ b)", 0, False),
}


def can_reduce(scalar_op: ScalarOp) -> bool:
    """Return whether :class:`GpuCAReduce` supports a scalar Op."""
    return type(scalar_op) in _REDUCTIONS


def taken_apart(op: CAReduce) -> tuple[ScalarOp, CAReduce] | None:
    """Split a `CAReduce` that PyTensor has fused with an elementwise operation.

    Return None if `op` isn't such a reduction.

    Parameters
    ----------
    op : CAReduce

    Returns
    -------
    elementwise : ScalarOp
        Elementwise operation with one operand.
    reduction : CAReduce
        Reduction by a scalar Op that `can_reduce` accepts.
    """
    if not isinstance(op.scalar_op, Composite):
        return None
    graph = op.scalar_op.fgraph
    new: dict[Variable, Any] = {x: x.type() for x in graph.inputs}
    for node in graph.toposort():
        made = node.op.make_node(*[new.get(x, x) for x in node.inputs])
        new.update(zip(node.outputs, made.outputs, strict=True))
    carried, *operands = (new[x] for x in graph.inputs)
    last = new[graph.outputs[0]].owner
    if isinstance(last.op, Cast) and last.inputs[0].owner is not None:
        last = last.inputs[0].owner
    if not can_reduce(last.op) or len(last.inputs) != 2 or last.inputs[0] is not carried:
        return None
    mapped = last.inputs[1]
    if mapped.owner is None or carried in ancestors([mapped]):
        return None
    alone = list(mapped.owner.inputs) == operands
    elementwise = mapped.owner.op if alone else Composite(operands, [mapped])
    return elementwise, CAReduce(
        last.op, op.axis, op.dtype, op.acc_dtype, op.upcast_discrete_output
    )


#: Functions applied to each element before the reduction: C++ expressions of `x`, which has the
#: type of the accumulator.
PREMAPS = {"abs": "(x < 0 ? -x : x + 0)", "sqr": "(x * x)"}


class GpuCAReduce(MirrorOp):
    """`CAReduce` on the device, with the accumulator dtype of the host Op.

    float16 and bfloat16 are accumulated in at least float32.

    Parameters
    ----------
    host_op : CAReduce
    premap : {'abs', 'sqr'}, optional
        Function applied to each floating-point element before the reduction: the absolute value
        or the square. The result isn't rounded to the dtype of the operand.

    Raises
    ------
    DnnValueError
        At run time, if a minimum or maximum is taken over no elements.
    """

    __props__ = ("host_op", "premap")

    def __init__(self, host_op: Op, premap: str | None = None):
        super().__init__(host_op)
        self.premap = premap

    def with_host_op(self, host_op: Op) -> GpuCAReduce:
        return GpuCAReduce(host_op, self.premap)

    def host_expressions(self, x: Any) -> list[Any]:
        """Apply the function before the reduction in at least float32."""
        if self.premap:
            x = host_cast(x, compute_dtype(x.type.dtype))
            x = abs(x) if self.premap == "abs" else x * x
        return super().host_expressions(x)

    def prepare(self, node: Apply, x: Any) -> PreparedCall | None:
        from dnnops.gpuarray.prepared.pending import Pending

        operand = Pending.of(x)
        found = reduce_array(operand, *self._arguments(node, x))
        return None if found is None else operand.call.call(found.result)

    def compute(self, node: Apply, x: Any) -> Any:
        return reduce_array(x, *self._arguments(node, x))

    def _arguments(self, node: Apply, x: Any) -> tuple[Any, ...]:
        """Return the arguments of `reduce_array` after the array."""
        host_op = self.host_op
        axes = host_op.axis
        axes = tuple(range(x.ndim)) if axes is None else tuple(axes)
        kept = [length for axis, length in enumerate(x.shape) if axis not in axes]
        identity = _REDUCTIONS[type(host_op.scalar_op)].identity
        if isinstance(identity, str) and x.size == 0 and 0 not in kept:
            raise DnnValueError(f"{self}: no elements to reduce; shape {x.shape}, axes {axes}")
        return (
            axes,
            host_op.scalar_op,
            node.inputs[0].type.dtype,
            host_op.acc_dtype or node.outputs[0].type.dtype,
            node.outputs[0].type.dtype,
            self.premap,
        )

    def __str__(self) -> str:
        premap = f"{self.premap}, " if self.premap else ""
        return f"GpuCAReduce{{{premap}{self.host_op}}}"


@functools.lru_cache(maxsize=256)
def reduction_kernel(
    scalar_op: ScalarOp, in_dtype: str, acc_dtype: str, out_dtype: str, premap: str | None = None
) -> Any:
    """Return the CuPy kernel of a reduction.

    Parameters
    ----------
    scalar_op : ScalarOp
        Scalar Op that :func:`can_reduce` accepts.
    in_dtype, acc_dtype, out_dtype : str
        Dtypes of the operand, the accumulator and the result.
    premap : str, optional
        One of `PREMAPS`.

    Returns
    -------
    cupy.ReductionKernel

    Raises
    ------
    DnnNotSupportedError
        If reductions by the scalar Op are not supported.
    """
    import cupy

    reduction = _reduction(scalar_op)
    accumulator = DTYPES[acc_dtype if reduction.accumulates else in_dtype].c_type
    # Don't use the names in0 and out0: CuPy 14.2 assumes that the types of operands with these
    # names are declared, as in its own reductions, and its code for large arrays wouldn't compile.
    return cupy.ReductionKernel(
        f"{in_dtype} operand",
        f"{out_dtype} result",
        f"dnnops_premap(({accumulator})({DTYPES[in_dtype].c_type})operand)",
        reduction.expression,
        f"result = ({DTYPES[out_dtype].c_type})a",
        _identity(reduction, in_dtype, acc_dtype),
        name="dnnops_reduction",
        reduce_type=accumulator,
        preamble=f"{PREAMBLE}\n{_premap(premap, accumulator)}",
    )


@functools.lru_cache(maxsize=256)
def row_reduction(*words: Any) -> RowReduction:
    """Return the faster kernels for rows; see :func:`reduction_kernel` for the parameters."""
    return RowReduction(_arithmetic(*words))


@functools.lru_cache(maxsize=256)
def column_reduction(*words: Any) -> ColumnReduction:
    """Return the faster kernels for columns; see :func:`reduction_kernel` for the parameters."""
    return ColumnReduction(_arithmetic(*words))


def _arithmetic(
    scalar_op: ScalarOp, in_dtype: str, acc_dtype: str, out_dtype: str, premap: str | None = None
) -> Arithmetic:
    reduction = _reduction(scalar_op)
    return Arithmetic(
        in_dtype,
        out_dtype,
        DTYPES[acc_dtype if reduction.accumulates else in_dtype].c_type,
        _identity(reduction, in_dtype, acc_dtype),
        PREMAPS[premap] if premap else "x",
        reduction.expression,
    )


def reduce_array(x: Any, axes: tuple[int, ...], *words: Any) -> Any:
    """Reduce an array, with the fastest kernels for its memory layout.

    Parameters
    ----------
    x : cupy.ndarray or Pending
        Device array, or array of a prepared call, to which the launches are added.
    axes : tuple of int
        Axes to reduce.
    *words
        Arguments of :func:`reduction_kernel`.

    Returns
    -------
    cupy.ndarray or Pending or None
        The axes have the same order in memory as those of `x`, if it has no gaps. None if an array
        of a call would be reduced by a kernel of CuPy.
    """
    order = dense_order(x)
    if order is None:
        return _reduce_in_order(x, axes, *words)
    places = tuple(place for place, axis in enumerate(order) if axis in axes)
    result = _reduce_in_order(x.transpose(order), places, *words)
    kept = [axis for axis in order if axis not in axes]
    if result is None or kept == sorted(kept):
        return result
    return result.transpose([kept.index(axis) for axis in sorted(kept)])


def _reduce_in_order(x: Any, axes: tuple[int, ...], *words: Any) -> Any:
    result = row_reduction(*words)(x, axes)
    if result is None:
        result = column_reduction(*words)(x, axes)
    if result is None:
        result = _in_two_steps(x, axes, *words)
    if result is None and not hasattr(x, "call"):
        result = reduction_kernel(*words)(x, axis=axes)
    return result


def _in_two_steps(
    x: Any,
    axes: tuple[int, ...],
    scalar_op: ScalarOp,
    in_dtype: str,
    acc_dtype: str,
    out_dtype: str,
    premap: str | None,
) -> Any:
    """Reduce the last axes as rows, then the other axes; return None if that isn't possible."""
    inner, outer = split_axes(x.shape, axes)
    if not inner or not outer or x.nbytes < MIN_TWO_STEPS_BYTES:
        return None
    between = compute_dtype(acc_dtype) if _reduction(scalar_op).accumulates else in_dtype
    rows = row_reduction(scalar_op, in_dtype, acc_dtype, between, premap)(x, inner)
    if rows is None:
        return None
    places = [axis for axis in range(x.ndim) if axis not in inner]
    left = tuple(place for place, axis in enumerate(places) if axis in outer)
    return _reduce_in_order(rows, left, scalar_op, between, acc_dtype, out_dtype, None)


def _reduction(scalar_op: ScalarOp) -> _Reduction:
    reduction = _REDUCTIONS.get(type(scalar_op))
    if reduction is None:
        raise DnnNotSupportedError(f"the GPU doesn't support reductions by {scalar_op}")
    return reduction


def _premap(premap: str | None, accumulator: str) -> str:
    expression = PREMAPS[premap] if premap else "x"
    return (
        f"static __device__ {accumulator} dnnops_premap({accumulator} x) {{ return {expression}; }}"
    )


def _identity(reduction: _Reduction, in_dtype: str, acc_dtype: str) -> str:
    if reduction.accumulates:
        return c_literal(reduction.identity, acc_dtype)
    if not isinstance(reduction.identity, str):
        all_ones = reduction.identity == -1
        if in_dtype == "bool":
            return "true" if all_ones else "false"
        return f"(({DTYPES[in_dtype].c_type})~0ULL)" if all_ones else "0"
    if in_dtype == "bool":
        return "false" if reduction.identity == "lowest" else "true"
    if in_dtype in FLOAT_DTYPES:
        return c_literal(-np.inf if reduction.identity == "lowest" else np.inf, in_dtype)
    limits = np.iinfo(in_dtype)
    return c_literal(limits.min if reduction.identity == "lowest" else limits.max, in_dtype)


class GpuArgmax(MirrorOp):
    """`Argmax` on the device: int64 indices of the first maximum in C order."""

    def compute(self, node: Apply, x: Any) -> Any:
        axes = self.host_op.axis
        axes = tuple(range(x.ndim)) if axes is None else tuple(axes)
        kept = tuple(axis for axis in range(x.ndim) if axis not in axes)
        if x.dtype == "bfloat16":
            x = x.astype("float32", order="K")
        if len(axes) != 1:
            x = x.transpose(kept + axes)
            x = x.reshape(*x.shape[: len(kept)], -1)
            axes = (x.ndim - 1,)
        return x.argmax(axis=axes[0])

    def __str__(self) -> str:
        return f"GpuArgmax{{{self.host_op.axis}}}"
