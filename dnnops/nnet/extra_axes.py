"""Extra leading axes of operands, as ``vectorize_graph`` adds them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import pytensor.tensor as pt

__all__ = ["into_batch", "no_results", "sizes", "with_extra_axes"]


def sizes(x: Any) -> list[Any]:
    """Return the shape of `x`, with ints for the sizes that are known."""
    return [x.shape[i] if n is None else n for i, n in enumerate(x.type.shape)]


def with_extra_axes(data: Sequence[Any], *cores: int) -> tuple[list[Any], list[Any]]:
    """Broadcast the extra leading axes of the operands; return their sizes and the operands.

    `cores` is the number of axes of each operand without the extra ones, or one number for all
    operands.
    """
    cores = cores * len(data) if len(cores) == 1 else cores
    pairs = list(zip(data, cores, strict=True))
    lead = max(x.type.ndim - core for x, core in pairs)
    padded = [pt.shape_padleft(x, lead + core - x.type.ndim) for x, core in pairs]
    extra: list[Any] = []
    for axis in range(lead):
        # As in Elemwise, only axes whose size is statically 1 are broadcast.
        found = [sizes(x)[axis] for x in padded if x.type.shape[axis] != 1]
        known = [size for size in found if isinstance(size, int)]
        extra.append((known or found or [1])[0])
    spread = []
    for x in padded:
        if any(n == 1 and size != 1 for n, size in zip(x.type.shape[:lead], extra, strict=True)):
            x = pt.broadcast_to(x, (*extra, *sizes(x)[lead:]))
        spread.append(x)
    return extra, spread


def into_batch(x: Any, extra: Sequence[Any]) -> Any:
    """Merge leading axes of these sizes into the next axis, the batch."""
    batch, *rest = sizes(x)[len(extra) :]
    return x.reshape((prod(extra) * batch, *rest))


def no_results(op: Any, spread: Sequence[Any], extra: Sequence[Any], *others: Any) -> list[Any]:
    """Return the results of an Op whose operands have an extra axis of size 0.

    `spread` are the operands that have the extra axes, and `others` those that follow them.
    """
    lead = len(extra)
    one: Any = op.make_node(*(pt.zeros(sizes(x)[lead:], x.type.dtype) for x in spread), *others)
    # Sums without elements, so that the results depend on the operands.
    nothing = sum(x.sum() for x in spread)
    return [
        pt.zeros((*extra, *sizes(out)), out.type.dtype) + pt.cast(nothing, out.type.dtype)
        for out in one.outputs
    ]
