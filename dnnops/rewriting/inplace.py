"""In-place versions of Ops on device arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pytensor.graph.basic import Apply, Variable
from pytensor.graph.destroyhandler import inplace_candidates
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import Op
from pytensor.graph.rewriting.basic import GraphRewriter, copy_stack_trace
from pytensor.graph.utils import InconsistencyError
from pytensor.tensor.rewriting.elemwise import InplaceGraphOptimizer

from dnnops.gpuarray.basic import GpuAlloc, GpuAllocEmpty
from dnnops.gpuarray.elemwise import GpuElemwise
from dnnops.gpuarray.op import is_on_device


class GpuInplace(GraphRewriter):
    """Replace Ops with their in-place versions where nothing else needs the overwritten inputs.

    An Op's method ``inplace_versions`` returns its versions, in the order of preference.
    """

    def apply(self, fgraph: FunctionGraph) -> None:
        """Rewrite `fgraph`."""
        for node in fgraph.toposort():
            if node.op.destroy_map or not any(map(is_on_device, node.outputs)):
                continue
            versions = getattr(node.op, "inplace_versions", None)
            for op in versions() if versions else ():
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
