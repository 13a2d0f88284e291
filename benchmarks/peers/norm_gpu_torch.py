"""Batch normalization on a GPU in PyTorch, run eagerly."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn import functional

from benchmarks.harness import Task
from benchmarks.norm_data import EPSILON
from benchmarks.peers.conv_torch import sketch, values
from benchmarks.peers.gated_torch import TorchTask
from benchmarks.peers.norm_turns import SEEDS, NormTask
from benchmarks.peers.torch_gpu import versions

__all__ = ["make_task", "versions"]


class Normalization(NormTask, TorchTask):
    """Batch normalization and its gradients, by autograd."""

    def __init__(self, case: dict[str, Any]) -> None:
        super().__init__(case)
        x, self.top = (
            self._image(self._flat(name, self.count, self.dtype)) for name in ("x", "top")
        )
        gamma, beta = (self._flat(name, self.channels, "float32") for name in ("gamma", "beta"))
        self.differentiated = tuple(a.requires_grad_() for a in (x, gamma, beta))
        self.warm()

    def _flat(self, name: str, count: int, dtype: str) -> torch.Tensor:
        return values(count, SEEDS[name], 1.0, dtype, self.device)

    def _image(self, flat: torch.Tensor) -> torch.Tensor:
        array = flat.reshape(self.physical_shape)
        if not self.is_channels_last:
            return array
        return array.permute(0, array.ndim - 1, *range(1, array.ndim - 1))

    def run(self) -> Any:
        # The suite's functions that make numbers disable gradients.
        with torch.enable_grad():
            x, gamma, beta = self.differentiated
            out = functional.batch_norm(x, None, None, gamma, beta, training=True, eps=EPSILON)
            return [out.detach(), *torch.autograd.grad(out, self.differentiated, self.top)]

    def results(self) -> dict[str, np.ndarray]:
        out, dx, dgamma, dbeta = self.run()
        found = {}
        for name, array in (("out", out), ("dx", dx)):
            if self.is_channels_last:
                array = array.permute(0, *range(2, array.ndim), 1)
            found[name] = np.array(sketch(array.contiguous().reshape(-1)))
        return {**found, "dgamma": dgamma.cpu().numpy(), "dbeta": dbeta.cpu().numpy()}


def make_task(case: dict[str, Any]) -> Task:
    """Prepare a case of ``benchmarks/norm.py`` on a GPU."""
    return Normalization(case)
