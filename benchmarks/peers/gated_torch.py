"""Base of PyTorch tasks that are timed behind a gate."""

from __future__ import annotations

import torch

from benchmarks.peers.gated import GatedTask

__all__ = ["OnTorchStream", "TorchTask"]


class OnTorchStream:
    """Work on PyTorch's stream, or without a stream for a quick check on the CPU."""

    device = "cuda"

    @property
    def stream(self) -> int | None:
        return torch.cuda.current_stream().cuda_stream if self.device == "cuda" else None

    def synchronize(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()


class TorchTask(OnTorchStream, GatedTask):
    """A task on PyTorch's stream that is timed behind a gate."""
