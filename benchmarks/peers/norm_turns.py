"""Base of the peers of batch normalization on a GPU: sizes of the case, and timing with events."""

from __future__ import annotations

from math import prod
from typing import Any

from benchmarks.peers.gated import GatedTask

__all__ = ["CALLS", "SEEDS", "NormTask"]

#: Calls in sequence between two events.
CALLS = 4
#: Seeds of the inputs, for `conv_data.values`.
SEEDS = {"x": 0x51ED270B, "top": 0x2E1B2138, "gamma": 0x7A4D1F05, "beta": 0x13198A2E}


class NormTask(GatedTask):
    """Batch normalization in training: the output, and gradients with respect to all operands.

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
