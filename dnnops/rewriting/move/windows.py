"""Move indices and slices that change from call to call to the device."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Constant
from pytensor.scalar.basic import (
    Composite,
    add,
    get_scalar_type,
    int_div,
    lt,
    scalar_maximum,
    scalar_minimum,
    sub,
    switch,
)
from pytensor.tensor.basic import ScalarFromTensor
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.subtensor import unflatten_index_variables
from pytensor.tensor.type import TensorType

from dnnops.gpuarray.op import depends_on_values
from dnnops.gpuarray.windows.op import Window
from dnnops.rewriting.move.lengths import length_of

__all__ = ["as_number", "slices_first", "windows_of"]


def windows_of(
    x: Any, idx_list: Sequence[Any], indices: Sequence[Any]
) -> tuple[list[Window], list[Any]] | None:
    """Return the windows of an index, and their operands.

    Parameters
    ----------
    x : GpuArrayVariable
        Array that is indexed.
    idx_list : sequence
        Pattern of the index, as that of `Subtensor`.
    indices : sequence of Variable
        Operands on the host that fill it in.

    Returns
    -------
    tuple or None
        None if the index does not depend on values, if a step does, or if the length of an axis is
        only known once the graph runs.
    """
    if not depends_on_values(indices):
        return None
    windows: list[Window] = []
    operands: list[Any] = []
    for axis, entry in enumerate(unflatten_index_variables(indices, idx_list)):
        if not isinstance(entry, slice):
            windows.append(Window(axis, 0))
            operands.append(as_number(entry))
            continue
        step = 1 if entry.step is None else _constant(entry.step)
        if not step:
            return None
        if (entry.start, entry.stop, step) == (None, None, 1):
            continue
        length = length_of(x, axis)
        if length is None:
            return None
        windows.append(Window(axis, step))
        operands += _start_and_length(entry.start, entry.stop, length, step)
    return windows, operands


def _constant(x: Any) -> int | None:
    if isinstance(x, Constant):
        return None if x.data is None else int(x.data)
    return None


def as_number(x: Any) -> Any:
    """Return an index, such as an operand of `Subtensor`, as an int64 scalar tensor."""
    if isinstance(x, Constant):
        return pt.constant(np.int64(x.data))
    if x.owner is not None and isinstance(x.owner.op, ScalarFromTensor):
        x = x.owner.inputs[0]
    return pt.cast(x if isinstance(x.type, TensorType) else pt.as_tensor(x), "int64")


def _start_and_length(start: Any, stop: Any, length: Any, step: int) -> list[Any]:
    """Return what a slice begins with, and how many elements it has."""
    given = [as_number(x) for x in (start, stop) if x is not None]
    results = Elemwise(_bounds(start is not None, stop is not None, step)).make_node(*given, length)
    first, count = results.outputs if len(results.outputs) == 2 else (None, *results.outputs)
    return [pt.constant(np.int64(0)) if first is None else first, count]


def slices_first(x: Any, op: Any, indices: Sequence[Any]) -> tuple[list[Window], Any, Any] | None:
    """Split an index with arrays into one with the slices that change, and the rest.

    Parameters
    ----------
    x : GpuArrayVariable
        Array that is indexed.
    op : AdvancedSubtensor
        Op on the host.
    indices : sequence of Variable
        Its operands after the array.

    Returns
    -------
    tuple or None
        The windows and their operands as from `windows_of`, and an Op with the operands of the
        rest. None if no slice changes, or its length is unknown.
    """
    windows: list[Window] = []
    operands: list[Any] = []
    rest: list[Any] = []
    entries, axis = [], 0
    for entry in unflatten_index_variables(indices, op.idx_list):
        if not isinstance(entry, slice):
            is_mask = entry.type.dtype == "bool"
            entries.append(len(rest))
            rest.append(entry)
            axis += max(1, entry.type.ndim) if is_mask else 1
            continue
        parts = [p for p in (entry.start, entry.stop, entry.step) if p is not None]
        if depends_on_values(parts):
            found = windows_of(x, [slice(None)] * axis + [_pattern(entry)], parts)
            if found is None:
                return None
            windows += found[0]
            operands += found[1]
            entry = slice(None)
        entries.append(_pattern(entry, len(rest)))
        rest += [p for p in (entry.start, entry.stop, entry.step) if p is not None]
        axis += 1
    if not windows or "idx_list" not in op.__props__:
        return None
    props = {name: getattr(op, name) for name in op.__props__}
    return windows, operands, (type(op)(**props | {"idx_list": tuple(entries)}), rest)


def _pattern(entry: slice, first: int = 0) -> slice:
    """Return the entry of an ``idx_list`` for a slice, whose operands begin at a position."""
    positions = iter(range(first, first + 3))
    parts = (entry.start, entry.stop, entry.step)
    return slice(*[None if p is None else next(positions) for p in parts])


@cache
def _bounds(has_start: bool, has_stop: bool, step: int) -> Composite:
    """Return the scalar Op that computes the start, if there is one, and the length of a slice."""
    int64 = get_scalar_type("int64")
    length = int64()
    given = [int64() for _ in range(has_start + has_stop)]

    def constant(number: int) -> Any:
        return int64.make_constant(np.int64(number))

    def within(i: Any) -> Any:
        """Return the place from 0 to the length, or from -1 to the last one for negative steps."""
        least, most = (constant(0), length) if step > 0 else (constant(-1), last_place)
        from_end = scalar_maximum(add(i, length), least)
        return switch(lt(i, constant(0)), from_end, scalar_minimum(i, most))

    last_place = sub(length, constant(1))
    ends = (constant(0), length) if step > 0 else (last_place, constant(-1))
    last = within(given[-1]) if has_stop else ends[1]
    first = within(given[0]) if has_start else ends[0]
    count = last
    if step < 0 or has_start:
        span = sub(last, first) if step > 0 else sub(first, last)
        count = scalar_maximum(span, constant(0))
    if step < 0:
        # An empty slice begins at 0, which is within the axis.
        first = scalar_maximum(first, constant(0))
    if abs(step) > 1:
        count = int_div(add(count, constant(abs(step) - 1)), constant(abs(step)))
    if step > 0 and not has_start:
        return Composite([*given, length], [count])
    return Composite([*given, length], [first, count])
