"""Captured functions some of whose nodes read host values that change, and run between graphs."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from dnnops import dnn, nnet
from dnnops.capture.vm import ORDINARY_CALLS
from dnnops.errors import DnnValueError
from dnnops.gpuarray import shared
from dnnops.gpuarray.transfer import HostFromGpu
from tests.oracle import PERFORM_MODE

pytestmark = pytest.mark.gpu

F = np.float32
CALLS = 20
STEPS, BATCH, SIZE, HIDDEN = 7, 5, 6, 8


def normal(*shape, scale=1.0, seed=0):
    return (scale * np.random.default_rng(seed).standard_normal(shape)).astype("float32")


def compiled(*arguments, graph="True", **options):
    with pytensor.config.change_flags(dnn__cuda_graph=graph):
        return pytensor.function(*arguments, mode="CUDNN", **options)


def host(x):
    return x.get() if hasattr(x, "get") else np.asarray(x)


def assert_captured_once(f, calls):
    assert (f.vm.captures, f.vm.replays, f.vm.reason) == (1, calls - ORDINARY_CALLS, "")
    (captured,) = f.vm._graphs.values()
    assert captured.stages


def transfers(f):
    return sum(isinstance(node.op, HostFromGpu) for node in f.maker.fgraph.apply_nodes)


def lengths_of(call, most=STEPS):
    return np.random.default_rng(call).integers(1, most + 1, BATCH)


def network(mode, layers=1, dropout=0.0, bidirectional=False):
    """Return a block, its parameters, and the states before the first step."""
    direction = "bidirectional" if bidirectional else "unidirectional"
    block = nnet.RNNBlock(
        "float32", HIDDEN, layers, mode, direction_mode=direction, dropout=dropout
    )
    w = shared(normal(block.get_param_size((BATCH, SIZE)), scale=0.3))
    states = np.zeros((layers * (1 + bidirectional), BATCH, HIDDEN), "float32")
    return block, w, [states, states] if mode == "lstm" else [states]


def training(mode, graph, *, has_lengths=False, seeded=False, **options):
    """Return a training step with momentum, and what it changes."""
    block, w, states = network(mode, **options)
    x, lengths, seed = pt.ftensor3(), pt.lvector(), pt.lscalar()
    more = {"lengths": lengths} if has_lengths else {}
    more |= {"seed": seed} if seeded else {}
    y, *_ = block.apply(w, x * F(0.5), *states, **more)
    loss = ((y - F(0.25)) ** 2).mean()
    velocity = shared(np.zeros_like(host(w.get_value())))
    new = F(0.9) * velocity - F(0.1) * pt.grad(loss, w)
    updates = [(velocity, new.transfer("cuda")), (w, (w + new).transfer("cuda"))]
    inputs = [x, *more.values()]
    return compiled(inputs, loss, updates=updates, graph=graph), w


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("mode", ["lstm", "gru"])
def test_lengths_that_change(mode, bidirectional):
    found = []
    for graph in ("False", "True"):
        f, w = training(mode, graph, has_lengths=True, bidirectional=bidirectional)
        losses = [float(f(normal(STEPS, BATCH, SIZE, seed=i), lengths_of(i))) for i in range(CALLS)]
        found.append((losses, host(w.get_value())))
    assert_captured_once(f, CALLS)
    assert transfers(f) == 1  # the loss
    np.testing.assert_allclose(found[1][0], found[0][0], rtol=1e-4)
    np.testing.assert_allclose(found[1][1], found[0][1], rtol=1e-3, atol=1e-5)
    assert found[1][0][-1] < found[1][0][0]


def test_lengths_against_the_reference():
    """Among them, those of whole batches without padding, for which cuDNN has another layout."""
    block, w, states = network("lstm", layers=2)
    x, lengths, own_w = pt.ftensor3(), pt.lvector(), pt.fvector()

    def outputs(w):
        results = block.apply(w, x, *states, lengths=lengths)
        gradients = pt.grad((results[0] ** 2).sum() + results[1].sum(), [w, x])
        return [*results, *gradients]

    f = compiled([x, lengths], outputs(w))
    reference = pytensor.function([own_w, x, lengths], outputs(own_w), mode=PERFORM_MODE)
    value = host(w.get_value())
    for i in range(CALLS):
        own = np.full(BATCH, STEPS) if i % 5 == 3 else lengths_of(i)
        batch = normal(STEPS, BATCH, SIZE, seed=i)
        for got, wanted in zip(f(batch, own), reference(value, batch, own), strict=True):
            np.testing.assert_allclose(host(got), wanted, rtol=1e-3, atol=2e-5)
    assert_captured_once(f, CALLS)


@pytest.mark.parametrize("seeded", [False, True])
def test_seeds_that_change(seeded):
    found = []
    for graph in ("False", "True"):
        f, _ = training("gru", graph, layers=2, dropout=0.5, seeded=seeded)
        batch = normal(STEPS, BATCH, SIZE)
        seeds = [[100 + i] if seeded else [] for i in range(CALLS)]
        found.append([float(f(batch, *seed)) for seed in seeds])
    assert_captured_once(f, CALLS)
    np.testing.assert_allclose(found[1], found[0], rtol=1e-4)
    assert len(set(found[1])) == CALLS


def test_wrong_lengths():
    block, w, states = network("gru")
    x, lengths = pt.ftensor3(), pt.lvector()
    f = compiled([x, lengths], block.apply(w, x, *states, lengths=lengths)[1])
    batch = normal(STEPS, BATCH, SIZE)
    wanted = [host(f(batch, lengths_of(i))) for i in range(4)]
    with pytest.raises(DnnValueError, match="lengths have to be between 1"):
        f(batch, lengths_of(0) + STEPS)
    for i in range(4):
        np.testing.assert_allclose(host(f(batch, lengths_of(i))), wanted[i], rtol=1e-6)


def normalized(x, axes, epsilon, mean=None, variance=None):
    x = x.astype("float64")
    mean = x.mean(axes, keepdims=True) if mean is None else mean
    variance = x.var(axes, keepdims=True) if variance is None else variance
    return (x - mean) / np.sqrt(variance + epsilon)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("shape", [(6, 4, 5, 5), (9, 4)])
def test_epsilon_that_changes(shape, relu):
    x, epsilon = pt.tensor(dtype="float32", shape=(None,) * len(shape)), pt.dscalar()
    gamma, beta = shared(np.full(4, 1.5, "float32")), shared(np.full(4, 0.25, "float32"))
    variance = np.full(4, 0.5, "float32")
    trained = nnet.batch_normalization_train(x * F(2), gamma, beta, "spatial", epsilon)[0]
    given = nnet.batch_normalization_test(
        x, gamma, beta, shared(np.zeros(4, "float32")), shared(variance), "spatial", epsilon
    )
    results = [trained, given]
    if relu:
        results = [nnet.relu(z) for z in results]
    gradient = pt.grad((results[0] * x).sum(), gamma)
    f = compiled([x, epsilon], [*results, gradient])
    axes = (0, *range(2, len(shape)))
    for i in range(CALLS):
        value, eps = normal(*shape, seed=i), 0.001 * 1.5**i
        hat = normalized(2 * value, axes, eps)
        wanted = [1.5 * hat + 0.25, 1.5 * normalized(value, axes, eps, 0, 0.5) + 0.25]
        slope = wanted[0] > 0 if relu else 1
        if relu:
            wanted = [np.maximum(z, 0) for z in wanted]
        wanted.append((hat * slope * value).sum(axes))
        for got, want in zip(f(value, eps), wanted, strict=True):
            np.testing.assert_allclose(host(got), want, rtol=1e-3, atol=1e-4)
    assert_captured_once(f, CALLS)


def test_running_averages_beside_an_epsilon_that_changes():
    """The node overwrites them, and is not called while the graphs are captured."""
    x, epsilon = pt.ftensor4(), pt.dscalar()
    mean, variance = shared(np.zeros(4, "float32")), shared(np.ones(4, "float32"))
    out, *_, new_mean, new_variance = nnet.batch_normalization_train(
        x, np.ones(4, "float32"), np.zeros(4, "float32"), "spatial", epsilon, 0.25, mean, variance
    )
    updates = [(mean, new_mean.transfer("cuda")), (variance, new_variance.transfer("cuda"))]
    f = compiled([x, epsilon], out.sum(), updates=updates)
    wanted = [np.zeros(4), np.ones(4)]
    for i in range(CALLS):
        value = normal(3, 4, 5, 5, seed=i)
        f(value, 0.001 * (i + 1))
        batch = value.astype("float64")
        new = [batch.mean((0, 2, 3)), batch.var((0, 2, 3), ddof=1)]
        wanted = [0.75 * old + 0.25 * own for old, own in zip(wanted, new, strict=True)]
        for s, want in zip((mean, variance), wanted, strict=True):
            np.testing.assert_allclose(host(s.get_value()), want, rtol=1e-4, atol=1e-5)
    assert_captured_once(f, CALLS)


@pytest.mark.parametrize("place", ["host", "device"])
def test_explicit_ctc(place):
    """With labels on the device, nothing is copied to the host."""
    steps, batch, classes, columns = 12, 3, 5, 4
    x = pt.ftensor3()
    labels, lengths = (pt.lmatrix(), pt.lvector()), []
    if place == "device":
        lengths = [shared(np.ones((batch, columns), "int64")), shared(np.ones(batch, "int64"))]
    given = lengths or list(labels)
    cost = dnn.dnn_ctc(x * F(2), *given)
    inputs = [x] if lengths else [x, *labels]
    f = compiled(inputs, [cost, pt.grad(pt.as_tensor(cost).sum(), x)])
    own = pt.lmatrix(), pt.lvector()
    expected = nnet.ctc(x.astype("float64") * 2, *own)
    reference = pytensor.function(
        [x, *own], [expected, pt.grad(expected.sum(), x)], mode=PERFORM_MODE
    )
    for i in range(CALLS):
        rng = np.random.default_rng(i)
        values = rng.integers(1, classes, (batch, columns)), rng.integers(9, steps + 1, batch)
        scores = normal(steps, batch, classes, seed=i)
        for s, value in zip(lengths, values, strict=False):
            s.set_value(value)
        found = f(scores) if lengths else f(scores, *values)
        for got, wanted in zip(found, reference(scores, *values), strict=True):
            np.testing.assert_allclose(host(got), wanted, rtol=1e-3, atol=1e-4)
    assert transfers(f) <= 2  # the results
    assert f.vm.captures >= 1
    if place == "host":
        assert_captured_once(f, CALLS)


def test_memory_of_many_calls():
    import cupy

    f, _ = training("lstm", "True", has_lengths=True, layers=2, dropout=0.25)
    batches = [normal(STEPS, BATCH, SIZE, seed=i) for i in range(4)]
    pool, used = cupy.get_default_memory_pool(), []
    for i in range(2000):
        f(batches[i % 4], lengths_of(i))
        if i % 100 == 50:
            used.append((pool.used_bytes(), f.vm.graph_bytes))
    assert len(set(used[1:])) == 1
    assert_captured_once(f, 2000)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_attention_with_dropout(dtype):
    """Each call drops other weights, and those of a function that is not captured."""
    found = []
    for graph in ("False", "True"):
        x = pt.tensor4(dtype=dtype)
        state = pytensor.shared(np.array([5, 0]))
        given = [x * np.asarray(i, dtype) for i in (1, 2, 3)]
        out, new = nnet.scaled_dot_product_attention(*given, dropout_p=0.25, state=state)
        loss = (out.astype("float32") ** 2).mean()
        f = compiled([x], [loss, pt.grad(loss, x)], updates=[(state, new)], graph=graph)
        batch = normal(2, 2, 64, 32, scale=0.5).astype(dtype)
        found.append([[host(z) for z in f(batch)] for _ in range(CALLS)])
    assert (f.vm.captures, f.vm.replays, f.vm.reason) == (1, CALLS - ORDINARY_CALLS, "")
    for wanted, got in zip(*found, strict=True):
        for a, b in zip(wanted, got, strict=True):
            np.testing.assert_allclose(b.astype("float32"), a.astype("float32"), 1e-2, 1e-4)
    assert len({float(loss) for loss, _ in found[1]}) == CALLS


def test_lengths_on_the_device():
    block, w, states = network("lstm")
    lengths = shared(np.ones(BATCH, "int64"))
    x = pt.ftensor3()
    f = compiled([x], block.apply(w, x, *states, lengths=lengths))
    own = pt.lvector()
    plain = compiled([x, own], block.apply(w, x, *states, lengths=own), graph="False")
    for i in range(CALLS):
        batch = normal(STEPS, BATCH, SIZE, seed=i)
        value = lengths.get_value(borrow=True, return_internal_type=True)
        value.set(lengths_of(i))
        for got, wanted in zip(f(batch), plain(batch, lengths_of(i)), strict=True):
            np.testing.assert_allclose(host(got), host(wanted), rtol=1e-5)
    assert_captured_once(f, CALLS)
