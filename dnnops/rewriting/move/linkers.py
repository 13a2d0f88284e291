"""Reject graphs with device variables for linkers that cannot run them."""

from __future__ import annotations

from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import GraphRewriter

from dnnops.errors import DnnTypeError
from dnnops.gpuarray.op import is_on_device

__all__ = ["DnnLinkerError", "RefuseDeviceVariables"]


class DnnLinkerError(DnnTypeError, AssertionError):
    """Raised when a graph with device variables is compiled for a linker that cannot run them.

    It is also an `AssertionError`, because PyTensor logs other exceptions in rewrites and
    continues.
    """


class RefuseDeviceVariables(GraphRewriter):
    """Raise an error if a graph for Numba's linker has device variables.

    Only graphs for that linker, PyTensor's default, get the rewrites tagged ``numba``. Without this
    check, they would fail with a message about types that Numba does not support.

    Raises
    ------
    DnnLinkerError
        If the graph has device variables.
    """

    def apply(self, fgraph: FunctionGraph) -> None:
        """Check `fgraph` without changing it."""
        for variable in sorted(filter(is_on_device, fgraph.variables), key=str):
            raise DnnLinkerError(
                f"{variable} of type {variable.type} is on the GPU, and Numba's linker, which is"
                " PyTensor's default, cannot run such graphs. Pass mode='DNN' or mode='CUDNN' to"
                " pytensor.function, or set the flag device=cuda, to run them on the GPU"
            )
