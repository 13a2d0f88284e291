"""Read single sizes from a converted shape."""

from __future__ import annotations

from typing import Any

from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import copy_stack_trace, node_rewriter
from pytensor.scalar.basic import Cast
from pytensor.tensor.basic import MakeVector, cast
from pytensor.tensor.subtensor import Subtensor

from dnnops.rewriting.recognize.views import inputs_of

__all__ = ["local_converted_size"]


@node_rewriter([Subtensor])
def local_converted_size(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
    """Replace ``cast([n, m, ...], dtype)[1]`` with ``cast(m, dtype)``.

    A mean over several axes divides by such sizes. PyTensor doesn't convert them one by one if
    several are used; on a GPU, the vector would be transferred.
    """
    converted, *index = node.inputs
    (out,) = node.outputs
    vector = next(iter(inputs_of(converted, Cast) or ()), None)
    if vector is None or vector.owner is None or not isinstance(vector.owner.op, MakeVector):
        return None
    if out.type.ndim or len(index) != 1 or not isinstance(index[0], Constant):
        return None
    place, sizes = int(index[0].data), vector.owner.inputs
    if not -len(sizes) <= place < len(sizes):
        return None
    size: Any = cast(cast(sizes[place], vector.type.dtype), out.type.dtype)
    copy_stack_trace(out, size)
    return [size]
