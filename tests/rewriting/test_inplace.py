"""Ops overwrite operands wherever that changes no result."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from hypothesis import strategies as st
from pytensor.compile.aliasing import Supervisor
from pytensor.compile.mode import Mode
from pytensor.graph.destroyhandler import DestroyHandler
from pytensor.graph.fg import FunctionGraph
from pytensor.tensor.elemwise import Elemwise

from dnnops.modes import CudnnMode, OneDnnMode
from dnnops.rewriting.inplace import Overwriting
from tests.oracle import fuzz
from tests.rewriting.gpu.test_to_cudnn import rewritten

#: Without fusion, so that the graphs have many nodes, and without C code, which takes long.
AT_ONCE = OneDnnMode("py").excluding("fusion", "partial_sums")
REFERENCE = Mode("py", "fast_run").excluding("fusion", "inplace")
UNARY = (pt.exp, pt.tanh, pt.sin)
BINARY = (pt.add, pt.mul, pt.minimum)


def elementwise(function: Any) -> list[Any]:
    return [n for n in function.maker.fgraph.toposort() if isinstance(n.op, Elemwise)]


class Network:
    """A random graph of elementwise Ops, views and updates."""

    def __init__(self, seed: int):
        rng = np.random.default_rng(seed)
        self.x = pt.matrix("x", dtype="float64")
        self.initial = rng.standard_normal((3, 4, 4))
        self.shared = [pytensor.shared(value, f"state{i}") for i, value in enumerate(self.initial)]
        values: list[Any] = [self.x, *self.shared]
        for _ in range(rng.integers(4, 20)):
            first, second = (values[rng.integers(len(values))] for _ in range(2))
            match rng.integers(6):
                case 0:
                    values.append(first.T)
                case 1:
                    values.append(UNARY[rng.integers(3)](first))
                case 2:
                    top, bottom = pt.split(first, [1, 3])
                    values.append(pt.concatenate([pt.exp(bottom), pt.tanh(top)]))
                case _:
                    values.append(BINARY[rng.integers(3)](first, second))
        chosen = [values[i] for i in rng.integers(4, len(values), 2)]
        self.outputs = [z.clip(-5, 5) if rng.random() < 0.5 else z for z in chosen]
        self.updates = [
            (state, pt.tanh(values[rng.integers(len(values))] + values[rng.integers(len(values))]))
            for state in self.shared
            if rng.random() < 0.8
        ]

    def run(self, mode: Mode, x: np.ndarray) -> tuple[Any, list[np.ndarray]]:
        """Return the function, and its results and the states after two calls."""
        for state, value in zip(self.shared, self.initial, strict=True):
            state.set_value(value)
        function = pytensor.function(
            [self.x], self.outputs, updates=self.updates, mode=mode, on_unused_input="ignore"
        )
        given = x.copy()
        results = [z.copy() for _ in range(2) for z in function(given)]
        np.testing.assert_array_equal(given, x)
        return function, [*results, *(state.get_value() for state in self.shared)]


@fuzz(max_examples=40, seed=st.integers(0, 2**32 - 1))
def test_results_stay_the_same(seed):
    network = Network(seed)
    x = np.random.default_rng(1).standard_normal((4, 4))
    _, expected = network.run(REFERENCE, x)
    _, found = network.run(AT_ONCE, x)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)
    _, pytensors = network.run(AT_ONCE.excluding("elemwise_at_once"), x)
    for a, b in zip(pytensors, expected, strict=True):
        np.testing.assert_array_equal(a, b)


def test_as_much_is_overwritten_as_by_pytensor():
    """Compare the number of in-place nodes of random graphs, most of which are equal."""
    counts = []
    for seed in range(25):
        network = Network(seed)
        modes = (AT_ONCE, AT_ONCE.excluding("elemwise_at_once"))
        functions = [network.run(mode, np.ones((4, 4)))[0] for mode in modes]
        counts.append([sum(bool(n.op.destroy_map) for n in elementwise(f)) for f in functions])
    ours, pytensors = np.sum(counts, axis=0)
    assert ours >= pytensors > 100


def test_a_chain_is_in_place_at_once(monkeypatch):
    """PyTensor's pass, which checks the graph after each node, has nothing left to do."""
    checks = []
    on_validate = DestroyHandler.on_validate
    monkeypatch.setattr(
        DestroyHandler,
        "on_validate",
        lambda self, fgraph: checks.append(self) or on_validate(self, fgraph),
    )
    x, y = pt.matrices("xy"), pytensor.shared(np.zeros((2, 2), pytensor.config.floatX))
    z = x[0]
    for _ in range(30):
        z = pt.sin(z) + x[1]
    function = pytensor.function(x, z, updates=[(y, y + z)], mode=AT_ONCE)
    inplace = [n for n in elementwise(function) if n.op.destroy_map]
    assert len(inplace) >= 59
    assert len(checks) < 15


def graph_of(inputs: list[Any], outputs: list[Any], mutable: Any = ()) -> FunctionGraph:
    fgraph = FunctionGraph(inputs, outputs, clone=False)
    fgraph.attach_feature(Supervisor([x for x in inputs if x not in mutable]))
    fgraph.attach_feature(DestroyHandler())
    return fgraph


def test_what_may_be_overwritten():
    x, y, state, other = pt.matrices("x", "y", "state", "other")
    once, twice = x * 2, x * 3
    view = once.T
    read_later = twice + y
    result = view + read_later * twice
    update, exchanged = state + pt.tanh(state) + other, other - state
    fgraph = graph_of([x, y, state, other], [result, update, exchanged], mutable=[state, other])
    overwriting = Overwriting(fgraph)
    assert overwriting.allows(result.owner, view), "the only view of a temporary"
    assert not overwriting.allows(read_later.owner, twice), "another node reads it later"
    assert not overwriting.allows(read_later.owner, y), "an input"
    last = update.owner
    assert overwriting.allows(last, other), "nothing depends on this node"
    overwriting.take(other)
    assert not overwriting.allows(exchanged.owner, state), "each would wait for the other"
    assert not overwriting.allows(exchanged.owner, other), "taken"


def test_one_of_several_views_is_not_overwritten():
    x = pt.matrix("x")
    first, second = pt.split(x * 2, [2, 2])
    changed = pt.exp(first)
    overwriting = Overwriting(graph_of([x], [changed + second]))
    assert not overwriting.allows(changed.owner, first), "another node reads the other part"


def test_no_constants_or_results_are_overwritten():
    x = pt.matrix("x")
    constant, result = pt.constant(np.ones((2, 2))), pt.exp(x)
    total = result + constant
    overwriting = Overwriting(graph_of([x], [total, result]))
    assert not overwriting.allows(total.owner, constant)
    assert not overwriting.allows(total.owner, result)


def test_nodes_on_a_gpu(monkeypatch):
    """The graph of a training step is checked a few times, not once for each node."""
    monkeypatch.setattr("dnnops.gpu.library.cudnn_usable", lambda *device: (True, ""))
    checks = []
    on_validate = DestroyHandler.on_validate
    monkeypatch.setattr(
        DestroyHandler,
        "on_validate",
        lambda self, fgraph: checks.append(self) or on_validate(self, fgraph),
    )
    x = pt.matrix("x", dtype="float32")
    z = x
    for _ in range(20):
        z = pt.tanh(z).sum(axis=0) * pt.sin(z)
    fgraph = rewritten([x], [z], CudnnMode())
    names = [type(n.op).__name__ for n in fgraph.apply_nodes if n.op.destroy_map]
    assert names.count("GpuElemwise") > 18
    assert len(checks) < 12


@pytest.mark.parametrize("excluded", ["inplace", "elemwise_at_once"])
def test_tags(excluded):
    x = pt.matrix("x")
    mode = AT_ONCE.excluding(excluded)
    function = pytensor.function([x], pt.exp(pt.sin(x)), mode=mode)
    found = any(n.op.destroy_map for n in elementwise(function))
    assert found is (excluded != "inplace")
