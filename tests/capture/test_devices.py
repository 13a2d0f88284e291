"""CUDA graphs of functions on another device than the current one; needs no device."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytensor
import pytest

from dnnops.capture.budget import FREE_CAPTURES
from dnnops.capture.captured import Captured
from dnnops.capture.schedule import schedule
from dnnops.capture.vm import ORDINARY_CALLS, CapturingVM
from dnnops.errors import DnnThreadError
from dnnops.gpuarray import GpuArrayType
from tests.capture.hollow import Nodes, captures, doubling
from tests.gpuarray.fake_devices import FakeDevices
from tests.gpuarray.graphs import rewritten


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> FakeDevices:
    fake = FakeDevices()
    monkeypatch.setitem(sys.modules, "cupy", fake)
    return fake


def test_graphs_are_captured_and_replayed_on_their_device(devices, monkeypatch):
    x = GpuArrayType("float32", (None,), 1)()
    with pytensor.config.change_flags(dnn__enabled="no_check"):
        graph = rewritten([x], [(x * 2).transfer("cuda1")], pytensor.compile.get_mode("CUDNN"))
    nodes = Nodes(graph)
    roles = schedule(graph, nodes.nodes, nodes.thunks)
    vm = CapturingVM(nodes, graph, roles, required=True)
    with devices.used(1):
        result = object()
        given = devices.array(np.arange(3.0))
    ran = []

    def capture(in_place: list[bool]) -> Captured:
        assert in_place == [True]
        ran.append(("capture", devices.current))
        nothing: Any = None
        captured = Captured([], nothing, nothing, [], [])

        def run() -> list[Any]:
            ran.append(("launch", devices.current))
            return [result]

        captured.replay = SimpleNamespace(run=run)  # type: ignore[assignment]
        return captured

    monkeypatch.setattr(vm._recorder, "capture", capture)
    nodes.storage_map[graph.inputs[0]][0] = given
    for _ in range(ORDINARY_CALLS + 2):
        outputs = vm()
    assert ran == [("capture", 1), ("launch", 1), ("launch", 1)]
    assert outputs == [result]
    assert devices.current == 0


def test_arguments_that_move_once(devices, monkeypatch):
    """For each shape, a graph that reads them in place is replaced once; captures go on."""
    vm = doubling(devices)
    vm._required = False
    (cell,) = vm._argument_cells
    wanted = captures(vm, monkeypatch)
    shapes = range(1, FREE_CAPTURES)
    for size in shapes:
        for _ in range(2):
            with devices.used(1):
                cell[0] = devices.array(np.zeros(size))
            for _ in range(ORDINARY_CALLS + 1):
                vm()
    assert wanted == [[True], [False]] * len(shapes)
    assert not vm.reason


def test_arguments_that_move_one_after_the_other(devices, monkeypatch):
    """The graph that replaces the first reads copies of all, so that no other has to follow."""
    vm = doubling(devices, 2)
    wanted = captures(vm, monkeypatch)
    for _ in range(ORDINARY_CALLS + 1):
        vm()
    for cell in vm._argument_cells:
        with devices.used(1):
            cell[0] = devices.array(np.zeros(3))
        vm()
    assert wanted == [[True, True], [False, False]]
    assert vm.captures == 2


def test_calls_within_another_capture(devices, monkeypatch):
    """They run node by node, and later calls are captured and replayed."""
    vm = doubling(devices)
    ran: list[str] = []

    def capture(in_place: list[bool]) -> Captured:
        ran.append("capture")
        nothing: Any = None
        captured = Captured([], nothing, nothing, [], [])
        captured.replay = SimpleNamespace(run=list)  # type: ignore[assignment]
        return captured

    monkeypatch.setattr(vm._recorder, "capture", capture)
    monkeypatch.setattr(vm, "vm", lambda: ran.append("nodes"))
    for is_capturing in (True, False, True, False):
        monkeypatch.setattr(devices._streams[1], "captures", is_capturing)
        for _ in range(ORDINARY_CALLS + 1):
            vm()
    ordinary = ["nodes"] * (ORDINARY_CALLS + 1)
    assert ran == [*ordinary, "capture", *ordinary]
    assert vm.replays == 2 * (ORDINARY_CALLS + 1)


def test_two_threads_in_one_function(devices):
    """PyTensor stores the arguments of a call in the function."""
    vm = doubling(devices)
    entered, leave = threading.Event(), threading.Event()

    def wait() -> list[Any]:
        entered.set()
        leave.wait(60)
        return []

    vm.vm = wait
    thread = threading.Thread(target=vm)
    thread.start()
    assert entered.wait(60)
    with pytest.raises(DnnThreadError, match=r"function\.copy\(\)"):
        vm()
    leave.set()
    thread.join()
    assert vm() == []


def test_a_call_that_fails_lets_others_in(devices):
    vm = doubling(devices)

    def interrupted() -> list[Any]:
        raise KeyboardInterrupt

    vm.vm = interrupted
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            vm()
