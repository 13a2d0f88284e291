"""Work on a GPU that is timed behind the gate of `device_timer`, in whichever library."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks import conv_data
from benchmarks.harness import Task
from benchmarks.peers.device_timer import DeviceTimer

__all__ = ["ArrayTask", "GatedTask"]


class GatedTask(Task):
    """Some calls in a row, launched behind a gate and timed by events.

    Subclasses define `run`, which launches the work once and gives what it gave, `stream` and
    `synchronize`; and call `warm` when they can run.

    Parameters
    ----------
    timer : str
        The path of `device_timer`'s library.
    calls : int
        How many calls there are between two events.
    """

    def __init__(self, timer: str, calls: int) -> None:
        self.timer = DeviceTimer(timer)
        self.calls = calls
        self.unqueued = 0
        self.kept: Any = None

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

    def launch(self) -> None:
        """Launch the calls of a turn; a result lives until the next one is there."""
        for _ in range(self.calls):
            self.kept = self.run()

    def turn(self) -> None:
        """Launch them between events, behind the gate."""
        self.timer.start(self.stream)
        self.launch()
        self.timer.stop(self.stream)

    def warm(self) -> None:
        """Ask for all memory, and load all kernels."""
        self.launch()
        self.synchronize()

    def times(self, calls: int) -> list[float]:
        """The device's seconds, each a mean over the calls of a turn."""
        return [self._time() for _ in range(calls)]

    def _time(self) -> float:
        seconds, was_queued = self.timer.timed(self.turn)
        self.unqueued += not was_queued
        return seconds / self.calls

    def facts(self) -> dict[str, Any]:
        """How many measurements were not launched before they ran."""
        return {"waits": self.unqueued}

    def close(self) -> None:
        """Let go of the last result."""
        self.kept = None


class ArrayTask(GatedTask):
    """On CuPy's stream and arrays; on the CPU, to try the programs, on NumPy's."""

    device = "cuda"

    @property
    def xp(self) -> Any:
        """The arrays' module."""
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
        """The numbers of `conv_data.values`."""
        array = conv_data.values(self.xp, count, seed, 1.0, dtype)
        if dtype == "bfloat16":
            import ml_dtypes

            array = array.view(ml_dtypes.bfloat16)
        return array

    def sketch(self, array: Any) -> list[float]:
        """The sums of `conv_data.sketch`, of an array of any shape in C order."""
        flat = self.xp.ascontiguousarray(array).reshape(-1)
        if flat.dtype.name == "bfloat16":
            flat = flat.view("uint16")
        return conv_data.sketch(self.xp, flat)
