"""Run the updates of all parameters in one kernel for each formula.

An optimizer applies the same formula to every parameter. PyTensor's fusion makes one elementwise
node of all that is computed for a parameter, such as its new velocity and value. That leaves one
kernel per parameter, of which most take longer to launch than to run. This pass merges such nodes
into a `GpuMultiElemwise`, as ``multi_tensor_apply`` does in PyTorch. It knows no optimizer: nodes
with the same scalar Op and operands of the same dtypes are merged.

The merged node runs when the last gradient is there, so all gradients are alive at once, as in
PyTorch. To delay nothing else, only nodes are merged whose results are results of the function, so
nothing waits for them, and which read an input of the function, so that what they keep alive is no
larger than what the function was given.

Nodes at the other end of the graph are merged as well: those that read nothing but shared
variables, such as conversions of parameters to 16 bits. Their results are then there earlier, so
they must have several users: the gradient needs them until late in any case.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from math import prod
from typing import Any

from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.fg import FunctionGraph, Output
from pytensor.graph.rewriting.basic import GraphRewriter, copy_stack_trace
from pytensor.graph.utils import InconsistencyError

from dnnops.gpuarray.elementwise.packed import SCALAR
from dnnops.gpuarray.elemwise import GpuElemwise
from dnnops.gpuarray.multi_elemwise.op import GpuMultiElemwise, operand_kinds
from dnnops.gpuarray.op import is_on_device

__all__ = ["LARGE", "MOST_ARRAYS", "HorizontalFusion"]

#: Number of elements from which an array keeps a GPU busy for far longer than a launch takes.
#: Merging would save nothing, but keep the gradient alive.
LARGE = 1 << 22
#: Maximum number of operands and results of a node that is merged. Their addresses are parameters
#: of the kernel.
MOST_ARRAYS = 32
#: How often a group that the graph refuses is divided.
_DIVISIONS = 3


class HorizontalFusion(GraphRewriter):
    """Merge elementwise nodes on a GPU that begin or end a graph and apply the same scalar Op."""

    def apply(self, fgraph: FunctionGraph) -> None:
        """Rewrite `fgraph`."""
        groups: dict[Hashable, list[Apply]] = defaultdict(list)
        for node in fgraph.toposort():
            if not isinstance(node.op, GpuElemwise) or not _is_small(node):
                continue
            is_last = _is_last(fgraph, node)
            if is_last or _is_first(fgraph, node):
                key = _group(node)
                if key is not None:
                    groups[is_last, key].append(node)
        for nodes in groups.values():
            _merge(fgraph, _without_conflicts(fgraph, nodes), _DIVISIONS)


def _is_last(fgraph: FunctionGraph, node: Apply) -> bool:
    """Return whether a node reads an input of the function and computes nothing but results."""
    return any(x.owner is None and not isinstance(x, Constant) for x in _arrays(node)) and all(
        isinstance(user.op, Output) for z in node.outputs for user, _ in fgraph.clients[z]
    )


def _is_first(fgraph: FunctionGraph, node: Apply) -> bool:
    """Return whether a node reads only shared variables, and each result has several users."""
    return (
        not node.op.destroy_map
        and all(isinstance(x, SharedVariable) for x in _arrays(node))
        and all(len(fgraph.clients[z]) > 1 for z in node.outputs)
    )


def _is_small(node: Apply) -> bool:
    shape = node.outputs[0].type.shape
    return None in shape or prod(shape) < LARGE


def _arrays(node: Apply) -> list[Variable]:
    return [x for x in node.inputs if is_on_device(x)]


def _group(node: Apply) -> Hashable:
    """Return what nodes must have in common to be merged; None if a node cannot be merged."""
    kinds = operand_kinds(node)
    if kinds is None or len(kinds) + len(node.outputs) > MOST_ARRAYS:
        return None
    numbers = tuple(
        (x.type, x.data.tobytes()) if isinstance(x, Constant) else x
        for x in node.inputs
        if not is_on_device(x)
    )
    dtypes = tuple(x.type.dtype for x in node.inputs)
    return node.op, kinds, dtypes, numbers, node.outputs[0].type.device


def _without_conflicts(fgraph: FunctionGraph, nodes: Sequence[Apply]) -> list[Apply]:
    """Leave out the nodes that overwrite an array that another of the nodes reads.

    In one kernel, they would not run in any order.
    """
    views = getattr(getattr(fgraph, "destroy_handler", None), "view_i", {})

    def root(x: Variable) -> Variable:
        while x in views:
            x = views[x]
        return x

    readers = Counter(x for node in nodes for x in {root(x) for x in _arrays(node)})
    return [
        node
        for node in nodes
        if all(readers[root(node.inputs[i])] == 1 for _, i in node.op.inplace_pattern)
    ]


def _merge(fgraph: FunctionGraph, nodes: Sequence[Apply], divisions: int) -> None:
    """Merge nodes; if they and others would wait for each other, merge parts of them."""
    if len(nodes) < 2:
        return
    merged = _merged(nodes)
    old = [z for node in nodes for z in node.outputs]
    pairs = list(zip(old, merged.outputs, strict=True))
    for before, after in pairs:
        copy_stack_trace(before, after)
    try:
        fgraph.replace_all_validate(pairs, reason="gpu_horizontal_fusion")
    except InconsistencyError:
        if divisions:
            middle = len(nodes) // 2
            _merge(fgraph, nodes[:middle], divisions - 1)
            _merge(fgraph, nodes[middle:], divisions - 1)


def _merged(nodes: Sequence[Apply]) -> Apply:
    first = nodes[0]
    kinds: Any = operand_kinds(first)
    op = GpuMultiElemwise(first.op.scalar_op, kinds, len(nodes), first.op.inplace_pattern)
    arrays = [x for node in nodes for x in _arrays(node)]
    numbers = [x for x, kind in zip(first.inputs, kinds, strict=True) if kind == SCALAR]
    return op.make_node(*arrays, *numbers)
