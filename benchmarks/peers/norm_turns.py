"""What the peers of batch normalization on a GPU share: the case's sizes, and timing by events."""

from __future__ import annotations

from math import prod
from typing import Any

from benchmarks.harness import Task
from benchmarks.peers.device_timer import DeviceTimer

__all__ = ["CALLS", "SEEDS", "NormTask"]

#: In a row between two events.
CALLS = 4
#: Of `conv_data.values`, for the arrays that are read.
SEEDS = {"x": 0x51ED270B, "top": 0x2E1B2138, "gamma": 0x7A4D1F05, "beta": 0x13198A2E}


class NormTask(Task):
    """Training by batch normalization: the output, and the gradients by all operands.

    Subclasses define `run`, which launches it once and gives what it gave, `stream`, and
    `synchronize`; and call `warm` when they can run.

    Parameters
    ----------
    case : dict
        ``shape``, channels second; ``dtype``; ``memory_format``; and ``timer``, the path of
        `device_timer`'s library.
    """

    def __init__(self, case: dict[str, Any]) -> None:
        self.case = case
        self.shape = tuple(case["shape"])
        self.dtype = case["dtype"]
        self.count = prod(self.shape)
        self.channels = self.shape[1]
        self.is_channels_last = case["memory_format"] == "channels_last"
        last = (self.shape[0], *self.shape[2:], self.channels)
        self.physical_shape = last if self.is_channels_last else self.shape
        self.timer = DeviceTimer(case["timer"])
        self.unqueued = 0

    @property
    def stream(self) -> int | None:
        """The stream that `run` launches on."""
        return None

    def run(self) -> Any:
        """Launch the work once."""
        raise NotImplementedError

    def synchronize(self) -> None:
        """Wait for the device."""
        raise NotImplementedError

    def launch(self, calls: int) -> None:
        """Launch the work some times; a result lives until the next one is there."""
        for _ in range(calls):
            self.kept = self.run()

    def warm(self) -> None:
        """Ask for all memory, and load all kernels."""
        self.launch(CALLS)
        self.synchronize()

    def times(self, calls: int) -> list[float]:
        """The device's seconds, each a mean over some calls in a row."""
        return [self._time() for _ in range(calls)]

    def _time(self) -> float:
        for _ in range(3):
            self.timer.start(self.stream)
            self.launch(CALLS)
            self.timer.stop(self.stream)
            milliseconds = self.timer.milliseconds()
            if self.timer.queued:
                break
        else:
            self.unqueued += 1
        return milliseconds / 1e3 / CALLS

    def facts(self) -> dict[str, Any]:
        """How many measurements were not launched before they ran."""
        return {"waits": self.unqueued}
