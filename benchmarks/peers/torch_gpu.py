"""PyTorch on one GPU, run eagerly."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.harness import Task
from benchmarks.networks import CALLS_BETWEEN_EVENTS, conv_arrays, rotated_sets
from benchmarks.peers.torch_cpu import convolution_calls, memory_format

# Like dnnops, compute float32 without TF32, and select plans by heuristics, not by timing.
torch.backends.cudnn.benchmark = False
torch.backends.cudnn.allow_tf32 = False
torch.backends.cuda.matmul.allow_tf32 = False


def versions() -> dict[str, Any]:
    """Return the versions of what is measured."""
    return {"torch": torch.__version__, "torch_cudnn": torch.backends.cudnn.version()}


class Chain(Task):
    """A chain of convolutions, timed on the host like `dnnops_gpu.Chain`."""

    def __init__(self, case: dict[str, Any]) -> None:
        image, filters, _ = conv_arrays(case)
        self.image = torch.from_numpy(image).cuda()
        self.filters = torch.from_numpy(filters).cuda()
        self.padding = case["kernel"] // 2
        self.chain = case["chain"]

    def _run(self, length: int) -> torch.Tensor:
        y = self.image
        for _ in range(length):
            y = nn.functional.conv2d(y, self.filters, padding=self.padding)
        return y

    def _time(self, length: int) -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        self._run(length)
        return time.perf_counter() - start

    def times(self, calls: int) -> list[float]:
        """Return the host's seconds per convolution of the chain."""
        with torch.no_grad():
            return [
                (self._time(self.chain) - self._time(1)) / (self.chain - 1) for _ in range(calls)
            ]

    def results(self) -> dict[str, np.ndarray]:
        with torch.no_grad():
            return {"y": self._run(self.chain).cpu().numpy()}


class Convolution(Task):
    """A convolution, or one of its gradients, timed with CUDA events."""

    def __init__(self, case: dict[str, Any]) -> None:
        arrays = conv_arrays(case)
        copies = rotated_sets(case, arrays)
        self.calls = []
        for _ in range(copies):
            operands = [
                torch.from_numpy(array).cuda().contiguous(memory_format=memory_format(case))
                for array in arrays
            ]
            self.calls.append(convolution_calls(case, *operands)[0])

    def times(self, calls: int) -> list[float]:
        """Return the device's seconds, each a mean over several calls in sequence."""
        start = torch.cuda.Event(enable_timing=True)
        stop = torch.cuda.Event(enable_timing=True)
        operands = itertools.cycle(self.calls)
        seconds = []
        with torch.no_grad():
            for _ in range(calls):
                start.record()
                for _ in range(CALLS_BETWEEN_EVENTS):
                    next(operands)()
                stop.record()
                stop.synchronize()
                seconds.append(start.elapsed_time(stop) / 1000 / CALLS_BETWEEN_EVENTS)
        return seconds

    def results(self) -> dict[str, np.ndarray]:
        with torch.no_grad():
            return {"y": self.calls[0]().contiguous().cpu().numpy()}


class Demo(Task):
    """A training step of the demo's network, with the data of `dnnops_gpu.Demo.facts`."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.device = torch.device(case["device"])
        self.images, self.classes = map(torch.from_numpy, case["batch"])
        self.steps = case["steps"]
        pool = nn.MaxPool2d(2)
        channels = [value.shape[:2] for value in case["weights"] if value.ndim == 4]
        blocks = [
            layer
            for n_out, n_in in channels
            for layer in (nn.Conv2d(n_in, n_out, 3, padding=1), nn.ReLU(), pool)
        ]
        self.net = nn.Sequential(*blocks, nn.Flatten(), nn.Linear(*case["weights"][-2].shape))
        with torch.no_grad():
            for parameter, value in zip(self.net.parameters(), case["weights"], strict=True):
                if value.ndim == 4:  # dnnops flips filters, PyTorch does not
                    value = value[:, :, ::-1, ::-1].copy()
                parameter.copy_(torch.from_numpy(value.T if value.ndim == 2 else value))
        self.net.to(self.device)
        self.optimizer = torch.optim.SGD(
            self.net.parameters(), lr=case["rate"], momentum=case["momentum"]
        )

    def step(self) -> tuple[float, float]:
        """Return the loss before the update and the accuracy, as `digits.Trainer.train` does."""
        images, classes = self.images.to(self.device), self.classes.to(self.device)
        self.optimizer.zero_grad()
        logits = self.net(images)
        loss = nn.functional.cross_entropy(logits, classes)
        accuracy = (logits.argmax(dim=1) == classes).float().mean()
        loss.backward()
        self.optimizer.step()
        return loss.item(), accuracy.item()

    def call(self) -> None:
        self.step()

    def results(self) -> dict[str, np.ndarray]:
        return {"losses": np.array([self.step()[0] for _ in range(self.steps)])}


def make_task(case: dict[str, Any]) -> Task:
    """Prepare a case of ``benchmarks/gpu.py``."""
    kinds: dict[str, Callable[[dict[str, Any]], Task]] = {
        "chain": Chain,
        "convolution": Convolution,
        "demo": Demo,
    }
    return kinds[case["kind"]](case)
