"""Linkers that can't run a graph with device variables say so."""

from __future__ import annotations

from pytensor.compile.mode import optdb
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import GraphRewriter

from dnnops.errors import DnnTypeError
from dnnops.gpuarray.op import is_on_device

__all__ = ["DnnLinkerError", "RefuseDeviceVariables"]


class DnnLinkerError(DnnTypeError, AssertionError):
    """A graph has device variables, and is compiled for a linker that can't run those.

    An `AssertionError` too, because PyTensor logs other exceptions of a rewrite and goes on.
    """


class RefuseDeviceVariables(GraphRewriter):
    """Raise if a graph for Numba's linker has device variables.

    Only graphs for that linker, which is PyTensor's default, get the rewrites tagged ``numba``.
    Without this they would fail with a message about types that Numba lacks.

    Raises
    ------
    DnnLinkerError
    """

    def apply(self, fgraph: FunctionGraph) -> None:
        """Check; the graph stays as it is."""
        for variable in sorted(filter(is_on_device, fgraph.variables), key=str):
            raise DnnLinkerError(
                f"{variable} of type {variable.type} is on the GPU, and Numba's linker, which is"
                " PyTensor's default, cannot run such graphs. Give pytensor.function mode='DNN' or"
                " mode='CUDNN', or set the flag device=cuda, which makes them run on the GPU"
            )


# Last: after everything that might move a graph.
optdb.register("numba_refuses_device_variables", RefuseDeviceVariables(), "numba", position=100.2)
