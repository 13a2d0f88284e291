"""The modes ``DNN``, ``CUDNN`` and ``ONEDNN``, and the effect of the flag ``device``.

A mode chooses its rewrites when it is used, not when it is created, so that a GPU is probed only
then.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any

from pytensor import config
from pytensor.compile.maker import FunctionMaker
from pytensor.compile.mode import (
    _CACHED_RUNTIME_MODES,
    OPT_FAST_RUN,
    AddDestroyHandler,
    Mode,
    predefined_modes,
    register_mode,
)
from pytensor.graph.basic import Apply
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import GraphRewriter, SequentialGraphRewriter
from pytensor.graph.rewriting.db import RewriteDatabaseQuery
from pytensor.link.basic import JITLinker, Linker
from pytensor.link.numba.linker import NumbaLinker
from pytensor.link.pytorch.linker import PytorchLinker

from dnnops.config import flag_value
from dnnops.errors import DnnUnavailableError, DnnWarning
from dnnops.gpuarray.op import is_on_device
from dnnops.rewriting.move.lifting import EVERYTHING
from dnnops.rewriting.pipeline import PYTORCH_TAG
from dnnops.runtime.ahead import ParallelVMLinker
from dnnops.runtime.compiling import INSTALL_COMPILER
from dnnops.runtime.serial import SerialFunction

__all__ = [
    "CapturingLinker",
    "CudnnMode",
    "DeviceMode",
    "DnnMode",
    "OneDnnMode",
    "keep_from_other_linkers",
    "register_modes",
    "use_device",
]


class _QuickPasses(SequentialGraphRewriter):
    """The passes of a mode, without two costs that have no use.

    PyTensor attaches the destroy handler before the first pass. Every replacement then checks all
    protected variables, although no Op is in-place yet: a third of the time to rewrite a ResNet-50.
    Here, it is attached when its pass is reached.

    PyTensor stores with each new variable from where it was created. In a pass, that is the pass
    and not a line of the user's, which passes copy from the variable that they replace.
    """

    def __init__(self, passes: SequentialGraphRewriter):
        super().__init__(failure_callback=passes.failure_callback)
        self.data = [
            _WithRequirements(passes.data[i:]) if isinstance(step, AddDestroyHandler) else step
            for i, step in enumerate(passes.data)
        ]

    def add_requirements(self, fgraph: FunctionGraph) -> None:
        for step in self.data:
            step.add_requirements(fgraph)
            if isinstance(step, _WithRequirements):
                break

    def apply(self, fgraph: FunctionGraph) -> Any:
        """Rewrite `fgraph`."""
        with config.change_flags(traceback__limit=0):
            return super().apply(fgraph)


class _WithRequirements(GraphRewriter):
    """The first of some passes, which first attaches what all of them require."""

    def __init__(self, passes: Sequence[GraphRewriter]):
        super().__init__()
        self.passes = passes
        self.name = getattr(passes[0], "name", None)

    def apply(self, fgraph: FunctionGraph) -> Any:
        for step in self.passes:
            step.add_requirements(fgraph)
        return self.passes[0].apply(fgraph)


class CapturingLinker(ParallelVMLinker):
    """PyTensor's virtual machine linker, with captures as ``dnn.cuda_graph`` says.

    Functions without a node on a GPU, and those that are profiled, run as with `ParallelVMLinker`.
    Nodes are captured in an order that needs little memory. PyTensor's own virtual machine ignores
    the order: it computes the outputs one after the other, and before each node its operands.
    """

    #: The last graph that was ordered, and its nodes.
    _ordered: tuple[FunctionGraph, list[Apply]] | None = None

    def schedule(self, fgraph: FunctionGraph) -> list[Apply]:
        """Return the nodes in the order of execution."""
        order = super().schedule(fgraph)
        if not self._captures() or not any(map(is_on_device, fgraph.variables)):
            return order
        # Called twice for each function.
        if self._ordered is None or self._ordered[0] is not fgraph:
            from dnnops.capture.order import memory_order

            self._ordered = fgraph, memory_order(fgraph, order)
        return list(self._ordered[1])

    def _captures(self) -> bool:
        return flag_value("dnn.cuda_graph") != "False" and not (self.profile or config.profile)

    def make_all(self, *args: Any, **kwargs: Any) -> Any:
        vm, *others = super().make_all(*args, **kwargs)
        if self._captures():
            # Not imported with this module, since most functions use no GPU.
            from dnnops.capture.vm import capturing

            vm = capturing(vm, vm.fgraph)
        self._ordered = None
        return (vm, *others)


class DnnMode(Mode):
    """Mode that runs graphs with cuDNN if there is a GPU, else with oneDNN; registered as ``DNN``.

    The linker is PyTensor's CVM, which runs emitted C. If several threads call one function, their
    calls run one after the other. PyTensor's flags ``optimizer_including``,
    ``optimizer_excluding`` and ``optimizer_requiring`` apply.

    Parameters
    ----------
    linker : str or Linker
        Linker. Default: PyTensor's CVM, with modules compiled in parallel and work on a GPU
        captured.
    optimizer : str or RewriteDatabaseQuery
        Rewrites to apply in addition to those of the backend.
    """

    def __init__(
        self,
        linker: str | Linker | None = None,
        optimizer: str | RewriteDatabaseQuery = OPT_FAST_RUN,
        db: Any = None,
    ):
        super().__init__(linker or CapturingLinker(use_cloop=True), optimizer, db)

    @property
    def function_maker(self) -> Any:
        """What compiles functions: their calls wait for each other."""
        return partial(FunctionMaker, function_class=SerialFunction)

    @property
    def optimizer(self) -> GraphRewriter:
        """Rewrites of the mode, including those of the backend."""
        from dnnops.rewriting.faults import faulty_rewrites

        query: Any = self._optimizer
        if not isinstance(query, RewriteDatabaseQuery):
            return query
        for flag, extend in (
            (config.optimizer_excluding, "excluding"),
            (config.optimizer_including, "including"),
            (config.optimizer_requiring, "requiring"),
        ):
            if flag:
                query = getattr(query, extend)(*flag.split(":"))
        query = query.excluding(*faulty_rewrites())
        tags = self._backend_tags()
        if not config.cxx:
            # Python computes fused Ops element by element, and single ones as NumPy does.
            query = query.excluding("fusion")
            if "onednn" in tags:
                _warn_of_no_compiler()
        _look_for_blas()
        database: Any = getattr(self, "optdb")  # noqa: B009 - untyped in PyTensor
        return _QuickPasses(database.query(query.including(*tags)))

    def _backend_tags(self) -> tuple[str, ...]:
        from dnnops.gpu.library import cudnn_usable

        return ("gpu", "cudnn") if cudnn_usable(_device())[0] else ("onednn",)


class CudnnMode(DnnMode):
    """Mode that runs graphs on the GPU with cuDNN; registered as ``CUDNN``.

    Every node that can run on the GPU moves there, even if `DnnMode` would not consider it worth
    the transfer of its operands. Compiling a function raises `DnnUnavailableError` if cuDNN cannot
    be used.
    """

    def _backend_tags(self) -> tuple[str, ...]:
        from dnnops.gpu.library import cudnn_usable

        usable, reason = cudnn_usable(_device())
        if not usable:
            raise DnnUnavailableError(f"cuDNN cannot be used: {reason}")
        return ("gpu", "cudnn", EVERYTHING)


class DeviceMode(DnnMode):
    """Default mode with ``device=cuda``, which runs graphs on the GPU and uses cuDNN if enabled.

    Compiling a function raises `DnnUnavailableError` if there is no GPU, or if cuDNN cannot be used
    although ``dnn.enabled`` is not False.
    """

    def _backend_tags(self) -> tuple[str, ...]:
        from dnnops.gpu.library import cudnn_usable

        usable, reason = cudnn_usable(_device())
        if usable:
            return ("gpu", "cudnn")
        if flag_value("dnn.enabled") != "False":
            raise DnnUnavailableError(f"device={flag_value('device')}: {reason}")
        return ("gpu",)


class OneDnnMode(DnnMode):
    """Mode that runs graphs on the CPU with oneDNN; registered as ``ONEDNN``.

    Compiling a function raises `DnnUnavailableError` if oneDNN cannot be used.
    """

    def _backend_tags(self) -> tuple[str, ...]:
        from dnnops.cpu.base import onednn_available

        available, reason = onednn_available()
        if not available:
            raise DnnUnavailableError(f"oneDNN cannot be used: {reason}")
        return ("onednn",)


@lru_cache(maxsize=1)
def _warn_of_no_compiler() -> None:
    """Warn once that only oneDNN is fast, unless it cannot be used, which is another warning."""
    from dnnops.cpu.base import onednn_available

    if onednn_available()[0]:
        warnings.warn(
            "there is no C++ compiler, so Ops that oneDNN does not compute run in NumPy, slowly:"
            f" {INSTALL_COMPILER}; or use PyTensor's default mode, which needs none",
            DnnWarning,
            stacklevel=2,
        )


def _look_for_blas() -> None:
    """Let PyTensor look for a BLAS to link, but silence its long warning if it finds none.

    oneDNN or cuBLAS runs float32 dense layers, and NumPy multiplies other matrices. The doctor
    command reports the BLAS.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "PyTensor could not link to a BLAS")
        _ = config.blas__ldflags  # the first read starts the search


def _device() -> int:
    """Return the number of the CUDA device that the flag names, or 0 if it names none."""
    from dnnops.gpuarray.device import default_device

    return default_device()


def register_modes() -> None:
    """Register the modes with PyTensor, except those already registered."""
    for name, mode in (("DNN", DnnMode), ("CUDNN", CudnnMode), ("ONEDNN", OneDnnMode)):
        if name not in predefined_modes:
            register_mode(name, mode())


def keep_from_other_linkers() -> None:
    """Keep oneDNN Ops out of graphs for JAX, PyTorch and MLX, which cannot run them.

    PyTensor's linkers list the rewrites that they require and those that they exclude, and a mode
    reads these lists when it is created. The predefined modes are therefore initialized again, in
    place because users may have imported them. PyTorch's linker has no tag of its own, so the tag
    of the dnnops rewrites for it is added.
    """
    if PYTORCH_TAG not in PytorchLinker.required_rewrites:
        PytorchLinker.required_rewrites = (*PytorchLinker.required_rewrites, PYTORCH_TAG)
    for linker in JITLinker.__subclasses__():
        if linker is not NumbaLinker and "onednn" not in linker.incompatible_rewrites:
            linker.incompatible_rewrites = (*linker.incompatible_rewrites, "onednn")
    for mode in (*predefined_modes.values(), *_CACHED_RUNTIME_MODES.values()):
        if isinstance(mode.linker, JITLinker) and not isinstance(mode.linker, NumbaLinker):
            mode.__setstate__(mode.__getstate__())


def use_device() -> None:
    """Apply the flag ``device`` at import; with ``cuda``, graphs run on the GPU by default.

    The default mode becomes `DeviceMode` unless the flag ``mode`` is set, and ``pytensor.shared``
    creates variables on the device.
    """
    if flag_value("device") == "cpu":
        return
    if config.mode == "Mode":
        config.mode = DeviceMode()  # type: ignore[assignment]
    from dnnops.gpuarray.shared_variables import put_shared_on_gpu

    put_shared_on_gpu(True, _device())
