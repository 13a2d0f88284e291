"""The order in which nodes are captured; needs no device."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.aliasing import Supervisor
from pytensor.graph.fg import FunctionGraph

from dnnops.capture.order import memory_order, peak_bytes
from dnnops.explanation.memory import count_memory
from dnnops.gpuarray import GpuArrayType
from dnnops.modes import CapturingLinker
from dnnops.runtime.lifetimes import declared_origins, releases
from tests.gpuarray.graphs import rewritten
from tests.oracle import SEED


@pytest.fixture(autouse=True)
def without_a_device():
    with pytensor.config.change_flags(dnn__enabled="no_check"):
        yield


def device(*shape):
    return GpuArrayType("float32", shape)()


def sizes_of(order):
    """Return the bytes of results whose shapes are known."""
    return {z: 4 * int(np.prod(z.type.shape)) for node in order for z in node.outputs}


def assert_valid(graph, order):
    """Check that nodes run after what they read, and after the readers of what they overwrite."""
    position = {node: i for i, node in enumerate(order)}
    assert set(position) == graph.apply_nodes
    assert len(order) == len(position)
    for node in order:
        needed = [x.owner for x in node.inputs if x.owner] + list(graph.orderings().get(node, ()))
        assert all(position[other] < position[node] for other in needed)


def random_training_step(rng):
    """Return the graph of products with updates of their matrices, some of them in place."""
    width = [int(n) for n in rng.integers(1, 40, rng.integers(3, 7))]
    x = device(int(rng.integers(1, 40)), width[0])
    parameters = [device(*shape) for shape in pairwise(width)]
    values = [x]
    for w in parameters:
        y = pt.tanh(values[-1] @ w)
        values.append(y if rng.random() < 0.5 else y + y.sum(axis=0))
    gradients = pytensor.grad((values[-1] ** 2).sum(), parameters)
    new = [
        (w - np.float32(0.1) * g).transfer("cuda")
        for w, g in zip(parameters, gradients, strict=True)
    ]
    updates = {i: i + 1 for i in range(len(parameters))}
    graph = FunctionGraph([x, *parameters], new, clone=True, update_mapping=updates)
    graph.attach_feature(Supervisor(graph.inputs[:1]))
    pytensor.compile.get_mode("CUDNN").optimizer.rewrite(graph)
    return graph


@pytest.mark.parametrize("seed", range(8))
def test_random_training_steps(seed):
    graph = random_training_step(np.random.default_rng([SEED, seed]))
    given = graph.toposort()
    order = memory_order(graph, given)
    assert_valid(graph, order)
    sizes = sizes_of(given)
    assert peak_bytes(graph, order, sizes) <= peak_bytes(graph, given, sizes)
    # The explanation counts the same.
    origins = {z: x for node in order for z, x in declared_origins(node).items()}
    counted = count_memory(order, releases(order, set(graph.outputs), True), sizes, origins)
    assert peak_bytes(graph, order, sizes) == max(memory.peak for memory in counted)


def two_branches():
    """Return a graph that sums rows of two large products, and an order that makes both first."""
    x, y = device(100, 1), device(1, 100)
    large = [(x * k) @ y for k in (np.float32(2), np.float32(3))]
    graph = rewritten([x, y], [z.max(axis=0).transfer("cuda") for z in large])
    return graph, sorted(graph.toposort(), key=lambda node: type(node.op).__name__ == "GpuCAReduce")


def test_large_arrays_are_not_in_use_at_once():
    graph, given = two_branches()
    order = memory_order(graph, given)
    assert_valid(graph, order)
    sizes = sizes_of(given)
    assert peak_bytes(graph, given, sizes) >= 2 * 40_000
    assert 40_000 <= peak_bytes(graph, order, sizes) < 1.5 * 40_000


def test_results_of_the_function_are_kept():
    """Its own result stays in use after the last node that reads it, unlike those in between."""
    x, y = device(100, 4), device(4, 100)
    first = x @ y
    second = x @ (y + first.max(axis=0))
    for outputs, wanted in (([first, second], 2 * 40_000 + 1_600), ([second], 40_000 + 1_600)):
        graph = rewritten([x, y], [z.transfer("cuda") for z in outputs])
        order = graph.toposort()
        assert [type(node.op).__name__ for node in order].count("GpuDot") == 2
        assert peak_bytes(graph, order, sizes_of(order)) == wanted


def test_an_order_that_needs_no_more_than_others_stays():
    graph, given = two_branches()
    best = memory_order(graph, given)
    assert memory_order(graph, best) == best


@pytest.mark.parametrize(("flag", "reordered"), [("auto", True), ("False", False)])
def test_the_linker_orders_the_nodes_of_functions_that_are_captured(flag, reordered, monkeypatch):
    graph, given = two_branches()
    monkeypatch.setattr(graph, "toposort", lambda: given)
    with pytensor.config.change_flags(dnn__cuda_graph=flag):
        order = CapturingLinker(use_cloop=True).accept(graph).schedule(graph)
    assert (order != given) == reordered


def test_host_graphs_stay_in_order():
    x = pt.fmatrix()
    graph = FunctionGraph([x], [pt.exp(x) @ x], clone=True)
    assert CapturingLinker(use_cloop=True).accept(graph).schedule(graph) == graph.toposort()
