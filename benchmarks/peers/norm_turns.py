"""What the peers of batch normalization on a GPU share: the case's sizes, and timing by events."""

from __future__ import annotations

from math import prod
from typing import Any

from benchmarks.peers.gated import GatedTask

__all__ = ["CALLS", "SEEDS", "NormTask"]

#: In a row between two events.
CALLS = 4
#: Of `conv_data.values`, for the arrays that are read.
SEEDS = {"x": 0x51ED270B, "top": 0x2E1B2138, "gamma": 0x7A4D1F05, "beta": 0x13198A2E}


class NormTask(GatedTask):
    """Training by batch normalization: the output, and the gradients by all operands.

    Parameters
    ----------
    case : dict
        ``shape``, channels second; ``dtype``; ``memory_format``; and ``timer``, the path of
        `device_timer`'s library.
    """

    def __init__(self, case: dict[str, Any]) -> None:
        super().__init__(case["timer"], CALLS)
        self.case = case
        self.shape = tuple(case["shape"])
        self.dtype = case["dtype"]
        self.count = prod(self.shape)
        self.channels = self.shape[1]
        self.is_channels_last = case["memory_format"] == "channels_last"
        last = (self.shape[0], *self.shape[2:], self.channels)
        self.physical_shape = last if self.is_channels_last else self.shape
