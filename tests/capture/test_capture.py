"""Functions that are captured as CUDA graphs give the results of those that are not."""

from __future__ import annotations

import copy
import gc
import threading

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.tensor.random.utils import RandomStream

from dnnops import explain, nnet
from dnnops.capture.vm import KEPT_GRAPHS, ORDINARY_CALLS
from dnnops.errors import DnnError, DnnNotSupportedError
from dnnops.gpuarray import GpuArrayType, shared

pytestmark = pytest.mark.gpu

F = np.float32


def normal(*shape, scale=1.0, seed=0):
    return (scale * np.random.default_rng(seed).standard_normal(shape)).astype("float32")


def compiled(*arguments, graph="auto", **options):
    with pytensor.config.change_flags(dnn__cuda_graph=graph):
        return pytensor.function(*arguments, mode="CUDNN", **options)


def value(variable):
    """Return the value of a shared variable on the host."""
    return np.asarray(variable.get_value())


def host(result):
    """Return a result of a function on the host."""
    return result.get() if hasattr(result, "get") else np.asarray(result)


def momentum(loss, parameters):
    updates = []
    for p, gradient in zip(parameters, pytensor.grad(loss, parameters), strict=True):
        velocity = shared(np.zeros_like(value(p)))
        new = F(0.9) * velocity - F(0.02) * gradient
        updates += [(velocity, new.transfer("cuda")), (p, (p + new).transfer("cuda"))]
    return updates


def convolutional():
    """Return inputs, loss, parameters and other updates of a network with running averages."""
    x, y = pt.tensor4("x", dtype="float32"), pt.lvector("y")
    w, v, u = (shared(normal(*s, scale=0.1)) for s in ((8, 3, 3, 3), (8, 8, 3, 3), (8, 10)))
    gamma, beta = shared(np.ones(8, "float32")), shared(np.zeros(8, "float32"))
    mean, variance = shared(np.zeros(8, "float32")), shared(np.ones(8, "float32"))
    z = nnet.conv2d(x, w, border_mode="half")
    z, _, _, new_mean, new_variance = nnet.batch_normalization_train(
        z, gamma, beta, axes="spatial", running_mean=mean, running_var=variance
    )
    z = nnet.pool_2d(nnet.relu(z), (2, 2), ignore_border=True)
    z = nnet.relu(nnet.conv2d(z, v)).mean(axis=(2, 3))
    loss = nnet.cross_entropy(z @ u, y).mean()
    parameters = [w, v, u, gamma, beta]
    averages = [(mean, new_mean.transfer("cuda")), (variance, new_variance.transfer("cuda"))]
    return [x, y], loss, parameters, averages


def batches(count, batch=8):
    rng = np.random.default_rng(1)
    for _ in range(count):
        yield rng.standard_normal((batch, 3, 12, 12), dtype="float32"), rng.integers(0, 10, batch)


def test_training_gives_the_same_as_without_graphs():
    found = []
    for graph in ("False", "True"):
        inputs, loss, parameters, averages = convolutional()
        updates = averages + momentum(loss, parameters)
        f = compiled(inputs, loss, updates=updates, graph=graph)
        losses = [f(*batch) for batch in batches(12)]
        found.append((losses, [value(s) for s, _ in updates]))
        if graph == "True":
            assert f.vm.captures == 1
            assert f.vm.replays == 12 - ORDINARY_CALLS
    (wanted, states), (losses, captured_states) = found
    assert wanted[-1] < wanted[0]
    np.testing.assert_allclose(losses, wanted, rtol=1e-4)
    for want, got in zip(states, captured_states, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-5)


def test_updates_in_place_are_not_copied():
    """New running averages are views of the arrays that batch normalization overwrites."""
    x = GpuArrayType("float32", (None, 8, None, None))()
    gamma, beta, mean, variance = (shared(np.full(8, n, "float32")) for n in (1, 0, 0, 1))
    out, *_, new_mean, new_variance = nnet.batch_normalization_train(
        x, gamma, beta, axes="spatial", running_mean=mean, running_var=variance
    )
    image = x.type.filter(normal(4, 8, 5, 5))
    nodes = []
    for updates in ([], [(mean, new_mean), (variance, new_variance)]):
        f = compiled([x], out, updates=updates, graph="True")
        for _ in range(ORDINARY_CALLS + 2):
            f(image)
        (captured,) = f.vm._graphs.values()
        nodes.append(captured.graphs[0].nodes)
    assert nodes[0] == nodes[1]
    assert not np.allclose(value(mean), 0)


def test_each_shape_has_a_graph():
    x, w = pt.fmatrix(), shared(normal(4, 5))
    f = compiled([x], nnet.relu(x @ w).sum(axis=0), graph="True")
    for rows in (3, 7, 3, 7, 3, 7, 3, 7):
        batch = normal(rows, 4, seed=rows)
        np.testing.assert_allclose(
            f(batch), np.maximum(batch @ value(w), 0).sum(axis=0), rtol=1e-4, atol=1e-5
        )
    assert (f.vm.captures, f.vm.replays) == (2, 4)


def test_shapes_that_keep_changing():
    x = pt.fmatrix()
    f = compiled([x], (x * 2).sum(axis=0), graph="True")
    for _ in range(ORDINARY_CALLS + 2):
        for rows in range(1, KEPT_GRAPHS + 3):
            np.testing.assert_allclose(f(np.ones((rows, 4), "float32")), np.full(4, 2 * rows))


def test_results_are_not_overwritten():
    x, w = GpuArrayType("float32", (None, None))(), shared(normal(4, 5))
    f = compiled([x], (x @ w).transfer("cuda"), graph="True")
    kept = []
    for seed in range(6):
        batch = normal(3, 4, seed=seed)
        kept.append((f(batch), batch @ value(w)))
    for got, wanted in kept:
        np.testing.assert_allclose(got.get(), wanted, rtol=1e-4, atol=1e-5)
    assert f.vm.replays


def test_device_arguments_are_not_overwritten():
    import cupy

    x, w = GpuArrayType("float32", (None, None))(), shared(normal(4, 4))
    f = compiled([pytensor.In(x, mutable=True)], nnet.relu(x + w).sum(axis=0), graph="True")
    arrays = [cupy.asarray(normal(4, 4, seed=i)) for i in range(6)]
    values = [array.get() for array in arrays]
    for array, wanted in zip(arrays, values, strict=True):
        expected = np.maximum(wanted + value(w), 0).sum(axis=0)
        np.testing.assert_allclose(host(f(array)), expected, rtol=1e-5)
    assert f.vm.replays
    for array, wanted in list(zip(arrays, values, strict=True))[ORDINARY_CALLS:]:
        np.testing.assert_array_equal(array.get(), wanted)


def test_arguments_of_one_address_are_read_in_place():
    """A graph with copies replaces it when an argument moves, and stays."""
    import cupy

    x, w = GpuArrayType("float32", (None,))(), shared(normal(4))
    f = compiled([x], (x * w).sum().transfer("cuda"), updates=[(w, (w + x).transfer("cuda"))])
    state, array = value(w).astype("float64"), cupy.zeros(4, "float32")
    copied = []
    for i in range(10):
        if i == 6:
            kept, array = array, cupy.zeros(4, "float32")
        array[...] = i + cupy.arange(4)
        np.testing.assert_allclose(host(f(array)), state @ array.get(), rtol=1e-5)
        state += array.get()
        np.testing.assert_allclose(value(w), state, rtol=1e-5)
        if f.vm.captures:
            ((captured,),) = (f.vm._graphs.values(),)
            copied.append(len(captured.arguments))
    assert kept is not array
    assert copied == [0, 0, 0, 0, 1, 1, 1, 1]
    assert f.vm.captures == 2


def test_an_argument_that_is_a_shared_variables_array():
    """The graph overwrites the array, so it cannot read the argument in place."""
    x, w = GpuArrayType("float32", (None,))(), shared(normal(4))
    f = compiled([x], (x * w).sum().transfer("cuda"), updates=[(w, (w + x).transfer("cuda"))])
    for _ in range(6):
        before = value(w).astype("float64")
        found = f(w.get_value(borrow=True, return_internal_type=True))
        np.testing.assert_allclose(host(found), before @ before, rtol=1e-5)
        np.testing.assert_allclose(value(w), 2 * before, rtol=1e-5)


def test_values_set_between_calls():
    x, w = pt.fvector(), shared(normal(4))
    f = compiled([x], (x * w).sum(), updates=[(w, (w + 1).transfer("cuda"))], graph="True")
    for i in range(8):
        if i in (4, 6):
            w.set_value(normal(4, seed=i))
        before = value(w)
        np.testing.assert_allclose(f(np.full(4, i, "float32")), i * before.sum(), rtol=1e-5)
        np.testing.assert_allclose(value(w), before + 1, rtol=1e-6)
    assert f.vm.captures == 3


def test_two_functions_share_parameters():
    x, w = pt.fmatrix(), shared(normal(4, 4, scale=0.3))
    y = x @ w
    train = compiled([x], [], updates=[(w, (w - F(0.1) * y.sum(axis=0)).transfer("cuda"))])
    predict = compiled([x], y)
    wanted, batch = value(w).copy(), normal(3, 4)
    for _ in range(8):
        train(batch)
        wanted = wanted - F(0.1) * (batch @ wanted).sum(axis=0)
        np.testing.assert_allclose(predict(batch), batch @ wanted, rtol=1e-3, atol=1e-4)
    assert train.vm.replays
    assert predict.vm.replays


def test_updates_that_swap_values():
    x = pt.fvector()
    a, b = shared(normal(4, seed=1)), shared(normal(4, seed=2))
    updates = [(a, (b * 1).transfer("cuda")), (b, (a * 1).transfer("cuda"))]
    f = compiled([x], a.sum() + x.sum(), updates=updates, graph="True")
    for _ in range(7):
        first, second = value(a).copy(), value(b).copy()
        np.testing.assert_allclose(f(np.ones(4, "float32")), first.sum() + 4, rtol=1e-5)
        np.testing.assert_array_equal(value(a), second)
        np.testing.assert_array_equal(value(b), first)


def test_a_former_value_is_returned():
    count = shared(np.float32(0))
    x = pt.fvector()
    f = compiled(
        [x], [count, (count + 1) * x.sum()], updates=[(count, (count + 1).transfer("cuda"))]
    )
    for i in range(7):
        former, product = f(np.ones(4, "float32"))
        assert float(host(former)) == i
        assert float(host(product)) == 4 * (i + 1)
    assert f.vm.replays


def test_a_result_that_is_also_an_update():
    w, x = shared(normal(4)), pt.fvector()
    new = (w + x).transfer("cuda")
    f = compiled([x], new, updates=[(w, new)], graph="True")
    wanted, results = value(w).copy(), []
    for _ in range(6):
        results.append(f(np.ones(4, "float32")))
        wanted = wanted + 1
        np.testing.assert_allclose(results[-1].get(), wanted, rtol=1e-6)
        np.testing.assert_allclose(value(w), wanted, rtol=1e-6)
    np.testing.assert_allclose(results[-2].get(), wanted - 1, rtol=1e-5)


def test_host_scalars():
    w, rate = shared(normal(4)), pt.fscalar()
    f = compiled([rate], [], updates=[(w, (w * rate).transfer("cuda"))])
    wanted = value(w).copy()
    for i in range(40):
        rate_now = F(1 + 0.01 * (i % 3 if i < 20 else i))
        f(rate_now)
        wanted = wanted * rate_now
        np.testing.assert_allclose(value(w), wanted, rtol=1e-4)
    assert f.vm.captures == 1


def test_slices_with_other_bounds():
    """A graph is valid for one value of the bounds, and only values that come again get one."""
    x, n, w = pt.fvector(), pt.lscalar(), shared(normal(50))
    f = compiled([x, n], (w[:n] * 2).sum() + x.sum())

    def call(bounds):
        for i in bounds:
            wanted = 2 * value(w)[:i].sum() + 4
            np.testing.assert_allclose(f(np.ones(4, "float32"), i), wanted, rtol=1e-4)

    call([3, 3, 3, 4, 3, 4, *range(1, 40)])
    assert f.vm.captures == 2
    assert "mask" in explain(f).note
    assert "keeps changing" in f.vm.reason
    for i in range(1, 40):
        call([i] * 3)
    # As the positions of texts of the same length.
    assert 8 <= f.vm.captures < 39
    replays = f.vm.replays
    call([3, 4, 5] * 4)
    assert f.vm.replays == replays + 12
    assert f.vm.reason == ""


def test_adam_with_a_step_on_the_host():
    found = []
    for graph in ("False", "True"):
        inputs, loss, parameters, averages = convolutional()
        step = pytensor.shared(F(0))
        updates = [*averages, (step, step + F(1))]
        rate = F(0.0005) / (1 - F(0.9) ** (step + F(1)))
        for p, gradient in zip(parameters, pytensor.grad(loss, parameters), strict=True):
            mean, square = (shared(np.zeros_like(value(p))) for _ in range(2))
            new_mean = F(0.9) * mean + F(0.1) * gradient
            new_square = F(0.99) * square + F(0.01) * gradient**2
            change = rate * new_mean / (pt.sqrt(new_square) + F(1e-4))
            updates += [
                (mean, new_mean.transfer("cuda")),
                (square, new_square.transfer("cuda")),
                (p, (p - change).transfer("cuda")),
            ]
        f = compiled(inputs, loss, updates=updates, graph=graph)
        found.append([f(*batch) for batch in batches(12)])
        if graph == "True":
            assert f.vm.captures == 1
            assert float(step.get_value()) == 12
    np.testing.assert_allclose(found[1], found[0], rtol=1e-3)


def test_random_numbers_of_the_host():
    found = []
    for graph in ("False", "auto"):
        stream = RandomStream(seed=3)
        x = pt.fmatrix()
        kept = stream.bernoulli(0.5, size=x.shape).astype("float32")
        f = compiled([x], (x * kept * 2).sum(axis=0), graph=graph)
        found.append([f(np.ones((50, 6), "float32")) for _ in range(6)])
    np.testing.assert_array_equal(found[0], found[1])
    assert len({tuple(row) for row in found[1]}) > 1


def test_an_index_out_of_bounds():
    table, i = shared(normal(5, 3)), pt.lvector()
    f = compiled([i], (table[i] * 2).sum(axis=0))
    good = np.array([0, 4, 1])
    for _ in range(5):
        np.testing.assert_allclose(f(good), 2 * value(table)[good].sum(axis=0), rtol=1e-5)
    assert f.vm.replays
    with pytest.raises(IndexError):
        f(np.array([0, 5, 1]))
    np.testing.assert_allclose(f(good), 2 * value(table)[good].sum(axis=0), rtol=1e-5)


def test_an_error_before_the_graph():
    x, y, w = pt.fvector(), pt.fvector(), shared(normal(4))
    f = compiled([x, y], w * (x[:4] + y).sum())
    for _ in range(4):
        f(np.ones(6, "float32"), np.ones(4, "float32"))
    before = value(w).copy()
    with pytest.raises(ValueError, match=r"broadcast|mismatch"):
        f(np.ones(6, "float32"), np.ones(5, "float32"))
    np.testing.assert_array_equal(value(w), before)
    f(np.ones(6, "float32"), np.ones(4, "float32"))


def test_what_cannot_be_captured(capsys):
    x = pt.fvector()
    w = shared(normal(4))

    def build():
        # The mask selects on the host, in between.
        chosen = pt.nonzero((x * w) > 0)[0]
        return w[chosen].sum()

    with pytest.raises(DnnNotSupportedError, match="on the host in between"):
        compiled([x], build(), graph="True")
    with pytensor.config.change_flags(dnn__verbose=True):
        f = compiled([x], build())
        for _ in range(5):
            wanted = value(w)[value(w) > 0].sum()
            np.testing.assert_allclose(f(np.ones(4, "float32")), wanted, rtol=1e-5)
    assert "is not captured" in capsys.readouterr().out


@pytest.mark.parametrize("place", ["is_same", "uploads_of"], ids=["during", "after"])
def test_a_capture_that_fails(monkeypatch, place):
    """The call, and those after it, run without a graph."""
    from dnnops.capture import recorder

    def fails(*arguments):
        raise DnnError("no")

    x, w = pt.fvector(), shared(normal(4))
    f = compiled([x], (x * w).sum(), updates=[(w, (w + 1).transfer("cuda"))])
    monkeypatch.setattr(recorder, place, fails)
    for i in range(6):
        before = value(w).copy()
        np.testing.assert_allclose(f(np.full(4, i, "float32")), i * before.sum(), rtol=1e-5)
        np.testing.assert_allclose(value(w), before + 1, rtol=1e-6)
    assert f.vm.reason
    assert not f.vm.replays


@pytest.mark.parametrize("place", ["is_same", "uploads_of"], ids=["during", "after"])
def test_an_interrupted_capture(monkeypatch, place):
    from dnnops.capture import recorder

    x, w = pt.fvector(), shared(normal(4))
    f = compiled([x], (x * w).sum(), updates=[(w, (w + 1).transfer("cuda"))])
    batch = np.ones(4, "float32")
    for _ in range(ORDINARY_CALLS):
        f(batch)
    before = value(w).copy()

    def interrupted(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(recorder, place, interrupted)
        with pytest.raises(KeyboardInterrupt):
            f(batch)
    np.testing.assert_array_equal(value(w), before)
    for _ in range(3):
        np.testing.assert_allclose(f(batch), before.sum(), rtol=1e-5)
        before = before + 1
    assert f.vm.replays


def test_memory_runs_out():
    import cupy

    x, w = pt.fmatrix(), shared(normal(4, 1000))
    f = compiled([x], nnet.relu(x @ w).sum(axis=0), graph="auto")
    pool = cupy.get_default_memory_pool()
    limit = pool.get_limit()
    small = normal(3, 4)
    for _ in range(4):
        f(small)
    try:
        cupy.get_default_memory_pool().set_limit(
            size=cupy.get_default_memory_pool().used_bytes() + 2**20
        )
        with pytest.raises(MemoryError):
            f(normal(100_000, 4))
        np.testing.assert_allclose(
            f(small), np.maximum(small @ value(w), 0).sum(axis=0), rtol=1e-4, atol=1e-5
        )
    finally:
        pool.set_limit(size=limit)


def test_memory_runs_out_in_a_training_step():
    """Shared variables keep their values, and the next smaller batch works."""
    import cupy

    x, w = pt.fmatrix(), shared(normal(40, 1000))
    loss = (nnet.relu(x @ w) ** 2).mean()
    updates = momentum(loss, [w])
    f = compiled([x], loss, updates=updates)
    pool = cupy.get_default_memory_pool()
    limit = pool.get_limit()
    small = normal(3, 40)
    for _ in range(4):
        f(small)
    before = [value(s).copy() for s, _ in updates]
    try:
        pool.set_limit(size=pool.used_bytes() + 2**20)
        with pytest.raises(MemoryError):
            f(normal(100_000, 40))
        for (s, _), former in zip(updates, before, strict=True):
            np.testing.assert_array_equal(value(s), former)
        wanted = (np.maximum(small @ value(w), 0) ** 2).mean()
        np.testing.assert_allclose(f(small), wanted, rtol=1e-4)
    finally:
        pool.set_limit(size=limit)
    assert (value(w) != before[1]).any()


def test_copies_of_a_function():
    x, w = pt.fvector(), shared(normal(4))
    f = compiled([x], (x * w).sum(), updates=[(w, (w + 1).transfer("cuda"))])
    batch = np.ones(4, "float32")
    for _ in range(4):
        f(batch)
    for g in (f.copy(), copy.copy(f)):
        for _ in range(4):
            before = value(w).copy()
            np.testing.assert_allclose(g(batch), before.sum(), rtol=1e-5)
    with pytensor.config.change_flags(unpickle_function=True):
        h = copy.deepcopy(f)
    np.testing.assert_allclose(h(batch), value(w).sum(), rtol=1e-5)


def test_other_threads():
    """Each of two threads calls a function of its own, on a stream of its own."""
    import cupy

    failures = []

    def work(seed):
        try:
            x, w = pt.fmatrix(), shared(normal(30, 20, seed=seed))
            f = compiled([x], nnet.relu(x @ w).sum(axis=0), graph="True")
            batch = normal(50, 30, seed=seed)
            wanted = np.maximum(batch @ value(w), 0).sum(axis=0)
            with cupy.cuda.Stream(non_blocking=True):
                for _ in range(20):
                    np.testing.assert_allclose(f(batch), wanted, rtol=1e-3, atol=1e-4)
        except Exception as error:
            failures.append(error)

    # PyTensor compiles in one thread at a time.
    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
        thread.join()
    assert not failures


def test_memory_is_returned(monkeypatch):
    """Other processes may use the device, so what graphs allocate is counted."""
    from cupy.cuda import runtime

    held: dict[int, int] = {}
    malloc, free = runtime.malloc, runtime.free

    def counted_malloc(size):
        address = malloc(size)
        held[address] = size
        return address

    def counted_free(address):
        held.pop(address, None)
        free(address)

    monkeypatch.setattr(runtime, "malloc", counted_malloc)
    monkeypatch.setattr(runtime, "free", counted_free)

    def run():
        x, w = pt.fmatrix(), shared(normal(1000, 1000))
        f = compiled([x], nnet.relu(x @ w).sum(axis=0), graph="True")
        for _ in range(5):
            f(normal(1000, 1000))
        assert f.vm.replays
        return sum(held.values())

    assert run() > 4_000_000
    gc.collect()
    assert list(held.values()) == []


def test_memory_of_uploads_is_not_used_by_results():
    """Labels and rates are copied before the launch, but read after other nodes of the graph."""
    x, rate, w = GpuArrayType("float32", (None, None))(), pt.fscalar(), shared(normal(64, 64))
    y = x
    for _ in range(4):
        # Each result is freed during the capture; the last node reads the number.
        y = nnet.relu(y @ w / F(8))
    f = compiled([x, rate], (y * rate).sum(axis=0), graph="True")
    batch = normal(8, 64)
    wanted = batch
    for _ in range(4):
        wanted = np.maximum(wanted @ value(w) / 8, 0)
    device_batch = shared(batch).get_value(borrow=True, return_internal_type=True)
    for i in range(6):
        expected = (wanted * F(i + 1)).sum(axis=0)
        np.testing.assert_allclose(host(f(device_batch, F(i + 1))), expected, rtol=1e-3, atol=1e-4)
    assert f.vm.captures == 1


def test_memory_of_a_graph_is_what_is_in_use_at_once():
    """Arrays of other sizes in between do not keep the large ones apart."""
    x, w, v = (
        shared(normal(*shape, scale=0.02)) for shape in ((2000, 3000), (3000, 4000), (4000, 3000))
    )
    y = pt.as_tensor_variable(x)
    for _ in range(3):
        y = nnet.relu(nnet.relu(y @ w) @ v)
    f = compiled([], y.sum(axis=0).transfer("cuda"), graph="True")
    for _ in range(ORDINARY_CALLS + 1):
        f()
    assert f.vm.replays
    peak = explain(f, calls=1).peak_bytes
    assert peak >= 4 * 2000 * (3000 + 4000)
    # Products may take workspaces.
    assert peak <= f.vm.graph_bytes <= peak + (34 << 20)


def test_a_graph_does_not_use_the_memory_of_an_earlier_one():
    """The function is captured again after its shared variable has another array."""
    import cupy

    x, w = pt.fmatrix(), shared(normal(4, 5))
    f = compiled([x], nnet.softmax(nnet.relu(x @ w)), graph="True")
    batch = normal(3, 4)
    for seed in range(4):
        w.set_value(normal(4, 5, seed=seed))
        wanted = np.exp(np.maximum(batch @ value(w), 0).astype("float64"))
        wanted /= wanted.sum(axis=1, keepdims=True)
        for _ in range(ORDINARY_CALLS + 2):
            np.testing.assert_allclose(f(batch), wanted, rtol=1e-4)
        # Another shape replaces what nodes keep.
        f(normal(6, 4))
        cupy.get_default_memory_pool().free_all_blocks()
    assert f.vm.captures >= 4
