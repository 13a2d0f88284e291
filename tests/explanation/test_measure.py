"""Measurements on the CPU, and what they leave unchanged."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.io import In
from pytensor.compile.mode import Mode
from pytensor.ifelse import ifelse

import dnnops
from dnnops import nnet
from dnnops.errors import DnnValueError

IMAGES = np.random.default_rng(0).standard_normal((4, 3, 12, 12)).astype("float32")


def training_step(**keywords):
    """A step of a small network with noise, whose parameters are updated in place."""
    rng = np.random.default_rng(1)
    x = pt.tensor4("x", dtype="float32")
    w = pytensor.shared(rng.standard_normal((8, 3, 3, 3)).astype("float32"), "w")
    v = pytensor.shared(np.zeros((8, 3, 3, 3), "float32"), "v")
    y = nnet.pool_2d(nnet.relu(nnet.conv2d(x, w)), (2, 2), True)
    generator = pytensor.shared(np.random.default_rng(3), "generator")
    next_state, noise = pt.random.normal(size=y.shape, rng=generator, return_next_rng=True)
    loss = pt.special.log_softmax((y + noise.astype("float32")).flatten(2), axis=1)[:, 0].mean()
    velocity = np.float32(0.9) * v - np.float32(0.1) * pytensor.grad(loss, w)
    updates = {w: w + velocity, v: velocity, generator: next_state}
    f = pytensor.function([x], loss, updates=updates, mode="ONEDNN", **keywords)
    return f, w, v


def states(f):
    """The values of all shared variables of a function, as objects and as copies."""
    values = [container.storage[0] for container in f.input_storage]
    return [(value, str(generator_state(value)), np.array(value, copy=True)) for value in values]


def generator_state(value):
    """The state of a random generator, or None."""
    return value.bit_generator.state if isinstance(value, np.random.Generator) else None


def assert_same_states(found, expected):
    for (value, state, array), (old, old_state, old_array) in zip(found, expected, strict=True):
        assert value is old
        assert state == old_state
        np.testing.assert_array_equal(array, old_array)


def test_every_node_is_measured():
    f, *_ = training_step(name="step")
    e = dnnops.explain(f, IMAGES, calls=3)
    assert e.calls == 3
    assert len(e.nodes) == len(f.maker.fgraph.apply_nodes)
    assert all(node.calls == 3 and node.time_ms > 0 for node in e.nodes)
    assert e.time_ms == pytest.approx(sum(node.time_ms for node in e.nodes))
    for node in e.nodes:
        assert all(x.shape is None or None not in x.shape for x in (*node.inputs, *node.outputs))
        assert node.peak_bytes >= node.live_bytes >= 0
        assert node.peak_bytes >= node.bytes
    (conv,) = [node for node in e.nodes if node.op == "OneDnnConv"]
    assert conv.inputs[0].shape == IMAGES.shape
    assert conv.outputs[0].shape == (4, 8, 10, 10)
    assert conv.plan
    rows = dnnops.chosen_plans(f)
    assert [node.plan for node in e.nodes if node.plan] == [row.plan for row in rows]
    assert not e.transfers


def test_a_slow_node_takes_the_time():
    x = pt.matrix("x")
    f = pytensor.function([x], pt.sort(pt.exp(x).ravel()).sum(), mode=Mode("cvm", optimizer=None))
    e = dnnops.explain(f, np.random.default_rng(0).random((700, 700)))
    slowest = max(e.nodes, key=lambda node: node.time_ms)
    assert slowest.op == "SortOp"
    assert slowest.time_ms > 1


def test_shared_variables_and_generators_keep_their_values():
    f, *_ = training_step()
    f(IMAGES)
    before = states(f)
    assert any("PCG64" in state for _, state, _ in before)
    dnnops.explain(f, IMAGES)
    assert_same_states(states(f), before)


def test_results_of_later_calls_are_the_same():
    f, w, v = training_step()
    g, other_w, other_v = training_step()
    for _ in range(3):
        dnnops.explain(f, IMAGES, calls=2)
        assert f(IMAGES) == g(IMAGES)
        np.testing.assert_array_equal(w.get_value(), other_w.get_value())
        np.testing.assert_array_equal(v.get_value(), other_v.get_value())


def test_values_are_kept_when_a_node_raises():
    f, *_ = training_step()
    f(IMAGES)
    before = states(f)
    vm = f.vm
    with pytest.raises(DnnValueError, match="the image has 2 channels") as caught:
        dnnops.explain(f, IMAGES[:, :2])
    with pytest.raises(DnnValueError) as usual:
        f(IMAGES[:, :2])
    assert caught.value.__notes__ == usual.value.__notes__
    assert str(caught.value) == str(usual.value)
    assert f.vm is vm
    assert_same_states(states(f)[1:], before[1:])
    assert np.isfinite(f(IMAGES))


def test_an_error_after_updates_in_place():
    """A generator and a parameter are overwritten before the node that raises runs."""
    v = pytensor.shared(np.zeros(5), "v")
    x = pt.vector("x")
    added = pt.inc_subtensor(v[:2], 1)
    index = pt.cast(added.sum(), "int64")
    f = pytensor.function([x], x[index], updates={v: added}, mode="CVM")
    assert any(node.op.destroy_map == {0: [0]} for node in f.maker.fgraph.apply_nodes)
    with pytest.raises(IndexError):
        dnnops.explain(f, np.zeros(2))
    np.testing.assert_array_equal(v.get_value(), np.zeros(5))
    e = dnnops.explain(f, np.zeros(9))
    assert e.time_ms > 0
    np.testing.assert_array_equal(v.get_value(), np.zeros(5))


def test_mutable_arguments_keep_their_values():
    x = pt.vector("x", dtype="float64")
    f = pytensor.function([In(x, mutable=True)], x + 1, mode="CVM")
    assert f.maker.fgraph.toposort()[0].op.destroy_map
    value = np.zeros(4)
    e = dnnops.explain(f, value)
    np.testing.assert_array_equal(value, np.zeros(4))
    assert e.nodes[0].reuse == "in-place"
    f(value)
    assert value[0] == 1  # so the test can fail


def test_the_branch_that_is_not_taken_does_not_run():
    c, x = pt.bscalar("c"), pt.vector("x", dtype="float64")
    out = ifelse(c, pt.exp(x), pt.cumsum(x))
    f = pytensor.function([c, x], out, mode=Mode("cvm", optimizer=None))
    value = np.arange(3.0)
    for condition, runs, idle in ((1, "Elemwise{exp}", "CumOp"), (0, "CumOp", "Elemwise{exp}")):
        e = dnnops.explain(f, condition, value, calls=2)
        nodes = {node.op: node for node in e.nodes}
        assert nodes[runs].calls == nodes["IfElse"].calls == 2
        assert (nodes[idle].calls, nodes[idle].time_ms) == (0, None)
    np.testing.assert_array_equal(f(0, value), np.cumsum(value))


@pytest.mark.parametrize("linker", ["cvm", "vm"])
def test_linkers(linker):
    x = pt.vector("x", dtype="float64")
    f = pytensor.function([x], pt.exp(x).sum(), mode=Mode(linker))
    e = dnnops.explain(f, np.zeros(4), calls=1)
    assert e.linker == "VMLinker"
    assert all(node.calls == 1 for node in e.nodes)
    assert f(np.zeros(4)) == 4


def test_without_arguments():
    v = pytensor.shared(np.ones(3), "v")
    f = pytensor.function([], [], updates={v: v * 2}, mode="CVM")
    assert dnnops.explain(f).calls == 0
    e = dnnops.explain(f, calls=4)
    assert (e.calls, e.nodes[-1].calls) == (4, 4)
    np.testing.assert_array_equal(v.get_value(), np.ones(3))


def test_arguments_by_name():
    x = pt.vector("x", dtype="float64")
    f = pytensor.function([x], pt.exp(x), mode="CVM")
    e = dnnops.explain(f, named={"x": np.zeros(3)})
    assert (e.calls, e.nodes[0].inputs[0].shape) == (5, (3,))
    with pytest.raises(DnnValueError, match="at least 1"):
        dnnops.explain(f, named={"x": np.zeros(3)}, calls=0)


def test_a_function_with_a_profile():
    x = pt.vector("x", dtype="float64")
    f = pytensor.function([x], pt.exp(x), mode="CVM", profile=True)
    f(np.zeros(3))
    dnnops.explain(f, np.zeros(3))
    assert f.profile.fct_callcount == 1
    f.profile.fct_callcount = 0  # keeps PyTensor from printing it at exit


def test_wrong_arguments():
    f, *_ = training_step()
    vm = f.vm
    with pytest.raises((TypeError, ValueError), match="Invalid argument"):
        dnnops.explain(f, "image")
    with pytest.raises(TypeError, match="implicit input"):
        dnnops.explain(f, IMAGES, IMAGES)
    assert f.vm is vm
