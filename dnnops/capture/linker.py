"""The linker of functions whose calls are captured as CUDA graphs."""

from __future__ import annotations

from typing import Any

from pytensor import config
from pytensor.graph.fg import FunctionGraph

from dnnops.capture.schedule import schedule
from dnnops.capture.vm import CapturingVM, report
from dnnops.config import flag_value
from dnnops.errors import DnnNotSupportedError
from dnnops.gpuarray.op import is_on_device
from dnnops.runtime.ahead import ParallelVMLinker

__all__ = ["CapturingLinker", "why_not_captured"]


class CapturingLinker(ParallelVMLinker):
    """PyTensor's virtual machine linker, with captures as ``dnn.cuda_graph`` says.

    Functions without a node on a GPU, and those that are profiled, run as with `ParallelVMLinker`.
    """

    def make_all(self, *args: Any, **kwargs: Any) -> Any:
        vm, *others = super().make_all(*args, **kwargs)
        return (self._capturing(vm), *others)

    def _capturing(self, vm: Any) -> Any:
        fgraph: Any = self.fgraph
        flag = flag_value("dnn.cuda_graph")
        if flag == "False" or not _uses_device(fgraph) or self.profile or config.profile:
            return vm
        try:
            return CapturingVM(vm, fgraph, schedule(fgraph, vm.nodes, vm.thunks), flag == "True")
        except DnnNotSupportedError as error:
            if flag == "True":
                raise DnnNotSupportedError(
                    f"dnn.cuda_graph=True, but the function cannot be captured: {error}"
                ) from error
            report(str(error))
            return vm


def why_not_captured(vm: Any, fgraph: FunctionGraph) -> str:
    """Return why a function on a GPU is not captured; empty if it is, or if it uses no GPU.

    Parameters
    ----------
    vm : pytensor.link.vm.VM or CapturingVM
        Virtual machine of the function.
    fgraph : FunctionGraph
        Graph of the function.
    """
    if isinstance(vm, CapturingVM):
        return vm.reason
    if not hasattr(vm, "thunks") or not _uses_device(fgraph):
        return ""
    try:
        schedule(fgraph, vm.nodes, vm.thunks)
    except DnnNotSupportedError as error:
        return str(error)
    return "the linker, or the flag dnn.cuda_graph, captures no functions"


def _uses_device(fgraph: FunctionGraph) -> bool:
    return any(is_on_device(x) for x in fgraph.variables)
