"""Indices and slices whose places are read from device memory."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.tensor.exceptions import ShapeError

from dnnops import nnet
from dnnops.capture.schedule import schedule
from dnnops.capture.vm import ORDINARY_CALLS
from dnnops.errors import DnnIndexError
from dnnops.gpuarray import GpuArrayType, deferred, shared
from dnnops.gpuarray.basic import GpuContiguous
from dnnops.gpuarray.transfer import host_from_gpu
from dnnops.gpuarray.windows import kernel
from dnnops.gpuarray.windows.op import GpuSetWindow, GpuWindow, Window
from dnnops.rewriting.move.lifting import EVERYTHING
from dnnops.rewriting.move.windows import windows_of
from tests.emulation.host_graphs import on_host as emulated
from tests.emulation.nvrtc import compile_cuda
from tests.gpuarray.graphs import GPU_MODE, ops, rewritten
from tests.gpuarray.prepared_host import HostDevice, device_array, host_value, on_host
from tests.oracle import PERFORM_MODE, SEED, repeat_command


@pytest.fixture(scope="module")
def device(tmp_path_factory):
    host = HostDevice(tmp_path_factory.mktemp("windows"))
    with on_host(host), pytest.MonkeyPatch.context() as patched:
        patched.setattr(kernel, "compiled", lambda k: host.kernel(k.source(), kernel.KERNEL_NAME))
        word = np.zeros(2, "int32")
        patched.setattr(deferred, "deferred_error", lambda message: (word.ctypes.data, 7))
        patched.setattr(kernel, "deferred_error", deferred.deferred_error)
        host.word = word
        yield host


def random_windows(rng, shape):
    """Return windows of an array, their operands, and the same as an index of NumPy."""
    windows, operands, index = [], [], []
    for axis, length in enumerate(shape):
        kind = rng.integers(3)
        if kind == 0:
            at = int(rng.integers(-length, length))
            windows.append(Window(axis, 0))
            operands.append(at)
            index.append(at)
        elif kind == 1:
            start, step = int(rng.integers(length + 1)), int(rng.choice([-2, -1, 1, 2]))
            start = min(start, length - (step < 0))
            left = length - start if step > 0 else start + 1
            count = int(rng.integers(-(-left // abs(step)) + 1))
            windows.append(Window(axis, step))
            operands += [start, count]
            stop = start + count * step
            index.append(slice(start, stop if stop >= 0 else None, step))
        else:
            index.append(slice(None))
    return windows, operands, tuple(index)


def applied(op, arrays, operands, on_device=True):
    """Return a node with starts on the device or the host, and the values of its operands."""
    variables = [GpuArrayType("float64", (None,) * x.ndim)() for x in arrays]
    node = op.make_node(*variables, *[pt.lscalar() for _ in operands])
    values = [device_array(x).reshape(x.shape) for x in arrays]
    values += [np.asarray(n) for n in operands]
    for place in node.op.number_operands(node) if on_device else ():
        values[place] = device_array(values[place])
    return node, values


@pytest.mark.needs("cupy")
def test_random_windows(device):
    """With starts on the device, the kernel agrees with NumPy's views."""
    rng = np.random.default_rng(SEED)
    cases = []
    for _ in range(60):
        shape = tuple(int(n) for n in rng.integers(1, 6, rng.integers(1, 4)))
        x = rng.standard_normal(shape[::-1]).T
        windows, operands, index = random_windows(rng, shape)
        words = f"{shape} {index}; {repeat_command()}"
        if not windows:
            continue
        cases.append((applied(GpuWindow(windows), [x], operands), x[index], words))
        y = rng.standard_normal(x[index].shape)
        if y.ndim and rng.random() < 0.5:
            y = y[:1] if y.shape[0] else y
        for sets in (True, False):
            wanted = x.copy()
            wanted[index] = y if sets else wanted[index] + y
            cases.append((applied(GpuSetWindow(windows, sets), [x, y], operands), wanted, words))
    # All kernels are compiled together.
    calls = [node.op.prepare(node, *values) for (node, values), _, _ in cases]
    for call, ((_, values), wanted, words) in zip(calls, cases, strict=True):
        (got,) = call.run(values)
        np.testing.assert_array_equal(host_value(got), wanted, err_msg=words)


@pytest.mark.needs("nvrtc")
def test_the_gpu_compiler_takes_the_kernels():
    for dtypes in (("float16", "float16"), ("bfloat16", "float32"), ("int32", "float64")):
        for reads, adds in ((True, False), (False, False), (False, True)):
            if reads and dtypes[0] != dtypes[1]:
                continue
            for is_large in (False, True):
                made = kernel.WindowKernel(*dtypes, 3, (True, False), reads, adds, is_large)
                compile_cuda(made.source())


@pytest.mark.needs("cupy")
def test_an_index_out_of_bounds_changes_nothing(device):
    x = np.arange(6.0).reshape(2, 3)
    for at in (3, -4):
        device.word[:] = 0
        node, values = applied(GpuSetWindow([Window(1, 0)]), [x, np.ones(2)], [at])
        (got,) = node.op.compute(node, *values)
        np.testing.assert_array_equal(host_value(got), x)
        assert device.word[0] == 7
        node, values = applied(GpuWindow([Window(1, 0)]), [x], [at], on_device=False)
        with pytest.raises(DnnIndexError, match="axis 1 of shape"):
            node.op.compute(node, *values)
    device.word[:] = 0


def test_slices_begin_and_end_as_those_of_numpy():
    """For all starts and stops, beyond both ends too."""
    a, b = pt.lscalar(), pt.lscalar()
    two, back, three = (pt.constant(np.int64(step)) for step in (2, -1, -3))
    x = GpuArrayType("float64", (5,))()
    forms = [
        (slice(0, 1, None), (a, b), lambda i, j: slice(i, j)),
        (slice(0, 1, 2), (a, b, two), lambda i, j: slice(i, j, 2)),
        (slice(0, None, 1), (a, two), lambda i, j: slice(i, None, 2)),
        (slice(None, 0, None), (b,), lambda i, j: slice(None, j)),
        (slice(0, 1, 2), (a, b, back), lambda i, j: slice(i, j, -1)),
        (slice(0, 1, 2), (a, b, three), lambda i, j: slice(i, j, -3)),
        (slice(0, None, 1), (a, back), lambda i, j: slice(i, None, -1)),
        (slice(None, 0, 1), (b, back), lambda i, j: slice(None, j, -1)),
    ]
    found = [windows_of(x, [entry], given) for entry, given, _ in forms]
    operands = [operand for _, given in found for operand in given]
    mode = pytensor.compile.mode.Mode("py", None)
    bounds = pytensor.function([a, b], operands, mode=mode, on_unused_input="ignore")
    steps = [windows[0].step for windows, _ in found]
    assert steps == [1, 2, 2, 1, -1, -3, -1, -1]
    for i in range(-7, 8):
        for j in range(-7, 8):
            numbers = [int(n) for n in bounds(i, j)]
            pairs = zip(numbers[::2], numbers[1::2], steps, strict=True)
            for (start, count, step), (_, _, form) in zip(pairs, forms, strict=True):
                wanted = list(range(5))[form(i, j)]
                assert [start + n * step for n in range(count)] == wanted
                assert 0 <= start <= 5


class Unknown(GpuContiguous):
    """An Op that cannot say what shape its result has."""

    def infer_shape(self, *arguments):
        raise ShapeError


def test_what_stays_a_view():
    """Places that follow from shapes, and unknown steps."""
    x, i = GpuArrayType("float64", (None,))(), pt.lscalar()
    graph = rewritten([x, i], [x[: x.shape[0] // 2], x[::i], x[1:3]])
    assert "GpuWindow" not in ops(graph)
    # The length of what a device computes may only be known once it has run.
    computed = Unknown()(x)
    assert windows_of(computed, [slice(0, None, None)], [i]) is None
    assert windows_of(computed, [0], [i]) is not None


def test_a_range_that_starts_elsewhere():
    """Only its length is part of a captured graph."""
    host, i = pt.tensor(dtype="float32", shape=(3,)), pt.lscalar()
    x = host_from_gpu(host.transfer("cuda"))
    ranges = pt.arange(i, i + 3), pt.arange(i, i - 6, -2, dtype="float32")
    outputs = [(x * ranges[0]).transfer("cuda"), (x + ranges[1]).transfer("cuda")]
    mode = GPU_MODE.including(EVERYTHING).excluding("inplace")
    graph = rewritten([host, i], outputs, mode)
    order = graph.toposort()
    found = schedule(graph, order, [None] * len(order))
    assert graph.inputs[1] not in found.by_value
    assert len(found.by_value) == 2
    f = pytensor.function(list(graph.inputs), emulated(list(graph.outputs)), mode=PERFORM_MODE)
    given = np.array([1, 2, 3], "float32")
    for at in (0, 5, -2):
        got = f(given, at)
        np.testing.assert_array_equal(got[0], given * np.arange(at, at + 3))
        np.testing.assert_array_equal(got[1], given + np.arange(at, at - 6, -2))


def key_value_cache(form, make):
    """Return a step with a cache: inputs, result, and updates of the caches and the position."""
    rng = np.random.default_rng(0)
    batch, heads, steps, depth = 2, 3, 6, 4
    q, k, v = (pt.tensor4(dtype="float32", shape=(batch, heads, 1, depth)) for _ in range(3))
    keys, values = (make(np.zeros((batch, heads, steps, depth), "float32")) for _ in range(2))
    table = make(rng.standard_normal((steps, depth)).astype("float32"))
    position = pytensor.shared(np.int64(0), name="position")
    old = [pt.as_tensor_variable(cache) for cache in (keys, values)]
    at = position
    if form == "index":
        new = [pt.set_subtensor(c[:, :, at], x[:, :, 0]) for c, x in zip(old, (k, v), strict=True)]
    elif form == "slice":
        new = [pt.set_subtensor(c[:, :, at : at + 1], x) for c, x in zip(old, (k, v), strict=True)]
    else:
        rows = np.arange(batch)
        new = [
            pt.set_subtensor(c[rows, :, at], x[:, :, 0]) for c, x in zip(old, (k, v), strict=True)
        ]
    mask = (pt.arange(steps) <= at).dimshuffle("x", "x", "x", 0)
    out = nnet.scaled_dot_product_attention(q + pt.as_tensor_variable(table)[at], *new, mask=mask)
    updates = {keys: new[0], values: new[1], position: position + 1}
    return [q, k, v], out, updates


FORMS = ("index", "slice", "rows")


@pytest.mark.parametrize("form", FORMS)
def test_the_position_in_a_cache_is_not_part_of_a_captured_graph(form):
    inputs, out, updates = key_value_cache(form, pytensor.shared)
    arrays = [s for s in (*inputs, *updates) if s.type.ndim]
    table = next(x for x in pytensor.graph.traversal.graph_inputs([out])
                 if isinstance(x, SharedVariable) and x.type.ndim == 2)  # fmt: skip
    moved = {s: GpuArrayType("float32", s.type.shape)() for s in (*arrays, table)}
    pairs = [(s, s.type.filter_variable(host_from_gpu(x))) for s, x in moved.items()]
    results = pytensor.graph.clone_replace([out, *updates.values()], pairs)
    results = [z.transfer("cuda") if z.type.ndim else z for z in results]
    (position,) = [s for s in updates if not s.type.ndim]
    with pytensor.config.change_flags(dnn__enabled="no_check"):
        mode = pytensor.compile.get_mode("CUDNN")
        graph = rewritten([*moved.values(), position], results, mode)
    order = graph.toposort()
    found = schedule(graph, order, [None] * len(order))
    assert not {"GpuFromHost", "HostFromGpu"} & set(ops(graph))
    # A slice near the end of the axis has another length.
    assert len(found.by_value) == (2 if form == "slice" else 0)
    position = graph.inputs[-1]
    assert all(position is not x for x in found.by_value)
    assert position in found.numbers


@pytest.mark.gpu
@pytest.mark.parametrize("form", FORMS)
def test_a_key_value_cache_is_captured_once(form):
    rng = np.random.default_rng(1)
    tokens = [rng.standard_normal((3, 2, 3, 1, 4)).astype("float32") for _ in range(6)]
    found = {}
    for mode, make in (("CUDNN", shared), ("ONEDNN", pytensor.shared)):
        inputs, out, updates = key_value_cache(form, make)
        if mode == "CUDNN":
            updates = {s: z.transfer("cuda") if z.type.ndim else z for s, z in updates.items()}
        f = pytensor.function(inputs, out, updates=updates, mode=mode)
        found[mode] = [np.asarray(f(*token)) for token in tokens]
        if mode == "CUDNN":
            assert f.vm.reason == ""
            assert (f.vm.captures, f.vm.replays) == (1, len(tokens) - ORDINARY_CALLS)
    np.testing.assert_allclose(found["CUDNN"], found["ONEDNN"], rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
def test_parts_are_captured_once():
    """Reads and changes of parts at places that change, and what cannot run."""
    w, i = shared(np.arange(40, dtype="float32").reshape(8, 5)), pt.lscalar()
    y = pt.fvector()
    outputs = [w[i], w[i : i + 2, 1:4], w[[1, 2], i], pt.inc_subtensor(w[i, 1:], y)]
    outputs.append(w.sum(axis=0) + pt.arange(i, i + 5))
    f = pytensor.function([i, y], [z * 2 for z in outputs], mode="CUDNN")
    value, change = np.arange(40.0).reshape(8, 5), np.arange(4, dtype="float32")
    for at in (0, 1, 2, 3, 4, -5, 2, 1):
        changed = value.copy()
        changed[at, 1:] += change
        stop = at + 2 if at + 2 else None
        wanted = [value[at], value[at:stop, 1:4], value[[1, 2], at], changed]
        wanted.append(value.sum(axis=0) + np.arange(at, at + 5))
        for got, correct in zip(f(at, change), wanted, strict=True):
            np.testing.assert_allclose(np.asarray(got), 2 * correct, rtol=1e-6)
    assert (f.vm.captures, f.vm.reason) == (1, "")
    with pytest.raises(IndexError):
        f(6, change)
    np.testing.assert_allclose(np.asarray(f(1, change)[0]), 2 * value[1])
