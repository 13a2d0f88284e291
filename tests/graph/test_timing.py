"""Timing of a graph's plans, and the choice of the fastest, with stand-ins for CuPy's events."""

from __future__ import annotations

import ctypes
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from dnnops.errors import DnnLibraryError, DnnNotSupportedError, DnnValueError
from dnnops.graph import execution
from dnnops.graph.names import numerical_note
from dnnops.graph.plan import Plan
from tests.graph.test_execution import PLAN, arrays, built

pytestmark = pytest.mark.needs("cudnn")


class Clock:
    """A stand-in for CuPy's events and streams, where time passes while plans run.

    The median of the times of a plan's calls is known; those of its first three are longer.
    """

    def __init__(self, rng, plans, repeats):
        self.now, self.done, self.streams = 0.0, 0.0, []
        self.medians = {plan: float(rng.uniform(3, 9)) for plan in plans}
        around = rng.uniform(-1, 1, (len(plans), repeats))
        around -= np.median(around, axis=1, keepdims=True)
        self.times = {
            plan: [100, 100, 100, *(np.array(self.medians[plan]) + row)]
            for plan, row in zip(plans, around, strict=True)
        }

    def run(self, plan):
        self.now += self.times[plan].pop(0)

    def event(self):
        event = SimpleNamespace(at=None)
        event.record = lambda: setattr(event, "at", self.now)
        event.synchronize = lambda: setattr(self, "done", max(self.done, event.at))
        return event

    def elapsed(self, start, end):
        # CUDA fails if an event has not happened.
        assert max(start.at, end.at) <= self.done
        return end.at - start.at

    @contextmanager
    def stream(self, address):
        self.streams.append(address)
        yield
        self.streams.append("left")


@pytest.mark.parametrize("repeats", [1, 2, 5, 30])
@pytest.mark.parametrize("address", [0, 77])
def test_plans_are_timed_by_the_median(monkeypatch, repeats, address):
    rng = np.random.default_rng([repeats, address])
    graph, _ = built()
    fails, excluded, *runnable = numbers = rng.permutation(6).tolist()
    made = [Plan(i, {}, [], [], None, SimpleNamespace(handle=i), 64, 5.0) for i in range(6)]
    made[excluded].is_excluded, made[excluded].reason = True, "deselected"
    made[fails].reason = "that of an earlier call"
    graph.plans, graph._chosen = list(made), fails
    clock = Clock(rng, numbers, repeats)

    def run(words):
        plan = (ctypes.c_int64 * 2).from_address(words)[1]
        if plan == fails:
            raise DnnLibraryError("status\nReason: it is busy")
        clock.run(plan)
        return 0

    monkeypatch.setattr(execution, "_runner", lambda: run)
    monkeypatch.setattr(execution, "get_stream", lambda handle: handle and address)
    for name, stand_in in (
        ("Event", clock.event),
        ("get_elapsed_time", clock.elapsed),
        ("Stream", SimpleNamespace(null=clock.stream("null"), from_external=lambda x: x)),
    ):
        monkeypatch.setattr(f"cupy.cuda.{name}", stand_in)
    monkeypatch.setattr(execution, "StreamAddress", clock.stream)
    found = graph.time_plans(arrays(), repeats=repeats)
    assert clock.streams == [address or "null", "left"]
    fastest = sorted(runnable, key=clock.medians.__getitem__)
    assert [plan.engine for plan in found] == [*fastest, *(plan.engine for plan in found[4:])]
    times = [plan.time_ms for plan in found[:4]]
    assert times == pytest.approx([clock.medians[engine] for engine in fastest])
    assert graph.plan_at() is made[fastest[0]]
    assert not any(clock.times[engine] for engine in runnable)
    assert (made[fails].reason, made[fails].time_ms) == ("it is busy", None)
    # What is known of others is kept.
    assert (made[excluded].reason, made[excluded].time_ms) == ("deselected", 5.0)
    for wrong in (0, -1, 1.5, None):
        with pytest.raises(DnnValueError, match="repeats must be a positive integer"):
            graph.time_plans(arrays(), repeats=wrong)


def test_nothing_can_be_timed(monkeypatch):
    graph, _ = built()
    graph.plans = [Plan(0, {}, [], [], None, SimpleNamespace(handle=PLAN), 64, is_excluded=True)]
    monkeypatch.setattr("cupy.cuda.Stream", SimpleNamespace(null=nullcontext()))
    monkeypatch.setattr(execution, "get_stream", lambda handle: 0)
    with pytest.raises(DnnNotSupportedError, match="'graph': no plan could be timed"):
        graph.time_plans({})


def test_the_table_of_plans():
    graph, _ = built()
    notes = [numerical_note.TENSOR_CORE], [numerical_note.NONDETERMINISTIC]
    graph.plans = [
        Plan(0, {}, notes[1], [], None, None, None, reason="it is busy"),
        Plan(1, {2: 3}, notes[0], [], None, None, 3 << 20, 0.5),
        Plan(2, {}, notes[1], [], None, None, 0, 0.25),
        Plan(3, {}, [], [], None, is_excluded=True),
    ]
    lines = [line.split() for line in graph.plan_table(120).splitlines()]
    assert lines == [
        ["plan", "time", "us", "x", "best", "workspace", "determ.", "notes"],
        ["eng2", "250.00", "1.00", "0", "B", "no"],
        ["eng1_k2=3", "500.00", "2.00", "3.0", "MiB", "yes", "tensor", "core"],
        ["eng3", "yes", "deselected"],
        ["eng0", "no", "it", "is", "busy"],
    ]
