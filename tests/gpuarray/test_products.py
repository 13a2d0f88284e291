"""How cuBLASLt reads and writes arrays of any layout; needs no device."""

from __future__ import annotations

import numpy as np
import pytest

from dnnops.dtypes import numpy_dtype
from dnnops.errors import DnnValueError
from dnnops.gpuarray.products import layouts, multiply
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
@pytest.mark.parametrize("seed", range(3))
def test_random_layouts(seed):
    rng = np.random.default_rng(seed)
    for _ in range(200):
        x, y, out = random_operands(rng)
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
def test_products_without_inner_elements():
    import cupy

    out = cupy.full((2, 3), 2, "float32")
    multiply(cupy.empty((2, 0), "float32"), cupy.empty((0, 3), "float32"), out, 1.0, 3.0)
    assert (out == 6).all()
    multiply(cupy.empty((2, 0), "float32"), cupy.empty((0, 3), "float32"), out)
    assert (out == 0).all()
