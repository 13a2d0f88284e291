"""The parts of ``theano.gpuarray`` that scripts use, except for `dnnops.dnn`."""

from __future__ import annotations

from typing import Any

from dnnops.gpuarray import GpuContiguous, as_gpuarray_variable

__all__ = ["gpu_contiguous", "gpu_from_host", "host_from_gpu", "pygpu_activated"]  # noqa: F822


def gpu_contiguous(x: Any) -> Any:
    """Return a C-contiguous device variable; host variables are transferred."""
    return GpuContiguous()(as_gpuarray_variable(x))


def gpu_from_host(x: Any) -> Any:
    """Transfer a variable to the device of the flag ``device``."""
    return as_gpuarray_variable(x)


def host_from_gpu(x: Any) -> Any:
    """Transfer a variable to the host."""
    return x.transfer("cpu")


def __getattr__(name: str) -> Any:
    if name == "pygpu_activated":
        from dnnops.config import flag_value

        return flag_value("device") != "cpu"
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
