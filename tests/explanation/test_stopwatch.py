"""Times on devices, with an object in place of CuPy that logs what is called."""

from __future__ import annotations

import sys
import types

import numpy as np
import pytensor.tensor as pt
import pytest

from dnnops.explanation.stopwatch import DeviceStopwatch, Stopwatch
from dnnops.gpuarray import GpuArrayType
from tests.gpuarray.graphs import rewritten


class FakeCupy(types.ModuleType):
    """CuPy's devices, streams and events, on a clock that only launched work moves."""

    def __init__(self):
        super().__init__("cupy")
        self.log, self.clock, self.current = [], 0.0, 0
        outer = self

        class Device:
            def __init__(self, number):
                self.number = number

            def __enter__(self):
                self.former, outer.current = outer.current, self.number

            def __exit__(self, *error):
                outer.current = self.former

        class Event:
            def record(self):
                self.device, self.time = outer.current, outer.clock
                outer.log.append(f"record {outer.current}")

        class Stream:
            def synchronize(self):
                outer.log.append(f"wait {outer.current}")

        def elapsed(begin, end):
            assert begin.device == end.device == outer.current
            return end.time - begin.time

        runtime = types.SimpleNamespace(CUDARuntimeError=RuntimeError)
        self.cuda = types.SimpleNamespace(
            Device=Device, Event=Event, get_current_stream=Stream, get_elapsed_time=elapsed,
            runtime=runtime,
        )  # fmt: skip


@pytest.fixture
def cupy(monkeypatch):
    fake = FakeCupy()
    monkeypatch.setitem(sys.modules, "cupy", fake)
    return fake


@pytest.fixture
def nodes():
    """A node on device 1, the transfer of its result, and a node on the host."""
    x = GpuArrayType("float32", (4, 5), 1)("x")
    host = pt.sort(pt.exp(pt.as_tensor_variable(x)).sum(axis=1))
    found = {type(n.op).__name__: n for n in rewritten([x], [host]).toposort()}
    return found["GpuElemwise"], found["HostFromGpu"], found["SortOp"]


def test_events_around_nodes_on_a_device(cupy, nodes):
    node = nodes[0]
    watch = DeviceStopwatch([1, 1])
    watch.start()

    def thunk():
        assert cupy.current == 1
        cupy.log.append("launch")
        cupy.clock += 7.5

    watch.run(node, thunk)
    assert cupy.log == ["record 1", "launch", "record 1"]
    assert watch.finished() == {node: 7.5}
    assert cupy.log[3:] == ["wait 1"]
    watch.start()
    assert watch.finished() == {}


def test_devices_are_idle_around_transfers_and_before_the_host(cupy, nodes):
    _, transfer, on_host = nodes
    watch = DeviceStopwatch([0, 1])
    watch.start()
    watch.run(transfer, lambda: cupy.log.append("copy"))
    assert cupy.log == ["wait 0", "wait 1", "copy", "wait 0", "wait 1"]
    cupy.log.clear()
    watch.run(on_host, lambda: cupy.log.append("compute"))
    assert cupy.log == ["wait 0", "wait 1", "compute"]
    assert all(time > 0 for time in watch.finished().values())


@pytest.mark.parametrize(
    ("before", "after", "capture"),
    [((3, ""), (4, ""), ""), ((3, ""), (3, "too many"), "too many"), ((3, "old"), (3, "old"), None),
     ((3, "old"), (4, "old"), "")],
)  # fmt: skip
def test_captures(cupy, nodes, monkeypatch, before, after, capture):
    states = iter([before, after])
    monkeypatch.setattr("dnnops.explanation.stopwatch.replay_state", lambda: next(states))
    watch = DeviceStopwatch([1])
    watch.start()
    watch.run(nodes[0], lambda: None)
    assert watch.capture(nodes[0]) == capture
    assert watch.capture(nodes[1]) is None


def test_a_node_that_runs_twice_counts_in_sum():
    watch = Stopwatch()
    watch.start()
    for _ in range(2):
        watch.run("node", lambda: np.sort(np.random.default_rng(0).random(100_000)))
    (twice,) = watch.finished().values()
    watch.start()
    watch.run("node", lambda: None)
    (once,) = watch.finished().values()
    assert twice > once
    assert watch.capture("node") is None
