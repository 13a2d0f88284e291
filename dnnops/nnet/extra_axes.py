"""Extra leading axes of operands, as ``vectorize_graph`` adds them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.tensor.basic import Alloc
from pytensor.tensor.shape import Shape
from pytensor.tensor.subtensor import Subtensor

from dnnops.nnet.checks import checked

__all__ = [
    "has_extra_axes",
    "into_batch",
    "no_results",
    "of_one_entry",
    "sizes",
    "with_extra_axes",
]


def sizes(x: Any) -> list[Any]:
    """Return the shape of `x`, with ints for the sizes that are known."""
    return [x.shape[i] if n is None else n for i, n in enumerate(x.type.shape)]


def has_extra_axes(operands: Sequence[Any], inputs: Sequence[Any]) -> bool:
    """Return whether any of `inputs`, which replace `operands`, has extra axes."""
    return any(x.type.ndim != core.type.ndim for core, x in zip(operands, inputs, strict=True))


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
    narrow = _without_repeats(x)
    if narrow.type.broadcastable[:lead] == (True,) * lead:
        return narrow.squeeze(axis=tuple(range(lead)))
    first = x[(0,) * lead]
    problem = f"{where}: {name} must be the same for all entries of the extra axes"
    return checked(first, problem, pt.all(pt.eq(x, first)))


def _without_repeats(x: Any) -> Any:
    """Compute `x` again from what ``vectorize_graph`` repeated for all entries, but not repeated.

    It repeats sizes: a vectorized shape has the shape of each entry.
    """
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
