"""The profile of captured steps, with small networks."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from benchmarks import replay
from benchmarks.models import model_cases


def kernel(name: str, start: float, end: float) -> SimpleNamespace:
    return SimpleNamespace(name=name, time_range=SimpleNamespace(start=start, end=end))


def test_kernels_at_the_same_time_count_once():
    kernels = [kernel("a", 0, 10), kernel("b", 5, 8), kernel("a", 9, 12), kernel("c", 20, 30)]
    assert replay.busy_us(kernels) == 22


def test_table_of_kernels(capsys):
    replay.print_kernels([("a", 10.0), ("b", 25.0), ("a", 3.0)], 1)
    assert capsys.readouterr().out.split() == ["8.3", "us", "0.3x", "b"]


@pytest.mark.gpu
@pytest.mark.needs("torch")
def test_a_small_network():
    case = next(c for c in model_cases(small=True, peers=()) if c["model"] == "resnet")
    row, kernels = replay.measure(case)
    assert row["kernels"] > 10
    assert len(kernels) == row["kernels"] * replay.PROFILED
    assert row["busy_ms"] > 0
    assert 0 < row["replay_us"] < row["call_us"]
    assert 0 < row["idle_replay_us"] < row["idle_call_us"]
