"""Training steps and inference of whole networks in dnnops, with the data on a GPU."""

from __future__ import annotations

import gc
import time
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt

from benchmarks import model_zoo
from benchmarks.harness import BenchmarkError, Task
from benchmarks.peers import dnnops_cpu, dnnops_gpu
from benchmarks.peers.graphs import library_ops
from benchmarks.peers.models.dnnops_cpu import InferenceLayers, batch_types, training_step
from benchmarks.peers.models.step import ModelTask
from benchmarks.peers.rnn_dnnops import PeakMemory
from dnnops.config import FLAGS, flag_value
from dnnops.gpuarray import GpuArrayType, shared

__all__ = ["Step", "graph", "make_task", "use", "versions"]

#: Precisions in which filters, matrices and images are stored in inference.
HALF = ("float16", "bfloat16")

_on_gpu = True


def versions() -> dict[str, Any]:
    """Return the versions of what was measured last."""
    return (dnnops_gpu if _on_gpu else dnnops_cpu).versions()


def graph(case: dict[str, Any]) -> tuple[list[Any], Any, list[tuple[Any, Any]]]:
    """Build what a case computes.

    Parameters
    ----------
    case : dict
        Case of ``benchmarks/models.py``.

    Returns
    -------
    inputs : list of Variable
        Inputs and, for training, labels; on the GPU unless the case's device is ``cpu``.
    result : Variable
        The loss or the scores, on the same device.
    updates : list
        Updates of a training step.
    """
    on_gpu = case["device"] == "cuda"

    def on_device(name: str, dtype: str, shape: tuple[int | None, ...]) -> Any:
        return GpuArrayType(dtype, shape)(name)

    tensor = on_device if on_gpu else pt.tensor
    make = shared if on_gpu else pytensor.shared
    name, sizes = case["model"], case["sizes"]
    updates: list[tuple[Any, Any]] = []
    if case["what"] == "training":
        inputs, result, updates = training_step(name, sizes, tensor, make)
    else:
        dtype, shape = batch_types(name, sizes)[0]
        halved = case["precision"] if on_gpu and case["precision"] in HALF else "float32"
        inputs = [tensor("x", dtype=halved if dtype == "float32" else dtype, shape=shape)]
        layers = InferenceLayers(make, halved)
        result = model_zoo.MODELS[name].loss(layers, sizes, inputs[0], None)
    return inputs, result.transfer("cuda") if on_gpu else result, updates


class Step(ModelTask):
    """A training step or inference in one compiled function."""

    def __init__(self, case: dict[str, Any]) -> None:
        super().__init__(case)
        self.flags = ExitStack()
        try:
            for name, value in case["flags"].items():
                self._set(name, value)
            self._compile()
        except BaseException:
            self.flags.close()
            raise

    def _set(self, name: str, value: str) -> None:
        """Set a flag until the task is closed."""
        found = next((flag for flag in FLAGS if flag.name == name), None)
        if found is None:
            raise BenchmarkError(f"this dnnops has no flag {name}")
        self.flags.enter_context(pytensor.config.change_flags(**{found.key: value}))

    def graph(self) -> tuple[list[Any], Any, list[tuple[Any, Any]]]:
        """Build what the case computes; see the function."""
        return graph(self.case)

    def _compile(self) -> None:
        inputs, result, updates = self.graph()
        mode = "CUDNN" if self.on_gpu else "ONEDNN"
        start = time.perf_counter()
        self.function = pytensor.function(inputs, result, updates=updates, mode=mode)
        self.compile_s = time.perf_counter() - start
        if self.case["model"] != "mlp":  # a product is none of the libraries' Ops
            library_ops(self.function, "GpuDnn" if self.on_gpu else "OneDnn")
        self.given: list[Any] = list(self.batch[: len(inputs)])
        if self.on_gpu:
            import cupy

            self.given = [
                cupy.asarray(array).astype(x.type.numpy_dtype, copy=False)
                for array, x in zip(self.given, inputs, strict=True)
            ]

    def run(self) -> Any:
        return self.function(*self.given)

    def synchronize(self) -> None:
        if self.on_gpu:
            import cupy

            cupy.cuda.runtime.deviceSynchronize()

    def fetched(self, result: Any) -> np.ndarray:
        return (result.get() if self.on_gpu else np.asarray(result)).astype("float32", copy=False)

    def record(self) -> Any:
        if not self.on_gpu:
            return super().record()
        import cupy

        event = cupy.cuda.Event()
        event.record()
        return event

    def seconds_between(self, start: Any, stop: Any) -> float:
        if not self.on_gpu:
            return stop - start
        import cupy

        return cupy.cuda.get_elapsed_time(start, stop) / 1000

    def peak_mib(self) -> float | None:
        """Return the peak in CuPy's pool, and the pools of captured graphs."""
        if not self.on_gpu:
            return None
        gc.collect()
        with PeakMemory.make() as memory:
            self.run()
        self.synchronize()
        return (memory.peak + getattr(self.function.vm, "graph_bytes", 0)) / 2**20

    def facts(self) -> dict[str, Any]:
        """Return also why steps are not replayed as CUDA graphs; empty if they are."""
        found = super().facts()
        if self.on_gpu and flag_value("dnn.cuda_graph") != "False":
            from dnnops.capture.vm import why_not_captured

            found["not_captured"] = why_not_captured(self.function.vm, self.function.maker.fgraph)
        return found

    def close(self) -> None:
        """Return memory to the device."""
        self.flags.close()
        del self.function, self.given
        gc.collect()
        if self.on_gpu:
            import cupy

            from dnnops.gpu.library import free_workspaces

            free_workspaces()
            cupy.get_default_memory_pool().free_all_blocks()


def use(device: str) -> None:
    """Let `versions` tell those of this device."""
    global _on_gpu
    _on_gpu = device == "cuda"


def make_task(case: dict[str, Any]) -> Task:
    """Prepare a case of ``benchmarks/models.py``."""
    use(case["device"])
    return Step(case)
