"""Training steps of recurrent networks in dnnops, on CPU and GPU."""

from __future__ import annotations

import itertools
import time
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt

from benchmarks.harness import Task
from benchmarks.peers import dnnops_cpu, dnnops_gpu
from benchmarks.peers.graphs import compile_nodes, library_ops
from benchmarks.rnn_data import COMPARED_STEP, LEARNING_RATE, compared, rnn_arrays
from dnnops import dnn
from dnnops.gpuarray import GpuArrayType, shared
from dnnops.nnet import RNNBlock

__all__ = ["make_task", "versions"]

_on_gpu = False
#: The parameters and the compiled function of each network.
_functions: dict[tuple[Any, ...], tuple[Any, Any]] = {}


def versions() -> dict[str, Any]:
    """Return the versions of what was measured last."""
    return (dnnops_gpu if _on_gpu else dnnops_cpu).versions()


class Step(Task):
    """A step: forward, gradients with respect to parameters and input, and the update."""

    prefix = "OneDnn"
    mode: str | None = None
    block_class: type[RNNBlock] = RNNBlock

    def __init__(self, case: dict[str, Any]) -> None:
        arrays = rnn_arrays(case)
        dtype = case["dtype"]
        states = (case["layers"], case["batch"], case["hidden"])
        # The function does not depend on the shapes.
        network = (
            type(self),
            dtype,
            case["hidden"],
            case["layers"],
            case["mode"],
            case.get("algo", "auto"),
        )
        if network not in _functions:
            _functions[network] = self.compiled(*network[1:])
        self.w, self.function = _functions[network]
        self.w.set_value(self.moved(arrays.w))
        self.given = [self.moved(a) for a in (arrays.x, arrays.gy)]
        self.given.append(self.moved(np.zeros(states, dtype)))

    def compiled(self, dtype: str, hidden: int, layers: int, mode: str, algo: str) -> Any:
        """Return the parameters, still empty, and the function of a step."""
        block = self.block_class(dtype, hidden, layers, mode, algo=algo)
        w = self.parameters(np.zeros(0, dtype))
        x, gy, start = (self.variable(dtype) for _ in range(3))
        y, *_ = block.apply(w, x, start, *([start] if mode == "lstm" else []))
        gw, gx = pytensor.grad(None, [w, x], known_grads={y: gy})
        updates = [(w, w - np.asarray(LEARNING_RATE, dtype) * gw)]
        function = compile_nodes([x, gy, start], [y, gx], updates=updates, mode=self.mode)
        library_ops(function, self.prefix)
        return w, function

    def variable(self, dtype: str) -> Any:
        return pt.tensor(dtype=dtype, shape=(None,) * 3)

    def parameters(self, value: np.ndarray) -> Any:
        return pytensor.shared(value)

    def moved(self, value: np.ndarray) -> Any:
        return value

    def call(self) -> None:
        self.function(*self.given)

    def results(self) -> dict[str, np.ndarray]:
        before = self.some_parameters()
        y, gx = self.function(*self.given)
        return compared(before, self.some_parameters(), y, gx, self.fetched)

    def some_parameters(self) -> np.ndarray:
        """Return every `COMPARED_STEP`-th parameter."""
        return self.w.get_value()[::COMPARED_STEP]

    def close(self) -> None:
        """Release the arrays, but keep the function for other shapes."""
        self.w.set_value(self.moved(np.zeros(0, self.w.type.dtype)))
        self.function.free()
        del self.given

    def fetched(self, array: Any) -> np.ndarray:
        return np.asarray(array)


class GpuStep(Step):
    """The same step on a GPU, timed with CUDA events."""

    prefix = "GpuDnn"
    mode = "CUDNN"
    block_class = dnn.RNNBlock  # its results stay on the device

    def variable(self, dtype: str) -> Any:
        return GpuArrayType(dtype, (None,) * 3)()

    def parameters(self, value: np.ndarray) -> Any:
        return shared(value)

    def moved(self, value: np.ndarray) -> Any:
        import cupy

        return cupy.asarray(value)

    def times(self, calls: int) -> list[float]:
        """Return the device's seconds of each step; no step waits for the one before."""
        import cupy

        events = [cupy.cuda.Event() for _ in range(calls + 1)]
        events[0].record()
        for event in events[1:]:
            self.call()
            event.record()
        events[-1].synchronize()
        pairs = itertools.pairwise(events)
        return [cupy.cuda.get_elapsed_time(a, b) / 1000 for a, b in pairs]

    def some_parameters(self) -> np.ndarray:
        w = self.w.get_value(borrow=True, return_internal_type=True)
        return w[::COMPARED_STEP].get()

    def fetched(self, array: Any) -> np.ndarray:
        return array.get()

    def facts(self) -> dict[str, Any]:
        """Return the algorithm, the peak memory of a step, and its cost on the host."""
        import cupy

        from dnnops.gpu.rnn import last_rnn_algorithm
        from dnnops.runtime.replay import replay_failure, replays

        with PeakMemory.make() as memory:
            self.call()
        cupy.cuda.runtime.deviceSynchronize()
        replayed = replays()
        start = time.perf_counter()
        self.call()
        launching = time.perf_counter() - start
        cupy.cuda.runtime.deviceSynchronize()
        return {
            "algorithm": last_rnn_algorithm(),
            # Out of three passes.
            "replays": replays() - replayed,
            "replay_failure": replay_failure(),
            "peak_mib": memory.peak / 2**20,
            "ms_to_launch": 1e3 * launching,
        }

    def close(self) -> None:
        """Return memory to the device."""
        import cupy

        from dnnops.gpu.library import free_workspaces

        # Nodes keep small results, such as states, for their next call. A call without sequences
        # makes them empty, so that they do not count as memory of later cases.
        self.function(*(array[:, :0] for array in self.given))
        super().close()
        free_workspaces()
        cupy.get_default_memory_pool().free_all_blocks()


class PeakMemory:
    """Peak number of bytes in use in CuPy's memory pool."""

    @staticmethod
    def make() -> Any:
        """Return a CuPy memory hook with the attribute ``peak``."""
        import cupy

        class Hook(cupy.cuda.MemoryHook):
            name = "PeakMemory"

            def __init__(self) -> None:
                self.used = self.peak = cupy.get_default_memory_pool().used_bytes()

            def malloc_postprocess(self, **kwargs: Any) -> None:
                self.used += kwargs["mem_size"]
                self.peak = max(self.peak, self.used)

            def free_postprocess(self, **kwargs: Any) -> None:
                self.used -= kwargs["mem_size"]

        return Hook()


def make_task(case: dict[str, Any]) -> Task:
    """Prepare a case of ``benchmarks/rnn.py``."""
    global _on_gpu
    _on_gpu = case["device"] == "cuda"
    return GpuStep(case) if _on_gpu else Step(case)
