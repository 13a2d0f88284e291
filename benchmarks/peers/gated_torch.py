"""What PyTorch's peers that are timed behind a gate share."""

from __future__ import annotations

import torch

from benchmarks.peers.gated import GatedTask

__all__ = ["OnTorchStream", "TorchTask"]


class OnTorchStream:
    """Work on PyTorch's stream; on the CPU, to try the programs, there is none."""

    device = "cuda"

    @property
    def stream(self) -> int | None:
        return torch.cuda.current_stream().cuda_stream if self.device == "cuda" else None

    def synchronize(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()


class TorchTask(OnTorchStream, GatedTask):
    """Work on PyTorch's stream that is timed behind a gate."""
