"""Call the runtime library without a GPU; operands are descriptions without memory."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from dnnops.dtypes import DTYPE_CODES
from dnnops.errors import error_from_status
from dnnops.runtime.build import CUDNN
from dnnops.runtime.headers import structure
from dnnops.runtime.op import make_context

Tensor = structure("dnnops_tensor")
#: A dummy address that is never read.
NOWHERE = 1 << 20


def device_tensor(
    shape: Sequence[int], dtype: str = "float32", strides: Sequence[int] | None = None
) -> Any:
    """Return the description of a device array, contiguous or with strides in elements."""
    size = 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize
    if strides is None:
        strides = [int(np.prod(shape[i + 1 :])) for i in range(len(shape))]
    tensor = Tensor(NOWHERE, DTYPE_CODES[dtype], len(shape))
    tensor.shape[: len(shape)] = list(shape)
    tensor.strides[: len(shape)] = [s * size for s in strides]
    return tensor


def channels_last(shape: Sequence[int], dtype: str = "float32") -> Any:
    """Return the description of a channels-last array."""
    order = [0, *range(2, len(shape)), 1]
    strides = [0] * len(shape)
    step = 1
    for axis in reversed(order):
        strides[axis] = step
        step *= shape[axis]
    return device_tensor(shape, dtype, strides)


def host_tensor(array: np.ndarray) -> Any:
    """Return the description of a host array, which the caller has to keep alive."""
    tensor = Tensor(array.ctypes.data, DTYPE_CODES[array.dtype.name], array.ndim)
    tensor.shape[: array.ndim] = array.shape
    tensor.strides[: array.ndim] = array.strides
    return tensor


def call(function: str, op: Any, inputs: Sequence[Any], outputs: Sequence[Any] = ()) -> Any:
    """Call a function of the runtime library for an Op.

    Host operands may be NumPy arrays. Return the described outputs, or raise the exception of the
    status.
    """
    inputs = [np.asarray(x) if not isinstance(x, Tensor) else x for x in inputs]
    described = [x if isinstance(x, Tensor) else host_tensor(x) for x in inputs]
    given = (Tensor * len(described))(*described)
    results = (Tensor * max(1, len(outputs)))(*outputs)
    words = op.words
    status = getattr(CUDNN.library, function)(
        ctypes.byref(make_context(0, 0)), ctypes.c_void_p(words.ctypes.data), given, results
    )
    if status:
        raise error_from_status(status, CUDNN.library.dnnops_last_error().decode())
    return results


def shape_of(tensor: Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape[: tensor.ndim])
