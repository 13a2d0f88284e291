"""What the peers of the convolution suite share: sets of operands in turns, timed on the device."""

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
#: How much memory that it doesn't use a library may keep, so as not to ask for it again.
KEPT_BYTES = 4 << 30

#: Names of the arrays that a direction reads, and of the one that it writes.
_READ = {
    "forward": ("image", "filters"),
    "backward_data": ("filters", "output"),
    "backward_filter": ("image", "output"),
}
_WRITTEN = {"forward": "output", "backward_data": "image", "backward_filter": "filters"}


def storage_dtype(precision: str) -> str:
    """The arrays' dtype."""
    return "float32" if precision == "tf32" else precision


def operands_of(case: dict[str, Any]) -> tuple[tuple[str, ...], str]:
    """Names of the arrays that are read, and of the one that is written."""
    return _READ[case["direction"]], _WRITTEN[case["direction"]]


class _Operands:
    """The sets of operands made last, which the next row may have as well."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self._key: Any = object()
        self._sets: Any = None

    def get(self, key: Any, make: Callable[[], Any]) -> Any:
        """What was made for an equal `key`; else `make` makes it, after the last has gone."""
        if key != self._key:
            self.clear()
            self._sets = make()
            self._key = key
        return self._sets


#: A process has those of one row.
OPERANDS = _Operands()


class ConvTask(Task):
    """A convolution or one of its gradients, on several sets of operands in turns.

    Subclasses define `run`, which launches the work on a set, `stream` and `synchronize`.

    Parameters
    ----------
    case : dict
        What `ConvCase.description` gives, with ``direction``, ``precision``, ``layout``, ``terms``,
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
        """What `make` gives for the number of each set, made anew if the last row's was other."""
        counts = [prod(self.shape(name)) for name in (*self.read, self.written)]
        key = (type(self), self.case["direction"], self.dtype, self.sets, self.scales, counts)
        return OPERANDS.get(key, lambda: [make(number) for number in range(self.sets)])

    def shape(self, operand: str) -> tuple[int, ...]:
        """The shape of an operand, channels second."""
        return tuple(self.case[f"{operand}_shape"])

    def physical_shape(self, operand: str) -> tuple[int, ...]:
        """The shape in the order of memory."""
        shape = self.shape(operand)
        if self.case["layout"] == "contiguous":
            return shape
        return (shape[0], *shape[2:], shape[1])

    @property
    def stream(self) -> int | None:
        """The stream that `run` launches on."""
        return None

    def run(self, number: int) -> None:
        """Launch the work on a set of operands, and keep its result until the set's next turn."""
        raise NotImplementedError

    def synchronize(self) -> None:
        """Wait for the device."""

    def launch(self, calls: int) -> None:
        """Work on as many sets, going on where the last turn ended."""
        for _ in range(calls):
            self.run(self.next)
            self.next = (self.next + 1) % self.sets

    @contextmanager
    def ungated(self) -> Iterator[None]:
        """Let the timer do nothing meanwhile."""
        self.timer.enable(False)
        try:
            yield
        finally:
            self.timer.enable(True)

    def warm(self, calls: int) -> list[float]:
        """Launch once what a turn has, without a gate: memory may be asked for, kernels loaded."""
        with self.ungated():
            self.launch(calls)
            self.synchronize()
        return []

    def turn(self, calls: int, gates: int) -> list[float]:
        """As `times`, so many times."""
        return [seconds for _ in range(gates) for seconds in self.times(calls)]

    def times(self, calls: int) -> list[float]:
        """The device's seconds for a call: one mean over `calls` in a row."""

        def turn() -> None:
            self.timer.start(self.stream)
            self.launch(calls)
            self.timer.stop(self.stream)

        return [self.timed(turn) / calls]

    def timed(self, turn: Callable[[], None]) -> float:
        """The seconds between start and stop of a turn."""
        seconds, was_queued = self.timer.timed(turn, self.attempts)
        self.unqueued += not was_queued
        return seconds

    @property
    def attempts(self) -> int:
        """How often to try until a turn is launched before it runs; once, if it was in vain."""
        return 1 if self.unqueued else 3

    def waits(self) -> int:
        """How many turns were not wholly launched before they ran."""
        return self.unqueued

    def slope(self, calls: int) -> float:
        """The host's seconds for a call: what three times as many take longer, without events.

        For comparison with `times`. Where launching takes longer than running, it is launching.
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
        """About what a call takes, to decide how many to time at once."""
        self.warm(2)
        return min(self.times(2)[0] for _ in range(2))
