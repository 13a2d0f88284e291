"""CUDA graphs of functions on another device than the current one; needs no device."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytensor
import pytest

from dnnops.capture.recorder import Captured
from dnnops.capture.schedule import schedule
from dnnops.capture.vm import ORDINARY_CALLS, CapturingVM
from dnnops.gpuarray import GpuArrayType
from tests.gpuarray.fake_devices import FakeDevices
from tests.gpuarray.graphs import rewritten


class Nodes:
    """A virtual machine whose calls compute nothing."""

    def __init__(self, graph: Any):
        self.nodes = graph.toposort()
        self.thunks = [lambda: None for _ in self.nodes]
        self.storage_map: dict[Any, list[Any]] = {x: [None] for x in graph.variables}

    def __call__(self) -> list[Any]:
        return []


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
        own, result = devices.array(np.zeros(3)), devices.array(np.ones(3))
        given = devices.array(np.arange(3.0))
    ran = []

    def capture() -> Captured:
        ran.append(("capture", devices.current))
        launched = SimpleNamespace(launch=lambda stream: ran.append(("launch", devices.current)))
        pool: Any = None
        return Captured(launched, pool, pool, [], [own], outputs=[result], copied=[0])

    monkeypatch.setattr(vm._recorder, "capture", capture)
    nodes.storage_map[graph.inputs[0]][0] = given
    for _ in range(ORDINARY_CALLS + 2):
        outputs = vm()
    assert ran == [("capture", 1), ("launch", 1), ("launch", 1)]
    np.testing.assert_array_equal(own, given)
    assert outputs[0].device.id == 1
    assert outputs[0] is not result
    assert devices.current == 0
