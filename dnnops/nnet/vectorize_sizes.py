"""Vectorization of PyTensor's Ops that take sizes or check conditions.

PyTensor repeats the shape of an operand with extra axes for each entry. It then loops over Ops that
take such sizes in Python, which axes of size 0 do not survive. All entries of an array have one
shape, so no loop is needed.
"""

from __future__ import annotations

from math import prod
from typing import Any

import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.op import Op
from pytensor.graph.replace import _vectorize_node
from pytensor.raise_op import CheckAndRaise
from pytensor.tensor.basic import Alloc, ARange, Eye, Split
from pytensor.tensor.shape import Reshape
from pytensor.tensor.subtensor import IncSubtensor, Subtensor

from dnnops.compat import axis_of, split_along
from dnnops.nnet.checks import CheckedValue
from dnnops.nnet.extra_axes import has_extra_axes, sizes, with_extra_axes, without_repeats
from dnnops.nnet.validate import static_vector

__all__ = ["vectorize_check", "vectorize_sized"]

#: Where PyTensor's Ops have their first size; all operands that follow are sizes, too.
FIRST_SIZE: dict[type, int] = {
    Alloc: 1,
    ARange: 0,
    Eye: 0,
    IncSubtensor: 2,
    Reshape: 1,
    Split: 1,
    Subtensor: 1,
}

_OF_PYTENSOR: dict[type, Any] = {
    kind: _vectorize_node.dispatch(kind) for kind in (*FIRST_SIZE, CheckAndRaise)
}


@_vectorize_node.register(Alloc)
@_vectorize_node.register(ARange)
@_vectorize_node.register(Eye)
@_vectorize_node.register(IncSubtensor)
@_vectorize_node.register(Reshape)
@_vectorize_node.register(Split)
@_vectorize_node.register(Subtensor)
def vectorize_sized(op: Op, node: Apply, *inputs: Any) -> Any:
    """Vectorize an Op with the sizes of a single entry, where all entries have the same."""
    given = [
        x if i < FIRST_SIZE[type(op)] else without_repeats(x, core.type.ndim)
        for i, (x, core) in enumerate(zip(inputs, node.inputs, strict=True))
    ]
    if not has_extra_axes(node, given, range(len(given))):
        return op.make_node(*given)
    if isinstance(op, Reshape) and _has_core_shape(node, given[1]):
        return [_reshaped(node, *given)]
    if not has_extra_axes(node, given, range(FIRST_SIZE[type(op)], len(given))):
        if isinstance(op, IncSubtensor):
            return _increased(op, node, *given)
        if isinstance(op, Split) and (along := _along(node, given[0])) is not None:
            split, between = along
            return split.make_node(given[0], *between, given[-1])
    return _OF_PYTENSOR[type(op)](op, node, *given)


def _along(node: Apply, x: Any) -> Any:
    """Return a `Split` of `x`, which has extra axes, and its axis if that is an operand."""
    axis: Any = axis_of(node)
    if isinstance(axis, Variable) and not isinstance(axis, Constant):
        return None
    ndim = node.inputs[0].type.ndim
    place = int(getattr(axis, "data", axis)) % ndim + x.type.ndim - ndim
    return split_along(len(node.outputs), place)


def _increased(op: IncSubtensor, node: Apply, x: Any, y: Any, *indices: Any) -> Apply:
    """Add to the same part of each entry, or set it; the gradient of a part is such a node."""
    cores = [v.type.ndim for v in node.inputs[:2]]
    extra, (x, y) = with_extra_axes([x, y], *cores)
    lead = len(extra)
    part: Any = Subtensor(op.idx_list).make_node(node.inputs[0], *indices).outputs[0]
    missing = part.type.ndim - cores[1]
    y = y.dimshuffle(*range(lead), *"x" * missing, *range(lead, y.type.ndim))
    whole = IncSubtensor(
        (slice(None),) * lead + op.idx_list, set_instead_of_inc=op.set_instead_of_inc
    )
    return whole.make_node(x, y, *indices)


def _has_core_shape(node: Apply, shape: Any) -> bool:
    """Return whether a shape is that of an entry, and not another one that replaces it."""
    if shape.type.ndim != 1 or shape.type.shape[0] not in (None, node.outputs[0].type.ndim):
        return False
    return shape is node.inputs[1] or not isinstance(node.inputs[1], Constant)


def _reshaped(node: Apply, x: Any, shape: Any) -> Any:
    """Reshape each entry; sizes that are known stay so, which PyTensor's own form loses."""
    lead = x.type.ndim - node.inputs[0].type.ndim
    known = node.outputs[0].type.shape
    # The sizes of an entry have constants that those computed without repeats hide.
    constants = static_vector(node.inputs[1], len(known))
    wanted = [
        next((n for n in found if n is not None), shape[i])
        for i, found in enumerate(zip(known, constants, strict=True))
    ]
    free = [i for i, n in enumerate(constants) if n == -1 and known[i] is None]
    if len(free) == 1:
        # NumPy cannot find a missing size if another one is 0.
        (place,) = free
        rest = prod(n for i, n in enumerate(wanted) if i != place)
        wanted[place] = prod(sizes(x)[lead:]) // pt.maximum(rest, 1)
    return x.reshape((*sizes(x)[:lead], *wanted))


@_vectorize_node.register(CheckAndRaise)
def vectorize_check(op: CheckAndRaise, node: Apply, x: Any, *conditions: Any) -> Any:
    """Vectorize a check, which must hold for all entries.

    PyTensor 3.0.7 takes a single condition only, and repeats `x` for its entries.
    """
    if len(conditions) == 1 and not isinstance(op, CheckedValue):
        return _OF_PYTENSOR[CheckAndRaise](op, node, x, *conditions)
    return op.make_node(x, *(pt.all(c) if c.type.ndim else c for c in conditions))
