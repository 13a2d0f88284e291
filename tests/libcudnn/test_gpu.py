"""Functions that compute on a GPU, with arrays of several libraries."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from dnnops import libcudnn
from dnnops.errors import DnnTypeError, DnnValueError
from tests.project.test_examples import run

pytestmark = pytest.mark.gpu

NCHW, FLOAT, DOUBLE = 0, 0, 1


def softmax(x: Any, y: Any, dtype: int = FLOAT, alpha: Any = 1.0, beta: Any = 0.0) -> None:
    """Compute the softmax of two rows with three columns."""
    with libcudnn.cudnnCreate() as handle, libcudnn.cudnnCreateTensorDescriptor() as rows:
        libcudnn.cudnnSetTensor4dDescriptor(rows, NCHW, dtype, 2, 3, 1, 1)
        libcudnn.cudnnSoftmaxForward(handle, 1, 0, alpha, rows, x, beta, rows, y)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_factors_and_arrays(dtype):
    import cupy

    x = cupy.array([[0.0, 1.0, 2.0], [3.0, 3.0, 3.0]], dtype)
    expected = cupy.exp(x) / cupy.exp(x).sum(axis=1, keepdims=True)
    code = {"float32": FLOAT, "float64": DOUBLE}[dtype]

    class Interface:
        def __init__(self, array: Any) -> None:
            self.__cuda_array_interface__ = array.__cuda_array_interface__

    class Dlpack:
        def __init__(self, array: Any) -> None:
            self.__dlpack_device__, self.__dlpack__ = array.__dlpack_device__, array.__dlpack__

    for form in (
        lambda array: array,
        lambda array: array.data,
        lambda array: array.data.ptr,
        lambda array: ctypes.c_void_p(array.data.ptr),
        Interface,
        Dlpack,
    ):
        y = cupy.ones_like(x)
        softmax(form(x), form(y), code, alpha=2, beta=0.5)
        cupy.testing.assert_allclose(y, 2 * expected + 0.5, rtol=1e-5)


def test_views_start_where_they_say():
    import cupy

    memory = cupy.zeros((4, 3), "float32")
    y = cupy.zeros((2, 3), "float32")
    memory[2:] = cupy.array([[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]])
    softmax(memory[2:], y)
    cupy.testing.assert_allclose(y, 1 / 3, rtol=1e-6)


@pytest.mark.needs("torch")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_arrays_of_pytorch(dtype):
    import torch

    if not torch.cuda.is_available():
        pytest.skip("PyTorch's build has no CUDA")
    x = torch.zeros((2, 3), dtype=getattr(torch, dtype), device="cuda")
    y = torch.ones_like(x)
    code = {"float16": 2, "bfloat16": 9, "float32": FLOAT}[dtype]
    softmax(x, y, code)
    assert torch.allclose(y.float(), torch.full((2, 3), 1 / 3, device="cuda"), rtol=1e-2)


def test_addresses_of_the_host_are_refused():
    import cupy

    y = cupy.zeros((2, 3), "float32")
    host = np.zeros((2, 3), "float32")
    with pytest.raises(DnnTypeError, match="x is a ndarray in the host's memory"):
        softmax(host, y)
    for address in (host.ctypes.data, ctypes.c_void_p(host.ctypes.data)):
        with pytest.raises(DnnValueError, match=r"x is .* not an address of memory that CUDA"):
            softmax(address, y)
    # The device can read pinned memory.
    pinned = cupy.cuda.alloc_pinned_memory(24)
    ctypes.memset(pinned.ptr, 0, 24)
    softmax(pinned.ptr, y)
    cupy.testing.assert_allclose(y, 1 / 3, rtol=1e-6)


@pytest.mark.parametrize(("dtype", "code"), [("float16", 2), ("float32", 0), ("float64", 1)])
def test_values_and_streams(dtype, code):
    import cupy

    y = cupy.zeros((2, 3), dtype)
    stream = cupy.cuda.Stream()
    with libcudnn.cudnnCreate() as handle, libcudnn.cudnnCreateTensorDescriptor() as rows:
        libcudnn.cudnnSetStream(handle, stream)
        assert libcudnn.cudnnGetStream(handle) == stream.ptr
        libcudnn.cudnnSetTensor4dDescriptor(rows, NCHW, code, 2, 3, 1, 1)
        libcudnn.cudnnSetTensor(handle, rows, y, 1.5)
        stream.synchronize()
    assert (y == 1.5).all()


def test_example():
    printed = run("examples/seeds/libcudnn_convolution.py")
    algorithm, time, error = printed.splitlines()
    assert algorithm.startswith("Cudnn algorithm = CUDNN_CONVOLUTION_FWD_ALGO_")
    assert float(time.split()[0]) > 0
    assert float(error.split()[-1]) < 1e-3
