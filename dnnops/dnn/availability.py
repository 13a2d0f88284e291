"""Whether cuDNN can be used, and which release it is."""

from __future__ import annotations

from typing import Any

from dnnops.arguments import switch
from dnnops.config import flag_value
from dnnops.cudnn.base import cudnn_usable, cudnn_version
from dnnops.errors import DnnError, DnnUnavailableError, DnnValueError
from dnnops.gpuarray.device import check_device, device_from_target
from dnnops.runtime.build import CUDNN

__all__ = ["context_device", "dnn_available", "dnn_present", "version"]


def context_device(context_name: Any) -> int:
    """The number of the device of a name; None is that of the flag ``device``."""
    if context_name is None:
        return device_from_target(flag_value("device")) or 0
    if isinstance(context_name, str):
        device = device_from_target(context_name)
        if device is None:
            raise DnnValueError(f"context_name {context_name!r}: expected cuda, cuda0, cuda1, ...")
        return device
    return check_device(context_name)


def dnn_available(context_name: Any = None) -> bool:
    """Tell whether cuDNN is used on a device; ``dnn_available.msg`` then says why not.

    Parameters
    ----------
    context_name : None, str or int
        The device: ``"cuda0"`` or its number; None for that of the flag ``device``.

    Returns
    -------
    bool
        As the flag ``dnn.enabled`` and a trial have it. The trial's result is remembered.

    Raises
    ------
    DnnUnavailableError
        If the flag ``dnn.enabled`` is True and cuDNN can't be used.
    """
    usable, dnn_available.msg = cudnn_usable(context_device(context_name))  # type: ignore[attr-defined]
    return usable


dnn_available.msg = ""  # type: ignore[attr-defined]


def dnn_present() -> bool:
    """Tell whether cuDNN's headers and library are installed and fit together, GPU or not."""
    try:
        CUDNN.library  # noqa: B018
    except DnnUnavailableError as error:
        dnn_present.msg = str(error)  # type: ignore[attr-defined]
        return False
    dnn_present.msg = ""  # type: ignore[attr-defined]
    return True


dnn_present.msg = ""  # type: ignore[attr-defined]


def version(raises: bool = True) -> int:
    """The version of the cuDNN library as cuDNN writes it: 92800 is 9.28.0.

    Parameters
    ----------
    raises : bool
        Whether to raise if there is none; else it is -1.

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
