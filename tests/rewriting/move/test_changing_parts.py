"""Parts of arrays whose places or lengths change from call to call, without changing shapes."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from dnnops import nnet
from dnnops.capture.schedule import schedule
from dnnops.capture.vm import ORDINARY_CALLS
from dnnops.gpuarray import shared
from dnnops.gpuarray.transfer import host_from_gpu
from dnnops.rewriting.move.lengths import length_of
from dnnops.rewriting.move.lifting import EVERYTHING
from tests.emulation.host_graphs import on_host as emulated
from tests.gpuarray.graphs import GPU_MODE, rewritten
from tests.oracle import PERFORM_MODE

#: Numbers that calls get for arrays of shape (4, 5), beyond both ends too.
NUMBERS = range(-6, 7)


def rolled(x, n):
    """Return rolled arrays and gradients, as expressions or NumPy arrays."""
    if isinstance(x, np.ndarray):
        return [
            np.roll(x, n, 1),
            np.roll(2 * x, n, 0),
            np.roll(x, n),
            np.concatenate([x[n:], x[:n]]),
            np.concatenate([x[:, n:], 2 * x[:, :n]], axis=1),
            2 * np.roll(x**2, -n, 1) + 4 * x * np.roll(x, n, 1),
        ]
    y = pt.roll(2 * x, n, axis=1)
    return [
        pt.roll(x, n, axis=1),
        pt.roll(2 * x, n, axis=0),
        pt.roll(x, n),
        pt.concatenate([x[n:], x[:n]]),
        pt.concatenate([x[:, n:], 2 * x[:, :n]], axis=1),
        pt.grad((y * x**2).sum(), x),
    ]


def changed(x, n):
    """Return arrays of which parts get one number."""
    forms = [
        (slice(n, None), "set", 3.5),
        ((slice(None, n), slice(n, None, -1)), "inc", 1.25),
        ((slice(None), slice(None, n)), "set", 0),
        ((slice(n, None, -2),), "set", 7.0),
    ]
    found = []
    for index, how, number in forms:
        if isinstance(x, np.ndarray):
            y = x.copy()
            y[index] = number + (y[index] if how == "inc" else 0)
        else:
            y = (pt.set_subtensor if how == "set" else pt.inc_subtensor)(x[index], number)
        found.append(y)
    rows = np.array([2, 0, 2])
    if isinstance(x, np.ndarray):
        y, z = x.copy(), x.copy()
        z[:, n:] = x[0, 0]
        np.add.at(y, (rows, slice(n, n + 2)), 1.5)
    else:
        y = pt.inc_subtensor(x[rows, n : n + 2], 1.5)
        z = pt.set_subtensor(x[:, n:], x[0, 0])
    return [z, *found, y]


def parts(x, n):
    """Return parts of what is computed, backwards too."""
    y = 2 * x
    e = (np if isinstance(x, np.ndarray) else pt).exp(y)
    rows = np.array([2, 0, 3])
    gathered = [y[rows, n : n + 2], y[n:, rows], y[rows[:, None], :n:-1]]
    return [y[n::-1], y[:n:-2], x[n : n - 2 : -1, 1], e[:, n : n + 1], e.T[1, ::-1], *gathered]


def moved(build):
    """Return a graph on the device, of a matrix and a number."""
    host, n = pt.fmatrix(), pt.lscalar()
    outputs = build(host_from_gpu(host.transfer("cuda")), n)
    mode = GPU_MODE.including(EVERYTHING).excluding("inplace")
    return rewritten([host, n], [z.transfer("cuda") for z in outputs], mode)


@pytest.mark.parametrize("build", [rolled, changed, parts])
def test_values(build):
    graph = moved(build)
    f = pytensor.function(list(graph.inputs), emulated(list(graph.outputs)), mode=PERFORM_MODE)
    x = np.random.default_rng(0).standard_normal((4, 5)).astype("float32")
    for n in NUMBERS:
        for i, (got, wanted) in enumerate(zip(f(x, n), build(x, n), strict=True)):
            np.testing.assert_allclose(got, wanted, rtol=1e-5, err_msg=f"result {i} for {n}")


@pytest.mark.parametrize(("build", "by_value"), [(rolled, 2), (changed, 2), (parts, 7)])
def test_what_a_captured_graph_depends_on(build, by_value):
    """Lengths of parts that are results, or are joined with others, and nothing else."""
    graph = moved(build)
    order = graph.toposort()
    found = schedule(graph, order, [None] * len(order))
    assert len(found.by_value) == by_value
    assert graph.inputs[1] not in found.by_value


def test_lengths_that_follow_from_inputs():
    x = pt.tensor4(dtype="float32", shape=(None, 3, None, None))
    w = np.zeros((4, 3, 3, 3), "float32")
    y = nnet.softmax(nnet.relu(nnet.conv2d(x, w)).flatten(2), axis=1)
    with pytensor.config.change_flags(dnn__enabled="no_check"):
        graph = rewritten([x], [y.transfer("cuda")], pytensor.compile.get_mode("CUDNN"))
    lengths = [length_of(graph.outputs[0], axis) for axis in (0, 1)]
    mode = pytensor.compile.mode.Mode("py", None)
    f = pytensor.function(list(graph.inputs), lengths, mode=mode)
    assert [int(n) for n in f(np.zeros((2, 3, 7, 6), "float32"))] == [2, 4 * 5 * 4]


def test_lengths_that_only_the_graph_knows():
    """Of the elements that a mask selects, and of what only cuDNN can tell."""
    x, mask, n = pt.fmatrix(), pt.bvector(), pt.lscalar()
    chosen = (x * 2)[pt.eq(mask, 1)]
    block = nnet.RNNBlock("float32", 8, 1, "gru")
    w, sequences, state = pt.fvector(), pt.ftensor3(), pt.ftensor3()
    run = block.apply(w, sequences, state)[0].owner
    inputs, outputs = [x, mask, w, sequences, state, n], [chosen[n:] * 2, run.outputs[-1][n:] * 2]
    with pytensor.config.change_flags(dnn__enabled="no_check", on_opt_error="raise"):
        mode = pytensor.compile.get_mode("CUDNN")
        graph = rewritten(inputs, [z.transfer("cuda") for z in outputs], mode)
    assert "GpuWindow" not in {type(node.op).__name__ for node in graph.apply_nodes}
    (reserve,) = (node.outputs[-1] for node in graph.apply_nodes if "RNN" in str(node.op))
    assert length_of(reserve, 0) is None


@pytest.mark.gpu
@pytest.mark.parametrize("build", [rolled, changed])
def test_numbers_that_change_are_captured_once(build):
    x, n = shared(np.arange(20, dtype="float32").reshape(4, 5)), pt.lscalar()
    value = np.arange(20.0).reshape(4, 5)
    # What stays: each graph is for one length of the last forms.
    last = {"rolled": 4, "changed": 4}[build.__name__]
    outputs = [z.transfer("cuda") for z in build(pt.as_tensor_variable(x), n)[:last]]
    f = pytensor.function([n], outputs, mode="CUDNN")
    calls = [int(k) for k in np.random.default_rng(0).integers(-6, 7, 20)]
    for k in calls:
        for got, wanted in zip(f(k), build(value, k)[:last], strict=True):
            np.testing.assert_allclose(got.get(), wanted, rtol=1e-5)
    assert (f.vm.captures, f.vm.replays, f.vm.reason) == (1, len(calls) - ORDINARY_CALLS, "")


@pytest.mark.gpu
def test_a_row_from_behind_is_captured_once_for_each_length():
    x, n = shared(np.arange(200, dtype="float32").reshape(40, 5)), pt.lscalar()
    f = pytensor.function([n], (pt.exp(-x)[n : n - 3 : -1] * 2).transfer("cuda"), mode="CUDNN")
    value = np.exp(-np.arange(200.0).reshape(40, 5))
    for k in range(3, 25):
        np.testing.assert_allclose(f(k).get(), 2 * value[k : k - 3 : -1], rtol=1e-5, atol=1e-30)
    assert (f.vm.captures, f.vm.reason) == (1, "")
