"""Let PyTensor's rewrites see tanh and sigmoid, whichever function the user called.

PyTensor stabilizes and simplifies expressions of its own sigmoid and tanh, such as
``log(1 - sigmoid(x))``, ``1 - sigmoid(x)`` and ``arctanh(tanh(x))``; docs/decisions/operations.rst
lists these rewrites. Before they run, `Activation` becomes PyTensor's elementwise Op. After them,
what is left becomes `Activation` again, which libraries compute.

A gradient remains an `ActivationGrad`, which is computed from the output, unless it may have to
cancel with that of a logarithm or an exponential.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import (
    GraphRewriter,
    copy_stack_trace,
    dfs_rewriter,
    node_rewriter,
)
from pytensor.scalar.basic import ArcTanh, Exp, Log, Log1p, Log2, Log10, Mul, Tanh, TrueDiv
from pytensor.scalar.math import Sigmoid
from pytensor.tensor.basic import cast
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.math import sigmoid, tanh

from dnnops.dtypes import FLOAT_DTYPES
from dnnops.nnet.activation.op import Activation, ActivationGrad
from dnnops.rewriting.recognize.views import inputs_of, kind_of

__all__ = ["SPELLINGS", "CollectActivations", "SpellActivations", "is_spelled", "may_cancel"]

#: PyTensor's functions by the modes of `Activation`.
SPELLINGS: dict[str, Any] = {"tanh": tanh, "sigmoid": sigmoid}
_MODES: dict[type, str] = {Tanh: "tanh", Sigmoid: "sigmoid"}
#: Inverses of tanh and sigmoid, or parts of them.
_PARTNERS = (Log, Log1p, Log2, Log10, ArcTanh)
#: Number of Ops between an activation and a logarithm that PyTensor may rewrite together.
MAX_DISTANCE = 4

#: Graphs in which activations have become elementwise Ops.
_spelled: WeakSet[FunctionGraph] = WeakSet()


def is_spelled(fgraph: FunctionGraph) -> bool:
    """Return whether activations of dnnops are elementwise Ops of PyTensor in a graph."""
    return fgraph in _spelled


def _has_spelling(op: Any, kind: type) -> bool:
    return type(op) is kind and op.mode in SPELLINGS


def may_cancel(fgraph: FunctionGraph, x: Variable, y: Variable) -> bool:
    """Return whether the gradient of an activation `y` of `x` may cancel with others.

    So it does beside a logarithm, of which PyTensor makes something else, or an exponential.
    """
    if kind_of(x) in _PARTNERS:
        return True
    found = {y}
    for _ in range(MAX_DISTANCE):
        users = {z for v in found for node, _ in fgraph.clients[v] for z in node.outputs}
        if any(kind_of(z) in _PARTNERS or _has_exponential(z) for z in users):
            return True
        found = users
    return False


def _has_exponential(x: Variable) -> bool:
    return any(kind_of(factor) is Exp for factor in inputs_of(x, Mul, TrueDiv) or ())


@node_rewriter([ActivationGrad])
def local_spelled_gradient(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
    """Write the gradient of an activation as PyTensor does, if it may cancel with others."""
    if not _has_spelling(node.op, ActivationGrad):
        return None
    x, y, gy = node.inputs
    made = y.owner
    if made is None or made.op != Activation(node.op.mode) or made.inputs[0] is not x:
        return None  # not the gradient of an activation in this graph
    if not may_cancel(fgraph, x, y):
        return None
    (result,) = SPELLINGS[node.op.mode].pullback([x], [y], [gy])
    result = cast(result, node.outputs[0].type.dtype)  # the derivative of float16 is float32
    copy_stack_trace(node.outputs[0], result)
    return [result]


@node_rewriter([Activation])
def local_spelled_activation(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
    """Replace an activation with PyTensor's elementwise Op."""
    if not _has_spelling(node.op, Activation):
        return None
    result = SPELLINGS[node.op.mode](node.inputs[0])
    copy_stack_trace(node.outputs[0], result)
    return [result]


@node_rewriter([Elemwise])
def local_collected_activation(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
    """Replace PyTensor's tanh or sigmoid with an activation."""
    mode = _MODES.get(type(node.op.scalar_op))
    (x, out) = node.inputs[0], node.outputs[0]
    if mode is None or x.type.dtype != out.type.dtype or out.type.dtype not in FLOAT_DTYPES:
        return None
    result = Activation(mode)(x)
    copy_stack_trace(out, result)
    return [result]


class SpellActivations(GraphRewriter):
    """Replace tanh and sigmoid of dnnops with those of PyTensor."""

    def __init__(self) -> None:
        super().__init__()
        # Gradients first: they look at the uses of the activation.
        self._steps = (
            dfs_rewriter(local_spelled_gradient),
            dfs_rewriter(local_spelled_activation),
        )

    def apply(self, fgraph: FunctionGraph) -> None:
        """Rewrite `fgraph`."""
        if any(_has_spelling(node.op, Activation) for node in fgraph.apply_nodes):
            _spelled.add(fgraph)
            for step in self._steps:
                step.apply(fgraph)


class CollectActivations(GraphRewriter):
    """Replace tanh and sigmoid with activations in graphs in which the user called dnnops."""

    def __init__(self) -> None:
        super().__init__()
        self._step = dfs_rewriter(local_collected_activation)

    def apply(self, fgraph: FunctionGraph) -> None:
        """Rewrite `fgraph`."""
        if fgraph in _spelled:
            _spelled.discard(fgraph)
            self._step.apply(fgraph)
