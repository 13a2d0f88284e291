"""Extra leading axes of operands, as ``vectorize_graph`` adds them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import pytensor.tensor as pt
from pytensor.gradient import disconnected_grad
from pytensor.graph.basic import Apply, Variable
from pytensor.tensor.basic import Alloc
from pytensor.tensor.shape import Shape
from pytensor.tensor.subtensor import Subtensor

from dnnops.nnet.checks import checked

__all__ = [
    "has_extra_axes",
    "into_batch",
    "merge",
    "merge_node",
    "no_results",
    "of_one_entry",
    "sizes",
    "spread_axis",
    "with_extra_axes",
    "without_repeats",
]


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


def has_extra_axes(node: Apply, inputs: Sequence[Any], places: Sequence[int]) -> bool:
    """Return whether an operand at one of the places has extra axes."""
    return any(inputs[i].type.ndim != node.inputs[i].type.ndim for i in places)


def spread_axis(x: Any, axis: int, size: Any) -> Any:
    """Broadcast an axis whose size is 1, which may not be known, to the given size."""
    known = x.type.shape[axis]
    if known not in (None, 1):
        return x
    before, own, after = sizes(x)[:axis], sizes(x)[axis], sizes(x)[axis + 1 :]
    if known is None:
        own, size = disconnected_grad(own), disconnected_grad(pt.as_tensor_variable(size))
    copies = size if known == 1 else pt.switch(pt.eq(own, 1), size, 1)
    wide: Any = pt.alloc(x.reshape((*before, 1, own, *after)), *before, copies, own, *after)
    return wide.reshape((*before, size, *after))


def merge(
    apply: Callable[..., Sequence[Any]],
    node: Apply,
    inputs: Sequence[Any],
    axes: Sequence[int | None],
    results: Sequence[int],
) -> list[Any]:
    """Apply a function of the operands once, with the extra axes merged into the batch.

    `axes` are the batch axes of the operands without extra axes, None for operands that all entries
    share, and `results` are those of the results.
    """
    places = [i for i, axis in enumerate(axes) if axis is not None]
    cores = [node.inputs[i].type.ndim for i in places]
    extra, spread = with_extra_axes([inputs[i] for i in places], *cores)
    lead = len(extra)
    folded = list(inputs)
    batch: Any = None
    for i, x in zip(places, spread, strict=True):
        axis: Any = axes[i]
        x = pt.moveaxis(x, lead + axis, lead)
        size = sizes(x)[lead]
        batch = size if batch is None or isinstance(size, int) else batch
        folded[i] = pt.moveaxis(into_batch(x, extra), 0, axis)
    unfolded = []
    for out, axis in zip(apply(*folded), results, strict=True):
        first = pt.moveaxis(out, axis, 0)
        apart = first.reshape((*extra, batch, *sizes(first)[1:]))
        unfolded.append(pt.moveaxis(apart, lead, lead + axis))
    return unfolded


def merge_node(
    op: Any, node: Apply, inputs: Sequence[Any], axes: Sequence[int | None] | None = None
) -> list[Any]:
    """Apply an Op once; the batch is the first axis of each operand and result if not given."""
    axes = [0] * len(inputs) if axes is None else axes
    results = [0] * len(node.outputs)
    return merge(lambda *given: op.make_node(*given).outputs, node, inputs, axes, results)


def of_one_entry(where: str, name: str, x: Any, core: int) -> Any:
    """Return an operand that is the same for all entries, such as a shape, without extra axes.

    Parameters
    ----------
    where, name : str
        Names of the Op and of the operand, for the error message.
    x : TensorVariable
        Operand with extra leading axes, or without.
    core : int
        Number of axes without the extra ones.

    Returns
    -------
    TensorVariable
        The operand of the first entry. Unless all entries have the same by construction, as in a
        computation from the sizes of arrays, a check raises DnnValueError where they differ.
    """
    lead = x.type.ndim - core
    if not lead:
        return x
    narrow = without_repeats(x, core)
    if narrow is not x:
        return narrow
    first = x[(0,) * lead]
    problem = f"{where}: {name} must be the same for all entries of the extra axes"
    return checked(first, problem, pt.all(pt.eq(x, first)))


def without_repeats(x: Any, core: int) -> Any:
    """Return an operand without extra axes if it depends on the sizes of entries only.

    A vectorized shape is the shape of one entry, repeated for all entries.

    Parameters
    ----------
    x : TensorVariable
        Operand with extra leading axes, or without.
    core : int
        Number of axes without the extra ones.

    Returns
    -------
    TensorVariable
        What `x` would be had nothing been repeated, or `x` itself if its entries may differ.
    """
    lead = x.type.ndim - core
    narrow = _narrowed(x)
    if not lead or narrow.type.broadcastable[:lead] != (True,) * lead:
        return x
    return narrow.squeeze(axis=tuple(range(lead)))


def _narrowed(x: Any) -> Any:
    """Compute `x` again with axes of size 1 where ``vectorize_graph`` repeated a shape."""
    found: dict[Variable, Any] = {}
    pending: list[Any] = [x]
    while pending:
        variable = pending[-1]
        node = variable.owner
        if variable in found:
            pending.pop()
        elif node is None:
            found[variable] = pending.pop()
        elif (kept := _repeated(node)) is not None:
            found[pending.pop()] = kept
        elif waiting := [i for i in node.inputs if i not in found]:
            pending.extend(waiting)
        else:
            inputs = [found[i] for i in node.inputs]
            is_changed = any(new is not old for new, old in zip(inputs, node.inputs, strict=True))
            outputs = node.op.make_node(*inputs).outputs if is_changed else node.outputs
            found.update(zip(node.outputs, outputs, strict=True))
    return found[x]


def _repeated(node: Any) -> Any:
    """Return the shape that a node repeats along extra axes, with axes of size 1, or None."""
    if not isinstance(node.op, Alloc):
        return None
    part = node.inputs[0]
    of = part.owner
    if of is None or not isinstance(of.op, Subtensor) or of.inputs[0].owner is None:
        return None
    if not isinstance(of.inputs[0].owner.op, Shape):
        return None
    return pt.shape_padleft(part, node.outputs[0].type.ndim - part.type.ndim)
