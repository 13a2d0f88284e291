"""GPU arrays: their type, variables, shared variables, transfers and tensor Ops.

Importing this package requires neither CuPy nor a GPU.
"""

from __future__ import annotations

from dnnops.gpuarray import c_registration  # noqa: F401 - teaches PyTensor's Ops the type
from dnnops.gpuarray.basic import GpuContiguous
from dnnops.gpuarray.op import infer_device
from dnnops.gpuarray.shared_variables import GpuArraySharedVariable, put_shared_on_gpu, shared
from dnnops.gpuarray.transfer import (
    GpuCast,
    GpuFromHost,
    GpuToGpu,
    HostFromGpu,
    as_gpuarray_variable,
)
from dnnops.gpuarray.type import GpuArrayType
from dnnops.gpuarray.variable import GpuArrayConstant, GpuArrayVariable

__all__ = [
    "GpuArrayConstant",
    "GpuArraySharedVariable",
    "GpuArrayType",
    "GpuArrayVariable",
    "GpuCast",
    "GpuContiguous",
    "GpuFromHost",
    "GpuToGpu",
    "HostFromGpu",
    "as_gpuarray_variable",
    "infer_device",
    "put_shared_on_gpu",
    "shared",
]


def __dir__() -> list[str]:
    """Return the public names, without the submodules."""
    return list(__all__)
