"""Nodes that run from C: on a device in host memory, and on a GPU."""

from __future__ import annotations

import sys
import weakref

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.tensor.basic import Alloc

from dnnops.capture.memory import Pool
from dnnops.capture.plan import planned
from dnnops.dtypes import numpy_dtype
from dnnops.errors import DnnCompileError, DnnLibraryError, DnnMemoryError, DnnValueError
from dnnops.explanation.graph import library_of
from dnnops.gpuarray import GpuArrayType, reduction
from dnnops.gpuarray.basic import GpuAlloc, GpuContiguous, GpuDimShuffle, GpuJoin
from dnnops.gpuarray.compiling import compiled_kernel
from dnnops.gpuarray.elementwise import kernel as elementwise_kernel
from dnnops.gpuarray.elementwise import step
from dnnops.gpuarray.elementwise.packed import merged_axes
from dnnops.gpuarray.elemwise import GpuElemwise
from dnnops.gpuarray.layout import is_reshaped_view
from dnnops.gpuarray.op import GpuOp
from dnnops.gpuarray.prepared import thunk as native
from dnnops.gpuarray.prepared.cache import prepared_call
from dnnops.gpuarray.prepared.call import PreparedCall
from dnnops.runtime.keeping import results_not_kept
from tests.gpuarray.broken_kernels import HostModule, broken
from tests.gpuarray.graphs import GPU_MODE, assert_near, compare, to_device
from tests.gpuarray.prepared_host import HostDevice, device_array, host_value, on_host
from tests.needs import missing
from tests.oracle import SEED, repeat_command

HALVES = [] if missing("ml_dtypes") else ["bfloat16"]


def elementwise(x, y, b):
    return [pt.tanh(x * 2 + b.dimshuffle("x", 0, "x")) - y, pt.exp(-(x**2))]


def strided(x, y, b):
    z = x.dimshuffle(2, 0, 1) + 1
    # The result keeps the order of the first operand, and the second one is in another.
    return [z[::2, :, 1:] * b[1:], y[:, ::-1] + x, y[0, 1:, -1] * b[:-1]]


def reshaped(x, y, b):
    return [x.reshape((-1, 2)) * 2, x.dimshuffle(1, 0, 2).reshape((b.shape[0], -1)) + 1]


def joined(x, y, b):
    return [pt.concatenate([x, y[:, :, 1:], x.dimshuffle(0, 1, 2)], axis=-1)]


def allocated(x, y, b):
    filled = pt.alloc(np.float32(2.5), b.shape[0], 2).transfer("cuda") * b.dimshuffle(0, "x")
    return [pt.alloc(b.dimshuffle(0, "x"), 3, b.shape[0], 2) + 1, filled]


def converted(x, y, b):
    return [x.astype("float64") * 2, y.dimshuffle(2, 1, 0).astype("float32") + 1]


#: Graphs of a float array (3, n, 4), another one in another memory order, and a vector of n.
GRAPHS = {f.__name__: f for f in (elementwise, strided, reshaped, joined, allocated, converted)}


@pytest.fixture(scope="module")
def device(tmp_path_factory):
    host = HostDevice(tmp_path_factory.mktemp("prepared"))
    with on_host(host):
        yield host


def values(rng, dtype, n):
    shapes = (3, n, 4), (3, 4, n), (n,)
    x, y, b = (rng.uniform(0.5, 2, shape).astype(numpy_dtype(dtype)) for shape in shapes)
    return [x, y.transpose(0, 2, 1), b]


def function(build, dtype):
    variables = [GpuArrayType(dtype, (None,) * ndim)() for ndim in (3, 3, 1)]
    outputs = [z.transfer("cuda") for z in build(*variables)]
    return pytensor.function(variables, outputs, mode=GPU_MODE, on_unused_input="ignore")


def expected(build, given):
    wide = [pt.as_tensor(x.astype("float64")) for x in given]
    return [np.asarray(z.eval(mode="FAST_COMPILE")) for z in build(*wide)]


@pytest.mark.needs("cupy")
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", *HALVES])
def test_from_c_and_from_python(device, monkeypatch, dtype):
    """Calls with several shapes, some of which come again, agree with NumPy in float64."""
    # Kernels for large arrays run here, too.
    monkeypatch.setattr(step, "LEAST_SIZE", 64)
    rng = np.random.default_rng([SEED, len(dtype)])
    bound = {"float16": 2e-3, "bfloat16": 1e-2, "float32": 1e-6, "float64": 1e-13}[dtype]
    lengths = [int(n) for n in rng.integers(2, 9, 2)] + [16]
    for build in GRAPHS.values():
        f = function(build, dtype)
        assert all(hasattr(thunk, "cthunk") for thunk in f.vm.thunks)
        with pytensor.config.change_flags(dnn__prepared_calls=False):
            in_python = function(build, dtype)
        steps = zip(in_python.vm.nodes, in_python.vm.thunks, strict=True)
        assert not any(hasattr(t, "cthunk") for node, t in steps if isinstance(node.op, GpuOp))
        for n in [*lengths, lengths[0], 16]:
            given = values(rng, dtype, n)
            arrays = [device_array(x, int(rng.integers(3))) for x in given]
            results = [host_value(z) for z in f(*arrays)]
            words = f"{build.__name__} {dtype} {n}; {repeat_command()}"
            for got, wanted in zip(results, expected(build, given), strict=True):
                assert_near(got.astype("float64"), wanted, bound), words
            for got, same in zip(in_python(*arrays), results, strict=True):
                np.testing.assert_array_equal(host_value(got), same, err_msg=words)


@pytest.mark.needs("cupy")
def test_reductions(device, monkeypatch):
    """Sums and maxima over rows, columns, both, and all axes, in any order in memory."""
    monkeypatch.setattr(reduction, "MIN_TWO_STEPS_BYTES", 0)
    rng = np.random.default_rng(SEED)
    x = GpuArrayType("float32", (None, None, None))()
    for axes in ((2,), (0, 2), None):
        build = [x.sum(axis=axes), x.max(axis=axes)]
        f = pytensor.function([x], [z.transfer("cuda") for z in build], mode=GPU_MODE)
        for order in ((0, 1, 2), (2, 0, 1)):
            shape = rng.integers(2, 5, 3).tolist()
            shape[order[-1]] = 150  # shorter rows would be left to CuPy
            value = rng.standard_normal([shape[axis] for axis in order]).astype("float32")
            value = value.transpose(np.argsort(order))
            launched = device.launches
            found = [host_value(z) for z in f(device_array(value))]
            assert device.launches - launched >= 2
            wide = value.astype("float64")
            wanted = wide.sum(axis=axes), wide.max(axis=axes)
            for got, correct in zip(found, wanted, strict=True):
                words = f"{axes} {order}; {repeat_command()}"
                np.testing.assert_allclose(got, correct, rtol=1e-5, atol=1e-5, err_msg=words)


def halves_of_all_bits(dtype, shape):
    """Return an array with every pattern of 16 bits if it is large, and signaling NaNs."""
    size = int(np.prod(shape))
    bits = np.arange(0, 1 << 16, max(1, (1 << 16) // size))
    bits = np.resize([0x7C01, 0x7F81, 0xFFFF, *bits], size).astype("uint16")
    return bits.view(numpy_dtype(dtype)).reshape(shape)


def assert_bits_are_copied(value, array, host):
    """Copy a matrix by a node that makes it contiguous, one that joins, and one that fills."""
    x = GpuArrayType(value.dtype.name, (None, None))("x")
    stand_in = pt.matrix(dtype="float16")
    joined = pt.join(1, stand_in, stand_in).owner
    outputs = [
        GpuContiguous()(GpuDimShuffle(stand_in.dimshuffle(1, 0).owner.op)(x)),
        GpuJoin(joined.op)(*(x if v is stand_in else v for v in joined.inputs)),
        GpuAlloc(Alloc())(x, 2, *value.shape),
    ]
    borrowed = [pytensor.Out(z, borrow=True) for z in outputs]
    f = pytensor.function([pytensor.In(x, borrow=True)], borrowed, mode=GPU_MODE)
    bits = value.view("uint16")
    wanted = bits.T, np.concatenate([bits, bits], 1), np.stack([bits, bits])
    for got, correct in zip(f(array), wanted, strict=True):
        np.testing.assert_array_equal(host(got).view("uint16"), correct)


@pytest.mark.needs("cupy")
@pytest.mark.parametrize("dtype", ["float16", *HALVES])
def test_copies_keep_all_bits(device, dtype):
    value = halves_of_all_bits(dtype, (60, 70))
    assert_bits_are_copied(value, device_array(value), host_value)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", *HALVES])
@pytest.mark.parametrize("shape", [(60, 70), (512, 1024)])
def test_copies_keep_all_bits_on_a_gpu(dtype, shape):
    """Small arrays, and large ones, for which other kernels are used."""
    value = halves_of_all_bits(dtype, shape)
    assert_bits_are_copied(value, to_device(value), lambda z: z.get())


def vector_function(build, *more, **options):
    x = GpuArrayType("float32", (None,))("x")
    outputs = [z.transfer("cuda") for z in build(x, *more)]
    return pytensor.function([x, *more], outputs, mode=GPU_MODE, **options)


def elementwise_thunk(f):
    """Return the thunk of the only elementwise node."""
    (thunk,) = (
        t for n, t in zip(f.vm.nodes, f.vm.thunks, strict=True) if isinstance(n.op, GpuElemwise)
    )
    return thunk


@pytest.mark.needs("cupy")
def test_more_shapes_than_are_kept(device):
    f = vector_function(lambda x: [x * 3 + 1])
    for n in [*range(1, 14), *range(1, 14)]:
        x = np.arange(n, dtype="float32")
        np.testing.assert_array_equal(host_value(f(device_array(x))[0]), x * 3 + 1)


@pytest.mark.needs("cupy")
def test_a_shape_that_comes_again_is_kept(device, monkeypatch):
    """C code forgets the call that was not used for the longest time."""
    encoded, encode = [], PreparedCall.encoded

    def counted(call):
        encoded.append(call.arrays[0].shape[0])
        return encode(call)

    monkeypatch.setattr(PreparedCall, "encoded", counted)
    f = vector_function(lambda x: [x * 3 + 1])
    for n in range(1, 20):
        for length in (n, 40):
            x = np.arange(length, dtype="float32")
            np.testing.assert_array_equal(host_value(f(device_array(x))[0]), x * 3 + 1)
    assert encoded == [1, 40, *range(2, 20)]


@pytest.mark.needs("cupy")
def test_results_in_use_are_not_overwritten(device):
    """A node keeps a small result for its next call, unless someone holds it or a view of it."""
    f = vector_function(lambda x: [x * 2, (x * 3)[1:], (x + 1).dimshuffle("x", 0)])
    first = f(device_array(np.arange(5, dtype="float32")))
    held = first[1:]  # the first result is only a view's base
    before = [host_value(z) for z in held]
    del first
    second = f(device_array(np.arange(5, dtype="float32") + 10))
    for z, wanted in zip(held, before, strict=True):
        np.testing.assert_array_equal(host_value(z), wanted)
    np.testing.assert_array_equal(host_value(second[1]), 3 * np.arange(11, 15))


@pytest.mark.needs("cupy")
def test_small_results_are_kept(device):
    """An intermediate result has the same memory in each call."""
    f = vector_function(lambda x: [pt.concatenate([x * 2, x])])
    (place,) = (
        i for i, n in enumerate(f.maker.fgraph.toposort()) if type(n.op).__name__ == "GpuElemwise"
    )
    cell = f.vm.storage_map[f.maker.fgraph.toposort()[place].outputs[0]]
    addresses = []
    thunk = f.vm.thunks[place]
    f.vm.storage_map[f.maker.fgraph.inputs[0]][0] = device_array(np.ones(4, "float32"))
    for _ in range(3):
        thunk()
        addresses.append(cell[0].data.ptr)
        cell[0] = None
    assert len(set(addresses)) == 1
    thunk()
    kept = cell[0]
    cell[0] = None
    thunk()
    assert cell[0] is not kept
    assert cell[0].data.ptr != kept.data.ptr


@pytest.mark.needs("cupy")
def test_views_of_arguments_are_kept(device):
    """A view of the same array is the same view; another array has its own."""
    f = vector_function(lambda x: [x.dimshuffle(0, "x") + x.dimshuffle("x", 0)])
    views = [i for i, n in enumerate(f.maker.fgraph.toposort()) if "DimShuffle" in str(n.op)]
    node, thunk = f.maker.fgraph.toposort()[views[0]], f.vm.thunks[views[0]]
    (argument,), (result,) = thunk.inputs, thunk.outputs
    assert node.inputs[0].owner is None
    arrays = [device_array(np.arange(n, dtype="float32")) for n in (3, 3, 4)]
    found = []
    for array in (*arrays, arrays[2]):
        argument[0] = array
        thunk()
        found.append(result[0])
        assert result[0].data.ptr == array.data.ptr
        assert result[0].size == array.size
    assert found[1] is not found[0]
    assert found[3] is not found[2]  # which is still in use
    found.clear()
    kept = id(result[0])
    thunk()
    assert id(result[0]) == kept


@pytest.mark.needs("cupy")
def test_a_view_is_made_again_for_another_shape_of_the_same_array(device):
    x = GpuArrayType("float32", (None, None))("x")
    f = pytensor.function([x], (x.dimshuffle(1, 0) * 2).transfer("cuda"), mode=GPU_MODE)
    thunk = next(t for n, t in zip(f.vm.nodes, f.vm.thunks, strict=True) if "Shuffle" in str(n.op))
    array = device_array(np.arange(6, dtype="float32").reshape(2, 3))
    for shape in ((2, 3), (3, 2)):
        array.shape = shape
        thunk.inputs[0][0] = array
        thunk()
        assert thunk.outputs[0][0].shape == shape[::-1]


@pytest.mark.needs("cupy")
def test_nothing_is_kept_while_a_graph_is_captured(device):
    """Neither results nor views; what was kept before is released and not used."""
    f = vector_function(lambda x: [x * 13, x.dimshuffle(0, "x") + x.dimshuffle("x", 0)])
    argument = f.vm.storage_map[f.maker.fgraph.inputs[0]]
    x = device_array(np.arange(4, dtype="float32"))
    places = (next(i for i, n in enumerate(f.vm.nodes) if s in str(n.op)) for s in ("mul", "Shuf"))
    for thunk in [f.vm.thunks[place] for place in places]:
        argument[0] = x
        thunk()
        (result,) = thunk.outputs
        kept = weakref.ref(result[0])
        result[0] = None
        assert kept() is not None
        with results_not_kept():
            thunk()
            assert kept() is None
            new = weakref.ref(result[0])
            result[0] = None
            assert new() is None
        argument[0] = None
        assert sys.getrefcount(x) == 2  # its own, and that of the function's argument


@pytest.mark.needs("cupy")
@pytest.mark.parametrize("build", GRAPHS.values(), ids=list(GRAPHS))
def test_a_graph_follows_the_plan_of_its_trial(device, build):
    """Both allocate the same in the same order, and no array outlives them."""
    import cupy

    def malloc(size):
        blocks.append(np.zeros(size + 512, np.uint8))
        return -(-blocks[-1].ctypes.data // 512) * 512

    def run(pool):
        def allocate(size):
            address, owner = pool.allocate(size)
            memory = cupy.cuda.UnownedMemory(address, max(size, 1), owner, 0)
            return cupy.cuda.MemoryPointer(memory, 0)

        cupy.cuda.set_allocator(allocate)
        try:
            with results_not_kept():
                found = [host_value(z) for z in f(*arrays)]
        finally:
            cupy.cuda.set_allocator(working)
        pool.allocate(1)  # takes back what was returned
        assert all(array.end is not None for array in pool.lifetimes[:-1])
        return found

    blocks, working = [], cupy.cuda.get_allocator()
    f = function(build, "float32")
    arrays = [device_array(x) for x in values(np.random.default_rng(SEED), "float32", 8)]
    wanted = [host_value(z) for z in function(build, "float32")(*arrays)]
    trial = Pool(malloc=malloc, free=lambda address: None)
    first = run(trial)
    real = Pool(planned(trial.lifetimes), malloc=malloc, free=lambda address: None)
    for found in (first, run(real), [host_value(z) for z in f(*arrays)]):
        for got, same in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(got, same)
    assert [x.size for x in real.lifetimes] == [x.size for x in trial.lifetimes]
    assert real.nbytes <= planned(trial.lifetimes).size


@pytest.mark.needs("cupy")
def test_large_arguments_are_not_kept(device):
    """A node refers to its last argument only if that is small."""
    f = vector_function(lambda x: [x.dimshuffle(0, "x") * 2])
    (place,) = (i for i, n in enumerate(f.vm.nodes) if "DimShuffle" in str(n.op))
    (argument,), (result,) = f.vm.thunks[place].inputs, f.vm.thunks[place].outputs
    for n, references in ((4, 1), (1 << 19, 0)):
        array = device_array(np.ones(n, "float32"))
        before = sys.getrefcount(array)
        argument[0] = array
        f.vm.thunks[place]()
        argument[0] = result[0] = None
        assert sys.getrefcount(array) == before + references


@pytest.mark.needs("cupy")
def test_numbers_on_the_host_and_on_the_device(device):
    """A number of the host is read in each call; in a CUDA graph, it is on the device."""
    rate = pt.fscalar()
    f = vector_function(lambda x, rate: [x * rate + 1], rate)
    x = np.arange(4, dtype="float32")
    for value in (2, 3, -0.5):
        got = host_value(f(device_array(x), np.float32(value))[0])
        np.testing.assert_array_equal(got, x * np.float32(value) + 1)
    node = f.maker.fgraph.toposort()[0]
    inputs = [f.vm.storage_map[v] for v in node.inputs]
    for cell, v in zip(inputs, node.inputs, strict=True):
        cell[0] = device_array(x if v.type.ndim else np.asarray(7, "float32"))
    f.vm.thunks[0]()
    got = host_value(f.vm.storage_map[node.outputs[0]][0])
    np.testing.assert_array_equal(got.reshape(-1), x * 7 + 1)


def runs_from_c(f, name):
    """Return whether C code runs each of the nodes of an Op."""
    pairs = zip(f.vm.nodes, f.vm.thunks, strict=True)
    return [hasattr(thunk, "cthunk") for node, thunk in pairs if type(node.op).__name__ == name]


@pytest.mark.needs("cupy")
def test_indices_that_change_are_not_prepared(device, monkeypatch):
    """A minibatch would be prepared in each call."""
    i, prepared = pt.lscalar("i"), []
    f = vector_function(
        lambda x, i: [x[i : i + 2] * 2, pt.split(x, [i, 9 - i], n_splits=2)[1] + 1], i
    )
    assert runs_from_c(f, "GpuWindow") == runs_from_c(f, "GpuSplit") == [False]
    monkeypatch.setattr(GpuOp, "prepared", lambda op, *operands: prepared.append(op))
    x = np.arange(9, dtype="float32")
    for n in range(7):
        pair, rest = f(device_array(x), n)
        np.testing.assert_array_equal(host_value(pair), x[n : n + 2] * 2)
        np.testing.assert_array_equal(host_value(rest), x[n:] + 1)
    assert not prepared


@pytest.mark.needs("cupy")
def test_indices_that_follow_from_shapes_are_prepared(device):
    def build(x):
        n = x.shape[0]
        return [
            x[: n // 2] * 2,
            x[1 : n - 1] * 3,
            pt.split(x, [n // 3, n - n // 3], n_splits=2)[1] + 1,
        ]

    f = vector_function(build)
    assert runs_from_c(f, "GpuSubtensor") == [True] * 2
    assert runs_from_c(f, "GpuSplit") == [True]
    for n in (9, 4, 9):
        x = np.arange(n, dtype="float32")
        wanted = x[: n // 2] * 2, x[1 : n - 1] * 3, x[n // 3 :] + 1
        for got, correct in zip(f(device_array(x)), wanted, strict=True):
            np.testing.assert_array_equal(host_value(got), correct)


@pytest.mark.needs("cupy")
def test_in_place(device):
    """An operand that may be overwritten becomes the result."""
    f = vector_function(lambda x: [pt.exp(pt.concatenate([x, x])) * 2])
    assert any(n.op.destroy_map for n in f.maker.fgraph.toposort())
    x = np.arange(3, dtype="float32")
    for _ in range(2):
        got = host_value(f(device_array(x))[0])
        np.testing.assert_allclose(got, 2 * np.exp([*x, *x]), rtol=1e-6)


def assert_failed(f, name):
    """PyTensor's virtual machine knows which node has failed, and names it if asked for."""
    assert type(f.vm.nodes[f.vm.position_of_error].op).__name__ == name


@pytest.mark.needs("cupy")
def test_errors_name_the_node(device):
    y = GpuArrayType("float32", (None,))("y")
    f = vector_function(lambda x, y: [pt.exp(x) * y], y)
    three, four = (device_array(np.ones(n, "float32")) for n in (3, 4))
    for _ in range(2):
        with pytest.raises(DnnValueError, match="cannot be broadcast"):
            f(three, four)
        assert_failed(f, "GpuElemwise")
    device.library.fail_with(5)  # out of memory
    try:
        with pytest.raises(DnnMemoryError, match="as the test wanted"):
            f(three, three)
        assert_failed(f, "GpuElemwise")
    finally:
        device.library.fail_with(0)
    np.testing.assert_allclose(host_value(f(three, three)[0]), np.full(3, np.e), rtol=1e-6)


@pytest.mark.needs("nvrtc")
@pytest.mark.parametrize("prepared", [True, False])
def test_a_kernel_that_does_not_compile(device, monkeypatch, prepared):
    """The exception names the Op and its node, whether C or Python runs the node."""
    import cupy

    with monkeypatch.context() as patched:
        patched.setattr(cupy, "RawModule", HostModule)
        patched.setattr(
            elementwise_kernel, "_compiled", lambda kernel: compiled_kernel(kernel.source(), "e")
        )
        with pytensor.config.change_flags(dnn__prepared_calls=prepared):
            f = vector_function(lambda x: [GpuElemwise(broken)(x)])
        assert (elementwise_thunk(f).__class__ is native._NativeThunk) == prepared
        for _ in range(2):
            with pytest.raises(DnnCompileError) as raised:
                f(device_array(np.ones(3, "float32")))
            text = str(raised.value)
            assert text.startswith("GpuElemwise{broken}: kernel e does not compile:\nline ")
            assert text.count("GpuElemwise{broken}") == 1
            assert 'error: identifier "missing_function" is undefined' in text
            assert any("GpuElemwise{broken}(x)" in note for note in raised.value.__notes__)
            assert_failed(f, "GpuElemwise")
    g = vector_function(lambda x: [x * 17 + 1])
    assert host_value(g(device_array(np.ones(3, "float32")))[0]).tolist() == [18] * 3


def assert_in_python(device, f, reason):
    """A function computes the right values in Python, and the reason was reported."""
    launched = device.launches
    for n in (3, 4, 3):
        x = np.arange(n, dtype="float32")
        np.testing.assert_array_equal(host_value(f(device_array(x))[0]), x * 17 + 1)
    assert device.launches == launched
    assert sum(reason in line for line in native.fallbacks) == 1


@pytest.mark.needs("cupy")
def test_a_launch_that_is_not_supported_runs_in_python(device):
    f = vector_function(lambda x: [x * 17 + 1])
    native.fallbacks.clear()
    device.library.fail_with(3)
    try:
        assert_in_python(device, f, "as the test wanted")
    finally:
        device.library.fail_with(0)
    assert_in_python(device, f, "as the test wanted")  # from now on


@pytest.mark.needs("cupy")
def test_a_launch_that_fails_is_tried_again(device):
    """An error of the driver may be that of earlier work, and is no reason to use Python."""
    f = vector_function(lambda x: [x * 17 + 1])
    native.fallbacks.clear()
    x = device_array(np.ones(3, "float32"))
    device.library.fail_with(4)
    try:
        with pytest.raises(DnnLibraryError, match="as the test wanted"):
            f(x)
        assert_failed(f, "GpuElemwise")
    finally:
        device.library.fail_with(0)
    launched = device.launches
    assert host_value(f(x)[0]).tolist() == [18] * 3
    assert device.launches == launched + 1
    assert not native.fallbacks


@pytest.mark.needs("cupy")
@pytest.mark.parametrize("encoded", [AttributeError("no address"), (1, 2), ((), (0,), ())])
def test_a_call_that_c_code_cannot_read_runs_in_python(device, monkeypatch, encoded):
    def encode(call):
        if isinstance(encoded, Exception):
            raise encoded
        return encoded

    monkeypatch.setattr(PreparedCall, "encoded", encode)
    native.fallbacks.clear()
    assert_in_python(device, vector_function(lambda x: [x * 17 + 1]), "GpuElemwise")


@pytest.mark.needs("cupy")
def test_operands_that_c_code_cannot_read(device):
    x, n = GpuArrayType("float32", (None,))("x"), pt.lvector("n")
    f = pytensor.function([x, n], x.reshape(n, ndim=2).transfer("cuda"), mode=GPU_MODE)
    native.fallbacks.clear()
    place = next(i for i, node in enumerate(f.vm.nodes) if "Reshape" in str(node.op))
    reshape = f.vm.thunks[place]
    reshape.inputs[0][0] = device_array(np.arange(6, dtype="float32"))
    reshape.inputs[1][0] = [2, 3]  # no array
    for _ in range(2):
        reshape()
        assert reshape.outputs[0][0].shape == (2, 3)
    assert len(native.fallbacks) == 1


@pytest.mark.needs("cupy")
def test_an_interrupt_is_not_taken_for_a_reason(device, monkeypatch):
    def interrupted(call):
        raise KeyboardInterrupt

    f = vector_function(lambda x: [x * 17 + 1])
    native.fallbacks.clear()
    x = device_array(np.ones(3, "float32"))
    with monkeypatch.context() as patched:
        patched.setattr(PreparedCall, "encoded", interrupted)
        with pytest.raises(KeyboardInterrupt):
            f(x)
    assert not native.fallbacks
    assert host_value(f(x)[0]).tolist() == [18] * 3


@pytest.mark.needs("cupy")
@pytest.mark.parametrize("kind", ["no library", "no thunk", "many axes", "flag"])
def test_nodes_without_c_code(device, monkeypatch, kind):
    def cannot_make(*words):
        raise RuntimeError("no thunk")

    ndim = 9 if kind == "many axes" else 2
    if kind in ("no library", "no thunk"):
        functions = None if kind == "no library" else (cannot_make, None)
        monkeypatch.setattr(native, "_functions", lambda: functions)
    x = GpuArrayType("float32", (None,) * ndim)()
    with pytensor.config.change_flags(dnn__prepared_calls=kind != "flag"):
        f = pytensor.function([x], (x * 19).transfer("cuda"), mode=GPU_MODE)
    assert not any(hasattr(t, "cthunk") for t in f.vm.thunks)
    value = np.ones((2,) * ndim, "float32")
    np.testing.assert_array_equal(host_value(f(device_array(value))), value * 19)


@pytest.mark.needs("cupy")
def test_reductions_left_to_cupy_are_not_run_by_dnnops(device):
    """Whether the rows are long enough is known from the arrays."""
    x = GpuArrayType("float32", (None, None))()
    f = pytensor.function([x], x.sum(axis=1).transfer("cuda"), mode=GPU_MODE)
    (node,) = f.vm.nodes
    for length, library in ((20, "CuPy"), (200, "dnnops")):
        array = device_array(np.ones((3, length), "float32"))
        assert (prepared_call(node, [array]) is None) == (library == "CuPy")
        assert library_of(node, True) == library


@pytest.mark.needs("cupy")
def test_results_of_many_axes(device):
    """C code cannot read them, nor allocate them."""
    x = GpuArrayType("float32", (None,) * 8)()
    more = (*range(8), "x")
    outputs = [x.dimshuffle(more) * 2, pt.alloc(x.dimshuffle(more), *x.shape, 3) + 1]
    f = pytensor.function([x], [z.transfer("cuda") for z in outputs], mode=GPU_MODE)
    assert set(runs_from_c(f, "GpuDimShuffle")) == {False}
    native.fallbacks.clear()
    value = np.arange(2**8, dtype="float32").reshape((2,) * 8)
    doubled, filled = (host_value(z) for z in f(device_array(value)))
    np.testing.assert_array_equal(doubled, value[..., None] * 2)
    np.testing.assert_array_equal(filled, np.repeat(value[..., None] + 1, 3, -1))
    assert not native.fallbacks


@pytest.mark.needs("cupy")
def test_an_allocation_that_fails(device):
    import cupy

    f = vector_function(lambda x: [x * 5])
    x = device_array(np.ones(3, "float32"))
    working = cupy.cuda.get_allocator()

    def exhausted(size):
        raise MemoryError(f"{size} bytes")

    cupy.cuda.set_allocator(exhausted)
    try:
        with pytest.raises(MemoryError, match="12 bytes"):
            f(x)
        assert_failed(f, "GpuElemwise")
    finally:
        cupy.cuda.set_allocator(working)
    assert host_value(f(x)[0]).tolist() == [5, 5, 5]


@pytest.mark.needs("cupy")
def test_a_call_within_a_call(device):
    """A node that runs already runs in Python, and an operand that is replaced stays alive."""
    import cupy

    f = vector_function(lambda x: [x * 11])
    thunk, argument = elementwise_thunk(f), f.vm.storage_map[f.maker.fgraph.inputs[0]]
    working, inner = cupy.cuda.get_allocator(), []

    def reenters(size):
        if not inner:
            inner.append(None)
            argument[0] = device_array(np.arange(4, dtype="float32"))
            thunk()
            inner[0] = host_value(thunk.outputs[0][0])
            argument[0] = None
        return working(size)

    for n in (3, 5):
        inner.clear()
        argument[0] = device_array(np.ones(n, "float32"))
        launched = device.launches
        cupy.cuda.set_allocator(reenters)
        try:
            thunk()
        finally:
            cupy.cuda.set_allocator(working)
        assert device.launches == launched + 1
        assert inner[0].tolist() == [0, 11, 22, 33]
        assert host_value(thunk.outputs[0][0]).tolist() == [11] * n


def test_reshaped_views():
    """An array is reshaped in place if NumPy can do that."""
    found = set()
    for n in range(200):
        rng = np.random.default_rng([SEED, n])
        x = np.zeros((2, 3, 4, 1, 2)[: int(rng.integers(1, 6))])
        x = x.transpose(rng.permutation(x.ndim)) if n % 2 else x
        x = x[tuple(slice(None, None, int(rng.choice([1, 1, 1, 2, -1]))) for _ in x.shape)]
        factors = [p for length in x.shape for p in {4: (2, 2)}.get(length, (length,))]
        shape = []
        for p in rng.permutation(factors).tolist() if n % 3 == 0 else factors:
            if shape and rng.integers(2):
                shape[-1] *= p
            else:
                shape.append(p)
        shared = np.shares_memory(x.reshape(shape), x)
        assert is_reshaped_view(x.shape, x.strides, tuple(shape)) == shared, repeat_command()
        found.add(shared)
    assert found == {False, True}


def test_merged_axes():
    """Merged axes reach the same elements in the same order."""
    rng = np.random.default_rng(SEED)
    for _ in range(30):
        whole = np.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5)
        x = whole.transpose(rng.permutation(4))[:, : int(rng.integers(1, 4))]
        y = np.broadcast_to(x[:, :1], x.shape)
        steps = [tuple(s // 8 for s in z.strides) for z in (x, y)]
        lengths, merged = merged_axes(x.shape, steps)
        assert len(lengths) <= x.ndim
        for z, strides in zip((x, y), merged, strict=True):
            view = np.lib.stride_tricks.as_strided(whole, lengths, [8 * s for s in strides])
            np.testing.assert_array_equal(view.ravel(), z.ravel())


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16", *HALVES])
@pytest.mark.parametrize("build", GRAPHS.values(), ids=list(GRAPHS))
def test_on_a_gpu(build, dtype):
    """Small arrays, and large ones, for which other kernels are used."""
    rng = np.random.default_rng(SEED)
    native.fallbacks.clear()
    for n in (7, 8, 1 << 17):
        given = values(rng, dtype, n)
        for z in range(len(build(*map(pt.as_tensor, values(rng, "float32", 3))))):
            compare(lambda *operands, z=z: build(*operands)[z], *given)
    assert not native.fallbacks


@pytest.mark.gpu
def test_kernels_stay_loaded_on_a_gpu():
    """C code launches kernels on the current stream, even after CuPy has forgotten its modules."""
    import cupy

    f = vector_function(lambda x: [x * 23 + 1, (x * 2).sum()])
    native.fallbacks.clear()
    x = np.arange(1 << 16, dtype="float32")
    wanted = x * 23 + 1, (x * 2).sum(dtype="float64")
    for stream in (cupy.cuda.Stream.null, cupy.cuda.Stream(non_blocking=True)):
        with stream:
            for _ in range(3):
                elements, total = f(cupy.asarray(x))
                np.testing.assert_array_equal(elements.get(), wanted[0])
                np.testing.assert_allclose(float(total), wanted[1], rtol=1e-5)
                elementwise_kernel._compiled.cache_clear()
                cupy.clear_memo()
    assert not native.fallbacks
    assert all(hasattr(t, "cthunk") for t in f.vm.thunks)
