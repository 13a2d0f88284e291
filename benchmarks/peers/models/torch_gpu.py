"""Training steps and inference of whole networks in PyTorch on a GPU.

``case["how"]`` selects eager calls, a CUDA graph of the eager step, or `torch.compile`.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from benchmarks import model_zoo
from benchmarks.harness import Task
from benchmarks.peers.models.step import ModelTask
from benchmarks.peers.models.torch_cpu import TorchLayers, optimizer_of

__all__ = ["make_task", "versions"]

#: Eager steps before a capture, as PyTorch's documentation recommends.
WARM_STEPS = 3
#: The argument ``mode`` of `torch.compile`.
COMPILER_MODES = {"compile": None, "max_autotune": "max-autotune"}


def versions() -> dict[str, Any]:
    """Return the versions of what is measured."""
    return {"torch": torch.__version__, "torch_cudnn": torch.backends.cudnn.version()}


class InferenceLayers(TorchLayers):
    """The layers in inference, with the scores in place of the loss.

    Parameters
    ----------
    layout, device
        See `TorchLayers`.
    dtype : torch.dtype
        Type of all parameters but those of normalizations.
    """

    def __init__(self, layout: torch.memory_format, device: str, dtype: torch.dtype) -> None:
        super().__init__(layout, device)
        self.dtype = dtype

    def _cast(self, parameter: Any) -> Any:
        """Return a parameter in the type of the images, made once."""
        return self._kept("cast", self.casts, lambda: parameter.detach().to(self.dtype))

    def conv(self, x: Any, w: Any, stride: int = 1, groups: int = 1) -> Any:
        return super().conv(x, self._cast(w), stride, groups)

    def conv_bias(self, x: Any, w: Any, b: Any) -> Any:
        return super().conv_bias(x, self._cast(w), self._cast(b))

    def dense(self, x: Any, w: Any, b: Any) -> Any:
        return super().dense(x, self._cast(w), self._cast(b))

    def batch_norm(self, x: Any, gamma: Any, beta: Any) -> Any:
        if self._next["average"] == len(self.averages):
            drawn = self.values.draw_averages(len(gamma))
            self.averages += [torch.from_numpy(values).to(self.device) for values in drawn]
        mean, variance = (self._kept("average", self.averages, None) for _ in range(2))
        return functional.batch_norm(x, mean, variance, gamma, beta, eps=model_zoo.EPSILON)

    def cross_entropy(self, scores: Any, labels: Any) -> Any:
        return scores


class Network(torch.nn.Module):
    """A network as a module, whose parameters `torch.compile` knows to stay where they are."""

    def __init__(self, task: Step) -> None:
        super().__init__()
        self.layers, self.sizes, self.loss = task.layers, task.sizes, task.model.loss
        self.held = torch.nn.ParameterList(task.layers.parameters)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.layers.begin()
        return self.loss(self.layers, self.sizes, x, y)


class Step(ModelTask):
    """A training step or inference in one of PyTorch's ways."""

    def __init__(self, case: dict[str, Any]) -> None:
        super().__init__(case)
        torch.backends.cudnn.benchmark = True
        for backend in (torch.backends.cudnn, torch.backends.cuda.matmul):
            backend.allow_tf32 = case["precision"] == "tf32"
        self.how = case["how"]
        self.dtype = getattr(torch, case["precision"], torch.float32)
        self.x, self.y = (torch.from_numpy(z).to(case["device"]) for z in self.batch)
        if self.x.ndim == 4:
            self.x = self.x.contiguous(memory_format=torch.channels_last)
        if self.trains:
            self.layers: TorchLayers = TorchLayers(torch.channels_last, case["device"])
        else:
            if self.x.is_floating_point():
                self.x = self.x.to(self.dtype)
            self.layers = InferenceLayers(torch.channels_last, case["device"], self.dtype)
        with torch.no_grad():  # the first pass makes the parameters
            self.model.loss(self.layers, self.sizes, self.x, self.y)
        self.network: Callable[..., torch.Tensor] = Network(self)
        self.graph: torch.cuda.CUDAGraph | None = None
        if self.trains:
            # The count of Adam's steps has to be on the device in a CUDA graph.
            options = {"capturable": True} if self.how == "graph" else {}
            self.optimizer = optimizer_of(self.model, self.layers.parameters, **options)
        if self.how in COMPILER_MODES:
            self._wrap(COMPILER_MODES[self.how])
        if self.how == "compile":  # selects kernels by time in the first step, not here
            self._timed(self._compile)

    def compile(self) -> None:
        if self.how == "graph":
            self._timed(self._capture)
        elif self.how == "max_autotune":
            self._timed(self._compile)

    def _timed(self, work: Callable[[], None]) -> None:
        start = time.perf_counter()
        work()
        self.synchronize()
        self.compile_s = time.perf_counter() - start

    def _compile(self) -> None:
        """Run a step, which compiles, and undo what it has changed."""
        torch.backends.cudnn.benchmark = self.how != "compile"
        with self._undone():
            self._eager()
        torch.backends.cudnn.benchmark = True

    def _wrap(self, mode: str | None) -> None:
        """Let the first step compile."""
        torch._dynamo.reset()
        layers = self.layers
        fixed = [*layers.parameters, *layers.averages, *layers.casts, self.x, self.y]
        for tensor in fixed:
            # Otherwise a CUDA graph would copy it in each step.
            torch._dynamo.mark_static_address(tensor)
        self.network = torch.compile(self.network, mode=mode)

    def _precision(self) -> AbstractContextManager[Any]:
        """Return the context of the forward pass."""
        if self.dtype is torch.float32 or not self.trains:
            return nullcontext()
        return torch.autocast(self.case["device"], self.dtype)

    def _eager(self) -> torch.Tensor:
        if not self.trains:
            with torch.no_grad():
                return self.network(self.x, self.y)
        self.optimizer.zero_grad(set_to_none=True)
        with self._precision():
            loss = self.network(self.x, self.y)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def _capture(self) -> None:
        """Capture a step, and undo what the steps before it have changed."""
        with self._undone():
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(WARM_STEPS):
                    self._eager()
            torch.cuda.current_stream().wait_stream(stream)
            if self.trains:
                self.optimizer.zero_grad(set_to_none=True)
            torch.cuda.empty_cache()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self.result = self._eager()
            self.graph = graph

    @contextmanager
    def _undone(self) -> Iterator[None]:
        """Set parameters to former values at the end, and the state of the optimizer to zero."""
        saved = [parameter.detach().clone() for parameter in self.layers.parameters]
        yield
        with torch.no_grad():
            for parameter, value in zip(self.layers.parameters, saved, strict=True):
                parameter.copy_(value)
            if self.trains:
                for state in self.optimizer.state.values():
                    for value in state.values():
                        if isinstance(value, torch.Tensor):
                            value.zero_()

    def run(self) -> torch.Tensor:
        if self.graph is not None:
            self.graph.replay()
            return self.result
        if self.how in COMPILER_MODES:
            torch.compiler.cudagraph_mark_step_begin()
        return self._eager()

    def synchronize(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize()

    def fetched(self, result: torch.Tensor) -> np.ndarray:
        return result.float().cpu().numpy()

    def record(self) -> Any:
        if not self.on_gpu:
            return super().record()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds_between(self, start: Any, stop: Any) -> float:
        return start.elapsed_time(stop) / 1000 if self.on_gpu else stop - start

    def peak_mib(self) -> float | None:
        if not self.on_gpu:
            return None
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        self.run()
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated()
        if self.how in ("graph", "max_autotune"):
            # What a CUDA graph has in its own pool does not count as allocated in a replay.
            torch.cuda.empty_cache()
            peak = max(peak, torch.cuda.memory_reserved())
        return peak / 2**20

    def close(self) -> None:
        """Return memory to the device."""
        for name in ("graph", "result", "network", "optimizer", "layers", "x", "y"):
            self.__dict__.pop(name, None)
        if self.how in COMPILER_MODES:
            torch._dynamo.reset()
        gc.collect()
        if self.on_gpu:
            torch.cuda.empty_cache()


def make_task(case: dict[str, Any]) -> Task:
    """Prepare a case of ``benchmarks/models.py``."""
    return Step(case)
