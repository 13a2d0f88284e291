"""Parse, check and select CUDA devices."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pytensor.configdefaults import config

from dnnops.arguments import MAX_PARAMETER, is_int, shown
from dnnops.errors import DnnUnavailableError, DnnValueError
from dnnops.runtime.driver import why_no_device

if TYPE_CHECKING:
    from collections.abc import Iterator

_TARGET = re.compile(r"cuda(?P<number>\d*)")


def device_from_target(target: str) -> int | None:
    """Parse ``"cuda"`` or ``"cuda1"``.

    Parameters
    ----------
    target : str
        Value of the flag ``device``, or target of a transfer.

    Returns
    -------
    int or None
        Device number; `default_device` for ``"cuda"``. None if `target` doesn't name a CUDA device.
    """
    match = _TARGET.fullmatch(target)
    if match is None:
        return None
    return int(match["number"]) if match["number"] else default_device()


def default_device() -> int:
    """Return the device for what names none: that of the flag ``device``, or 0 if it has no number.

    Returns
    -------
    int
    """
    match = _TARGET.fullmatch(str(getattr(config, "device", "cpu")))
    return int(match["number"] or 0) if match else 0


def check_device(device: int) -> int:
    """Return `device` as an int.

    Raises
    ------
    DnnValueError
        If `device` is negative, too large, or not an integer.
    """
    if not is_int(device) or not 0 <= device <= MAX_PARAMETER:
        raise DnnValueError(f"a CUDA device must be a number from 0 on; got {shown(device)}")
    return int(device)


def is_current(device: int) -> bool:
    """Return whether `device` is the current device; False if there is no CUDA device."""
    try:
        import cupy

        return bool(cupy.cuda.runtime.getDevice() == device)
    except (ImportError, RuntimeError):
        return False


@contextmanager
def on_device(device: int) -> Iterator[Any]:
    """Make `device` the current device within a ``with`` block, and yield the module ``cupy``.

    Raises
    ------
    DnnUnavailableError
        If there is no GPU, or CuPy is missing or cannot use the device. The message says which.
    """
    try:
        import cupy
    except ImportError as error:
        raise DnnUnavailableError(_unusable(device, error)) from error
    try:
        context = cupy.cuda.Device(device)
        context.__enter__()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise DnnUnavailableError(_unusable(device, error)) from error
    try:
        yield cupy
    finally:
        context.__exit__()


def _unusable(device: int, error: BaseException) -> str:
    return f"device cuda{device} cannot be used: {why_no_device(error)}"
