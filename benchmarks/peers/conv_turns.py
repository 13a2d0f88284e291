"""Base of the convolution suite's peers: sets of operands take turns, timed on the device."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from typing import Any

from benchmarks import conv_data
from benchmarks.harness import Task
from benchmarks.peers.device_timer import DeviceTimer

__all__ = ["ITEM_SIZE", "KEPT_BYTES", "OPERANDS", "ConvTask", "operands_of", "storage_dtype"]

ITEM_SIZE = {"float32": 4, "float16": 2, "bfloat16": 2}
#: Most bytes of unused memory that a library may keep for later allocations.
KEPT_BYTES = 4 << 30

#: Names of the arrays that each direction reads, and of the one that it writes.
_READ = {
    "forward": ("image", "filters"),
    "backward_data": ("filters", "output"),
    "backward_filter": ("image", "output"),
}
_WRITTEN = {"forward": "output", "backward_data": "image", "backward_filter": "filters"}


def storage_dtype(precision: str) -> str:
    """Return the dtype of the arrays."""
    return "float32" if precision == "tf32" else precision


def operands_of(case: dict[str, Any]) -> tuple[tuple[str, ...], str]:
    """Return the names of the arrays that are read, and of the one that is written."""
    return _READ[case["direction"]], _WRITTEN[case["direction"]]


class _Operands:
    """The sets of operands of the last row, which the next row may share."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self._key: Any = object()
        self._sets: Any = None

    def get(self, key: Any, make: Callable[[], Any]) -> Any:
        """Return the sets made for an equal `key`, or drop the old ones and call `make`."""
        if key != self._key:
            self.clear()
            self._sets = make()
            self._key = key
        return self._sets


#: Holds the operands of one row per process.
OPERANDS = _Operands()


class ConvTask(Task):
    """A convolution or one of its gradients, on several sets of operands in turns.

    Subclasses define `run`, which launches the work on a set, `stream` and `synchronize`.

    Parameters
    ----------
    case : dict
        Result of `ConvCase.description`, with ``direction``, ``precision``, ``layout``, ``terms``,
        ``device`` (``cuda`` or ``cpu``) and ``timer``, the path of `device_timer`'s library.
    """

    def __init__(self, case: dict[str, Any]) -> None:
        self.case = case
        self.dtype = storage_dtype(case["precision"])
        self.read, self.written = operands_of(case)
        self.scales = conv_data.operand_scales(case["direction"], case["terms"])
        self.timer = DeviceTimer(case["timer"])
        names = (*self.read, self.written)
        size = sum(prod(self.shape(name)) for name in names) * ITEM_SIZE[self.dtype]
        self.sets = conv_data.ring_size(size) if case["device"] == "cuda" else 2
        self.next = 0
        self.unqueued = 0

    def operands(self, make: Callable[[int], Any]) -> list[Any]:
        """Return `make` of each set's number; reuse the last row's sets if they are the same."""
        counts = [prod(self.shape(name)) for name in (*self.read, self.written)]
        key = (type(self), self.case["direction"], self.dtype, self.sets, self.scales, counts)
        return OPERANDS.get(key, lambda: [make(number) for number in range(self.sets)])

    def shape(self, operand: str) -> tuple[int, ...]:
        """Return the shape of an operand, channels second."""
        return tuple(self.case[f"{operand}_shape"])

    def physical_shape(self, operand: str) -> tuple[int, ...]:
        """Return the shape in the order of memory."""
        shape = self.shape(operand)
        if self.case["layout"] == "contiguous":
            return shape
        return (shape[0], *shape[2:], shape[1])

    @property
    def stream(self) -> int | None:
        """Return the stream on which `run` launches."""
        return None

    def run(self, number: int) -> None:
        """Launch the work on a set of operands, and keep the result until the set's next turn."""
        raise NotImplementedError

    def synchronize(self) -> None:
        """Wait for the device."""

    def launch(self, calls: int) -> None:
        """Launch `calls` calls on consecutive sets, starting after the last turn's."""
        for _ in range(calls):
            self.run(self.next)
            self.next = (self.next + 1) % self.sets

    @contextmanager
    def ungated(self) -> Iterator[None]:
        """Disable the timer in the context."""
        self.timer.enable(False)
        try:
            yield
        finally:
            self.timer.enable(True)

    def warm(self, calls: int) -> list[float]:
        """Launch a turn's calls once without a gate, to allocate memory and load kernels."""
        with self.ungated():
            self.launch(calls)
            self.synchronize()
        return []

    def turn(self, calls: int, gates: int) -> list[float]:
        """Run `times` for each gate of a turn."""
        return [seconds for _ in range(gates) for seconds in self.times(calls)]

    def times(self, calls: int) -> list[float]:
        """Return the device's seconds per call: one mean over `calls` in sequence."""

        def turn() -> None:
            self.timer.start(self.stream)
            self.launch(calls)
            self.timer.stop(self.stream)

        return [self.timed(turn) / calls]

    def timed(self, turn: Callable[[], None]) -> float:
        """Return the seconds between start and stop of a turn."""
        seconds, was_queued = self.timer.timed(turn, self.attempts)
        self.unqueued += not was_queued
        return seconds

    @property
    def attempts(self) -> int:
        """How often to try to launch a turn before it runs; once, after the tries have failed."""
        return 1 if self.unqueued else 3

    def waits(self) -> int:
        """Return how many turns were not fully launched before they ran."""
        return self.unqueued

    def slope(self, calls: int) -> float:
        """Return the host's seconds per call: the additional time of three turns over one.

        It uses no events, for comparison with `times`. If launching takes longer than running, this
        is the launch time.
        """
        with self.ungated():
            found = []
            for turns in (1, 3):
                self.synchronize()
                start = time.perf_counter()
                for _ in range(turns):
                    self.launch(calls)
                self.synchronize()
                found.append(time.perf_counter() - start)
        return (found[1] - found[0]) / (2 * calls)

    def rough_seconds(self) -> float:
        """Return roughly the seconds of a call, to decide how many to time at once."""
        self.warm(2)
        return min(self.times(2)[0] for _ in range(2))
