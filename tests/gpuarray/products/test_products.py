"""How cuBLASLt reads and writes arrays of any layout; needs no device."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.tensor.blas import Dot22Scalar, Gemm, Gemv, Ger

from dnnops.dtypes import numpy_dtype
from dnnops.errors import DnnValueError
from dnnops.gpuarray import GpuArrayType
from dnnops.gpuarray.prepared.builder import CallBuilder
from dnnops.gpuarray.prepared.thunk import native_thunk
from dnnops.gpuarray.products import blas
from dnnops.gpuarray.products import calls as products
from dnnops.gpuarray.products.blas import GpuDot, GpuGemm, GpuGemv, GpuGer, product_settings
from dnnops.gpuarray.products.calls import layouts, multiply
from tests.gpuarray.graphs import GPU_MODE, TOLERANCE, assert_near, to_device
from tests.gpuarray.prepared_host import HostDevice, device_array, host_value, on_host, wrapped
from tests.oracle import SEED, repeat_command

SIZES = (1, 1, 2, 3, 5, 8)


def random_array(rng, shape):
    """Return an array of random strides: transposed, with gaps, reversed, or broadcast."""
    axes = rng.permutation(len(shape))
    steps = [int(rng.choice([1, 1, 1, 2, -1])) for _ in shape]
    memory = rng.standard_normal([shape[i] * abs(steps[i]) for i in axes])
    array = memory.transpose(np.argsort(axes))
    array = array[tuple(slice(None, None, step) for step in steps)]
    if rng.random() < 0.1:
        array = np.broadcast_to(array[:1], shape)
    return array


def random_operands(rng):
    """Return two operands of a product, of which some axes are broadcast, and a result."""
    m, k, n = (int(rng.choice(SIZES)) for _ in range(3))
    batch = tuple(int(rng.choice(SIZES[2:])) for _ in range(rng.integers(4)))

    def part():
        own = [1 if rng.random() < 0.2 else length for length in batch]
        return tuple(own[int(rng.integers(len(batch) + 1)) :] if rng.random() < 0.3 else own)

    x, y = random_array(rng, (*part(), m, k)), random_array(rng, (*part(), k, n))
    out = np.empty((*batch, m, n))
    if not batch and rng.random() < 0.5:
        out = np.empty((n, m)).T
    return x, y, out


class Prepared:
    """How a product of NumPy arrays is prepared, in host memory."""

    def __init__(self, x, y, out):
        self.given = x, y, out
        self.arrays = [wrapped(v) for v in self.given]
        self.call = CallBuilder(self.arrays)
        operands = [self.call.operand(i) for i in range(3)]
        self.layouts = layouts(self.call, np.dtype("float64"), *operands)

    def run(self):
        """Make the copies, and return the batches of matrices that are multiplied."""
        import cupy

        arrays = [*self.arrays, *(cupy.ndarray(*new) for new in self.call.arrays)]
        for step in self.call.steps:
            step.run(arrays)
        matrices = []
        for layout in self.layouts:
            place, offset = layout.array.address
            first = (ctypes.c_double * 1).from_address(arrays[place].data.ptr + offset)
            memory = np.frombuffer(first, "float64")
            matrices.append(np.lib.stride_tricks.as_strided(memory, layout.shape, layout.strides))
        return matrices, arrays


@pytest.fixture(scope="module")
def device(tmp_path_factory):
    host = HostDevice(tmp_path_factory.mktemp("products"))
    with on_host(host):
        yield host


def is_supported(layout):
    """Return whether cuBLASLt takes the layout: its columns or rows without gaps or overlap."""
    (_, rows, columns), (batch, row, column) = layout.shape, layout.strides
    size = layout.array.itemsize
    by_rows = (column == size or columns == 1) and (row >= columns * size or rows == 1)
    by_columns = (row == size or rows == 1) and (column >= rows * size or columns == 1)
    return batch >= 0 and (by_rows or by_columns)


@pytest.mark.needs("cupy")
def test_random_layouts(device):
    rng = np.random.default_rng(SEED)
    # All kernels are compiled together.
    for prepared in [Prepared(*random_operands(rng)) for _ in range(400)]:
        (left, right, result), _ = prepared.run()
        x, y, out = prepared.given
        assert all(map(is_supported, prepared.layouts))
        last = prepared.layouts[2]
        assert last.strides[2] == out.itemsize or last.shape[2] == 1
        result[...] = left @ right
        words = repeat_command()
        wanted = np.broadcast_to(x @ y, out.shape)
        np.testing.assert_allclose(out, wanted, rtol=1e-12, atol=1e-12, err_msg=words)


@pytest.mark.needs("cupy")
def test_a_dense_operand_is_not_copied(device):
    x, y = np.ones((2, 3, 4, 5)), np.ones((2, 3, 6, 5)).swapaxes(-1, -2)
    prepared = Prepared(x, y, np.empty((2, 3, 4, 6)))
    assert not prepared.call.arrays
    assert not prepared.call.steps


@pytest.mark.needs("cupy")
def test_a_result_with_gaps(device):
    with pytest.raises(DnnValueError, match="cannot be written"):
        Prepared(np.ones((3, 4)), np.ones((4, 5)), np.empty((6, 10))[::2, ::2])


@pytest.mark.needs("cupy")
def test_products_from_c(device, monkeypatch):
    """Products of matrices, vectors and batches, and sums of them and an array."""
    monkeypatch.setattr(blas, "_products", lambda *arrays: products)
    rng = np.random.default_rng(SEED)
    ranks = (2, 2), (2, 1), (1, 2), (1, 1), (3, 3)
    for left, right in ranks:
        x, y = (GpuArrayType("float64", (None,) * rank)() for rank in (left, right))
        op = pt.matmul if left == 3 else pt.dot
        f = pytensor.function([x, y], op(x, y).transfer("cuda"), mode=GPU_MODE)
        for m, k, n in rng.integers(1, 7, (4, 3)):
            a = rng.standard_normal((2, m, k)[3 - left :] if left > 1 else (k,))
            b = rng.standard_normal((2, k, n)[3 - right :] if right > 1 else (k,))
            a = a.swapaxes(-1, -2).copy().swapaxes(-1, -2) if left > 1 else a
            launched = device.launches
            got = host_value(f(device_array(a), device_array(b)))
            np.testing.assert_allclose(got, a @ b, rtol=1e-12, atol=1e-12)
            assert device.launches > launched


def use_host_products(device, monkeypatch):
    """Let Python call the product in host memory, too."""
    product = device.library.dnnops_cudnn_product
    product.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_double, ctypes.c_double]
    product.argtypes += [ctypes.c_void_p] * 2
    monkeypatch.setattr(products, "CUDNN", SimpleNamespace(library=device.library))


class Sum:
    """``beta * z + alpha * dot(x, y)`` as a node that C code runs, with float64 factors."""

    def __init__(self, alpha, beta, inplace):
        self.matrices = [GpuArrayType("float64", (None, None))() for _ in range(3)]
        z, x, y = self.matrices
        out = GpuGemm(Gemm(inplace=inplace))(z, alpha, x, y, beta)
        self.node = out.owner
        self.cells = {v: [getattr(v, "data", None)] for v in self.node.inputs}
        self.result = [None]
        self.thunk = native_thunk(self.node, {**self.cells, out: self.result}, {out: [False]})

    def __call__(self, arrays, **factors):
        for v, array in zip(self.matrices, arrays, strict=True):
            self.cells[v][0] = array
        for v in self.node.inputs:
            if v.name in factors:
                self.cells[v][0] = np.asarray(factors[v.name])
        self.thunk()
        return self.result[0]


@pytest.mark.needs("cupy")
@pytest.mark.parametrize("inplace", [False, True])
def test_sums_from_c(device, monkeypatch, inplace):
    monkeypatch.setattr(blas, "_products", lambda *arrays: products)
    rng = np.random.default_rng(SEED)
    add = Sum(pt.constant(np.float64(-0.5)), pt.constant(np.float64(2)), inplace)
    z, x, y = (np.asfortranarray(rng.standard_normal(s)) for s in ((3, 5), (3, 4), (4, 5)))
    given = [device_array(a) for a in (z, x, y)]
    result = add(given)
    np.testing.assert_allclose(host_value(result), -0.5 * x @ y + 2 * z, rtol=1e-12)
    assert (result is given[0]) == inplace
    if not inplace:
        np.testing.assert_array_equal(host_value(given[0]), z)


@pytest.mark.needs("cupy")
@pytest.mark.parametrize("inplace", [False, True])
def test_factors_that_change_from_c(device, monkeypatch, inplace):
    """They are read in each call, which is prepared once. With a factor 0, NaNs are ignored."""
    monkeypatch.setattr(blas, "_products", lambda *arrays: products)
    prepared, prepare = [], GpuGemm.prepare
    monkeypatch.setattr(
        GpuGemm, "prepare", lambda op, *given: prepared.append(op) or prepare(op, *given)
    )
    rng = np.random.default_rng(SEED)
    add = Sum(pt.dscalar("alpha"), pt.dscalar("beta"), inplace)
    for alpha, beta in ((1.0, 1.0), (-0.5, 2.0), (0.25, 0.0), (0.0, 3.0)):
        z, x, y = (rng.standard_normal(s) for s in ((3, 5), (3, 4), (4, 5)))
        wanted = alpha * x @ y + beta * z
        launched = device.launches
        given = [device_array(a if a is not z or beta else a * np.nan) for a in (z, x, y)]
        got = host_value(add(given, alpha=alpha, beta=beta))
        np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-12)
        assert device.launches == launched + (1 if inplace else 2)
    assert len(prepared) == 1


@pytest.mark.needs("cupy")
def test_factors_that_change_from_python(device, monkeypatch):
    monkeypatch.setattr(blas, "_products", lambda *arrays: products)
    use_host_products(device, monkeypatch)
    rng = np.random.default_rng(SEED)
    add = Sum(pt.dscalar("alpha"), pt.dscalar("beta"), False)
    for alpha, beta in ((-0.5, 2.0), (0.25, 0.0)):
        z, x, y = (rng.standard_normal(s) for s in ((3, 5), (3, 4), (4, 5)))
        given = [*map(device_array, (z, x, y))]
        values = [given[0], np.asarray(alpha), *given[1:], np.asarray(beta)]
        (got,) = add.node.op.prepared(add.node, *values).run(values)
        np.testing.assert_allclose(host_value(got), alpha * x @ y + beta * z, rtol=1e-12)


def scaled(z, alpha, x, y, beta):
    """Return the Ops with factors, and what each computes."""
    vector, row = z[:, 0], y[:, 0]
    return {
        GpuGemm(Gemm(inplace=False)): ((z, alpha, x, y, beta), alpha * x @ y + beta * z),
        GpuGemm(Gemm(inplace=True)): ((z, alpha, x, y, beta), alpha * x @ y + beta * z),
        GpuGemv(Gemv(inplace=False)): (
            (vector, alpha, x, row, beta),
            alpha * x @ row + beta * vector,
        ),
        GpuDot(Dot22Scalar()): ((x, y, alpha), alpha * x @ y),
        GpuGer(Ger(destructive=False)): (
            (x, alpha, vector, row),
            x + alpha * np.outer(vector, row),
        ),
    }


@pytest.mark.needs("cupy")
def test_factors_on_the_host_and_on_the_device(device, monkeypatch):
    """In a CUDA graph they are on the device, where cuBLAS does not read them.

    With a factor 0 of the sum, NaNs are ignored there, too.
    """
    monkeypatch.setattr(blas, "_products", lambda *arrays: products)
    rng = np.random.default_rng(SEED)
    shapes = (3, 5), (3, 4), (4, 5)
    z, x, y = (np.asfortranarray(rng.standard_normal(shape)) for shape in shapes)
    nodes: dict[str, Any] = {}
    for alpha, beta in ((-0.5, 2.0), (0.25, 0.0), (1.0, 1.0)):
        factors = np.float64(alpha), np.float64(beta)
        for op, (values, wanted) in scaled(z, factors[0], x, y, factors[1]).items():
            variables = [
                GpuArrayType("float64", (None,) * v.ndim)() if v.ndim else pt.dscalar()
                for v in values
            ]
            node = nodes.setdefault(str(op) + str(op.destroy_map), op.make_node(*variables))
            numbers = node.op.number_operands(node)
            assert numbers == {i for i, v in enumerate(values) if not v.ndim}
            for on_device in (False, True):
                inputs = [
                    device_array(v if v is not z or beta else v * np.nan)
                    if on_device or v.ndim
                    else np.asarray(v)
                    for v in values
                ]
                outputs = [[None]]
                cells = [[v] for v in inputs]
                storage = dict(zip(node.inputs, cells, strict=True))
                native_thunk(node, {**storage, node.outputs[0]: outputs[0]}, None)()
                np.testing.assert_allclose(host_value(outputs[0][0]), wanted, rtol=1e-12)


@pytest.mark.needs("cupy")
def test_operands_that_kernels_cannot_copy(device, monkeypatch):
    """Neither a call in C nor the first try in Python can: elements are not aligned."""
    monkeypatch.setattr(blas, "_products", lambda *arrays: products)
    use_host_products(device, monkeypatch)
    x, y = (GpuArrayType("float64", (None, None))() for _ in range(2))
    f = pytensor.function([x, y], pt.dot(x, y).transfer("cuda"), mode=GPU_MODE)
    right = np.arange(15.0).reshape(3, 5)
    # CuPy's copy needs a GPU.
    monkeypatch.setattr(products, "_dense_copy", lambda array: device_array(host_value(array)))
    for step in (1, 2):
        left = np.zeros(8 * 12 * step + 4, np.uint8)[4:].view("float64").reshape(4, -1)[:, ::step]
        left[...] = np.arange(12).reshape(4, 3)
        array = wrapped(left)
        assert array.data.ptr % 8
        got = f(array, device_array(right))
        np.testing.assert_array_equal(host_value(got), left @ right)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_on_a_gpu(dtype):
    rng = np.random.default_rng(0)
    for alpha, beta in [(1.0, 0.0), (-0.5, 2.0)]:
        for _ in range(100):
            x, y, out = random_operands(rng)
            out[...] = rng.standard_normal(out.shape) if beta else np.nan
            arrays = [to_device(v.astype(numpy_dtype(dtype))) for v in (x, y, out)]
            left, right, result = (v.get().astype("float64") for v in arrays)
            wanted = alpha * np.matmul(left, right) + (beta * result if beta else 0)
            multiply(*arrays, alpha, beta)
            assert_near(
                arrays[2].astype("float64"), np.broadcast_to(wanted, out.shape), TOLERANCE[dtype]
            )


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_timing_does_not_add_to_the_sum(dtype):
    """The algorithms of the first call write to another array if the result is also an operand."""
    rng = np.random.default_rng(0)
    shapes = (1024, 700), (700, 1024), (1024, 1024)
    x, y, out = (to_device(rng.standard_normal(shape).astype(dtype)) for shape in shapes)
    wanted = 2.0 * out.get().astype("float64")
    for _ in range(2):
        wanted += x.get().astype("float64") @ y.get().astype("float64")
        multiply(x, y, out, 1.0, 2.0, settings=product_settings(False, "time_once"))
        assert_near(out.astype("float64"), wanted, 2 * TOLERANCE[dtype])
        wanted = 2.0 * out.get().astype("float64")


@pytest.mark.gpu
@pytest.mark.parametrize("turns_left", [False, True])
@pytest.mark.parametrize("turns_right", [False, True])
def test_copies_of_operands_in_tf32(turns_left, turns_right):
    """A product as large as this may be faster after copies of its operands."""
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal(shape, "float32") for shape in ((2048, 1024), (1024, 2048)))
    left = to_device(x.T.copy()).T if turns_left else to_device(x)
    right = to_device(y.T.copy()).T if turns_right else to_device(y)
    out = to_device(np.full((2048, 2048), np.nan, "float32"))
    wanted = x.astype("float64") @ y.astype("float64")
    for _ in range(2):
        multiply(left, right, out, settings=product_settings(True, "time_once"))
        assert_near(out.astype("float64"), wanted, TOLERANCE["float16"])  # TF32 rounds as finely
        out.fill(np.nan)


@pytest.mark.gpu
def test_products_without_inner_elements():
    import cupy

    out = cupy.full((2, 3), 2, "float32")
    multiply(cupy.empty((2, 0), "float32"), cupy.empty((0, 3), "float32"), out, 1.0, 3.0)
    assert (out == 6).all()
    multiply(cupy.empty((2, 0), "float32"), cupy.empty((0, 3), "float32"), out)
    assert (out == 0).all()


@pytest.mark.gpu
@pytest.mark.parametrize("step", [1, 2])
def test_misaligned_operands_on_a_gpu(step):
    """Rows and columns of memory that another library has not aligned."""
    import cupy

    memory = np.zeros(4 * 12 * step + 2, np.uint8)
    left = memory[2:].view("float32").reshape(4, -1)[:, ::step]
    left[...] = np.arange(12).reshape(4, 3)
    right = np.arange(15, dtype="float32").reshape(3, 5)
    array = cupy.ndarray(left.shape, "float32", cupy.asarray(memory).data + 2, left.strides)
    assert array.data.ptr % 4
    x, y = (GpuArrayType("float32", (None, None))() for _ in range(2))
    f = pytensor.function([x, y], pt.dot(x, y).transfer("cuda"), mode=GPU_MODE)
    for _ in range(2):
        np.testing.assert_array_equal(f(array, cupy.asarray(right)).get(), left @ right)
