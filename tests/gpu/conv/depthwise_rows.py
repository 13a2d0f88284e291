"""Plans of the depthwise kernels as the runtime library describes them; needs no GPU."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np

from dnnops.errors import error_from_status
from dnnops.gpu.conv import GpuDnnConv, GpuDnnConvGradI, GpuDnnConvGradW
from dnnops.runtime.build import CUDNN
from tests.gpu.calls import Tensor, host_tensor

OPS = (GpuDnnConv, GpuDnnConvGradI, GpuDnnConvGradW)
_CAPACITY = 16


class Params(ctypes.Structure):
    """The struct ``DepthwiseParams``."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("source", "other", "result", "partial")),
        ("alpha", ctypes.c_double),
        ("beta", ctypes.c_double),
        ("in_stride", ctypes.c_int64),
        ("out_stride", ctypes.c_int64),
        ("batch", ctypes.c_int),
        ("channels", ctypes.c_int),
        *(
            (name, ctypes.c_int * 2)
            for name in ("in_size", "out_size", "shift", "lead", "units", "tiles")
        ),
        *(
            (name, ctypes.c_int)
            for name in ("group", "groups", "chunk", "chunks", "images", "splits")
        ),
        ("in_bytes", ctypes.c_int),
        ("out_bytes", ctypes.c_int),
    ]


class _Row(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char * 128),
        ("options", ctypes.c_char * 512),
        ("launch_count", ctypes.c_int64),
        ("workspace", ctypes.c_int64),
        ("kernels", (ctypes.c_char * 32) * 2),
        ("grid", ctypes.c_int64 * 2),
        ("block", ctypes.c_int64 * 2),
        ("shared", ctypes.c_int64 * 2),
        ("params", Params),
    ]


@dataclass
class Plan:
    """A plan, with the constants of its kernels and how to launch them."""

    name: str
    options: str
    workspace: int
    #: Name, blocks, threads per block, bytes of shared memory.
    launches: list[tuple[str, int, int, int]]
    params: Params


def depthwise_plans(op: Any, inputs: list[Any], output: Any) -> list[Plan]:
    """Return the plans of a call of a convolution Op; inputs are descriptions or NumPy arrays.

    Raises
    ------
    DnnError
        If the Op requests one of these plans, and it cannot run.
    """
    inputs = [np.asarray(x) if not isinstance(x, Tensor) else x for x in inputs]
    described = [x if isinstance(x, Tensor) else host_tensor(x) for x in inputs]
    rows = (_Row * _CAPACITY)()
    count = ctypes.c_int64()
    words = op.words
    status = CUDNN.library.dnnops_cudnn_depthwise_rows(
        ctypes.c_void_p(words.ctypes.data),
        (Tensor * len(described))(*described),
        (Tensor * 1)(output),
        rows,
        ctypes.c_int64(_CAPACITY),
        ctypes.byref(count),
    )
    if status:
        raise error_from_status(status, CUDNN.library.dnnops_last_error().decode())
    return [
        Plan(
            name=row.name.decode(),
            options=row.options.decode(),
            workspace=row.workspace,
            launches=[
                (row.kernels[i].value.decode(), row.grid[i], row.block[i], row.shared[i])
                for i in range(row.launch_count)
            ],
            params=Params.from_buffer_copy(row.params),
        )
        for row in rows[: count.value]
    ]
