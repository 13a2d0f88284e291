"""Connect the runtime library to the plan cache, which keeps timed selections between processes.

The library asks this module for the selection of a convolution that it has not timed, and reports
the convolutions that it has timed. This module converts between the library's structures and the
keys and plan names of `dnnops.plans.cache`.
"""

from __future__ import annotations

import ctypes
import traceback
from functools import lru_cache
from pathlib import Path
from typing import Any

from dnnops.errors import DnnError
from dnnops.gpu.algorithms import DIRECTIONS, parse_algorithm
from dnnops.gpu.base import interrupt_later
from dnnops.gpu.kernels import kernels_version
from dnnops.plans.cache import CachedChoice, CachedPlan, plan_cache
from dnnops.runtime.build import CUDNN
from dnnops.runtime.op import DTYPE_CODES

__all__ = ["case_key"]

_DTYPES = {code: name for name, code in DTYPE_CODES.items()}
_MAX_RANK = 5
_SPATIAL = ctypes.c_int64 * 3
_AXES = ctypes.c_int64 * _MAX_RANK
_MAX_KNOBS = 16
_NUMBERS = ("groups", "flip", "allow_tf32", "deterministic", "workspace_limit")
_NUMBERS += ("fixed_scalars", "beta", "time_limit")
_PER_AXIS = ("stride", "dilation", "pad")


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("ndim", ctypes.c_int64),
        ("shape", _AXES),
        ("strides", _AXES),
        ("alignment", ctypes.c_int64),
    ]


class _ConvCase(ctypes.Structure):
    # ConvCase of c_code/gpu/conv/conv_case.hpp.
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("direction", "spatial_ndim", "dtype", "compute")),
        ("groups", ctypes.c_int64),
        ("flip", ctypes.c_int64),
        ("stride", _SPATIAL),
        ("dilation", _SPATIAL),
        ("pad", _SPATIAL),
        ("tensors", _Tensor * 3),
        ("allow_tf32", ctypes.c_int64),
        ("deterministic", ctypes.c_int64),
        ("workspace_limit", ctypes.c_int64),
        ("fixed_scalars", ctypes.c_int64),
        ("alpha", ctypes.c_double),
        ("beta", ctypes.c_double),
        ("time_limit", ctypes.c_int64),
        ("handle", ctypes.c_int64),
    ]


class _PlanSpec(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("api", "id", "format", "math", "knob_count")),
        ("knobs", ctypes.c_int64 * (2 * _MAX_KNOBS)),
    ]


class _StoredPlan(ctypes.Structure):
    # StoredPlan of c_code/gpu/conv/conv_choices.hpp.
    _fields_ = [
        ("spec", _PlanSpec),
        ("milliseconds", ctypes.c_double),
        ("workspace", ctypes.c_int64),
        ("name", ctypes.c_char * 256),
    ]


_FIND = ctypes.CFUNCTYPE(
    ctypes.c_int64,
    ctypes.POINTER(_ConvCase),
    ctypes.c_int64,
    ctypes.POINTER(_StoredPlan),
    ctypes.c_int64,
)
_STORE = ctypes.CFUNCTYPE(
    None, ctypes.POINTER(_ConvCase), ctypes.c_int64, ctypes.POINTER(_StoredPlan), ctypes.c_int64
)


@lru_cache
def _describe_device(device: int) -> dict[str, Any]:
    """Return the properties of the device and libraries that affect the speed of plans."""
    import cupy

    runtime = cupy.cuda.runtime
    properties = runtime.getDeviceProperties(device)
    return {
        "gpu": properties["name"].decode(),
        # Fewer than the model has if the device is a MIG slice.
        "multiprocessors": properties["multiProcessorCount"],
        "driver": _driver_version(),
        "cuda": runtime.driverGetVersion(),
        "cudnn": CUDNN.library.dnnops_cudnn_version(),
        "cublaslt": CUDNN.library.dnnops_cudnn_cublaslt_version(),
        "kernels": kernels_version(),
    }


def _driver_version() -> str:
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8")
    except OSError:
        return "unknown"
    words = text.partition("\n")[0].split()
    return next((word for word in words if word[:1].isdigit() and "." in word), "unknown")


def _describe_tensor(tensor: _Tensor) -> dict[str, Any]:
    return {
        "shape": tensor.shape[: tensor.ndim],
        "strides": tensor.strides[: tensor.ndim],
        "alignment": tensor.alignment,
    }


def case_key(case: Any, device: dict[str, Any]) -> dict[str, Any]:
    """Return the cache key of a convolution.

    Parameters
    ----------
    case : ctypes structure
        ``ConvCase`` of the runtime library.
    device : dict
        Properties of the device, its driver and libraries.

    Returns
    -------
    dict
        Key that consists of numbers and names, which can be written as JSON.
    """
    pairs = zip(("image", "filters", "top"), case.tensors, strict=True)
    return {
        **device,
        "policy": "time",
        "case": {
            "direction": DIRECTIONS[case.direction],
            "dtype": _DTYPES[case.dtype],
            "compute": _DTYPES[case.compute],
            **{name: getattr(case, name) for name in _NUMBERS},
            **{name: getattr(case, name)[: case.spatial_ndim] for name in _PER_AXIS},
            **{role: _describe_tensor(tensor) for role, tensor in pairs},
        },
    }


def _report(error: BaseException) -> None:
    """Print an error that can't be raised because the caller is C code."""
    if isinstance(error, KeyboardInterrupt):
        interrupt_later()
    else:
        traceback.print_exception(error)


@_FIND
def _find(case: Any, device: int, plans: Any, capacity: int) -> int:
    try:
        cache = plan_cache()
        if cache is None:
            return 0
        choice = cache.find(case_key(case.contents, _describe_device(device)))
        return 0 if choice is None else _fill(choice, case.contents, plans, capacity)
    except BaseException as error:
        _report(error)
        return 0


def _fill(choice: CachedChoice, case: Any, plans: Any, capacity: int) -> int:
    count = 0
    for plan in choice.plans[:capacity]:
        try:
            parsed = parse_algorithm(plan.name, DIRECTIONS[case.direction])
        except DnnError:
            continue  # a name that this version doesn't know
        spec = _PlanSpec.from_buffer_copy((ctypes.c_int64 * 37)(*parsed.spec()))
        name = plan.name.encode()[:255]
        plans[count] = _StoredPlan(spec, plan.time_ms, plan.workspace_bytes, name)
        count += 1
    return count


@_STORE
def _store(case: Any, device: int, plans: Any, count: int) -> None:
    try:
        cache = plan_cache()
        if cache is None:
            return
        key = case_key(case.contents, _describe_device(device))
        timed = (
            CachedPlan(plan.name.decode(), plan.milliseconds, plan.workspace)
            for plan in plans[:count]
        )
        if count:
            cache.store(key, CachedChoice(tuple(timed)))
        else:
            cache.drop(key)
    except BaseException as error:
        _report(error)


CUDNN.on_load.append(lambda library: library.dnnops_cudnn_set_choice_storage(_find, _store))
