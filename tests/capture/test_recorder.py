"""What the recorder knows of a function before it captures it; needs no device."""

from __future__ import annotations

from types import SimpleNamespace

import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.aliasing import Supervisor
from pytensor.graph.fg import FunctionGraph

from dnnops.capture.recorder import Recorder
from dnnops.capture.schedule import schedule
from dnnops.gpuarray import GpuArrayType


@pytest.fixture(autouse=True)
def without_a_device():
    with pytensor.config.change_flags(dnn__enabled="no_check"):
        yield


def recorder(inputs, outputs, updates):
    """Return the recorder of a graph whose updated inputs may be overwritten, and the inputs."""
    graph = FunctionGraph(inputs, outputs, clone=True, update_mapping=updates)
    protected = [x for i, x in enumerate(graph.inputs) if i not in updates.values()]
    graph.attach_feature(Supervisor(protected))
    pytensor.compile.get_mode("CUDNN").optimizer.rewrite(graph)
    order = graph.toposort()
    storage = {x: [None] for x in graph.variables}
    vm = SimpleNamespace(nodes=order, thunks=[None] * len(order), storage_map=storage)
    roles = schedule(graph, order, vm.thunks)
    return Recorder(vm, graph, roles), graph


def overwrites(graph, x):
    return any(
        node.inputs[i] is x
        for node in graph.apply_nodes
        for operands in node.op.destroy_map.values()
        for i in operands
    )


def test_a_counter_that_is_read_and_incremented_in_place():
    x, count = GpuArrayType("float32", (None,))(), pt.fscalar()
    made, graph = recorder([x, count], [(x * count).transfer("cuda"), count + 1], {1: 1})
    count = graph.inputs[1]
    assert overwrites(graph, count)
    assert list(made.snapshots) == [count]
    # The value is read from the copy.
    assert made.cell_of(count) is made.snapshots[count]


def test_a_counter_that_is_only_incremented():
    x, count = GpuArrayType("float32", (None,))(), pt.fscalar()
    made, _ = recorder([x, count], [(x * 2).transfer("cuda"), count + 1], {1: 1})
    assert not made.snapshots


def test_what_is_computed_before_it_is_overwritten():
    """A result of a host node keeps its value, so its operand needs no copy."""
    x, n = GpuArrayType("float32", (None,))(), pt.lscalar()
    made, graph = recorder([x, n], [(x[:n] * 2).transfer("cuda"), n + 1], {1: 1})
    assert overwrites(graph, graph.inputs[1])
    assert not made.snapshots
