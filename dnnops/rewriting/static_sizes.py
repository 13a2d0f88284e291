"""Keep sizes that are operands of Ops static while JAX and PyTorch trace a graph."""

from __future__ import annotations

from typing import Any

from pytensor.graph.basic import Apply, Constant
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import copy_stack_trace, node_rewriter
from pytensor.tensor.basic import Alloc, AllocEmpty, MakeVector
from pytensor.tensor.shape import Reshape, Shape, Shape_i

from dnnops.link.sizes import StaticSizes, sizes_by_shapes
from dnnops.nnet.conv.op import ConvGradInputs, ConvGradWeights
from dnnops.nnet.pool.op import PoolBase
from dnnops.nnet.resample.spatial_transformer import SpatialTransformerGrid

__all__ = [
    "local_static_alloc",
    "local_static_reshape",
    "local_static_shape",
    "local_static_sizes",
]


def _is_static(x: Any) -> bool:
    """Return whether an integer, or a vector of integers, is already static for JAX."""
    return isinstance(x, Constant) or (
        x.owner is not None and isinstance(x.owner.op, Shape | Shape_i | StaticSizes)
    )


def _known(x: Any) -> Any:
    """Return `x` as a function of array shapes only, or `x` itself if it depends on values."""
    if x.type.dtype != "int64" or _is_static(x):
        return x
    found = sizes_by_shapes(x)
    return x if found is None else found


def _replaced(node: Apply, inputs: list[Any]) -> list[Any] | None:
    if inputs == node.inputs:
        return None
    outputs = node.clone_with_new_inputs(inputs).outputs
    copy_stack_trace(node.outputs, outputs)
    return outputs


@node_rewriter([ConvGradInputs, ConvGradWeights, PoolBase, SpatialTransformerGrid])
def local_static_sizes(fgraph: FunctionGraph, node: Apply) -> list[Any] | None:
    """Make vectors of sizes static if they depend on shapes only."""
    return _replaced(node, [_known(x) for x in node.inputs])


@node_rewriter([Alloc, AllocEmpty])
def local_static_alloc(fgraph: FunctionGraph, node: Apply) -> list[Any] | None:
    """Make the sizes of new arrays static.

    For example, the gradient of a mean allocates an array of the size of a convolution's output.
    """
    first = int(isinstance(node.op, Alloc))
    return _replaced(node, node.inputs[:first] + [_known(x) for x in node.inputs[first:]])


@node_rewriter([Reshape])
def local_static_reshape(fgraph: FunctionGraph, node: Apply) -> list[Any] | None:
    """Make the entries of a new shape static; PyTensor then turns the vector into a tuple."""
    shape = node.inputs[1]
    if shape.owner is None or not isinstance(shape.owner.op, MakeVector):
        return None
    entries = [_known(x) for x in shape.owner.inputs]
    if entries == shape.owner.inputs:
        return None
    return _replaced(node, [node.inputs[0], shape.owner.op(*entries)])


@node_rewriter([Reshape])
def local_static_shape(fgraph: FunctionGraph, node: Apply) -> list[Any] | None:
    """Make a new shape static as a whole, since PyTorch takes it as a tuple."""
    return _replaced(node, [node.inputs[0], _known(node.inputs[1])])
