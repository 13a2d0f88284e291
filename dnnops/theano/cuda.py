"""The parts of ``theano.sandbox.cuda``, Theano's first GPU backend, that scripts use."""

from __future__ import annotations

from typing import Any

from dnnops.config import flag_value
from dnnops.gpuarray import shared as shared_constructor

__all__ = [
    "GpuCorrMM",
    "cuda_available",  # noqa: F822
    "cuda_enabled",  # noqa: F822
    "float32_shared_constructor",
    "shared_constructor",
    "use",
]

float32_shared_constructor = shared_constructor


def use(device: str, *args: Any, **kwargs: Any) -> None:
    """Select the device that runs graphs: ``gpu``, ``gpu0``, ..., or ``cpu``."""
    from dnnops.modes import use_device
    from dnnops.theano.config import config
    from dnnops.theano.flags import translate

    name, value = translate("device", device) or ("device", device)
    setattr(config, name, value)
    use_device()


class GpuCorrMM:
    """Correlate images with filters on the device, with cuDNN.

    Parameters
    ----------
    border_mode, subsample, filter_dilation
        Border mode, strides and dilation, as in `dnnops.dnn.dnn_conv`.
    pad : int or tuple of int, optional
        Padding. If it isn't zero, it replaces `border_mode`.
    """

    def __init__(
        self,
        border_mode: Any = "valid",
        subsample: Any = (1, 1),
        pad: Any = (0, 0),
        filter_dilation: Any = (1, 1),
    ):
        padded = any(pad) if isinstance(pad, (tuple, list)) else pad
        self.border_mode = pad if padded else border_mode
        self.subsample = subsample
        self.filter_dilation = filter_dilation

    def __call__(self, images: Any, filters: Any) -> Any:
        from dnnops.dnn import dnn_conv

        return dnn_conv(
            images,
            filters,
            border_mode=self.border_mode,
            subsample=self.subsample,
            conv_mode="cross",
            dilation=self.filter_dilation,
        )


def __getattr__(name: str) -> Any:
    if name in ("cuda_available", "cuda_enabled"):
        from dnnops.dnn import dnn_available

        available = dnn_available()
        return available and (name == "cuda_available" or flag_value("device") != "cpu")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
