"""Test how long benchmarks run, in particular if libraries are close to each other."""

from __future__ import annotations

from itertools import cycle

import pytest

from benchmarks.harness import TIMES_AS_MANY, Settings, measure_apart

SETTINGS = Settings(rounds=3, max_calls=4, pause_s=0)
#: Timed calls, without the warm-up call at the beginning of each turn.
COUNTED = SETTINGS.rounds * SETTINGS.max_calls


class Library:
    """A task that takes given times in turn."""

    def __init__(self, *seconds: float):
        self.seconds = cycle(seconds)

    def times(self, calls: int) -> list[float]:
        return [next(self.seconds) for _ in range(calls)]


@pytest.mark.parametrize(
    ("dnnops", "torch", "is_close"),
    [
        ((1.0,), (1.005,), True),
        ((1.005,), (1.0,), True),
        ((1.0,), (1.02,), False),
        ((1.02,), (1.0,), False),
        # Further apart, but not by more than the spread of the times.
        ((0.9, 0.95, 1.0, 1.05, 1.1), (1.03,), True),
        ((0.99, 0.995, 1.0, 1.005, 1.01), (1.1,), False),
    ],
)
def test_turns_of_close_libraries(dnnops, torch, is_close):
    """There are more turns, whichever is ahead, and all of them count."""
    tasks = {"dnnops": Library(*dnnops), "torch": Library(*torch), "jax": Library(5.0)}
    measurement = measure_apart(tasks, SETTINGS)
    expected = COUNTED * (TIMES_AS_MANY if is_close else 1)
    assert {name: len(found) for name, found in measurement.samples.items()} == dict.fromkeys(
        tasks, expected
    )
    assert measurement.medians("s")["torch_s"] == torch[0]
