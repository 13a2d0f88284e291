"""Infer the sizes of all results of a graph from the shapes of its inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from operator import is_
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.tensor.basic import constant
from pytensor.tensor.shape import Shape, Shape_i
from pytensor.tensor.type import TensorType

from dnnops.dtypes import DTYPES, numpy_dtype

__all__ = ["inferred_bytes", "static_bytes"]

#: Results on the host with at most so many elements are computed if their operands are known.
#: Sizes and shapes have few.
_FEW = 64


def static_bytes(x: Any) -> int | None:
    """Return the bytes of an array if they are known from the graph; 0 for other values."""
    shape, dtype = getattr(x.type, "shape", None), getattr(x.type, "dtype", None)
    if shape is None or dtype not in DTYPES:
        return 0
    return None if None in shape else prod(shape) * numpy_dtype(dtype).itemsize


def inferred_bytes(
    order: Sequence[Apply], shapes: Mapping[Variable, Sequence[int | None]]
) -> dict[Variable, int | None]:
    """Return the bytes of each result.

    The nodes are made again with operands of known shapes, so that each Op infers the static shape
    of its results. Nothing is computed but sizes.

    Parameters
    ----------
    order : sequence of Apply
        Nodes of a graph in the order of execution.
    shapes : mapping
        Shapes of inputs. Others have their static shapes.

    Returns
    -------
    dict
        For each result, its bytes, or None if they are unknown.
    """
    known: dict[Variable, Variable] = {
        x: x.type.clone(shape=tuple(shape))() for x, shape in shapes.items()
    }
    found: dict[Variable, int | None] = {}
    for node in order:
        made = _made(node, [known.get(x, x) for x in node.inputs])
        for z, new in zip(node.outputs, made, strict=True):
            sizes = [size for x in (new, z) if (size := static_bytes(x)) is not None]
            found[z] = sizes[0] if sizes else None
            known[z] = new
    return found


def _made(node: Apply, inputs: list[Variable]) -> list[Variable]:
    """Return results of a node on other operands; constants where their values follow."""
    op: Any = node.op
    if isinstance(op, Shape | Shape_i):
        shape = getattr(inputs[0].type, "shape", (None,))
        shape = shape[op.i : op.i + 1] if isinstance(op, Shape_i) else shape
        if None not in shape:
            value = np.array(shape, "int64")
            return [constant(value.reshape(()) if isinstance(op, Shape_i) else value)]
    if all(map(is_, inputs, node.inputs)):
        return list(node.outputs)
    try:
        new = op.make_node(*inputs)
        if _is_size(new):
            storage: list[list[Any]] = [[None] for _ in new.outputs]
            op.perform(new, [x.data for x in new.inputs], storage)
            return [
                z.type.make_constant(cell[0]) for z, cell in zip(new.outputs, storage, strict=True)
            ]
    except Exception:  # the Op does not accept such operands; sizes stay as they are
        return list(node.outputs)
    return list(new.outputs)


def _is_size(node: Apply) -> bool:
    """Return whether a node computes a few numbers on the host from constants."""
    return all(isinstance(x, Constant) for x in node.inputs) and not any(
        not isinstance(z.type, TensorType) or _count(z) > _FEW for z in node.outputs
    )


def _count(z: Any) -> float:
    shape = getattr(z.type, "shape", None)
    return float("inf") if shape is None or None in shape else prod(shape)
