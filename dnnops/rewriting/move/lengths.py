"""The lengths of axes of arrays on the device, computed from those of a graph's inputs.

Host nodes that run before a captured graph cannot ask an array that the graph computes for its
shape. `infer_shape` of the Ops in between says how it follows from those of inputs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.exceptions import ShapeError
from pytensor.tensor.shape import Shape_i

from dnnops.compat import inferred_shapes
from dnnops.gpuarray.op import is_on_device
from dnnops.gpuarray.transfer import GpuFromHost

__all__ = ["length_of"]

#: Most Ops that change a length. The host computes it in each call.
_MOST_CHANGES = 8


def length_of(x: Any, axis: int, changes: int = _MOST_CHANGES) -> Any:
    """Return the length of an axis as an int64 scalar on the host.

    Parameters
    ----------
    x : GpuArrayVariable
    axis : int
        Not negative.
    changes : int
        Most Ops on the way to an input that may change the length.

    Returns
    -------
    TensorVariable or None
        None if it does not follow from the shapes of inputs and from values on the host.
    """
    known = x.type.shape[axis]
    if known is not None:
        return pt.constant(np.int64(known))
    node = x.owner
    if node is None or not is_on_device(x):
        return Shape_i(axis)(x)
    if isinstance(node.op, GpuFromHost):
        return Shape_i(axis)(node.inputs[0])
    own: dict[Variable, tuple[Any, int]] = {}
    length = _inferred(node, node.outputs.index(x), axis, own)
    if length is None or not _collect(length, node, own):
        return None
    if length in own:
        return length_of(*own[length], changes)
    used = _reads(length) & own.keys()
    if not used:
        return pt.cast(length, "int64")
    found = {y: length_of(*own[y], changes - 1) for y in used} if changes else {}
    if not found or any(y is None for y in found.values()):
        return None
    return pt.cast(clone_replace(length, found), "int64")


def _reads(length: Any) -> set[Variable]:
    """Return what a length is computed from, but not what lies behind a shape."""
    pending, found = [length], set()
    while pending:
        x = pending.pop()
        if x not in found:
            found.add(x)
            if x.owner is not None and not isinstance(x.owner.op, Shape_i):
                pending += x.owner.inputs
    return found


def _collect(length: Any, node: Apply, own: dict[Variable, tuple[Any, int]]) -> bool:
    """Add the lengths of computed arrays that a length reads; return whether there are only such.

    Whole shapes, and elements, are not known before the graph runs. Nor are the node's own results,
    and what Ops on the host infer from variables that stand for arrays on the device.
    """
    leaves = set()
    for x in _reads(length):
        if is_on_device(x):
            return False
        if x.owner is None and not isinstance(x, Constant) and x not in own:
            leaves.add(x)
        elif x.owner is not None and isinstance(x.owner.op, Shape_i):
            (array,) = x.owner.inputs
            if array in node.outputs:
                return False
            if array.owner is None:
                leaves.add(array)
            elif is_on_device(array):
                own[x] = array, x.owner.op.i
    return not leaves or leaves.issubset(ancestors(node.inputs))


def _inferred(node: Any, result: int, axis: int, own: dict[Variable, tuple[Any, int]]) -> Any:
    """Return a length of a result in terms of stand-ins for those of operands.

    `own` gets the operand and the axis of each stand-in.
    """
    if not hasattr(node.op, "infer_shape"):
        return None
    shapes = [tuple(_stand_ins(x, own)) if hasattr(x.type, "shape") else None for x in node.inputs]
    try:
        found = inferred_shapes(node.op, node, shapes)[result][axis]
    except (ShapeError, NotImplementedError):
        return None
    return pt.as_tensor(found)


def _stand_ins(x: Any, own: dict[Variable, tuple[Any, int]]) -> Iterator[Any]:
    for axis, known in enumerate(x.type.shape):
        if known is not None:
            yield pt.constant(np.int64(known))
        else:
            stand_in = pt.lscalar()
            own[stand_in] = x, axis
            yield stand_in
