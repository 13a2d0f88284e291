"""Check the arguments that describe a convolution whose plans are to be listed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dnnops.config import parse_flag
from dnnops.dtypes import FLOAT_DTYPES, dtype_name, numpy_dtype
from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.gpuarray.device import default_device, device_from_target
from dnnops.nnet.conv.op import Conv
from dnnops.nnet.validate import MAX_PARAMETER, is_int, show_shape
from dnnops.plans.cases import DIRECTIONS, CpuCase, GpuCase, PlanCase

__all__ = ["DIRECTION_NAMES", "make_case"]

#: Accepted names of a direction, those of dnnops and those of cuDNN.
DIRECTION_NAMES = {name: name for name in DIRECTIONS} | {
    DIRECTIONS[name]: name for name in DIRECTIONS
}

_MEMORY_FORMATS = {name: name for name in ("contiguous", "channels_last")}
_SHAPES = {
    "input_shape": "batch, channels",
    "filter_shape": "output channels, input channels of a group",
}


def make_case(
    *,
    input_shape: Sequence[int],
    filter_shape: Sequence[int],
    border_mode: Any = "valid",
    subsample: Any = 1,
    filter_dilation: Any = 1,
    num_groups: int = 1,
    filter_flip: bool = True,
    direction: str = "forward",
    dtype: Any = "float32",
    precision: str | None = None,
    memory_format: str = "contiguous",
    allow_tf32: bool | None = None,
    deterministic: bool | None = None,
    workspace_limit: Any = None,
    device: str | None = None,
) -> PlanCase:
    """Check the arguments of `dnnops.conv_plans` and choose the device.

    Parameters
    ----------
    input_shape, filter_shape, ...
        Same as for `dnnops.conv_plans`.

    Returns
    -------
    PlanCase

    Raises
    ------
    DnnValueError, DnnTypeError
        If an argument is invalid; the message names it.
    DnnUnavailableError
        If cuDNN cannot be used on the requested device.
    """
    input_shape = _sizes("input_shape", input_shape)
    filter_shape = _sizes("filter_shape", filter_shape)
    if len(input_shape) != len(filter_shape):
        raise DnnValueError(
            f"input_shape {show_shape(input_shape)} and filter_shape {show_shape(filter_shape)}"
            " must have the same number of entries"
        )
    params = {
        "ndim": len(input_shape) - 2,
        "border_mode": border_mode,
        "subsample": subsample,
        "filter_dilation": filter_dilation,
        "num_groups": num_groups,
        "filter_flip": filter_flip,
    }
    abstract = Conv(**params)
    abstract.check_shapes(input_shape, filter_shape)
    settings = {
        "precision": _parsed("dnn.conv.precision", precision),
        "allow_tf32": _parsed("dnn.allow_tf32", allow_tf32),
        "deterministic": _parsed("dnn.deterministic", deterministic),
        "workspace_limit": _parsed("dnn.conv.workspace_limit", workspace_limit),
    }
    common = {
        "direction": _one_of("direction", direction, DIRECTION_NAMES),
        "input_shape": input_shape,
        "filter_shape": filter_shape,
        "dtype": _float_dtype(dtype),
        "memory_format": _one_of("memory_format", memory_format, _MEMORY_FORMATS),
    }
    number = _device_number(device)
    if number is None:
        return _cpu_case(abstract.conv_params(), settings, common)
    return _gpu_case(abstract.conv_params(), settings, common, number)


def _cpu_case(params: dict[str, Any], settings: dict[str, Any], common: dict[str, Any]) -> CpuCase:
    from dnnops.cpu.conv import OneDnnConv, OneDnnConvGradInputs, OneDnnConvGradWeights

    dtype = common["dtype"]
    if dtype not in ("float32", "float64"):
        advice = "graphs compute float16 in float32 there, so pass dtype float32"
        if dtype == "bfloat16":
            advice = "pass dtype float32 or float64"
        raise DnnTypeError(f"convolutions on the CPU do not support dtype {dtype}; {advice}")
    if settings["precision"] not in (None, "as_input", "as_input_f32", dtype):
        raise DnnValueError(
            f"precision {settings['precision']!r} is not available on the CPU, which computes in"
            f" the dtype of the arrays, {dtype}"
        )
    for name in ("allow_tf32", "deterministic", "workspace_limit"):
        value = settings[name]
        if not (value is None or value is False or value == "auto"):
            raise DnnValueError(
                f"{name}={value!r} is a cuDNN setting, which the CPU Ops do not have"
            )
    classes = {
        "forward": OneDnnConv,
        "grad_inputs": OneDnnConvGradInputs,
        "grad_weights": OneDnnConvGradWeights,
    }
    return CpuCase(op=classes[common["direction"]](**params), device="cpu", **common)


def _gpu_case(
    params: dict[str, Any], settings: dict[str, Any], common: dict[str, Any], number: int
) -> GpuCase:
    from dnnops.gpu.algorithms import check_precision
    from dnnops.gpu.conv import GpuDnnConv, GpuDnnConvGradI, GpuDnnConvGradW
    from dnnops.gpu.conv_padding import is_asymmetric
    from dnnops.gpu.library import check_cudnn

    classes = {
        "forward": GpuDnnConv,
        "grad_inputs": GpuDnnConvGradI,
        "grad_weights": GpuDnnConvGradW,
    }
    op = classes[common["direction"]](**params, **settings, memory_format=common["memory_format"])
    check_precision(op.where, op.precision, common["dtype"])
    numpy_dtype(common["dtype"])
    check_cudnn(number)
    remark = ""
    if is_asymmetric(op):
        # Same as padded_explicitly() in dnnops.gpu.conv_padding.
        pads: Any = op.border_mode
        rest = [abs(begin - end) for begin, end in pads]
        op = op.replace(border_mode=tuple((min(pair),) * 2 for pair in pads))
        image = common["input_shape"]
        spatial = (n + extra for n, extra in zip(image[2:], rest, strict=True))
        common["input_shape"] = (*image[:2], *spatial)
        remark = (
            "cuDNN is not used with padding that differs before and after an axis: these plans are"
            f" for an image of {show_shape(common['input_shape'])} that is padded first, in a"
            " separate pass that is not timed"
        )
    return GpuCase(op=op, device=f"cuda{number}", remark=remark, **common)


def _device_number(device: Any) -> int | None:
    """Return the number of the CUDA device, or None for the CPU."""
    if device is None:
        from dnnops.gpu.library import cudnn_usable

        number = default_device()
        usable, _ = cudnn_usable(number)
        return number if usable else None
    return device_from_target(_parsed("device", device))


def _parsed(flag: str, value: Any) -> Any:
    """Check an argument in the same way as the corresponding flag; None stays None."""
    return None if value is None else parse_flag(flag, value)


def _one_of(name: str, value: Any, accepted: dict[str, str]) -> str:
    if not isinstance(value, str) or value not in accepted:
        raise DnnValueError(f"{name} must be one of {', '.join(accepted)}; got {value!r}")
    return accepted[value]


def _float_dtype(dtype: Any) -> str:
    try:
        # NumPy reads None as float64.
        name = "" if dtype is None else dtype_name(dtype)
    except DnnTypeError:
        name = ""
    if name not in FLOAT_DTYPES:
        raise DnnTypeError(f"dtype must be one of {', '.join(sorted(FLOAT_DTYPES))}; got {dtype!r}")
    return name


def _sizes(name: str, shape: Any) -> tuple[int, ...]:
    expected = f"{name} must be 3 to 5 integers: {_SHAPES[name]}, and one to three spatial sizes"
    if not isinstance(shape, (tuple, list, np.ndarray)) or not all(map(is_int, shape)):
        raise DnnTypeError(f"{expected}; got {shape!r}")
    sizes = tuple(int(size) for size in shape)
    if not 3 <= len(sizes) <= 5:
        raise DnnValueError(f"{expected}; got {len(sizes)}, {show_shape(sizes)}")
    if not all(1 <= size <= MAX_PARAMETER for size in sizes):
        raise DnnValueError(
            f"{name}: every size must be between 1 and {MAX_PARAMETER}; got {show_shape(sizes)}"
        )
    return sizes
