"""What the recorder knows of a function before it captures it; needs no device."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.aliasing import Supervisor
from pytensor.graph.fg import FunctionGraph

from dnnops.capture.recorder import Recorder
from dnnops.capture.schedule import Role, schedule
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


def spared(made):
    """Return the operands that nodes before the graph copy, instead of overwriting them."""
    return [x for operands in made.spared.values() for x in operands]


def test_a_counter_that_is_read_and_incremented_in_place():
    x, count = GpuArrayType("float32", (None,))(), pt.fscalar()
    made, graph = recorder([x, count], [(x * count).transfer("cuda"), count + 1], {1: 1})
    count = graph.inputs[1]
    assert overwrites(graph, count)
    assert spared(made) == [count]


def test_a_counter_that_is_only_incremented():
    x, count = GpuArrayType("float32", (None,))(), pt.fscalar()
    made, _ = recorder([x, count], [(x * 2).transfer("cuda"), count + 1], {1: 1})
    assert not spared(made)


def test_what_is_computed_before_it_is_overwritten():
    """A result of a host node keeps its value, so its operand needs no copy."""
    x, n = GpuArrayType("float32", (None,))(), pt.lscalar()
    made, graph = recorder([x, n], [(x[:n] * 2).transfer("cuda"), n + 1], {1: 1})
    assert overwrites(graph, graph.inputs[1])
    assert not spared(made)


def test_a_spared_operand_keeps_its_value():
    x, count = GpuArrayType("float32", (None,))(), pt.fscalar()
    made, graph = recorder([x, count], [(x * count).transfer("cuda"), count + 1], {1: 1})
    (index,) = (i for i, (node, _, _) in enumerate(made.steps) if node.op.destroy_map)
    node, _, role = made.steps[index]
    cell, result = made._storage[graph.inputs[1]], made._storage[node.outputs[0]]

    def thunk():
        cell[0] += 1
        result[0] = cell[0]

    made.steps[index] = node, thunk, role
    cell[0] = given = np.array(2, "float32")
    ((_, run),) = made.thunks(Role.BEFORE)
    run()
    assert cell[0] is given
    assert (given, result[0]) == (2, 3)


def test_a_length_that_is_overwritten_after_it_was_read():
    """The size of random numbers is computed before the graph, in memory of another length."""
    x, y = GpuArrayType("float32", (None,))(), pt.fvector()
    rng = pytensor.shared(np.random.default_rng(0))
    size = (y.shape[0] // 2, 3)
    noise = pt.random.normal(size=size, rng=rng, return_next_rng=True)[1]
    outputs = [pt.alloc(x.sum(), y.shape[0], 2).transfer("cuda"), noise]
    made, _ = recorder([x, y, rng], outputs, {})
    assert [type(x.owner.op).__name__ for x in spared(made)] == ["Shape_i"]


def test_a_length_that_only_the_graph_reads_is_overwritten_in_order():
    """The random numbers need the length itself, before a node for the graph overwrites it."""
    x, y = GpuArrayType("float32", (None,))(), pt.fvector()
    rng = pytensor.shared(np.random.default_rng(0))
    noise = pt.random.normal(size=(y.shape[0], 3), rng=rng, return_next_rng=True)[1]
    outputs = [pt.alloc(x.sum(), y.shape[0] // 2, 2).transfer("cuda"), noise]
    made, _ = recorder([x, y, rng], outputs, {})
    (role,) = (role for node, _, role in made.steps if node.op.destroy_map)
    assert role is Role.BEFORE
    assert not spared(made)
