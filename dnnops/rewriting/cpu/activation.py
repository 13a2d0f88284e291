"""Run activations on the CPU with oneDNN where it is faster, else with elementwise Ops.

PyTensor has already fused elementwise Ops when library Ops are inserted. If a later rewrite adds or
removes elementwise Ops, the fused Ops are split and fused again.
"""

from __future__ import annotations

from weakref import WeakSet

from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import (
    GraphRewriter,
    copy_stack_trace,
    dfs_rewriter,
    node_rewriter,
)
from pytensor.scalar.basic import Composite, Tanh
from pytensor.scalar.math import Sigmoid
from pytensor.tensor.basic import constant
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.rewriting.elemwise import (
    FusionOptimizer,
    local_inline_composite_constants,
    local_useless_composite_outputs,
)

from dnnops.cpu.activation import OneDnnActivation, is_faster, is_worth_a_call
from dnnops.nnet.activation.op import Activation, ActivationGrad

__all__ = ["local_elemwise_activation"]

SCALAR_OPS: dict[type, str] = {Tanh: "tanh", Sigmoid: "sigmoid"}
#: Graphs with new elementwise Ops to fuse.
_altered: WeakSet[FunctionGraph] = WeakSet()


@node_rewriter([Activation, ActivationGrad])
def local_expand_activation(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
    """Replace an activation or its gradient with elementwise Ops."""
    if type(node.op) not in (Activation, ActivationGrad):
        return None
    (output,) = node.op.expressions(*node.inputs)
    copy_stack_trace(node.outputs[0], output)
    return [output]


@node_rewriter([Activation, ActivationGrad])
def local_expand_slow_activation(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
    """Replace an activation or its gradient with elementwise Ops if they are faster."""
    return None if is_faster(node) else local_expand_activation.transform(fgraph, node)


@node_rewriter([Elemwise])
def local_elemwise_activation(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
    """Replace a float32 tanh or sigmoid with the oneDNN Op, even if it has been fused."""
    scalar_op = node.op.scalar_op
    if not is_worth_a_call(node.outputs[0]):
        return None
    if type(scalar_op) in SCALAR_OPS and node.inputs[0].type.dtype == "float32":
        output = OneDnnActivation(SCALAR_OPS[type(scalar_op)])(*node.inputs)
        copy_stack_trace(node.outputs[0], output)
        return [output]
    if not isinstance(scalar_op, Composite) or not any(
        type(inner.op) in SCALAR_OPS and inner.outputs[0].type.dtype == "float32"
        for inner in scalar_op.fgraph.apply_nodes
    ):
        return None
    _altered.add(fgraph)
    return local_take_apart.transform(fgraph, node)


@node_rewriter([Elemwise])
def local_take_apart(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
    """Split a fused node into one node per scalar Op."""
    if not isinstance(node.op.scalar_op, Composite):
        return None
    inner_graph = node.op.scalar_op.fgraph
    ndim = node.outputs[0].type.ndim
    known = dict(zip(inner_graph.inputs, node.inputs, strict=True))

    def outer(variable: Variable) -> Variable:
        if variable not in known:
            assert isinstance(variable, Constant)
            # Give the constant all dimensions, as before fusion.
            known[variable] = constant(
                variable.data.reshape((1,) * ndim), dtype=variable.type.dtype
            )
        return known[variable]

    for inner in inner_graph.toposort():
        made = Elemwise(inner.op).make_node(*map(outer, inner.inputs))
        known |= zip(inner.outputs, made.outputs, strict=True)
    outputs = [outer(variable) for variable in inner_graph.outputs]
    if not all(old.type.is_super(new.type) for old, new in zip(node.outputs, outputs, strict=True)):
        return None
    copy_stack_trace(node.outputs, outputs)
    return outputs


class ExpandActivations(GraphRewriter):
    """Expand the activations that no library runs into elementwise Ops.

    Parameters
    ----------
    after_fusion : bool
        Whether elementwise Ops have been fused. If False, only the activations are expanded that
        no library would run.
    """

    def __init__(self, after_fusion: bool) -> None:
        super().__init__()
        self.after_fusion = after_fusion
        rewriter = local_expand_activation if after_fusion else local_expand_slow_activation
        self._expand = dfs_rewriter(rewriter)

    def apply(self, fgraph: FunctionGraph) -> None:
        if any(type(node.op) in (Activation, ActivationGrad) for node in fgraph.apply_nodes):
            self._expand.apply(fgraph)
            if self.after_fusion:
                _altered.add(fgraph)


class FuseAgain(GraphRewriter):
    """Fuse elementwise Ops again in graphs that the other rewrites of this module have changed."""

    def __init__(self) -> None:
        super().__init__()
        # Split first: PyTensor does not fuse a node with several outputs any further.
        self._steps = (
            dfs_rewriter(local_take_apart),
            FusionOptimizer(),
            dfs_rewriter(local_useless_composite_outputs),
            dfs_rewriter(local_inline_composite_constants, ignore_newtrees=True),
        )

    def apply(self, fgraph: FunctionGraph) -> None:
        if fgraph in _altered:
            _altered.discard(fgraph)
            for step in self._steps:
                step.apply(fgraph)
