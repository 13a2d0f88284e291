"""The parts of ``theano.gpuarray`` that scripts use, except for `dnnops.dnn`."""

from __future__ import annotations

from typing import Any

import pytensor.tensor as pt

from dnnops.gpuarray import GpuContiguous, as_gpuarray_variable
from dnnops.theano.ops import OpName

__all__ = [
    "GpuAlloc",
    "GpuAllocEmpty",
    "GpuEye",
    "GpuJoin",
    "GpuReshape",
    "GpuSplit",
    "gpu_alloc_empty",
    "gpu_contiguous",
    "gpu_from_host",
    "gpu_join",
    "host_from_gpu",
]


def gpu_contiguous(x: Any) -> Any:
    """Return a C-contiguous device variable; host variables are transferred."""
    return GpuContiguous()(as_gpuarray_variable(x))


def gpu_from_host(x: Any) -> Any:
    """Transfer a variable to the device of the flag ``device``."""
    return as_gpuarray_variable(x)


def host_from_gpu(x: Any) -> Any:
    """Transfer a variable to the host."""
    return x.transfer("cpu")


def gpu_alloc_empty(*shape: Any) -> Any:
    """Return a device variable of float32 whose elements aren't set.

    Parameters
    ----------
    *shape : int or scalar

    Returns
    -------
    GpuArrayVariable, float32
    """
    return as_gpuarray_variable(pt.empty(shape, dtype="float32"))


def gpu_join(axis: Any, *tensors: Any) -> Any:
    """Join tensors along an axis, on the device.

    Parameters
    ----------
    axis : int or scalar
    *tensors : tensor
        Tensors on any device, of one rank.

    Returns
    -------
    GpuArrayVariable
    """
    return as_gpuarray_variable(pt.join(axis, *map(as_gpuarray_variable, tensors)))


# Op classes, whose instances are functions. The rewrites put the Ops that they apply on the device.


def _on_device(function: Any) -> Any:
    return lambda *operands: as_gpuarray_variable(function(*operands))


def _alloc(context_name: Any, memset_0: bool = False) -> Any:
    return _on_device(pt.alloc)


def _alloc_empty(dtype: str, context_name: Any) -> Any:
    return _on_device(lambda *shape: pt.empty(shape, dtype=dtype))


def _eye(dtype: str | None = None, context_name: Any = None) -> Any:
    return _on_device(lambda n, m, k: pt.eye(n, m, k, dtype=dtype))


def _reshape(ndim: int, name: str | None = None) -> Any:
    return _on_device(lambda x, shape: pt.reshape(x, shape, ndim=ndim))


def _split(len_splits: int) -> Any:
    return lambda x, axis, splits: [
        as_gpuarray_variable(part) for part in pt.split(x, splits, n_splits=len_splits, axis=axis)
    ]


GpuAlloc = OpName("GpuAlloc", _alloc)
GpuAllocEmpty = OpName("GpuAllocEmpty", _alloc_empty)
GpuEye = OpName("GpuEye", _eye)
GpuJoin = OpName("GpuJoin", lambda: gpu_join)
GpuReshape = OpName("GpuReshape", _reshape)
GpuSplit = OpName("GpuSplit", _split)


def __getattr__(name: str) -> Any:
    if name == "pygpu_activated":
        from dnnops.config import flag_value

        return flag_value("device") != "cpu"
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
