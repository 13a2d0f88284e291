"""A node keeps a small output for its next call, unless it is still referenced elsewhere."""

from __future__ import annotations

import numpy as np
import pytensor
import pytest
from pytensor.compile.mode import Mode

from dnnops.gpu.conv import GpuDnnConv
from dnnops.gpuarray.type import GpuArrayType
from dnnops.runtime.keeping import results_not_kept
from tests.needs import require

pytestmark = pytest.mark.gpu


def images(count: int = 2) -> list:
    import cupy

    rng = np.random.default_rng(0)
    return [cupy.asarray(rng.standard_normal((2, 3, 8, 8)).astype("float32")) for _ in range(count)]


def filters():
    import cupy

    rng = np.random.default_rng(1)
    return cupy.asarray(rng.standard_normal((3, 3, 3, 3)).astype("float32"))


def compiled(layers: int = 1, linker: str = "cvm", memory_format: str = "contiguous"):
    x, w = (GpuArrayType("float32", (None,) * 4, 0)(name) for name in "xw")
    y = x
    for _ in range(layers):
        y = GpuDnnConv(ndim=2, border_mode="half", memory_format=memory_format)(y, w)
    return pytensor.function([x, w], y, mode=Mode(linker, None))


@pytest.mark.parametrize("linker", ["cvm", "cvm_nogc"])
def test_results_that_are_held_stay(linker):
    fn, w = compiled(linker=linker), filters()
    first, second = images()
    held = fn(first, w)
    copy = held.copy()
    other = fn(second, w)
    assert held.data.ptr != other.data.ptr
    np.testing.assert_array_equal(held.get(), copy.get())
    assert np.abs((held - other).get()).max() > 0.1


@pytest.mark.parametrize("linker", ["cvm", "cvm_nogc"])
@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last"])
def test_views_and_exports_of_results_stay(memory_format, linker):
    fn, w = compiled(linker=linker, memory_format=memory_format), filters()
    first, second = images()
    expected = fn(first, w).get()
    view = fn(first, w)[1:, :, ::2]
    fn(second, w)
    np.testing.assert_array_equal(view.get(), expected[1:, :, ::2])
    require("torch")
    import torch

    exported = torch.from_dlpack(fn(first, w))
    fn(second, w)
    np.testing.assert_array_equal(exported.cpu().numpy(), expected)


@pytest.mark.parametrize("linker", ["cvm", "cvm_nogc"])
def test_arrays_that_share_memory_stay(linker):
    """They do not refer to the result, as views do, but to its memory."""
    import cupy
    from cupy.lib.stride_tricks import as_strided

    fn, w = compiled(linker=linker), filters()
    first, second = images()
    expected = fn(first, w).get()
    for share in (
        lambda y: as_strided(y, y.shape, y.strides),
        lambda y: cupy.ndarray(y.shape, y.dtype, y.data),
        lambda y: cupy.ndarray(y.shape, y.dtype, y.data + 0),
    ):
        held = share(fn(first, w))
        fn(second, w)
        np.testing.assert_array_equal(held.get(), expected)


@pytest.mark.parametrize("linker", ["cvm", "cvm_nogc"])
def test_a_result_whose_shape_was_set_is_not_taken_again(linker):
    fn, w = compiled(linker=linker), filters()
    (image,) = images(1)
    y = fn(image, w)
    shape = y.shape
    y.shape = (-1,)
    del y
    assert fn(image, w).shape == shape


def test_memory_is_taken_again():
    fn, w = compiled(), filters()
    (image,) = images(1)
    addresses = {fn(image, w).data.ptr for _ in range(5)}
    assert len(addresses) == 1


def test_intermediate_results_of_changing_shapes():
    import cupy

    fn, single, w = compiled(layers=4), compiled(), filters()
    for size in (8, 9, 8, 600, 8, 1):
        image = cupy.asarray(np.random.default_rng(size).standard_normal((1, 3, size, size)))
        image = image.astype("float32")
        expected = image
        for _ in range(4):
            expected = single(expected, w)
        np.testing.assert_array_equal(fn(image, w).get(), expected.get())


def test_another_stream_gets_another_array():
    import cupy

    fn, w = compiled(), filters()
    (image,) = images(1)
    expected = fn(image, w).get()
    address = fn(image, w).data.ptr
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        result = fn(image, w)
        assert result.data.ptr != address
        stream.synchronize()
        np.testing.assert_array_equal(result.get(), expected)


def test_nothing_is_kept_during_a_capture():
    """What an earlier call kept is freed, too."""
    import cupy

    pool = cupy.get_default_memory_pool()
    fn, w = compiled(), filters()
    (image,) = images(1)
    fn(image, w)
    kept = pool.used_bytes()
    with results_not_kept():
        fn(image, w)
        assert pool.used_bytes() < kept
    fn(image, w)
    assert pool.used_bytes() == kept
