"""Recognize relu written as ``pt.maximum(x, 0)``, and the gradient of a maximum.

In C, PyTensor's maximum calls ``nan("")``, and its gradient compares the maximum with each operand.
Compilers vectorize neither of them. The replacements give the same numbers, including NaN and the
slope at a tie.
"""

from __future__ import annotations

from typing import Any

from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import copy_stack_trace, node_rewriter
from pytensor.scalar.basic import EQ, Maximum, Minimum
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.math import ge, le

from dnnops.nnet.activation.op import Activation
from dnnops.rewriting.recognize.products import View

__all__ = ["local_comparison_with_extremum", "local_relu"]


@node_rewriter([Elemwise])
def local_comparison_with_extremum(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
    """Replace ``maximum(x, y) == x`` with ``x >= y``, and with ``x <= y`` for a minimum."""
    if not isinstance(node.op.scalar_op, EQ):
        return None
    for extremum, x in (node.inputs, reversed(node.inputs)):
        inputs = _operands(extremum, Maximum, Minimum)
        if len(inputs) != 2 or x not in inputs:
            continue
        compare = ge if isinstance(extremum.owner.op.scalar_op, Maximum) else le
        result = compare(x, inputs[inputs[0] is x])
        copy_stack_trace(node.outputs[0], result)
        return [result]
    return None


@node_rewriter([Elemwise])
def local_relu(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
    """Replace ``maximum(x, 0)`` with the expression of relu.

    Other forms are as fast as relu but give different numbers: ``switch(x > 0, x, 0)`` turns NaN
    into 0, and ``x * (x > 0)`` and ``(x + abs(x)) / 2`` turn minus infinity into NaN.
    """
    (output,) = node.outputs
    inputs = _operands(output, Maximum)
    others: list[Any] = [x for x in inputs if View.of(x).number() != 0]
    if len(inputs) != 2 or len(others) != 1:
        return None
    (x,) = others
    if x.type.dtype != output.type.dtype or not x.type.dtype.startswith("float"):
        return None
    (result,) = Activation("relu").expressions(x)
    if not output.type.is_super(result.type):
        return None
    copy_stack_trace(output, result)
    return [result]


def _operands(variable: Variable, *kinds: type) -> list[Any]:
    """Return a variable's operands if an elementwise Op of these kinds computes it, else []."""
    node: Apply | None = variable.owner
    if node is None or not isinstance(node.op, Elemwise):
        return []
    return list(node.inputs) if isinstance(node.op.scalar_op, kinds) else []
