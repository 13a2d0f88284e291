"""Attention in PyTorch on one GPU, run eagerly, by the fastest of its backends."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.attention_data import CALLS_BETWEEN_EVENTS, attention_arrays
from benchmarks.harness import BenchmarkError, Task
from benchmarks.peers.torch_gpu import versions

__all__ = ["make_task", "versions"]

BACKENDS = (
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
)
#: Of its plain implementation, which keeps the scores: no more are made than this many bytes.
_MATH_BYTES = 8 << 30


class Attention(Task):
    """``scaled_dot_product_attention``, timed by CUDA events."""

    def __init__(self, case: dict[str, Any]) -> None:
        dtype = getattr(torch, case["dtype"])
        arrays = attention_arrays(case)
        tensors = {name: torch.from_numpy(a).cuda().to(dtype) for name, a in arrays.items()}
        self.gout = tensors.pop("gout")
        self.operands = [x.requires_grad_(case["training"]) for x in tensors.values()]
        self.case = case
        found: dict[SDPBackend, float] = {}
        scores = case["batch"] * case["heads"] * case["queries"] * case["keys"] * 4
        for backend in BACKENDS:
            if backend is SDPBackend.MATH and scores > _MATH_BYTES:
                continue
            self.backend = backend
            try:
                self.times(2)
                found[backend] = min(self.times(5))
            except RuntimeError:  # it doesn't take these operands
                torch.cuda.synchronize()
        if not found:
            raise BenchmarkError(f"PyTorch has no backend for {case['case']}")
        self.backend = min(found, key=found.__getitem__)

    def run(self) -> list[torch.Tensor]:
        with sdpa_kernel(self.backend):
            out = scaled_dot_product_attention(
                *self.operands,
                is_causal=self.case["is_causal"],
                enable_gqa=self.case["heads"] != self.case["shared_heads"],
            )
            if not self.case["training"]:
                return [out]
            return [out.detach(), *torch.autograd.grad(out, self.operands, self.gout)]

    def times(self, calls: int) -> list[float]:
        """The device's seconds, each a mean over some calls in a row."""
        start = torch.cuda.Event(enable_timing=True)
        stop = torch.cuda.Event(enable_timing=True)
        seconds = []
        with torch.set_grad_enabled(self.case["training"]):
            for _ in range(calls):
                start.record()
                for _ in range(CALLS_BETWEEN_EVENTS):
                    self.run()
                stop.record()
                stop.synchronize()
                seconds.append(start.elapsed_time(stop) / 1000 / CALLS_BETWEEN_EVENTS)
        return seconds

    def results(self) -> dict[str, np.ndarray]:
        with torch.set_grad_enabled(self.case["training"]):
            arrays = [x.float().cpu().numpy() for x in self.run()]
        return dict(zip(("out", "dquery", "dkey", "dvalue"), arrays, strict=False))

    def facts(self) -> dict[str, Any]:
        """Which backend it is."""
        return {"torch_backend": self.backend.name.lower()}


def make_task(case: dict[str, Any]) -> Task:
    """Prepare a case of ``benchmarks/attention.py``."""
    return Attention(case)
