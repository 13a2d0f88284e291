"""Which calls of a function are captured, and what a replay gives back; needs no device."""

from __future__ import annotations

import re
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from dnnops.capture.budget import (
    FIRST_WAIT,
    FREE_CAPTURES,
    KEPT_SIGNATURES,
    REPLAYS_PER_CAPTURE,
    Budget,
)
from dnnops.capture.captured import Captured
from dnnops.capture.graph import recorded
from dnnops.capture.schedule import schedule
from dnnops.capture.vm import KEPT_GRAPHS, MOST_GRAPHS, ORDINARY_CALLS, CapturingVM
from dnnops.errors import DnnError, DnnNotSupportedError
from dnnops.gpuarray import GpuArrayType
from tests.capture.hollow import Nodes, captures, doubling
from tests.gpuarray.fake_devices import FakeDevices
from tests.gpuarray.graphs import rewritten


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> FakeDevices:
    fake = FakeDevices()
    monkeypatch.setitem(sys.modules, "cupy", fake)
    return fake


@pytest.fixture
def called(devices, monkeypatch):
    """Return a function that calls another one with arrays of some size, and what it captured."""
    vm = doubling(devices)
    wanted = captures(vm, monkeypatch)
    (cell,) = vm._argument_cells
    arrays: dict[int, Any] = {}

    def call(size: int, times: int = 1) -> None:
        with devices.used(1):
            cell[0] = arrays.setdefault(size, devices.array(np.zeros(size)))
        for _ in range(times):
            vm()

    call.vm, call.wanted = vm, wanted
    return call


def test_shapes_are_counted_apart(called):
    for i in range(2 * (ORDINARY_CALLS + 2)):
        called(3 + i % 2)
    assert (called.vm.captures, called.vm.replays) == (2, 4)


def test_a_signature_is_forgotten_after_many_others(called):
    called(1, ORDINARY_CALLS)
    for size in range(2, KEPT_SIGNATURES + 2):
        called(size)
    called(1, ORDINARY_CALLS)
    assert called.vm.captures == 0
    called(1)
    assert called.vm.captures == 1


def test_a_signature_among_as_many_as_are_kept(called):
    called(1, ORDINARY_CALLS)
    for size in range(2, KEPT_SIGNATURES + 1):
        called(size)
    called(1)
    assert called.vm.captures == 1


def test_the_graph_that_was_not_launched_for_longest_is_released(called):
    for size in range(KEPT_GRAPHS):
        called(size, ORDINARY_CALLS + 1)
    called(0)
    called(KEPT_GRAPHS, ORDINARY_CALLS + 1)
    made = called.vm.captures
    assert made == KEPT_GRAPHS + 1
    called(0)
    called(2)
    assert called.vm.captures == made
    called(1)
    assert called.vm.captures == made + 1


def test_graphs_that_take_little_memory_are_kept(devices, monkeypatch):
    monkeypatch.setattr("tests.capture.hollow.KEPT_BYTES", 1)
    vm = doubling(devices)
    captures(vm, monkeypatch)
    (cell,) = vm._argument_cells
    for size in range(MOST_GRAPHS + 1):
        with devices.used(1):
            cell[0] = devices.array(np.zeros(size))
        for _ in range(ORDINARY_CALLS + 1):
            vm()
    assert (len(vm._graphs), vm.graph_bytes) == (MOST_GRAPHS, 2 * MOST_GRAPHS)


@pytest.mark.parametrize("missing", [0, 1])
def test_a_function_that_keeps_being_captured_waits(called, missing):
    """Each capture beyond the free ones needs some replays before it."""
    called.vm._required = False
    for size in range(FREE_CAPTURES):
        called(size, ORDINARY_CALLS + 1)
    called(FREE_CAPTURES - 1, REPLAYS_PER_CAPTURE - FREE_CAPTURES - missing)
    assert called.vm.replays == REPLAYS_PER_CAPTURE - missing
    called(FREE_CAPTURES, ORDINARY_CALLS + 1)
    assert bool(called.vm.reason) == bool(missing)
    called(FREE_CAPTURES + 1, ORDINARY_CALLS + 1)
    assert called.vm.captures == FREE_CAPTURES + 1 - missing
    assert called.vm.reason == "its arrays keep changing"
    replays = called.vm.replays
    called(FREE_CAPTURES - 1, 5)
    assert called.vm.replays == replays + 5
    assert called.vm.reason == ""


def test_captures_wait_for_twice_as_many_calls_each_time(called):
    called.vm._required = False
    made = []
    for size in range(2, 5 * FIRST_WAIT):
        called(size, ORDINARY_CALLS + 1)
        made.append(called.vm.captures)
    assert made[FREE_CAPTURES - 1] == made[FREE_CAPTURES] == FREE_CAPTURES
    assert made[FREE_CAPTURES + FIRST_WAIT] == FREE_CAPTURES + 1
    assert made[-1] == FREE_CAPTURES + 3


@pytest.fixture
def sliced(devices, monkeypatch):
    """Return a function that calls ``x[:n] * 2`` with some lengths, and its virtual machine."""
    x, n = GpuArrayType("float32", (None,), 1)(), pt.lscalar("n")
    with pytensor.config.change_flags(dnn__enabled="no_check"):
        mode = pytensor.compile.get_mode("CUDNN")
        graph = rewritten([x, n], [(x[:n] * 2).transfer("cuda1")], mode)
    nodes = Nodes(graph)
    vm = CapturingVM(nodes, graph, schedule(graph, nodes.nodes, nodes.thunks), required=False)
    captures(vm, monkeypatch)
    with devices.used(1):
        nodes.storage_map[graph.inputs[0]][0] = devices.array(np.zeros(90))
    nodes.storage_map[graph.inputs[1]][0] = np.int64(3)
    (cell,) = vm._value_cells

    def call(lengths):
        for length in lengths:
            cell[0] = np.int64(length)
            vm()

    return call, vm


def test_only_values_that_come_again_are_captured(sliced):
    call, vm = sliced
    call([3] * (ORDINARY_CALLS + 1))
    assert (vm.captures, vm.replays) == (1, 1)  # the first value of a shape
    call(range(10, 50))
    assert (vm.captures, vm.replays) == (1, 1)
    call([20, 20, 3, 30])
    assert (vm.captures, vm.replays, vm.reason) == (3, 5, "")


def test_the_reason_names_the_node_and_what_to_do(sliced):
    call, vm = sliced
    call([3] * (ORDINARY_CALLS + 1))
    assert vm.reason == ""
    call([4])
    assert re.search(r"a result of GpuWindow\{0:1\}.* depends on the value of .*mask", vm.reason)
    call([3])
    assert vm.reason == ""


def test_values_are_counted_for_each_signature():
    budget = Budget()
    for signature in range(2):
        assert budget.allows((signature, b"1"), 0, 0)
        assert not budget.allows((signature, b"2"), 0, 0)
        assert budget.allows((signature, b"2"), 0, 0)
    budget.forget()
    assert budget.allows((0, b"3"), 0, 0)
    # Many values are forgotten, so that the next one is the first again.
    for i in range(KEPT_SIGNATURES - 1):
        assert not budget.allows((0, b"%d" % (i + 10)), 0, 0)
    assert not budget.allows((0, b"new"), 0, 0)
    assert not budget.allows((0, b"10"), 0, 0)


def test_a_required_capture_never_stops(called):
    for size in range(FREE_CAPTURES + 4):
        called(size, ORDINARY_CALLS + 1)
    assert called.vm.captures == FREE_CAPTURES + 4
    assert not called.vm.reason


@pytest.mark.parametrize("required", [False, True])
def test_a_capture_that_fails(devices, monkeypatch, capsys, required):
    """The call runs the nodes, and so do all later ones, unless the capture is required."""
    vm = doubling(devices)
    vm._required = required

    def fails(in_place: Any) -> Captured:
        raise DnnError("no graph\nfor several reasons")

    monkeypatch.setattr(vm._recorder, "capture", fails)
    vm.vm.storage_map[vm._recorder._fgraph.outputs[0]][0] = "result"
    for _ in range(ORDINARY_CALLS):
        vm()
    with pytensor.config.change_flags(dnn__verbose=True):
        if required:
            with pytest.raises(DnnNotSupportedError, match=r"cuda_graph=True.*no graph"):
                vm()
        else:
            assert vm() == ["result"]
    assert vm.reason == "no graph"
    assert "not captured as a CUDA graph: no graph\n" in capsys.readouterr().out
    assert vm() == []
    assert vm.captures == vm.replays == 0


def test_what_a_replay_gives_back(devices, monkeypatch):
    """Host nodes after the graph read its results, and write outputs and new values of inputs."""
    x = GpuArrayType("float32", (None,), 1)()
    doubled = (x * 2).transfer("cuda1")
    with pytensor.config.change_flags(dnn__enabled="no_check"):
        mode = pytensor.compile.get_mode("CUDNN")
        graph = rewritten([x], [doubled, doubled.transfer("cpu") + 1], mode)
    nodes = Nodes(graph)
    result, host = (nodes.storage_map[z] for z in graph.outputs)
    own = nodes.storage_map[graph.inputs[0]]
    positions = [i for i, node in enumerate(nodes.nodes) if graph.outputs[1] in node.outputs]
    (position,) = positions

    def after() -> None:
        host[0] = result[0] + 1

    nodes.thunks[position] = after
    vm = CapturingVM(nodes, graph, schedule(graph, nodes.nodes, nodes.thunks), required=True)
    released = [object()]

    def capture(in_place: list[bool]) -> Captured:
        nothing: Any = None
        captured = Captured([], nothing, nothing, [], [])
        captured.results, captured.on_host = [(result, 7)], [1]
        captured.updates, captured.written = [(updated, 1)], [released, host]
        captured.replay = SimpleNamespace(run=lambda: ["array", None])  # type: ignore[assignment]
        return captured

    updated: list[Any] = ["old"]
    monkeypatch.setattr(vm._recorder, "capture", capture)
    with devices.used(1):
        own[0] = devices.array(np.arange(3.0))
    for _ in range(ORDINARY_CALLS):
        vm()
    assert vm() == ["array", 8]
    assert (updated, released, host) == ([8], [None], [None])


class Library:
    """Stands in for the runtime library while work is recorded."""

    def __init__(self) -> None:
        self.ended: list[bool] = []

    def dnnops_cudnn_capture_begin(self, stream: int) -> int:
        return 0

    def dnnops_cudnn_capture_end(self, stream: int, graph: Any, nodes: Any, fills: Any) -> int:
        self.ended.append(graph is not None)
        if graph is not None:
            graph._obj.value, nodes._obj.value, fills._obj.value = 5, 6, 7
        return 0

    def dnnops_cudnn_graph_destroy(self, address: int, executable: Any) -> None:
        pass


def test_a_trial_is_discarded(monkeypatch):
    from contextlib import nullcontext

    from dnnops.capture import graph as module

    library = Library()
    monkeypatch.setattr(module, "CUDNN", SimpleNamespace(library=library))
    pool: Any = SimpleNamespace(used=nullcontext)

    class Stream(nullcontext):
        ptr = 3

    with recorded(pool, Stream(), is_trial=True) as recording:
        pass
    assert library.ended == [False]
    assert not hasattr(recording, "graph")
    with recorded(pool, Stream()) as recording:
        pass
    assert library.ended == [False, True]
    assert (recording.graph.nodes, recording.graph.fills) == (6, 7)
    with pytest.raises(KeyboardInterrupt), recorded(pool, Stream()):
        raise KeyboardInterrupt
    assert library.ended == [False, True, False]
