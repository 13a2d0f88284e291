"""Training steps of recurrent networks in PyTorch, run eagerly, on either device."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.harness import Task
from benchmarks.peers.torch_cpu import versions
from benchmarks.rnn_data import LEARNING_RATE, compared, parameter_shapes, rnn_arrays

__all__ = ["make_task", "versions"]

# As in dnnops, float32 means float32.
torch.backends.cudnn.allow_tf32 = False
torch.backends.cuda.matmul.allow_tf32 = False


class Step(Task):
    """Forward, the gradients by the parameters and the input, and the parameters' update."""

    def __init__(self, case: dict[str, Any]) -> None:
        arrays = rnn_arrays(case)
        self.device, dtype = case["device"], getattr(torch, case["dtype"])
        kind = {"lstm": nn.LSTM, "gru": nn.GRU}[case["mode"]]
        self.network = kind(case["hidden"], case["hidden"], case["layers"])
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
        self.network.to(self.device, dtype)
        self.network.flatten_parameters()
        # All parameters in one kernel: the fastest that PyTorch has.
        self.optimizer = torch.optim.SGD(
            self.network.parameters(), lr=LEARNING_RATE, fused=self.device == "cuda"
        )
        x, self.gy = (torch.from_numpy(a).to(self.device, dtype) for a in (arrays.x, arrays.gy))
        self.x = x.requires_grad_()

    def call(self) -> torch.Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        self.x.grad = None
        y, _ = self.network(self.x)
        y.backward(self.gy)
        self.optimizer.step()
        return y

    def parameters(self) -> np.ndarray:
        """All parameters, in the order of `parameter_shapes`."""
        pieces = [getattr(self.network, name).detach().flatten() for name in self.names]
        return torch.cat(pieces).cpu().numpy()

    def results(self) -> dict[str, np.ndarray]:
        before = self.parameters()
        y = self.call().detach()
        y, gx = (z.cpu().numpy() for z in (y, self.x.grad))
        return compared(before, self.parameters(), y, gx)


class GpuStep(Step):
    """The same on a GPU, timed by CUDA events."""

    def times(self, calls: int) -> list[float]:
        """The device's seconds of each step; steps follow each other without waiting."""
        events = [torch.cuda.Event(enable_timing=True) for _ in range(calls + 1)]
        events[0].record()
        for event in events[1:]:
            self.call()
            event.record()
        events[-1].synchronize()
        return [a.elapsed_time(b) / 1000 for a, b in itertools.pairwise(events)]

    def facts(self) -> dict[str, Any]:
        """The most memory that a step has in use."""
        # As in dnnops, where the last step's results are gone when a step begins.
        self.optimizer.zero_grad(set_to_none=True)
        self.x.grad = None
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        self.call()
        torch.cuda.synchronize()
        return {"peak_mib": torch.cuda.max_memory_allocated() / 2**20}

    def close(self) -> None:
        """Give memory back to the device."""
        del self.network, self.optimizer, self.x, self.gy
        torch.cuda.empty_cache()


def make_task(case: dict[str, Any]) -> Task:
    """Prepare a case of ``benchmarks/rnn.py``."""
    return GpuStep(case) if case["device"] == "cuda" else Step(case)
