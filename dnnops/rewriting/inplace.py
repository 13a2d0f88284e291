"""In-place versions of Ops on device arrays."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pytensor.graph.basic import Apply, Variable
from pytensor.graph.destroyhandler import inplace_candidates
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import Op
from pytensor.graph.rewriting.basic import GraphRewriter, copy_stack_trace
from pytensor.graph.utils import InconsistencyError
from pytensor.tensor.rewriting.elemwise import InplaceGraphOptimizer

from dnnops.gpuarray.basic import GpuAlloc, GpuAllocEmpty
from dnnops.gpuarray.blas import GpuGemm, GpuGemv, GpuGer
from dnnops.gpuarray.elemwise import GpuElemwise
from dnnops.gpuarray.op import is_on_device
from dnnops.gpuarray.subtensor import GpuAdvancedIncSubtensor, GpuIncSubtensor

#: ``f(fgraph, node)`` returns one or several in-place versions of ``node.op``, or None.
InplaceFunction = Callable[[FunctionGraph, Apply], Op | Sequence[Op] | None]

_registry: dict[type, InplaceFunction] = {}


def register_gpu_inplace(*op_classes: type) -> Callable[[InplaceFunction], InplaceFunction]:
    """Register a function that returns the in-place version of a node's Op.

    Parameters
    ----------
    *op_classes : type
        Classes of GPU Ops. Subclasses are not included.

    Returns
    -------
    callable
        Decorator for ``f(fgraph, node)``, which returns an Op with a ``destroy_map`` that takes
        ``node.inputs``, a sequence of such Ops, or None. The first Op that overwrites only unneeded
        inputs is used. The function is not called for nodes that are already in place, and need not
        check whether an input may be overwritten.
    """

    def register(function: InplaceFunction) -> InplaceFunction:
        for op_class in op_classes:
            _registry[op_class] = function
        return function

    return register


class GpuInplace(GraphRewriter):
    """Replace Ops with their in-place versions where nothing else needs the overwritten inputs."""

    def apply(self, fgraph: FunctionGraph) -> None:
        """Rewrite `fgraph`."""
        for node in fgraph.toposort():
            function = _registry.get(type(node.op))
            if function is None or node.op.destroy_map:
                continue
            versions = function(fgraph, node)
            for op in [versions] if isinstance(versions, Op) else versions or ():
                if any(self._replace(fgraph, node, op, inputs) for inputs in _inputs(node, op)):
                    break

    def _replace(self, fgraph: FunctionGraph, node: Apply, op: Op, inputs: list[Variable]) -> bool:
        """Replace a node's Op; return False if another node needs an overwritten input."""
        new = op.make_node(*inputs).outputs
        copy_stack_trace(node.outputs, new)
        try:
            fgraph.replace_all_validate(
                list(zip(node.outputs, new, strict=True)), reason="gpu_inplace"
            )
        except InconsistencyError:
            return False
        return True


def _inputs(node: Apply, op: Op) -> Iterator[list[Variable]]:
    """Yield a node's inputs, then its inputs with copies of the allocations that it overwrites.

    An allocation may have been merged, so that other nodes use the same one.
    """
    yield list(node.inputs)
    overwritten = {i for indices in op.destroy_map.values() for i in indices}
    own = [
        x.owner.clone().outputs[x.index] if i in overwritten and _is_allocated(x) else x
        for i, x in enumerate(node.inputs)
    ]
    if own != list(node.inputs):
        yield own


def _is_allocated(x: Variable) -> bool:
    return x.owner is not None and isinstance(x.owner.op, GpuAlloc | GpuAllocEmpty)


class GpuInplaceElemwise(InplaceGraphOptimizer):
    """Let `GpuElemwise` overwrite operands; updates of shared variables take precedence."""

    op = GpuElemwise

    def filter_candidate_pairs(
        self, fgraph: FunctionGraph, node: Apply, protected_inputs: Sequence[Variable]
    ) -> list[Any]:
        """Pair outputs with operands of the same type that no other node destroys."""
        candidates = [
            (node.inputs.index(x), x)
            for x in inplace_candidates(fgraph, node.inputs, protected_inputs=protected_inputs)
            if is_on_device(x)
        ]
        return [
            ((o, out), (i, x))
            for o, out in enumerate(node.outputs)
            for i, x in candidates
            if x.type.in_same_class(out.type)
        ]

    def create_inplace_node(self, node: Apply, inplace_pattern: dict[int, Sequence[int]]) -> Apply:
        """Return the node that overwrites the given operands."""
        pairs = [(o, i) for o, [i] in inplace_pattern.items()]
        return GpuElemwise(node.op.scalar_op, pairs).make_node(*node.inputs)


def _inplace_host_op(op: Any) -> Any:
    """Return the in-place version of a PyTensor Op with an ``inplace`` parameter."""
    inplace = copy.copy(op)
    name = "destructive" if hasattr(op, "destructive") else "inplace"
    setattr(inplace, name, True)
    inplace.destroy_map = {0: [0]}
    return inplace


@register_gpu_inplace(GpuIncSubtensor, GpuAdvancedIncSubtensor, GpuGemm, GpuGemv, GpuGer)
def inplace_mirror(fgraph: FunctionGraph, node: Apply) -> Op:
    """Return the in-place version of a GPU Op whose host Op has one."""
    op = copy.copy(node.op)
    op.host_op = _inplace_host_op(node.op.host_op)
    op.destroy_map = op.host_op.destroy_map
    return op
