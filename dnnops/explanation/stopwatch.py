"""Time the thunks of nodes, on the host and on devices."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import perf_counter
from typing import Any

from pytensor.graph.basic import Apply

from dnnops.explanation.graph import device_of, is_transfer
from dnnops.gpuarray.device import on_device
from dnnops.runtime.build import CUDNN
from dnnops.runtime.replay import replay_failure, replays

__all__ = ["DeviceStopwatch", "Stopwatch"]


class Stopwatch:
    """Times nodes on the host."""

    def __init__(self) -> None:
        self._milliseconds: dict[Apply, float] = {}

    def start(self) -> None:
        """Begin a call of the function."""
        self._milliseconds = {}

    def run(self, node: Apply, thunk: Callable[[], Any]) -> Any:
        """Run and time a thunk; a node that runs again in a call counts in sum."""
        begin = perf_counter()
        result = thunk()
        self._add(node, 1000 * (perf_counter() - begin))
        return result

    def finished(self) -> dict[Apply, float]:
        """End the call, and return the milliseconds that each node took."""
        return self._milliseconds

    def capture(self, node: Apply) -> str | None:
        """Return an empty string if the node's last run was replayed as a CUDA graph.

        Otherwise, return why it could not be recorded, or None if it was not tried.
        """
        return None

    def _add(self, node: Apply, milliseconds: float) -> None:
        self._milliseconds[node] = self._milliseconds.get(node, 0) + milliseconds


class DeviceStopwatch(Stopwatch):
    """Times nodes on the host and on devices, on each device's current stream.

    Parameters
    ----------
    devices : iterable of int
        Devices that run nodes.
    """

    def __init__(self, devices: Iterable[int]):
        super().__init__()
        self.devices = sorted(set(devices))
        self._events: list[tuple[Apply, int, Any, Any]] = []
        self._captures: dict[Apply, str | None] = {}

    def start(self) -> None:
        super().start()
        self._events = []

    def run(self, node: Apply, thunk: Callable[[], Any]) -> Any:
        """Run and time a thunk on the node's device.

        A node on the host and a transfer wait until the devices are idle, so that the work before
        them does not count for them.
        """
        device = device_of(node)
        if device is None or is_transfer(node):
            self._synchronize()
            begin = perf_counter()
            result = thunk()
            if is_transfer(node):
                self._synchronize()
            self._add(node, 1000 * (perf_counter() - begin))
            return result
        before = replay_state()
        with on_device(device) as cupy:
            begin, end = cupy.cuda.Event(), cupy.cuda.Event()
            begin.record()
            result = thunk()
            end.record()
        self._events.append((node, device, begin, end))
        self._captures[node] = _capture(before, replay_state())
        return result

    def finished(self) -> dict[Apply, float]:
        self._synchronize()
        for node, device, begin, end in self._events:
            with on_device(device) as cupy:
                self._add(node, cupy.cuda.get_elapsed_time(begin, end))
        self._events = []
        return super().finished()

    def capture(self, node: Apply) -> str | None:
        return self._captures.get(node)

    def _synchronize(self) -> None:
        for device in self.devices:
            with on_device(device) as cupy:
                cupy.cuda.get_current_stream().synchronize()


def replay_state() -> tuple[int, str]:
    """Return this thread's number of replayed calls, and why one could not be recorded."""
    return (replays(), replay_failure()) if CUDNN.is_loaded else (0, "")


def _capture(before: tuple[int, str], after: tuple[int, str]) -> str | None:
    if after[0] > before[0]:
        return ""
    return after[1] if after[1] != before[1] else None
