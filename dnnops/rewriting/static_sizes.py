"""Keep sizes that are operands of Ops static while JAX and PyTorch trace a graph."""

from __future__ import annotations

from typing import Any

from pytensor.graph.basic import Apply, Constant
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import copy_stack_trace, node_rewriter
from pytensor.scalar import ScalarType
from pytensor.tensor.basic import Alloc, AllocEmpty, ARange, MakeVector, ScalarFromTensor, Split
from pytensor.tensor.shape import Reshape, Shape, Shape_i, SpecifyShape
from pytensor.tensor.subtensor import IncSubtensor, Subtensor

from dnnops.link.sizes import (
    SizeOfValues,
    StaticARange,
    StaticSizes,
    StaticSplit,
    sizes_by_shapes,
)
from dnnops.nnet.conv.op import ConvGradInputs, ConvGradWeights
from dnnops.nnet.pool.op import PoolBase
from dnnops.nnet.resample.spatial_transformer import SpatialTransformerGrid

__all__ = [
    "local_sizes_of_values",
    "local_static_alloc",
    "local_static_parts",
    "local_static_ranges",
    "local_static_reshape",
    "local_static_scalars",
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
    if getattr(x.type, "dtype", "") != "int64" or _is_static(x):
        return x
    found = sizes_by_shapes(x)
    return x if found is None else found


def _is_of_values(x: Any) -> bool:
    is_marked = x.owner is not None and isinstance(x.owner.op, SizeOfValues)
    return not (is_marked or _is_static(x)) and _known(x) is x


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


@node_rewriter([Alloc, AllocEmpty, SpecifyShape])
def local_static_alloc(fgraph: FunctionGraph, node: Apply) -> list[Any] | None:
    """Make the sizes of new arrays, and those that arrays are said to have, static.

    For example, the gradient of a mean allocates an array of the size of a convolution's output.
    """
    first = int(not isinstance(node.op, AllocEmpty))
    return _replaced(node, node.inputs[:first] + [_known(x) for x in node.inputs[first:]])


@node_rewriter([Alloc, AllocEmpty, SpecifyShape])
def local_sizes_of_values(fgraph: FunctionGraph, node: Apply) -> list[Any] | None:
    """Mark such sizes that depend on values, which JAX does not support."""
    first = int(not isinstance(node.op, AllocEmpty))
    mark = SizeOfValues(type(node.op).__name__)
    marked = [mark(x) if _is_of_values(x) else x for x in node.inputs[first:]]
    return _replaced(node, node.inputs[:first] + marked)


@node_rewriter([Reshape])
def local_static_reshape(fgraph: FunctionGraph, node: Apply) -> list[Any] | None:
    """Make the entries of a new shape static; PyTensor then turns the vector into a tuple."""
    shape: Any = node.inputs[1]
    if _is_static(shape):
        return None
    is_vector = shape.owner is not None and isinstance(shape.owner.op, MakeVector)
    # Whatever the vector consists of, each of its entries may follow from shapes.
    entries = shape.owner.inputs if is_vector else [shape[i] for i in range(node.op.ndim)]
    known = [_known(x) for x in entries]
    if known == entries or not (is_vector or all(map(_is_static, known))):
        return None
    return _replaced(node, [node.inputs[0], MakeVector("int64")(*known)])


@node_rewriter([Subtensor, IncSubtensor])
def local_static_parts(fgraph: FunctionGraph, node: Apply) -> list[Any] | None:
    """Make the bounds of slices static: JAX supports no others."""
    inputs = [_known(x) if isinstance(x.type, ScalarType) else x for x in node.inputs]
    return _replaced(node, inputs)


@node_rewriter([ARange, Split])
def local_static_ranges(fgraph: FunctionGraph, node: Apply) -> list[Any] | None:
    """Make the bounds of ranges, and the sizes of the parts of an array, static."""
    op: Any = node.op
    if isinstance(op, StaticARange | StaticSplit):
        return None
    if isinstance(op, ARange):
        static, known = StaticARange(op.dtype), [_known(x) for x in node.inputs]
        of_sizes = known
    else:
        static, (*others, sizes) = StaticSplit(*op._props()), node.inputs
        known = [*others, _known(sizes)]
        of_sizes = known[1:]
    if not all(map(_is_static, of_sizes)) or all(isinstance(x, Constant) for x in of_sizes):
        return None
    outputs: list[Any] = static.make_node(*known).outputs
    copy_stack_trace(node.outputs, outputs)
    return outputs


@node_rewriter([Reshape])
def local_static_shape(fgraph: FunctionGraph, node: Apply) -> list[Any] | None:
    """Make a new shape static as a whole, since PyTorch takes it as a tuple."""
    return _replaced(node, [node.inputs[0], _known(node.inputs[1])])


@node_rewriter([ScalarFromTensor])
def local_static_scalars(fgraph: FunctionGraph, node: Apply) -> list[Any] | None:
    """Make sizes, and conditions on sizes, static: PyTorch has numbers there, and no arrays."""
    if _is_static(node.inputs[0]) or node.inputs[0].type.dtype not in ("bool", "int64"):
        return None
    found = sizes_by_shapes(node.outputs[0])
    if found is None:
        return None
    copy_stack_trace(node.outputs, found)
    return [found]
