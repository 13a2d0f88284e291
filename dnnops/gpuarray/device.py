"""The current CUDA device, and the errors of a machine that has none."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dnnops.arguments import MAX_PARAMETER, is_int, shown
from dnnops.errors import DnnUnavailableError, DnnValueError

if TYPE_CHECKING:
    from collections.abc import Iterator

_TARGET = re.compile(r"cuda(?P<number>\d*)")


def device_from_target(target: str) -> int | None:
    """Parse ``"cuda"`` or ``"cuda1"``.

    Parameters
    ----------
    target : str
        A value of the flag ``device``, or the target of a transfer.

    Returns
    -------
    int or None
        The device's number, 0 for ``"cuda"``; None if `target` names no CUDA device.
    """
    match = _TARGET.fullmatch(target)
    return int(match["number"] or 0) if match else None


def check_device(device: int) -> int:
    """Return `device` as an int; a negative number or another type is a `DnnValueError`."""
    if not is_int(device) or not 0 <= device <= MAX_PARAMETER:
        raise DnnValueError(f"a CUDA device is a number from 0 on; got {shown(device)}")
    return int(device)


def is_current(device: int) -> bool:
    """Tell whether `device` is the current one; False also if there is none."""
    try:
        import cupy

        return bool(cupy.cuda.runtime.getDevice() == device)
    except (ImportError, RuntimeError):
        return False


@contextmanager
def on_device(device: int) -> Iterator[Any]:
    """Make `device` current, and give CuPy.

    Raises
    ------
    DnnUnavailableError
        If CuPy is missing, or if it finds no usable device of that number: with its reason.
    """
    try:
        import cupy
    except ImportError as error:
        raise DnnUnavailableError(f"device cuda{device} needs CuPy: {error}") from error
    try:
        context = cupy.cuda.Device(device)
        context.__enter__()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise DnnUnavailableError(f"device cuda{device} can't be used: {error}") from error
    try:
        yield cupy
    finally:
        context.__exit__()
