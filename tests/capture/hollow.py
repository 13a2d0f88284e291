"""Functions whose nodes and CUDA graphs compute nothing, to test when they are captured."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytensor

from dnnops.capture.captured import Captured
from dnnops.capture.schedule import schedule
from dnnops.capture.vm import KEPT_BYTES, CapturingVM
from dnnops.gpuarray import GpuArrayType
from tests.gpuarray.graphs import rewritten


class Nodes:
    """A virtual machine whose calls compute nothing."""

    def __init__(self, graph: Any):
        self.nodes = graph.toposort()
        self.thunks = [lambda: None for _ in self.nodes]
        self.storage_map: dict[Any, list[Any]] = {x: [None] for x in graph.variables}

    def __call__(self) -> list[Any]:
        return []


def doubling(devices, count=1):
    """Return the virtual machine of a function of some arrays, which have values."""
    inputs = [GpuArrayType("float32", (None,), 1)() for _ in range(count)]
    outputs = [(x * 2).transfer("cuda1") for x in inputs]
    with pytensor.config.change_flags(dnn__enabled="no_check"):
        graph = rewritten(inputs, outputs, pytensor.compile.get_mode("CUDNN"))
    nodes = Nodes(graph)
    with devices.used(1):
        for x in graph.inputs:
            nodes.storage_map[x][0] = devices.array(np.arange(3.0))
    return CapturingVM(nodes, graph, schedule(graph, nodes.nodes, nodes.thunks), required=True)


def captures(vm, monkeypatch):
    """Let a function's captures compute nothing; return which arguments each reads in place."""
    wanted: list[list[bool]] = []

    def capture(in_place: list[bool]) -> Captured:
        wanted.append(in_place)
        large: Any = SimpleNamespace(nbytes=KEPT_BYTES)
        own = zip(vm._argument_cells, in_place, strict=True)
        places = [(cell, cell[0].data.ptr) for cell, is_read in own if is_read]
        captured = Captured([], large, large, [], [], places)
        captured.replay = SimpleNamespace(run=list)  # type: ignore[assignment]
        return captured

    monkeypatch.setattr(vm._recorder, "capture", capture)
    return wanted
