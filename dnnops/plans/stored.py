"""Connect the runtime library to the plan cache, which keeps timed selections between processes.

The library asks this module for the selection of a convolution that it has not timed, and reports
the convolutions that it has timed. This module converts between the library's structures and the
keys and plan names of `dnnops.plans.cache`.
"""

from __future__ import annotations

import traceback
from functools import lru_cache
from pathlib import Path
from typing import Any

from dnnops.dtypes import DTYPE_NAMES
from dnnops.errors import DnnError
from dnnops.gpu.algorithms import DIRECTIONS, AlgorithmChoice, parse_algorithm
from dnnops.gpu.kernels import kernels_version
from dnnops.gpu.library import interrupt_later
from dnnops.plans.cache import CachedChoice, CachedPlan, plan_cache
from dnnops.runtime.build import CUDNN
from dnnops.runtime.headers import GPU, callback, structure

__all__ = ["case_key", "connect", "stored_plan"]

#: Members of ``dnnops_conv_case`` that are part of a key as they are, and those with one number for
#: each spatial axis.
_NUMBERS = ("groups", "flip", "allow_tf32", "deterministic", "workspace_limit")
_NUMBERS += ("fixed_scalars", "beta", "time_limit")
_PER_AXIS = ("stride", "dilation", "pad")
#: Members of ``dnnops_conv_epilogue``.
_OF_EPILOGUE = ("parts", "activation", "coef")


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


def _describe_tensor(tensor: Any) -> dict[str, Any]:
    return {
        "shape": tensor.shape[: tensor.ndim],
        "strides": tensor.strides[: tensor.ndim],
        "alignment": tensor.alignment,
    }


def _describe_epilogue(epilogue: Any) -> dict[str, Any]:
    """Return the part of a key that only convolutions with an epilogue have."""
    if not epilogue.parts and not epilogue.activation:
        return {}
    return {
        "epilogue": {
            **{name: getattr(epilogue, name) for name in _OF_EPILOGUE},
            "vectors": DTYPE_NAMES[epilogue.vector_dtype],
            "alignments": epilogue.alignments[:],
        }
    }


def case_key(case: Any, device: dict[str, Any]) -> dict[str, Any]:
    """Return the cache key of a convolution.

    Parameters
    ----------
    case : ctypes structure
        ``dnnops_conv_case`` of the runtime library.
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
            "dtype": DTYPE_NAMES[case.dtype],
            "compute": DTYPE_NAMES[case.compute],
            **{name: getattr(case, name) for name in _NUMBERS},
            **{name: getattr(case, name)[: case.spatial_ndim] for name in _PER_AXIS},
            **{role: _describe_tensor(tensor) for role, tensor in pairs},
            **_describe_epilogue(case.epilogue),
        },
    }


def _report(error: BaseException) -> None:
    """Print an error that can't be raised because the caller is C code."""
    if isinstance(error, KeyboardInterrupt):
        interrupt_later()
    else:
        traceback.print_exception(error)


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


def stored_plan(parsed: AlgorithmChoice, plan: CachedPlan) -> Any:
    """Return a plan of the cache as ``dnnops_stored_plan`` of the runtime library."""
    stored = structure("dnnops_stored_plan", GPU)()
    api, number, plan_format, math, knob_count, *knobs = parsed.spec()
    stored.spec = (api, number, plan_format, math, knob_count, tuple(knobs))
    stored.milliseconds, stored.workspace = plan.time_ms, plan.workspace_bytes
    stored.name = plan.name.encode()[: type(stored).name.size - 1]
    return stored


def _fill(choice: CachedChoice, case: Any, plans: Any, capacity: int) -> int:
    count = 0
    for plan in choice.plans[:capacity]:
        try:
            parsed = parse_algorithm(plan.name, DIRECTIONS[case.direction])
        except DnnError:
            continue  # a name that this version doesn't know
        plans[count] = stored_plan(parsed, plan)
        count += 1
    return count


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


def connect(library: Any) -> None:
    """Let a runtime library find its selections in the plan cache, and store them there."""
    library.dnnops_cudnn_set_choice_storage(
        callback("dnnops_find_choice", GPU, _find), callback("dnnops_store_choice", GPU, _store)
    )


CUDNN.on_load.append(connect)
