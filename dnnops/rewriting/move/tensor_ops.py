"""Lifters of PyTensor's tensor Ops."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.raise_op import CheckAndRaise
from pytensor.scalar.basic import Add, Cast, Composite, Mul, add, get_scalar_type, mul
from pytensor.tensor import as_tensor_variable, blas
from pytensor.tensor import constant as pt_constant
from pytensor.tensor import subtensor as indexing
from pytensor.tensor.basic import Alloc, AllocEmpty, ARange, Join, Split, switch
from pytensor.tensor.blas import BatchedDot, Dot22, Dot22Scalar, Gemm, Gemv
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.math import Argmax, Dot, Prod, ProdWithoutZeros, eq
from pytensor.tensor.shape import Reshape, Shape, Shape_i, SpecifyShape
from pytensor.tensor.subtensor import (
    AdvancedIncSubtensor,
    AdvancedSubtensor,
    IncSubtensor,
    Subtensor,
    unflatten_index_variables,
)
from pytensor.tensor.type import TensorType

from dnnops.compat import existing, inferred_shapes
from dnnops.dtypes import DTYPES, FLOAT_DTYPES
from dnnops.gpuarray.basic import (
    GpuAlloc,
    GpuAllocEmpty,
    GpuARange,
    GpuDimShuffle,
    GpuJoin,
    GpuReshape,
    GpuSpecifyShape,
    GpuSplit,
    first_joined,
)
from dnnops.gpuarray.elemwise import GpuElemwise
from dnnops.gpuarray.op import MirrorOp, depends_on_values, is_on_device
from dnnops.gpuarray.products.blas import GpuBatchedDot, GpuDot, GpuGemm, GpuGemv, GpuGer
from dnnops.gpuarray.reduction import GpuArgmax, GpuCAReduce, can_reduce, taken_apart
from dnnops.gpuarray.subtensor import (
    GpuAdvancedIncSubtensor,
    GpuAdvancedSubtensor,
    GpuIncSubtensor,
    GpuSubtensor,
)
from dnnops.gpuarray.transfer import GpuCast
from dnnops.gpuarray.windows.op import GpuSetWindow, GpuWindow
from dnnops.rewriting.move.lifting import (
    LiftContext,
    LiftFunction,
    register_expansion,
    register_lifter,
)
from dnnops.rewriting.move.masks import masked_change
from dnnops.rewriting.move.rolls import lift_rolled_join, lift_rolled_parts
from dnnops.rewriting.move.windows import slices_first, windows_of

# A matrix product with at least this many multiplications is worth the transfer of both operands.
_HEAVY_PRODUCT = 2**24


def _always(node: Apply) -> bool:
    return True


def _every_input(node: Apply) -> range:
    return range(len(node.inputs))


def _mirror(op_class: type[MirrorOp]) -> LiftFunction:
    """Return a lifter that wraps the node's Op and changes nothing else."""

    def lift(node: Apply, inputs: list[Any], context: LiftContext) -> Sequence[Variable]:
        return op_class(node.op).make_node(*inputs).outputs

    return lift


register_lifter(DimShuffle, operands=(0,), pulled=True)(_mirror(GpuDimShuffle))
register_lifter(Reshape, operands=(0,), pulled=True)(_mirror(GpuReshape))
register_lifter(SpecifyShape, operands=(0,), pulled=True)(_mirror(GpuSpecifyShape))
register_lifter(Split, operands=(0,))(_mirror(GpuSplit))
register_lifter(Argmax, operands=(0,))(_mirror(GpuArgmax))


@register_lifter(Join, operands=lambda node: range(first_joined(node.op), len(node.inputs)))
def lift_join(node: Apply, inputs: list[Any], context: LiftContext) -> Sequence[Variable]:
    """Lift Join, but take both parts of an array that is rolled by a changing number at once."""
    rolled = lift_rolled_join(node, inputs)
    return GpuJoin(node.op).make_node(*inputs).outputs if rolled is None else rolled


def _is_scalar(x: Any) -> bool:
    """Return whether a host variable has one element according to its type."""
    return isinstance(x.type, TensorType) and all(x.type.broadcastable)


def _as_host_scalar(x: Any) -> Any:
    """Return a one-element host variable as a scalar."""
    while x.owner is not None and isinstance(x.owner.op, DimShuffle):
        x = x.owner.inputs[0]
    if isinstance(x, Constant):
        return as_tensor_variable(np.asarray(x.data).reshape(()))
    return x.dimshuffle() if x.type.ndim else x


def _scalar_or_device(x: Any, context: LiftContext, device: int) -> Any:
    if not is_on_device(x) and _is_scalar(x):
        return _as_host_scalar(x)
    return context.to_device(x, device)


def _device_of(values: Sequence[Any], context: LiftContext) -> int:
    return next((x.type.device for x in values if is_on_device(x)), context.device)


def _without_cast(x: Any) -> Any:
    """Return the bfloat16 array below a cast to float32, since kernels can load it directly."""
    node = x.owner
    if node is not None and isinstance(node.op, GpuCast) and node.op.dtype == "float32":
        (original,) = node.inputs
        if original.type.dtype == "bfloat16":
            return original
    return x


@register_lifter(Elemwise, operands=_every_input, pulled=True, convert=False)
def lift_elemwise(node: Apply, inputs: list[Any], context: LiftContext) -> list[Variable] | None:
    """Lift Elemwise; one-element host operands become kernel arguments."""
    if any(x.type.dtype not in DTYPES for x in inputs):
        return None
    device = _device_of(inputs, context)
    operands = [_without_cast(_scalar_or_device(x, context, device)) for x in inputs]
    if not any(map(is_on_device, operands)):
        return None
    return GpuElemwise(node.op.scalar_op).make_node(*operands).outputs


@register_lifter(CAReduce, operands=(0,))
def lift_reduction(node: Apply, inputs: list[Any], context: LiftContext) -> list[Variable] | None:
    """Lift a CAReduce whose scalar Op the device supports.

    If PyTensor has fused it with an elementwise operation, the two are split again.
    """
    parts = taken_apart(node.op)
    if parts is not None:
        elementwise, reduction = parts
        mapped = GpuElemwise(elementwise).make_node(*map(_without_cast, inputs)).outputs[0]
        return GpuCAReduce(reduction).make_node(mapped).outputs
    if not can_reduce(node.op.scalar_op):
        return None
    if node.op.dtype == "float32" and isinstance(node.op.scalar_op, Add | Mul):
        inputs = [_without_cast(x) for x in inputs]
    return GpuCAReduce(node.op).make_node(*inputs).outputs


# Products


def _heavy_product(*indices: int) -> Any:
    def heavy(node: Apply) -> bool:
        x, y = (node.inputs[i].type.shape for i in indices)
        lengths = (*x, *y[-1:])
        return None not in lengths and int(np.prod(lengths, dtype="int64")) >= _HEAVY_PRODUCT

    return heavy


def _all_float(node: Apply) -> bool:
    return all(x.type.dtype in FLOAT_DTYPES for x in node.inputs)


@register_lifter(Dot, Dot22, operands=(0, 1), heavy=_heavy_product(0, 1))
def lift_dot(node: Apply, inputs: list[Any], context: LiftContext) -> list[Variable] | None:
    """Lift Dot of floating-point matrices; cuBLAS does not multiply integers."""
    return GpuDot(node.op).make_node(*inputs).outputs if _all_float(node) else None


@register_lifter(BatchedDot, operands=(0, 1), heavy=_heavy_product(0, 1))
def lift_batched_dot(node: Apply, inputs: list[Any], context: LiftContext) -> list[Variable] | None:
    """Lift BatchedDot of floating-point arrays."""
    return GpuBatchedDot(node.op).make_node(*inputs).outputs if _all_float(node) else None


@register_lifter(Blockwise)
def lift_blockwise(node: Apply, inputs: list[Any], context: LiftContext) -> list[Variable] | None:
    """Lift Blockwise if it computes matrix products."""
    if not isinstance(node.op.core_op, Dot) or not _all_float(node):
        return None
    return GpuBatchedDot(node.op).make_node(*inputs).outputs


def _blas(op_class: type[MirrorOp], scalars: tuple[int, ...]) -> LiftFunction:
    """Return a lifter for a BLAS Op; it does not move the scalar factors."""

    def lift(node: Apply, inputs: list[Any], context: LiftContext) -> Sequence[Variable]:
        device = _device_of(inputs, context)
        operands = [
            x if i in scalars else context.to_device(x, device) for i, x in enumerate(inputs)
        ]
        return op_class(node.op).make_node(*operands).outputs

    return lift


register_lifter(Dot22Scalar, operands=(0, 1), heavy=_heavy_product(0, 1), convert=False)(
    _blas(GpuDot, (2,))
)
register_lifter(Gemm, operands=(0, 2, 3), heavy=_heavy_product(2, 3), convert=False)(
    _blas(GpuGemm, (1, 4))
)
register_lifter(Gemv, operands=(0, 2, 3), convert=False)(_blas(GpuGemv, (1, 4)))
register_lifter(*existing(blas, "Ger"), operands=(0, 2, 3), convert=False)(_blas(GpuGer, (1,)))


# Allocation


@register_lifter(Alloc, operands=(0,), pulled=_always, convert=False)
def lift_alloc(node: Apply, inputs: list[Any], context: LiftContext) -> list[Variable]:
    """Lift Alloc, which fills an array on the device with a host number or a device array."""
    device = _device_of(inputs[:1], context)
    value = _scalar_or_device(inputs[0], context, device)
    shape = [context.to_host(x) for x in inputs[1:]]
    return GpuAlloc(node.op, device).make_node(value, *shape).outputs


@register_lifter(AllocEmpty, operands=(), pulled=_always)
def lift_alloc_empty(node: Apply, inputs: list[Any], context: LiftContext) -> list[Variable]:
    """Lift AllocEmpty."""
    return GpuAllocEmpty(node.op.dtype, context.device).make_node(*inputs).outputs


@register_lifter(ARange, operands=(), pulled=_always)
def lift_arange(node: Apply, inputs: list[Any], context: LiftContext) -> list[Variable]:
    """Lift ARange. If its numbers change, a kernel reads them, and only the length stays here."""
    if not depends_on_values(inputs):
        return GpuARange(node.op, context.device).make_node(*inputs).outputs
    ((length,),) = inferred_shapes(node.op, node, [()] * 3)
    counter = ARange("int64")
    numbers = [pt_constant(np.int64(0)), length, pt_constant(np.int64(1))]
    counted = GpuARange(counter, context.device).make_node(*numbers).outputs[0]
    return (
        GpuElemwise(_nth(node.op.dtype, *(x.type.dtype for x in inputs[::2])))
        .make_node(counted, inputs[0], inputs[2])
        .outputs
    )


@cache
def _nth(dtype: str, start: str, step: str) -> Composite:
    """Return the scalar Op that computes an element of a range from its index."""
    index, first, by = (get_scalar_type(t)() for t in ("int64", start, step))
    return Composite([index, first, by], [Cast(get_scalar_type(dtype))(add(first, mul(index, by)))])


# Indexing


def _device_indices(indices: list[Any], context: LiftContext, device: int) -> list[Any]:
    """Move index arrays to the device; numbers and parts of slices stay on the host."""
    return [
        context.to_device(i, device)
        if is_on_device(i) or (isinstance(i.type, TensorType) and i.type.ndim)
        else i
        for i in indices
    ]


def _index_arrays(first: int) -> Any:
    def indices(node: Apply) -> list[int]:
        return [
            i
            for i, x in enumerate(node.inputs)
            if i >= first and isinstance(x.type, TensorType) and x.type.ndim
        ]

    return indices


@register_lifter(
    AdvancedSubtensor,
    *existing(indexing, "AdvancedSubtensor1"),
    operands=(0,),
    takes=_index_arrays(1),
    convert=False,
)
def lift_advanced_subtensor(
    node: Apply, inputs: list[Any], context: LiftContext
) -> list[Variable] | None:
    """Lift AdvancedSubtensor of a device array, after the slices in it that change."""
    device = _device_of(inputs[:1], context)
    x, op, given = context.to_device(inputs[0], device), node.op, inputs[1:]
    split = _slices_that_change(x, op, given)
    if split is not None:
        windows, operands, (op, given) = split
        x = GpuWindow(windows).make_node(x, *operands).outputs[0]
    indices = _device_indices(given, context, device)
    return GpuAdvancedSubtensor(op).make_node(x, *indices).outputs


@register_lifter(Subtensor, operands=(0,))
def lift_subtensor(node: Apply, inputs: list[Any], context: LiftContext) -> Sequence[Variable]:
    """Lift Subtensor, with the starts of slices that change apart from their lengths."""
    x, *indices = inputs
    found = windows_of(x, node.op.idx_list, indices)
    if found is None:
        return GpuSubtensor(node.op).make_node(*inputs).outputs
    windows, operands = found
    return GpuWindow(windows).make_node(x, *operands).outputs


@register_lifter(IncSubtensor, operands=(0, 1), pulled=True, convert=False)
def lift_inc_subtensor(node: Apply, inputs: list[Any], context: LiftContext) -> Sequence[Variable]:
    """Lift IncSubtensor as Subtensor."""
    rolled = lift_rolled_parts(node, inputs)
    if rolled is not None:
        return rolled
    device = _device_of(inputs[:2], context)
    x, indices = context.to_device(inputs[0], device), [context.to_host(i) for i in inputs[2:]]
    found = windows_of(x, node.op.idx_list, indices)
    if found is None:
        y = _scalar_or_device(inputs[1], context, device)
        return GpuIncSubtensor(node.op).make_node(x, y, *indices).outputs
    windows, operands = found
    if _is_open(node) and all(inputs[1].type.broadcastable):
        y = _scalar_or_device(inputs[1], context, device)
        sets = node.op.set_instead_of_inc
        changed = masked_change(x, y, windows, operands, sets=sets)
        if changed is not None:
            return changed
    y = context.to_device(inputs[1], device)
    set_, inplace = node.op.set_instead_of_inc, node.op.inplace
    return GpuSetWindow(windows, set_, inplace).make_node(x, y, *operands).outputs


def _is_open(node: Apply) -> bool:
    """Return whether each slice extends to an end of its axis, so that its length changes."""
    entries = unflatten_index_variables(node.inputs[2:], node.op.idx_list)
    return all(isinstance(e, slice) and (e.start is None or e.stop is None) for e in entries)


def _slices_that_change(x: Any, op: Any, indices: Sequence[Any]) -> Any:
    """Return the result of `slices_first`, or None for Ops without slices."""
    entries = getattr(op, "idx_list", ())
    return slices_first(x, op, indices) if any(isinstance(e, slice) for e in entries) else None


def _lift_advanced_change(
    node: Apply, inputs: list[Any], context: LiftContext
) -> Sequence[Variable]:
    device = _device_of(inputs[:2], context)
    x = context.to_device(inputs[0], device)
    y = _scalar_or_device(inputs[1], context, device)
    split = None if node.op.inplace else _slices_that_change(x, node.op, inputs[2:])
    if split is None:
        indices = _device_indices(inputs[2:], context, device)
        return GpuAdvancedIncSubtensor(node.op).make_node(x, y, *indices).outputs
    windows, operands, (op, given) = split
    part = GpuWindow(windows).make_node(x, *operands).outputs[0]
    indices = _device_indices(given, context, device)
    changed = GpuAdvancedIncSubtensor(op).make_node(part, y, *indices).outputs[0]
    return GpuSetWindow(windows).make_node(x, changed, *operands).outputs


register_lifter(
    AdvancedIncSubtensor,
    *existing(indexing, "AdvancedIncSubtensor1"),
    operands=(0, 1),
    takes=_index_arrays(2),
    pulled=True,
    convert=False,
)(_lift_advanced_change)


# Shapes, whose results stay on the host


@register_lifter(Shape_i, operands=(0,), convert=False)
def lift_shape_i(node: Apply, inputs: list[Any], context: LiftContext) -> list[Variable] | None:
    """Apply Shape_i to the device array directly, since its shape is stored on the host."""
    return [node.op(inputs[0])] if is_on_device(inputs[0]) else None


@register_lifter(Shape, operands=(0,), convert=False)
def lift_shape(node: Apply, inputs: list[Any], context: LiftContext) -> list[Variable] | None:
    """Apply Shape to the device array directly, since its shape is stored on the host."""
    (x,) = inputs
    # Not node.op(x): Shape.make_node would transfer its operand to the host.
    return list(Apply(node.op, [x], [node.outputs[0].type()]).outputs) if is_on_device(x) else None


@register_lifter(CheckAndRaise, operands=(0,), convert=False)
def lift_check(node: Apply, inputs: list[Any], context: LiftContext) -> list[Variable] | None:
    """Lift Assert and similar Ops, which pass on any value; the conditions stay on the host."""
    x, *conditions = inputs
    if not is_on_device(x):
        return None
    return node.op.make_node(x, *[context.to_host(c) for c in conditions]).outputs


# Expansions of PyTensor's Ops that have no lifter


@register_expansion(ProdWithoutZeros)
def expand_prod_without_zeros(node: Apply, inputs: list[Any]) -> list[Variable]:
    """Expand the product of nonzero elements, which the gradient of a product uses."""
    (x,) = inputs
    one = np.ones((1,) * x.type.ndim, x.type.dtype)
    kept = switch(eq(x, 0), one, x)
    return [Prod(node.op.axis, dtype=node.op.dtype, acc_dtype=node.op.acc_dtype)(kept)]
