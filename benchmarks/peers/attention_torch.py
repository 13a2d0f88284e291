"""Attention in PyTorch on one GPU, run eagerly, with the fastest of its backends."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from itertools import cycle
from math import prod
from typing import Any

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.attention_data import NAMES, PLACES, SEEDS, attention_shapes
from benchmarks.harness import BenchmarkError, Task
from benchmarks.peers.conv_torch import sketch, values
from benchmarks.peers.gated_torch import TorchTask
from benchmarks.peers.torch_gpu import versions

__all__ = ["make_task", "prepare", "versions"]

BACKENDS = (
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
)
#: Most bytes of float32 scores with which the plain backend, which stores them, is tried. Above,
#: moving the scores takes several times as long as the other backends do.
_MATH_BYTES = 1 << 30
#: Turns of each backend; the fastest turn counts.
_TRIALS = 3


class Attention(TorchTask):
    """``scaled_dot_product_attention``; call `choose` before timing it."""

    def __init__(self, case: dict[str, Any]) -> None:
        super().__init__(case["timer"], case["calls"])
        self.case = case
        self.device = case["device"]
        self.places = [self.place() for _ in range(PLACES)]
        self.places_in_turn = cycle(self.places)
        self.operands, self.gout = self.places[0]
        self.usable: list[SDPBackend] = []
        scores = case["batch"] * case["heads"] * case["queries"] * case["keys"] * 4
        for backend in BACKENDS:
            if backend is SDPBackend.MATH and scores > _MATH_BYTES:
                continue
            self.backend = backend
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # they say why a backend cannot run
                    self.warm()
                self.usable.append(backend)
            except RuntimeError:  # the backend does not support these operands
                self.synchronize()
        if not self.usable:
            raise BenchmarkError(f"PyTorch has no backend for {case['case']}")

    def place(self) -> tuple[list[torch.Tensor], torch.Tensor | None]:
        """Make query, key and value, and the output's gradient."""
        dtype, is_trained = self.case["dtype"], self.case["training"]
        arrays = {
            name: values(prod(shape), SEEDS[name], 1.0, dtype, self.device).reshape(shape)
            for name, shape in attention_shapes(self.case).items()
        }
        gout = arrays.pop("gout", None)
        return [x.requires_grad_(is_trained) for x in arrays.values()], gout

    def times(self, calls: int) -> list[float]:
        self.operands, self.gout = next(self.places_in_turn)
        return super().times(calls)

    def choose(self) -> None:
        """Select the fastest backend; nothing else may use the GPU meanwhile."""
        found: dict[SDPBackend, float] = {}
        for backend in self.usable:
            self.backend = backend
            found[backend] = min(self.times(_TRIALS))
        self.backend = min(found, key=found.__getitem__)
        self.warm()
        self.unqueued = 0

    def launch(self) -> None:
        # The suite's functions that make numbers disable gradients.
        with sdpa_kernel(self.backend), torch.set_grad_enabled(self.case["training"]):
            super().launch()

    def run(self) -> list[torch.Tensor]:
        out = scaled_dot_product_attention(
            *self.operands,
            is_causal=self.case["is_causal"],
            enable_gqa=self.case["heads"] != self.case["shared_heads"],
        )
        if not self.case["training"]:
            return [out]
        return [out.detach(), *torch.autograd.grad(out, self.operands, self.gout)]

    def results(self) -> dict[str, np.ndarray]:
        self.launch()
        found = [np.array(sketch(x.contiguous().reshape(-1))) for x in self.kept]
        return dict(zip(NAMES, found, strict=False))

    def facts(self) -> dict[str, Any]:
        """Return the number of waits, and the backend."""
        return {**super().facts(), "torch_backend": self.backend.name.lower()}

    def close(self) -> None:
        super().close()
        del self.places, self.places_in_turn, self.operands, self.gout


def make_task(case: dict[str, Any]) -> Task:
    """Prepare a case of ``benchmarks/attention.py``."""
    return Attention(case)


def prepare(cases: Sequence[dict[str, Any]]) -> None:
    """Set up the device, and load the kernels that make and sum numbers."""
    for dtype in {case["dtype"]: None for case in cases}:
        sketch(values(1000, 1, 1.0, dtype, cases[0]["device"]))
