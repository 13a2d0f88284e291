"""Explain a compiled function: what each node runs, where, how long, and in how much memory."""

from dnnops.explanation.function import explain
from dnnops.explanation.record import Node, Operand
from dnnops.explanation.result import Explanation

__all__ = ["Explanation", "Node", "Operand", "explain"]
