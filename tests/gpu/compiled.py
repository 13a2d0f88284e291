"""Check that the C modules of GPU Ops compile, without a GPU."""

from __future__ import annotations

from typing import Any

from pytensor.graph.basic import Constant
from pytensor.graph.fg import FunctionGraph
from pytensor.link.c.basic import CLinker


def check_module(out: Any) -> None:
    """Compile the C module of the node that computes a variable."""
    inputs = [x for x in dict.fromkeys(out.owner.inputs) if not isinstance(x, Constant)]
    graph = FunctionGraph(inputs, list(out.owner.outputs), clone=True)
    assert callable(CLinker().accept(graph).compile_cmodule().instantiate)
