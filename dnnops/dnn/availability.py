"""Check whether cuDNN can be used, and return its version."""

from __future__ import annotations

from typing import Any

from dnnops.arguments import switch
from dnnops.errors import DnnError, DnnUnavailableError, DnnValueError
from dnnops.gpu.library import cudnn_usable, cudnn_version
from dnnops.gpuarray.device import check_device, default_device, device_from_target
from dnnops.runtime.build import CUDNN

__all__ = ["context_device", "dnn_available", "dnn_present", "version"]


def context_device(context_name: Any) -> int:
    """Return the number of the named device; None stands for the device of the flag ``device``."""
    if context_name is None:
        return default_device()
    if isinstance(context_name, str):
        device = device_from_target(context_name)
        if device is None:
            raise DnnValueError(f"context_name {context_name!r}: expected cuda, cuda0, cuda1, ...")
        return device
    return check_device(context_name)


def dnn_available(context_name: Any = None) -> bool:
    """Return whether cuDNN is used on a device.

    The answer depends on the flag ``dnn.enabled`` and on a check that cuDNN works, which is
    performed once. If cuDNN isn't used, ``dnn_available.msg`` gives the reason.

    Parameters
    ----------
    context_name : None, str or int
        Name of the device, such as ``"cuda0"``, or its number; None stands for the device of the
        flag ``device``.

    Returns
    -------
    bool

    Raises
    ------
    DnnUnavailableError
        If the flag ``dnn.enabled`` is True and cuDNN can't be used.
    """
    usable, dnn_available.msg = cudnn_usable(context_device(context_name))  # type: ignore[attr-defined]
    return usable


dnn_available.msg = ""  # type: ignore[attr-defined]


def dnn_present() -> bool:
    """Return whether cuDNN's headers and library are installed and match, even without a GPU."""
    try:
        CUDNN.library  # noqa: B018
    except DnnUnavailableError as error:
        dnn_present.msg = str(error)  # type: ignore[attr-defined]
        return False
    dnn_present.msg = ""  # type: ignore[attr-defined]
    return True


dnn_present.msg = ""  # type: ignore[attr-defined]


def version(raises: bool = True) -> int:
    """Return the version of the cuDNN library in cuDNN's own encoding: 92800 is 9.28.0.

    Parameters
    ----------
    raises : bool
        Whether to raise an error if cuDNN isn't available; otherwise the result is -1.

    Raises
    ------
    DnnUnavailableError
        If cuDNN isn't installed or can't be loaded.
    """
    raises = switch("version", "raises", raises)
    try:
        return cudnn_version()
    except DnnError:
        if raises:
            raise
        return -1
