"""In-place versions of the Ops on device arrays."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pytensor.compile.mode import optdb
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

#: ``f(fgraph, node)`` gives an in-place version of ``node.op``, several, or None.
InplaceFunction = Callable[[FunctionGraph, Apply], Op | Sequence[Op] | None]

_registry: dict[type, InplaceFunction] = {}


def register_gpu_inplace(*op_classes: type) -> Callable[[InplaceFunction], InplaceFunction]:
    """Register a function that gives the in-place version of a node's Op.

    Parameters
    ----------
    *op_classes : type
        Classes of GPU Ops; no subclasses are served.

    Returns
    -------
    callable
        A decorator for ``f(fgraph, node)``, which returns an Op with a ``destroy_map`` that
        takes ``node.inputs``, or None; or several, of which the first one is taken that overwrites
        only what may be. It isn't asked about nodes that are in place already, and needn't check
        whether the input may be overwritten.
    """

    def register(function: InplaceFunction) -> InplaceFunction:
        for op_class in op_classes:
            _registry[op_class] = function
        return function

    return register


class GpuInplace(GraphRewriter):
    """Replace Ops by their in-place versions where nothing else needs what they overwrite."""

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
        """Put an Op in the place of a node's; False if somebody else needs what it overwrites."""
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
    """A node's inputs; then with memory of its own, where an allocation has been merged."""
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
    """Let `GpuElemwise` overwrite operands; updates of shared variables first."""

    op = GpuElemwise

    def filter_candidate_pairs(
        self, fgraph: FunctionGraph, node: Apply, protected_inputs: Sequence[Variable]
    ) -> list[Any]:
        """Pair outputs with operands of the same type that nobody else destroys."""
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
        """Make the node that overwrites the given operands."""
        pairs = [(o, i) for o, [i] in inplace_pattern.items()]
        return GpuElemwise(node.op.scalar_op, pairs).make_node(*node.inputs)


def _inplace_host_op(op: Any) -> Any:
    """Give the in-place version of an Op of PyTensor that has the parameter ``inplace``."""
    inplace = copy.copy(op)
    name = "destructive" if hasattr(op, "destructive") else "inplace"
    setattr(inplace, name, True)
    inplace.destroy_map = {0: [0]}
    return inplace


@register_gpu_inplace(GpuIncSubtensor, GpuAdvancedIncSubtensor, GpuGemm, GpuGemv, GpuGer)
def inplace_mirror(fgraph: FunctionGraph, node: Apply) -> Op:
    """The Ops whose host's Op has an in-place version."""
    op = copy.copy(node.op)
    op.host_op = _inplace_host_op(node.op.host_op)
    op.destroy_map = op.host_op.destroy_map
    return op


# After add_destroy_handler (49.5); the updates' in-place writes before those of temporaries.
optdb.register("gpu_inplace", GpuInplace(), "gpu", "inplace", position=50.55)
optdb.register("gpu_inplace_elemwise", GpuInplaceElemwise(), "gpu", "inplace", position=50.6)
