"""Vectorization of PyTensor's Ops that take sizes or check conditions.

PyTensor repeats the shape of an operand with extra axes for each entry. It then loops over Ops that
take such sizes in Python, which axes of size 0 do not survive. All entries of an array have one
shape, so no loop is needed.
"""

from __future__ import annotations

from math import prod
from typing import Any

import pytensor.tensor as pt
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.graph.replace import _vectorize_node
from pytensor.raise_op import CheckAndRaise
from pytensor.tensor.basic import Alloc, ARange, Eye
from pytensor.tensor.shape import Reshape

from dnnops.nnet.checks import CheckedValue
from dnnops.nnet.extra_axes import has_extra_axes, sizes, without_repeats
from dnnops.nnet.validate import vector_entries

__all__ = ["vectorize_check", "vectorize_sized"]

#: Where PyTensor's Ops have their first size; all operands that follow are sizes, too.
FIRST_SIZE: dict[type, int] = {Alloc: 1, ARange: 0, Eye: 0, Reshape: 1}

_OF_PYTENSOR: dict[type, Any] = {
    kind: _vectorize_node.dispatch(kind) for kind in (*FIRST_SIZE, CheckAndRaise)
}


@_vectorize_node.register(Alloc)
@_vectorize_node.register(ARange)
@_vectorize_node.register(Eye)
@_vectorize_node.register(Reshape)
def vectorize_sized(op: Op, node: Apply, *inputs: Any) -> Any:
    """Vectorize an Op with the sizes of a single entry, where all entries have the same."""
    given = [
        x if i < FIRST_SIZE[type(op)] else without_repeats(x, core.type.ndim)
        for i, (x, core) in enumerate(zip(inputs, node.inputs, strict=True))
    ]
    if not has_extra_axes(node, given, range(len(given))):
        return op.make_node(*given)
    if isinstance(op, Reshape) and given[1].type.ndim == 1:
        return [_reshaped(node, *given)]
    return _OF_PYTENSOR[type(op)](op, node, *given)


def _reshaped(node: Apply, x: Any, shape: Any) -> Any:
    """Reshape each entry; sizes that are known stay so, which PyTensor's own form loses."""
    lead = x.type.ndim - node.inputs[0].type.ndim
    known = node.outputs[0].type.shape
    entries = vector_entries(shape, len(known))
    wanted = [entry if n is None else n for n, entry in zip(known, entries, strict=True)]
    if -1 in (free := [n if isinstance(n, int) else 0 for n in wanted]):
        # NumPy cannot find a missing size if another one is 0.
        place = free.index(-1)
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
