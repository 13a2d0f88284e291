"""Keep the sizes that Ops take as operands known to JAX and PyTorch while they trace a graph."""

from __future__ import annotations

from typing import Any

from pytensor.compile.mode import optdb
from pytensor.graph.basic import Apply, Constant
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import copy_stack_trace, dfs_rewriter, node_rewriter
from pytensor.tensor.basic import Alloc, AllocEmpty, MakeVector
from pytensor.tensor.shape import Reshape, Shape, Shape_i

from dnnops.link.sizes import StaticSizes, sizes_by_shapes
from dnnops.modes import PYTORCH_TAG
from dnnops.nnet.conv import ConvGradInputs, ConvGradWeights
from dnnops.nnet.pool import PoolBase
from dnnops.nnet.spatial_transformer_ops import SpatialTransformerGrid

__all__ = [
    "local_static_alloc",
    "local_static_reshape",
    "local_static_shape",
    "local_static_sizes",
]


def _is_static(x: Any) -> bool:
    """Whether JAX knows the value of an integer, or a vector of them, already."""
    return isinstance(x, Constant) or (
        x.owner is not None and isinstance(x.owner.op, Shape | Shape_i | StaticSizes)
    )


def _known(x: Any) -> Any:
    """The same by the shapes of arrays alone, or `x` if it depends on something else."""
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
    """Replace vectors of sizes that depend on shapes alone."""
    return _replaced(node, [_known(x) for x in node.inputs])


@node_rewriter([Alloc, AllocEmpty])
def local_static_alloc(fgraph: FunctionGraph, node: Apply) -> list[Any] | None:
    """Replace the sizes of new arrays: gradients of means have those of a convolution's output."""
    first = int(isinstance(node.op, Alloc))
    return _replaced(node, node.inputs[:first] + [_known(x) for x in node.inputs[first:]])


@node_rewriter([Reshape])
def local_static_reshape(fgraph: FunctionGraph, node: Apply) -> list[Any] | None:
    """Replace the entries of a new shape, a vector of which PyTensor then makes a tuple."""
    shape = node.inputs[1]
    if shape.owner is None or not isinstance(shape.owner.op, MakeVector):
        return None
    entries = [_known(x) for x in shape.owner.inputs]
    if entries == shape.owner.inputs:
        return None
    return _replaced(node, [node.inputs[0], shape.owner.op(*entries)])


@node_rewriter([Reshape])
def local_static_shape(fgraph: FunctionGraph, node: Apply) -> list[Any] | None:
    """Replace a new shape as a whole, which PyTorch takes as a tuple."""
    return _replaced(node, [node.inputs[0], _known(node.inputs[1])])


# Before those of PyTensor that do the same for its own Ops (100), when the graph is done.
for rewriter, tags in (
    (local_static_sizes, ("jax", PYTORCH_TAG)),
    (local_static_alloc, ("jax", PYTORCH_TAG)),
    (local_static_reshape, ("jax",)),
    (local_static_shape, (PYTORCH_TAG,)),
):
    optdb.register(rewriter.__name__, dfs_rewriter(rewriter), *tags, position=99.9)
