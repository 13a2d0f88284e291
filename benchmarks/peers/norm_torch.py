"""Batch normalization and pooling in PyTorch, run eagerly."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn import functional

from benchmarks.harness import Task
from benchmarks.norm_data import EPSILON, norm_arrays, pool_arrays
from benchmarks.peers.torch_cpu import memory_format, versions

__all__ = ["make_task", "versions"]


def _tensor(array: np.ndarray, layout: torch.memory_format) -> torch.Tensor:
    x = torch.from_numpy(array)
    return x.contiguous(memory_format=layout) if x.ndim == 4 else x


class _EagerTask(Task):
    """A function of tensors, with its gradients in training."""

    names: tuple[str, ...]
    differentiated: tuple[torch.Tensor, ...]
    top: torch.Tensor
    training: bool

    def forward(self) -> torch.Tensor:
        raise NotImplementedError

    def run(self) -> list[torch.Tensor]:
        if not self.training:
            with torch.no_grad():
                return [self.forward()]
        out = self.forward()
        return [out.detach(), *torch.autograd.grad(out, self.differentiated, self.top)]

    def call(self) -> None:
        self.run()

    def results(self) -> dict[str, np.ndarray]:
        arrays = [result.contiguous().numpy() for result in self.run()]
        return dict(zip(self.names, arrays, strict=True))


class Normalization(_EagerTask):
    """Batch normalization, with its gradients in training."""

    def __init__(self, case: dict[str, Any]) -> None:
        arrays = {name: _tensor(a, memory_format(case)) for name, a in norm_arrays(case).items()}
        self.training = case["training"]
        self.names = ("out", "dx", "dgamma", "dbeta") if self.training else ("out",)
        self.top = arrays["top"]
        self.differentiated = (arrays["x"], arrays["gamma"], arrays["beta"])
        for tensor in self.differentiated:
            tensor.requires_grad_(self.training)
        self.statistics = (None, None) if self.training else (arrays["mean"], arrays["var"])

    def forward(self) -> torch.Tensor:
        x, gamma, beta = self.differentiated
        return functional.batch_norm(
            x, *self.statistics, gamma, beta, training=self.training, eps=EPSILON
        )


class Pooling(_EagerTask):
    """Pooling, with its gradient in training."""

    def __init__(self, case: dict[str, Any]) -> None:
        image, topgrad = (_tensor(a, memory_format(case)) for a in pool_arrays(case))
        self.training = case["training"]
        self.names = ("out", "dx") if self.training else ("out",)
        self.top, self.differentiated = topgrad, (image.requires_grad_(self.training),)
        self.sizes = (case["window"], case["stride"], case["pad"])
        self.pool = functional.max_pool2d if case["mode"] == "max" else functional.avg_pool2d

    def forward(self) -> torch.Tensor:
        return self.pool(self.differentiated[0], *self.sizes)


def make_task(case: dict[str, Any]) -> Task:
    """Prepare a case of ``benchmarks/norm.py``."""
    return {"normalization": Normalization, "pooling": Pooling}[case["kind"]](case)
