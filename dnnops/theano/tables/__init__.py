"""Tables that map the names of Theano 1.0.5 to objects of PyTensor and dnnops."""

from __future__ import annotations

from dnnops.theano.tables import compiling, devices, general, graph, tensor
from dnnops.theano.tables.advice import ADVICE, advice_for
from dnnops.theano.tables.base import Table

__all__ = ["ADVICE", "TABLES", "Table", "advice_for"]

TABLES: dict[str, Table] = {
    **general.TABLES,
    **graph.TABLES,
    **compiling.TABLES,
    **tensor.TABLES,
    **devices.TABLES,
}
