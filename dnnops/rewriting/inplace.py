"""In-place versions of Ops.

PyTensor's passes replace one node at a time and check the whole graph after each replacement, which
takes most of the time to rewrite a large graph. Most operands may be overwritten for simple
reasons, which `Overwriting` knows. These passes first replace all such nodes at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from pytensor.compile.aliasing import Supervisor
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.destroyhandler import inplace_candidates
from pytensor.graph.fg import FunctionGraph, Output
from pytensor.graph.op import Op
from pytensor.graph.rewriting.basic import GraphRewriter, copy_stack_trace
from pytensor.graph.utils import InconsistencyError
from pytensor.tensor.rewriting.elemwise import InplaceElemwiseOptimizer, InplaceGraphOptimizer

from dnnops.gpuarray.basic import GpuAlloc, GpuAllocEmpty
from dnnops.gpuarray.elemwise import GpuElemwise
from dnnops.gpuarray.op import is_on_device

__all__ = ["ElemwiseAtOnce", "GpuInplace", "GpuInplaceElemwise", "Overwriting"]

#: An output and an operand of the same type, each with its index.
Pair = tuple[tuple[int, Variable], tuple[int, Variable]]


class Overwriting:
    """Decide which operands nodes may overwrite, as long as the graph doesn't change.

    Nodes may overwrite all operands for which `allows` is true, in any combination.

    Parameters
    ----------
    fgraph : FunctionGraph
        Graph with a destroy handler.
    """

    def __init__(self, fgraph: FunctionGraph):
        self.fgraph = fgraph
        self.handler: Any = fgraph.destroy_handler  # type: ignore[attr-defined]
        supervisors = (f for f in fgraph._features if isinstance(f, Supervisor))
        self.kept = {*fgraph.outputs, *(x for f in supervisors for x in f.protected)}
        self._taken: set[Variable] = set()

    def _owners_of_memory(self, x: Variable) -> list[Variable]:
        """Return `x`, what it is a view of, and so on."""
        chain = [x]
        while chain[-1] in self.handler.view_i:
            chain.append(self.handler.view_i[chain[-1]])
        return chain

    def _views(self, x: Variable) -> Iterator[Variable]:
        """Yield `x` and all views of it."""
        yield x
        for view in self.handler.view_o.get(x, ()):
            yield from self._views(view)

    def allows(self, node: Apply, x: Variable) -> bool:
        """Return whether `node` may overwrite its operand `x` for one of two reasons.

        Either no other node reads the memory, or nothing but the graph's outputs depends on `node`,
        so that it can run after all others.
        """
        chain = self._owners_of_memory(x)
        root = chain[-1]
        if isinstance(root, Constant) or root in self._taken or not self.kept.isdisjoint(chain):
            return False
        if all(self._has_one_reader(owner) for owner in chain):
            return True
        if not all(self._is_result(z) for z in node.outputs):
            return False
        views = set(self._views(root))
        others = [operand for operand in node.inputs if operand is not x]
        # Two such nodes must not wait for each other.
        roots = {self._owners_of_memory(operand)[-1] for operand in others}
        return (
            self.kept.isdisjoint(views)
            and views.isdisjoint(others)
            and self._taken.isdisjoint(roots)
            and not self.handler.has_destroyers(self.fgraph, list(node.inputs))
        )

    def _has_one_reader(self, x: Variable) -> bool:
        # A node may return several views, such as the parts of an array.
        return len(self.fgraph.clients[x]) == 1 and len(self.handler.view_o.get(x, ())) <= 1

    def take(self, *operands: Variable) -> None:
        """Record that a node overwrites these operands."""
        self._taken.update(self._owners_of_memory(x)[-1] for x in operands)

    def _is_result(self, x: Variable) -> bool:
        return all(isinstance(user.op, Output) for user, _ in self.fgraph.clients[x])


def _is_read_later(fgraph: FunctionGraph, node: Apply, x: Variable) -> bool:
    """Return whether a node that depends on `node` has `x` as an operand."""
    readers = {user for user, _ in fgraph.clients[x] if user is not node}
    if not readers:
        return False
    seen: set[Apply] = set()
    waiting = [node]
    while waiting:
        for z in waiting.pop().outputs:
            for user, _ in fgraph.clients[z]:
                if user in readers:
                    return True
                if user not in seen and not isinstance(user.op, Output):
                    seen.add(user)
                    waiting.append(user)
    return False


def _replace(fgraph: FunctionGraph, new_nodes: Sequence[tuple[Apply, Apply]], reason: str) -> bool:
    """Replace nodes, given in topological order; return False if the graph refuses."""
    # In reverse order, so that new nodes are in the graph when their operands are replaced.
    pairs = [
        pair
        for old, new in reversed(new_nodes)
        for pair in zip(old.outputs, new.outputs, strict=True)
    ]
    for old, new in new_nodes:
        copy_stack_trace(old.outputs, new.outputs)
    try:
        fgraph.replace_all_validate(pairs, reason=reason)
    except InconsistencyError:
        return False
    return True


class GpuInplace(GraphRewriter):
    """Replace Ops with their in-place versions where nothing else needs the overwritten inputs.

    An Op's method ``inplace_versions`` returns its versions, in the order of preference.
    """

    def apply(self, fgraph: FunctionGraph) -> None:
        """Rewrite `fgraph`."""
        overwriting = Overwriting(fgraph)
        at_once: list[tuple[Apply, Apply]] = []
        single: list[tuple[Apply, Op]] = []
        for node in fgraph.toposort():
            if node.op.destroy_map or not any(map(is_on_device, node.outputs)):
                continue
            versions = getattr(node.op, "inplace_versions", None)
            possible = _possible(fgraph, node, versions() if versions else ())
            if not possible:
                continue
            overwritten = _overwritten(node, possible[0])
            if all(overwriting.allows(node, x) for x in overwritten):
                overwriting.take(*overwritten)
                at_once.append((node, possible[0].make_node(*node.inputs)))
            else:
                single += [(node, op) for op in possible]
        if not _replace(fgraph, at_once, "gpu_inplace"):
            single = [(node, new.op) for node, new in at_once] + single
        for node, op in single:
            if node in fgraph.apply_nodes:
                any(
                    _replace(fgraph, [(node, op.make_node(*inputs))], "gpu_inplace")
                    for inputs in _inputs(node, op)
                )


def _overwritten(node: Apply, op: Op) -> list[Variable]:
    return [node.inputs[i] for indices in op.destroy_map.values() for i in indices]


def _possible(fgraph: FunctionGraph, node: Apply, versions: Sequence[Op]) -> list[Op]:
    """Return the versions that overwrite nothing that is read later; allocations can be copied."""
    overwritten = {x for op in versions for x in _overwritten(node, op) if not _is_allocated(x)}
    needed = {x for x in overwritten if _is_read_later(fgraph, node, x)}
    return [op for op in versions if needed.isdisjoint(_overwritten(node, op))]


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


class _ElemwiseAtOnce(InplaceGraphOptimizer):
    """Let elementwise Ops overwrite operands; updates of shared variables take precedence."""

    def replace_at_once(self, fgraph: FunctionGraph) -> None:
        """Replace the nodes whose operands `Overwriting` allows to overwrite."""
        overwriting = Overwriting(fgraph)
        updates = {
            fgraph.outputs[i]: fgraph.inputs[j]
            for i, j in (getattr(fgraph, "update_mapping", None) or {}).items()
        }
        new_nodes = []
        for node in fgraph.toposort():
            if not isinstance(node.op, self.op) or node.op.destroy_map:
                continue
            pattern: dict[int, Sequence[int]] = {}
            pairs = self._pairs(fgraph, node, overwriting.kept)
            # Stable, so that an update comes first, and the rest stays in order.
            for (o, z), (i, x) in sorted(pairs, key=lambda pair: not _is_update(pair, updates)):
                if o in pattern or [i] in pattern.values():
                    continue
                if overwriting.allows(node, x):
                    pattern[o] = [i]
                elif updates.get(z) is x:
                    # Leave this node to the general pass, which may find an order of the nodes.
                    pattern.clear()
                    break
            if pattern:
                new = self.create_inplace_node(node, pattern)
                overwriting.take(*_overwritten(node, new.op))
                new_nodes.append((node, new))
        _replace(fgraph, new_nodes, f"{self.op.__name__}_at_once")

    def _pairs(self, fgraph: FunctionGraph, node: Apply, kept: Collection[Variable]) -> list[Pair]:
        """Return outputs with operands that they may overwrite as far as types are concerned."""
        raise NotImplementedError


def _is_update(pair: Pair, updates: dict[Variable, Variable]) -> bool:
    (_, z), (_, x) = pair
    return updates.get(z) is x


class ElemwiseAtOnce(_ElemwiseAtOnce, InplaceElemwiseOptimizer):
    """Replace the simple cases of PyTensor's pass over `Elemwise`, which comes next."""

    def apply(self, fgraph: FunctionGraph) -> None:
        """Rewrite `fgraph`."""
        self.replace_at_once(fgraph)

    def _pairs(self, fgraph: FunctionGraph, node: Apply, kept: Collection[Variable]) -> list[Pair]:
        return self.filter_candidate_pairs(fgraph, node, kept)


class GpuInplaceElemwise(_ElemwiseAtOnce):
    """Let `GpuElemwise` overwrite operands; updates of shared variables take precedence."""

    op = GpuElemwise

    def apply(self, fgraph: FunctionGraph) -> Any:
        """Rewrite `fgraph`."""
        self.replace_at_once(fgraph)
        return super().apply(fgraph)

    def _pairs(self, fgraph: FunctionGraph, node: Apply, kept: Collection[Variable]) -> list[Pair]:
        candidates = [
            (node.inputs.index(x), x)
            for x in inplace_candidates(fgraph, node.inputs, protected_inputs=kept)
            if is_on_device(x)
        ]
        return [
            ((o, out), (i, x))
            for o, out in enumerate(node.outputs)
            for i, x in candidates
            if x.type.in_same_class(out.type)
        ]

    def filter_candidate_pairs(
        self, fgraph: FunctionGraph, node: Apply, protected_inputs: Collection[Variable]
    ) -> list[Pair]:
        """Return the pairs for which the graph may have an order of its nodes."""
        pairs = self._pairs(fgraph, node, protected_inputs)
        hopeless = {x for _, (_, x) in pairs if _is_read_later(fgraph, node, x)}
        return [pair for pair in pairs if pair[1][1] not in hopeless]

    def create_inplace_node(self, node: Apply, inplace_pattern: dict[int, Sequence[int]]) -> Apply:
        """Return the node that overwrites the given operands."""
        pairs = [(o, i) for o, [i] in inplace_pattern.items()]
        op = GpuElemwise(node.op.scalar_op, pairs, node.op.out_dtypes)
        return op.make_node(*node.inputs)
