"""Recognize relu written as ``pt.maximum(x, 0)``, and the gradient of a maximum.

In C, PyTensor's maximum calls ``nan("")``, and its gradient compares the maximum with each operand.
Compilers vectorize neither of them. The replacements give the same numbers, including NaN and the
slope at a tie.
"""

from __future__ import annotations

from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import copy_stack_trace, node_rewriter
from pytensor.scalar.basic import EQ, Maximum, Minimum
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.math import ge, le

from dnnops.nnet.activation.op import Activation
from dnnops.rewriting.recognize.matching import Call, Slot, match

__all__ = ["local_comparison_with_extremum", "local_relu"]


_X, _Y = Slot("x"), Slot("y")
_RELU = Call(Maximum, _X, 0)
_COMPARISONS = {
    ge: Call(EQ, Call(Maximum, _X, _Y), _X),
    le: Call(EQ, Call(Minimum, _X, _Y), _X),
}


@node_rewriter([Elemwise])
def local_comparison_with_extremum(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
    """Replace ``maximum(x, y) == x`` with ``x >= y``, and with ``x <= y`` for a minimum."""
    if len(node.outputs) > 1:
        return None
    (output,) = node.outputs
    for compare, form in _COMPARISONS.items():
        if found := match(form, output):
            result = compare(found["x"].build(), found["y"].build())
            copy_stack_trace(output, result)
            return [result]
    return None


@node_rewriter([Elemwise])
def local_relu(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
    """Replace ``maximum(x, 0)`` with the expression of relu.

    Other forms are as fast as relu but give different numbers: ``switch(x > 0, x, 0)`` turns NaN
    into 0, and ``x * (x > 0)`` and ``(x + abs(x)) / 2`` turn minus infinity into NaN.
    """
    output = node.outputs[0]
    found = match(_RELU, output) if len(node.outputs) == 1 else None
    if found is None:
        return None
    x = found["x"].build()
    if x.type.dtype != output.type.dtype or not x.type.dtype.startswith("float"):
        return None
    (result,) = Activation("relu").expressions(x)
    if not output.type.is_super(result.type):
        return None
    copy_stack_trace(output, result)
    return [result]
