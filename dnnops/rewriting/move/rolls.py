"""Arrays rolled by a number that changes, on the device.

`pytensor.tensor.roll` joins the two parts of an array, and its gradient splits an array and sets
two parts. The lengths of the parts depend on the number, though that of the result does not. A
captured function would be captured again for each number, so the elements are taken by their
indices instead, which a kernel computes.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Constant
from pytensor.scalar.basic import (
    Composite,
    add,
    get_scalar_type,
    mod,
    neg,
    scalar_maximum,
    scalar_minimum,
    sub,
)
from pytensor.tensor.basic import Alloc, ARange, Join, Split
from pytensor.tensor.subtensor import IncSubtensor, Subtensor, unflatten_index_variables

from dnnops.compat import arrays_of, axis_of
from dnnops.gpuarray.basic import GpuARange, GpuSplit
from dnnops.gpuarray.elemwise import GpuElemwise
from dnnops.gpuarray.op import depends_on_values, is_on_device
from dnnops.gpuarray.subtensor import GpuAdvancedSubtensor, GpuSubtensor
from dnnops.gpuarray.windows.op import GpuWindow
from dnnops.rewriting.move.lengths import length_of
from dnnops.rewriting.move.windows import as_number

__all__ = ["lift_rolled_join", "lift_rolled_parts"]


def lift_rolled_join(node: Apply, inputs: list[Any]) -> list[Any] | None:
    """Lift a Join of ``x[place:]`` and ``x[:place]`` along one axis.

    Parameters
    ----------
    node : Apply
        Node on the host.
    inputs : list of Variable
        Its operands, moved to the device.

    Returns
    -------
    list of Variable or None
        None if it joins anything else, or if the place does not change.
    """
    if not isinstance(node.op, Join) or len(arrays_of(node)) != 2:
        return None
    first, second = (_part(x, 0) for x in arrays_of(node))
    if not _are_halves(first, second, axis_of(node)):
        return None
    if first.whole is not second.whole:  # type: ignore[union-attr]
        return None
    moved = inputs[-1].owner
    if moved is None or not isinstance(moved.op, GpuWindow | GpuSubtensor):
        return None
    return _rolled(moved.inputs[0], first, forward=True)


def lift_rolled_parts(node: Apply, inputs: list[Any]) -> list[Any] | None:
    """Lift the gradient of a rolled array: zeros of which both parts are set to those of another.

    See `lift_rolled_join` for parameters and result.
    """
    inner = node.inputs[0].owner
    if inner is None or not isinstance(inner.op, IncSubtensor) or len(node.inputs) < 3:
        return None
    zeros = inner.inputs[0].owner
    if zeros is None or not isinstance(zeros.op, Alloc) or not _is_zero(zeros.inputs[0]):
        return None
    sources = inner.inputs[1], node.inputs[1]
    split = sources[0].owner
    if split is None or not isinstance(split.op, Split) or len(split.outputs) != 2:
        return None
    if any(x is not y for x, y in zip(split.outputs, sources, strict=True)):
        return None
    given, axis = split.inputs[0], axis_of(split)
    first, second = _part(inner.outputs[0], 1), _part(node.outputs[0], 1)
    own = node.outputs[0].type
    is_alike = (given.type.dtype, given.type.broadcastable) == (own.dtype, own.broadcastable)
    if not is_alike or not _are_halves(first, second, axis):
        return None
    moved = inputs[1].owner
    if moved is None or not isinstance(moved.op, GpuSplit):
        return None
    return _rolled(moved.inputs[0], first, forward=False)


def _is_zero(x: Any) -> bool:
    return isinstance(x, Constant) and not np.any(x.data)


class _Part(NamedTuple):
    """A part of an array that begins or ends at a place of an axis."""

    whole: Any
    axis: int
    place: Any
    ends: bool


def _part(x: Any, leading: int) -> _Part | None:
    """Return the part that a Subtensor takes, or an IncSubtensor changes."""
    node = x.owner
    if node is None or not isinstance(node.op, IncSubtensor if leading else Subtensor):
        return None
    entries = unflatten_index_variables(node.inputs[1 + leading :], node.op.idx_list)
    found = None
    for axis, entry in enumerate(entries):
        if not isinstance(entry, slice) or not _is_one(entry.step):
            return None
        start = None if _is_zero_or_none(entry.start) else entry.start
        stop = None if _is_none(entry.stop) else entry.stop
        if start is None and stop is None:
            continue
        if found is not None or (start is not None and stop is not None):
            return None
        place = stop if start is None else start
        found = _Part(node.inputs[0], axis, place, start is None)
    return found


def _is_one(step: Any) -> bool:
    return _is_none(step) or (isinstance(step, Constant) and step.data == 1)


def _is_zero_or_none(x: Any) -> bool:
    return _is_none(x) or (isinstance(x, Constant) and x.data == 0)


def _is_none(x: Any) -> bool:
    return x is None or (isinstance(x, Constant) and x.data is None)


def _are_halves(first: _Part | None, second: _Part | None, axis: Any) -> bool:
    """Return whether parts begin and end at one place of an axis, which changes."""
    if first is None or second is None or not isinstance(axis, Constant | int):
        return False
    number = int(axis.data if isinstance(axis, Constant) else axis)
    return (
        first.axis == second.axis == number % first.whole.type.ndim
        and first.place is second.place
        and (first.ends, second.ends) == (False, True)
        and depends_on_values([first.place])
    )


def _rolled(x: Any, part: Any, *, forward: bool) -> list[Any] | None:
    """Return ``x[place:]`` and ``x[:place]`` one behind the other, or what this is rolled from."""
    axis, place = part.axis, part.place
    length = length_of(x, axis) if is_on_device(x) else None
    if length is None:
        return None
    numbers = [pt.constant(np.int64(0)), length, pt.constant(np.int64(1))]
    counted = GpuARange(ARange("int64"), x.type.device).make_node(*numbers).outputs[0]
    indices = GpuElemwise(_source(forward)).make_node(counted, as_number(place), length).outputs[0]
    stand_in = pt.tensor(dtype="float32", shape=x.type.shape)
    taken = stand_in[(slice(None),) * axis + (pt.lvector(),)].owner
    return GpuAdvancedSubtensor(taken.op).make_node(x, indices).outputs


@cache
def _source(forward: bool) -> Composite:
    """Return the scalar Op that computes where an element comes from, in int64."""
    index, place, length = (get_scalar_type("int64")() for _ in range(3))
    within = scalar_maximum(scalar_minimum(place, length), neg(length))
    return Composite(
        [index, place, length], [mod((add if forward else sub)(index, within), length)]
    )
