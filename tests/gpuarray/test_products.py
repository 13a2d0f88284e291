"""How cuBLASLt reads and writes arrays of any layout; needs no device."""

from __future__ import annotations

import numpy as np
import pytensor
import pytest

from dnnops.errors import DnnValueError
from dnnops.gpuarray import GpuArrayType
from dnnops.gpuarray.products import layouts
from tests.gpuarray.graphs import TOLERANCE, assert_near, to_device

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


def as_matrices(layout):
    """Return the batch of matrices that a layout describes."""
    return np.lib.stride_tricks.as_strided(layout.array, layout.shape, layout.strides)


def is_supported(layout):
    """Return whether cuBLASLt takes the layout: its columns or rows without gaps or overlap."""
    (_, rows, columns), (batch, row, column) = layout.shape, layout.strides
    size = layout.array.itemsize
    by_rows = (column == size or columns == 1) and (row >= columns * size or rows == 1)
    by_columns = (row == size or rows == 1) and (column >= rows * size or columns == 1)
    return batch >= 0 and (by_rows or by_columns)


@pytest.mark.needs("cupy")
@pytest.mark.parametrize("seed", range(300))
def test_random_layouts(seed):
    x, y, out = random_operands(np.random.default_rng(seed))
    left, right, result = layouts(x, y, out)
    assert is_supported(left)
    assert is_supported(right)
    assert is_supported(result)
    assert result.strides[2] == out.itemsize or result.shape[2] == 1
    as_matrices(result)[...] = as_matrices(left) @ as_matrices(right)
    np.testing.assert_allclose(out, np.broadcast_to(x @ y, out.shape), rtol=1e-12, atol=1e-12)


@pytest.mark.needs("cupy")
def test_a_dense_operand_is_not_copied():
    x, y = np.ones((2, 3, 4, 5)), np.ones((2, 3, 6, 5)).swapaxes(-1, -2)
    left, right, _ = layouts(x, y, np.empty((2, 3, 4, 6)))
    assert np.shares_memory(left.array, x)
    assert np.shares_memory(right.array, y)


@pytest.mark.needs("cupy")
def test_a_result_with_gaps():
    with pytest.raises(DnnValueError, match="cannot be written"):
        layouts(np.ones((3, 4)), np.ones((4, 5)), np.empty((6, 10))[::2, ::2])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_on_a_gpu(dtype):
    from dnnops.dtypes import numpy_dtype

    rng = np.random.default_rng(0)
    functions = {}
    for _ in range(60):
        arrays = random_operands(rng)[:2]
        shapes = tuple((*(1 if n == 1 else None for n in v.shape[:-2]), None, None) for v in arrays)
        if shapes not in functions:
            variables = [GpuArrayType(dtype, shape)() for shape in shapes]
            product = variables[0] @ variables[1]
            functions[shapes] = pytensor.function(variables, product.transfer("cuda"), mode="CUDNN")
        operands = [to_device(v.astype(numpy_dtype(dtype))) for v in arrays]
        wanted = np.matmul(*(v.astype("float64").get() for v in operands))
        got = functions[shapes](*operands)
        assert got.dtype == numpy_dtype(dtype)
        assert_near(got.astype("float64"), wanted, TOLERANCE[dtype])
