"""Training steps of recurrent networks in PyTorch, run eagerly, on CPU and GPU."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.harness import Task
from benchmarks.peers.torch_cpu import versions
from benchmarks.rnn_data import COMPARED_STEP, LEARNING_RATE, compared, parameter_shapes, rnn_arrays

__all__ = ["make_task", "versions"]

# Like dnnops, compute float32 without TF32.
torch.backends.cudnn.allow_tf32 = False
torch.backends.cuda.matmul.allow_tf32 = False


class Step(Task):
    """A step: forward, gradients with respect to parameters and input, and the update."""

    def __init__(self, case: dict[str, Any]) -> None:
        arrays = rnn_arrays(case)
        self.device, dtype = case["device"], getattr(torch, case["dtype"])
        kind = {"lstm": nn.LSTM, "gru": nn.GRU}[case["mode"]]
        sizes = (case["hidden"], case["hidden"], case["layers"])
        self.network = kind(*sizes, device=self.device, dtype=dtype)
        layers = range(case["layers"])
        names = [f"weight_{kind}_l{n}" for n in layers for kind in ("ih", "hh")]
        names += [f"bias_{kind}_l{n}" for n in layers for kind in ("ih", "hh")]
        self.names = names
        begin = 0
        with torch.no_grad():
            for name, shape in zip(names, parameter_shapes(case), strict=True):
                parameter = getattr(self.network, name)
                piece = arrays.w[begin : begin + parameter.numel()]
                parameter.copy_(torch.from_numpy(piece).view(shape))
                begin += parameter.numel()
        self.network.flatten_parameters()
        # The fused update is PyTorch's fastest: one kernel for all parameters.
        self.optimizer = torch.optim.SGD(
            self.network.parameters(), lr=LEARNING_RATE, fused=self.device == "cuda"
        )
        x, self.gy = (torch.from_numpy(a).to(self.device) for a in (arrays.x, arrays.gy))
        self.x = x.requires_grad_()

    def call(self) -> torch.Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        self.x.grad = None
        y, _ = self.network(self.x)
        y.backward(self.gy)
        self.optimizer.step()
        return y

    def parameters(self) -> np.ndarray:
        """Return every `COMPARED_STEP`-th parameter, in the order of `parameter_shapes`."""
        pieces = [getattr(self.network, name).detach().flatten() for name in self.names]
        return torch.cat(pieces)[::COMPARED_STEP].cpu().numpy()

    def results(self) -> dict[str, np.ndarray]:
        before = self.parameters()
        y = self.call().detach()
        return compared(before, self.parameters(), y, self.x.grad, _fetched)


class GpuStep(Step):
    """The same step on a GPU, timed with CUDA events."""

    def times(self, calls: int) -> list[float]:
        """Return the device's seconds of each step; no step waits for the one before."""
        events = [torch.cuda.Event(enable_timing=True) for _ in range(calls + 1)]
        events[0].record()
        for event in events[1:]:
            self.call()
            event.record()
        events[-1].synchronize()
        return [a.elapsed_time(b) / 1000 for a, b in itertools.pairwise(events)]

    def facts(self) -> dict[str, Any]:
        """Return the peak memory of a step."""
        # Free the last step's results first, as dnnops does before a step.
        self.optimizer.zero_grad(set_to_none=True)
        self.x.grad = None
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        self.call()
        torch.cuda.synchronize()
        return {"peak_mib": torch.cuda.max_memory_allocated() / 2**20}

    def close(self) -> None:
        """Return memory to the device."""
        del self.network, self.optimizer, self.x, self.gy
        torch.cuda.empty_cache()


def _fetched(z: torch.Tensor) -> np.ndarray:
    return z.cpu().numpy()


def make_task(case: dict[str, Any]) -> Task:
    """Prepare a case of ``benchmarks/rnn.py``."""
    return GpuStep(case) if case["device"] == "cuda" else Step(case)
