"""cuDNN and cuTENSOR functions called through ctypes, for ``benchmarks/kernels.py``."""

from __future__ import annotations

import contextlib
import ctypes
from functools import cache, cached_property
from typing import Any

import cupy

from dnnops.runtime.find import find_cudnn

__all__ = ["CudnnDropout", "CudnnMaxPool", "CutensorPermutation", "load_cutensor"]

#: ``cudnnDataType_t`` and ``cudaDataType_t``.
CUDNN_TYPES = {"float32": 0, "float16": 2}
CUDA_TYPES = {"float32": 0, "float16": 2}


class _Library:
    """Calls of a library that raise an exception if their status is not 0."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library

    def __call__(self, function: str, *arguments: Any) -> None:
        if status := getattr(self.library, function)(*arguments):
            raise RuntimeError(f"{function}: status {status}")


def _address(array: Any) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.data.ptr)


class CudnnDropout:
    """cuDNN's dropout of an array with four axes.

    Parameters
    ----------
    x : cupy.ndarray
    p : float
        Probability that an element becomes 0.
    """

    def __init__(self, x: Any, p: float) -> None:
        self.x, self.p = x, p

    @cached_property
    def cudnn(self) -> _Library:
        return _Library(ctypes.CDLL(str(find_cudnn().library)))

    @cached_property
    def arguments(self) -> tuple[Any, ...]:
        """Arguments of both directions."""
        cudnn, x, size = self.cudnn, self.x, ctypes.c_size_t()
        handle, array, dropout = (ctypes.c_void_p() for _ in range(3))
        cudnn("cudnnCreate", ctypes.byref(handle))
        cudnn("cudnnCreateTensorDescriptor", ctypes.byref(array))
        cudnn("cudnnSetTensor4dDescriptor", array, 0, CUDNN_TYPES[str(x.dtype)], *x.shape)
        cudnn("cudnnDropoutGetStatesSize", handle, ctypes.byref(size))
        self.states = cupy.empty(size.value, "uint8")
        cudnn("cudnnCreateDropoutDescriptor", ctypes.byref(dropout))
        states = (_address(self.states), size, ctypes.c_ulonglong(1))
        cudnn("cudnnSetDropoutDescriptor", dropout, handle, ctypes.c_float(self.p), *states)
        cudnn("cudnnDropoutGetReserveSpaceSize", array, ctypes.byref(size))
        self.reserve, self.out = cupy.empty(size.value, "uint8"), cupy.empty_like(x)
        operands = (array, _address(x), array, _address(self.out))
        return (handle, dropout, *operands, _address(self.reserve), size)

    def forward(self) -> None:
        """Drop elements of `x`."""
        self.cudnn("cudnnDropoutForward", *self.arguments)

    def backward(self) -> None:
        """Drop the same elements, as the gradient does."""
        if "arguments" not in vars(self):
            self.forward()
        self.cudnn("cudnnDropoutBackward", *self.arguments)


class CudnnMaxPool:
    """cuDNN's max pooling of images with two spatial axes, and its gradient.

    Parameters
    ----------
    x, pooled, gz : cupy.ndarray
        Arrays of one memory format; it is also that of the results.
    window, stride, pad : int
        Length of the windows, their distance, and the padding, along both axes.
    """

    def __init__(self, x: Any, pooled: Any, gz: Any, window: int, stride: int, pad: int) -> None:
        self.arrays, self.geometry = (x, pooled, gz), (window, pad, stride)

    @cached_property
    def cudnn(self) -> _Library:
        return _Library(ctypes.CDLL(str(find_cudnn().library)))

    def _described(self, array: Any) -> tuple[Any, Any]:
        descriptor = ctypes.c_void_p()
        self.cudnn("cudnnCreateTensorDescriptor", ctypes.byref(descriptor))
        strides = (s // array.itemsize for s in array.strides)
        words = (CUDNN_TYPES[str(array.dtype)], *array.shape, *strides)
        self.cudnn("cudnnSetTensor4dDescriptorEx", descriptor, *words)
        return descriptor, _address(array)

    @cached_property
    def pooling(self) -> tuple[Any, Any]:
        """Handle and descriptor of the pooling."""
        handle, pooling = ctypes.c_void_p(), ctypes.c_void_p()
        self.cudnn("cudnnCreate", ctypes.byref(handle))
        self.cudnn("cudnnCreatePoolingDescriptor", ctypes.byref(pooling))
        propagates_nan = 1
        words = (0, propagates_nan, *(size for size in self.geometry for _ in range(2)))
        self.cudnn("cudnnSetPooling2dDescriptor", pooling, *words)
        return handle, pooling

    def _arguments(self, out: Any, *arrays: Any) -> tuple[Any, ...]:
        one, zero = (ctypes.byref(ctypes.c_float(value)) for value in (1, 0))
        operands = (word for array in arrays for word in self._described(array))
        return (*self.pooling, one, *operands, zero, *self._described(out))

    @cached_property
    def forward_arguments(self) -> tuple[Any, ...]:
        """Arguments of `forward`; the last one is its result."""
        x, pooled, _ = self.arrays
        self.out = cupy.empty_like(pooled)  # which keeps the memory format
        return self._arguments(self.out, x)

    @cached_property
    def backward_arguments(self) -> tuple[Any, ...]:
        """Arguments of `backward`; the last one is its result."""
        x, pooled, gz = self.arrays
        self.gx = cupy.empty_like(x)
        return self._arguments(self.gx, pooled, gz, x)

    def forward(self) -> Any:
        """Pool `x`."""
        self.cudnn("cudnnPoolingForward", *self.forward_arguments)
        return self.out

    def backward(self) -> Any:
        """Compute the gradient with respect to `x`."""
        self.cudnn("cudnnPoolingBackward", *self.backward_arguments)
        return self.gx


@cache
def load_cutensor() -> ctypes.CDLL:
    """Load cuTENSOR 2.

    Raises
    ------
    OSError
        If it is not installed.
    """
    with contextlib.suppress(Exception):
        from cuda.pathfinder import load_nvidia_dynamic_lib

        load_nvidia_dynamic_lib("cutensor")
    return ctypes.CDLL("libcutensor.so.2")


class CutensorPermutation:
    """A copy of an array to an array of the same shape and other strides.

    Parameters
    ----------
    x, out : cupy.ndarray
    """

    def __init__(self, x: Any, out: Any) -> None:
        self.x, self.out = x, out

    @cached_property
    def cutensor(self) -> _Library:
        return _Library(load_cutensor())

    @cached_property
    def plan(self) -> tuple[Any, Any]:
        """Handle and plan."""
        cutensor, x = self.cutensor, self.x
        handle, operation, plan = (ctypes.c_void_p() for _ in range(3))
        cutensor("cutensorCreate", ctypes.byref(handle))
        modes = (ctypes.c_int32 * x.ndim)(*range(x.ndim))
        described = []
        for array in (x, self.out):
            descriptor = ctypes.c_void_p()
            sizes = (ctypes.c_int64 * x.ndim)(*array.shape)
            strides = (ctypes.c_int64 * x.ndim)(*(s // array.itemsize for s in array.strides))
            words = (sizes, strides, CUDA_TYPES[str(array.dtype)], ctypes.c_uint32(256))
            cutensor(
                "cutensorCreateTensorDescriptor",
                handle,
                ctypes.byref(descriptor),
                ctypes.c_uint32(x.ndim),
                *words,
            )
            described.append(descriptor)
        float32 = ctypes.c_void_p.in_dll(cutensor.library, "CUTENSOR_COMPUTE_DESC_32F")
        identity = 1
        source = (described[0], modes, identity)
        cutensor(
            "cutensorCreatePermutation",
            handle,
            ctypes.byref(operation),
            *source,
            described[1],
            modes,
            float32,
        )
        limit = ctypes.c_uint64(0)
        cutensor("cutensorCreatePlan", handle, ctypes.byref(plan), operation, None, limit)
        return handle, plan

    def __call__(self) -> Any:
        """Copy the array."""
        one, (handle, plan) = ctypes.c_float(1), self.plan
        addresses = (_address(self.x), _address(self.out))
        stream = ctypes.c_void_p(cupy.cuda.get_current_stream().ptr)
        self.cutensor("cutensorPermute", handle, plan, ctypes.byref(one), *addresses, stream)
        return self.out
