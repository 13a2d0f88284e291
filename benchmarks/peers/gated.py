"""Base of GPU tasks in any library that are timed behind the gate of `device_timer`."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks import conv_data
from benchmarks.harness import Task
from benchmarks.peers.device_timer import DeviceTimer

__all__ = ["ArrayTask", "GatedTask"]


class GatedTask(Task):
    """Several calls in sequence, launched behind a gate and timed with events.

    Subclasses define `run`, which launches the work once and returns its result, `stream` and
    `synchronize`. They call `warm` once they can run.

    Parameters
    ----------
    timer : str
        Path of `device_timer`'s library.
    calls : int
        Number of calls between two events.
    """

    def __init__(self, timer: str, calls: int) -> None:
        self.timer = DeviceTimer(timer)
        self.calls = calls
        self.unqueued = 0
        self.kept: Any = None

    @property
    def stream(self) -> int | None:
        """Return the stream on which `run` launches."""
        return None

    def run(self) -> Any:
        """Launch the work once."""
        raise NotImplementedError

    def synchronize(self) -> None:
        """Wait for the device."""
        raise NotImplementedError

    def launch(self) -> None:
        """Launch the calls of a turn; each result lives until the next one exists."""
        for _ in range(self.calls):
            self.kept = self.run()

    def turn(self) -> None:
        """Launch the calls between events, behind the gate."""
        self.timer.start(self.stream)
        self.launch()
        self.timer.stop(self.stream)

    def warm(self) -> None:
        """Allocate all memory, and load all kernels."""
        self.launch()
        self.synchronize()

    def times(self, calls: int) -> list[float]:
        """Return the device's seconds, each a mean over the calls of a turn."""
        return [self._time() for _ in range(calls)]

    def _time(self) -> float:
        seconds, was_queued = self.timer.timed(self.turn)
        self.unqueued += not was_queued
        return seconds / self.calls

    def facts(self) -> dict[str, Any]:
        """Return how many measurements were not fully launched before they ran."""
        return {"waits": self.unqueued}

    def close(self) -> None:
        """Release the last result."""
        self.kept = None


class ArrayTask(GatedTask):
    """A task on CuPy's stream and arrays, or on NumPy's arrays for a quick check on the CPU."""

    device = "cuda"

    @property
    def xp(self) -> Any:
        """Return the module of the arrays."""
        if self.device != "cuda":
            return np
        import cupy

        return cupy

    @property
    def stream(self) -> int | None:
        return self.xp.cuda.get_current_stream().ptr if self.device == "cuda" else None

    def synchronize(self) -> None:
        if self.device == "cuda":
            self.xp.cuda.runtime.deviceSynchronize()

    def flat(self, count: int, seed: int, dtype: str) -> Any:
        """Return the numbers of `conv_data.values`."""
        array = conv_data.values(self.xp, count, seed, 1.0, dtype)
        if dtype == "bfloat16":
            import ml_dtypes

            array = array.view(ml_dtypes.bfloat16)
        return array

    def sketch(self, array: Any) -> list[float]:
        """Return `conv_data.sketch` of an array of any shape, in C order."""
        flat = self.xp.ascontiguousarray(array).reshape(-1)
        if flat.dtype.name == "bfloat16":
            flat = flat.view("uint16")
        return conv_data.sketch(self.xp, flat)
