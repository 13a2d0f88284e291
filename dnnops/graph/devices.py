"""Handles of cuDNN, versions, and descriptions of devices."""

from __future__ import annotations

import threading
from typing import Any

from dnnops import libcudnn
from dnnops.errors import DnnTypeError, DnnUnavailableError
from dnnops.graph.descriptors import Descriptor

__all__ = [
    "backend_version",
    "backend_version_string",
    "create_device_properties",
    "create_handle",
    "default_handle",
    "destroy_handle",
    "device_properties",
    "get_last_error_string",
    "get_stream",
    "set_stream",
]


_MOST_CHARACTERS = 1 << 14


def backend_version() -> int:
    """Return the version of cuDNN as a number, such as 92801."""
    return int(libcudnn.cudnnGetVersion())


def backend_version_string() -> str:
    """Return the version of cuDNN, such as ``"9.28.1"``."""
    version = backend_version()
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"


def get_last_error_string() -> str:
    """Return cuDNN's text about the last error in this thread."""
    return libcudnn.cudnnGetLastErrorString(_MOST_CHARACTERS)


def create_handle() -> Any:
    """Return a new handle of cuDNN for the current device.

    Raises
    ------
    CudnnError
        If there is no GPU, or cuDNN does not support it.
    """
    return libcudnn.cudnnCreate()


def destroy_handle(handle: Any) -> None:
    """Destroy a handle."""
    libcudnn.cudnnDestroy(handle)


def set_stream(stream: Any, handle: Any) -> None:
    """Set the stream in which a handle's graphs run."""
    libcudnn.cudnnSetStream(handle, stream)


def get_stream(handle: Any) -> int:
    """Return the address of a handle's stream."""
    return int(libcudnn.cudnnGetStream(handle))


_defaults: dict[tuple[int, int], Any] = {}


def default_handle() -> Any:
    """Return this thread's handle for the current device, which is made at first use.

    Raises
    ------
    DnnUnavailableError
        If there is no GPU, or no CuPy.
    """
    try:
        import cupy

        device = cupy.cuda.runtime.getDevice()
    except (ImportError, RuntimeError) as error:
        raise DnnUnavailableError(
            f"cuDNN cannot be used: {error}; without a GPU, graphs are planned with a"
            " device_property"
        ) from error
    key = (threading.get_ident(), device)
    if key not in _defaults:
        _defaults[key] = create_handle()
    handle = _defaults[key]
    set_stream(cupy.cuda.get_current_stream().ptr, handle)
    return handle


class device_properties:
    """Description of a device, with which graphs are planned without one.

    Parameters
    ----------
    device : int or str
        Number of a device, or the text that `serialize` returned for one.

    Raises
    ------
    CudnnError
        If there is no such device, or the text describes none.
    """

    def __init__(self, device: int | str | bytes) -> None:
        self.descriptor = Descriptor("DEVICEPROP")
        if isinstance(device, str | bytes):
            text = device.encode() if isinstance(device, str) else device
            self.descriptor.set_as("DEVICEPROP_JSON_REPRESENTATION", "CHAR", text)
        elif isinstance(device, int) and not isinstance(device, bool):
            self.descriptor.set_as("DEVICEPROP_DEVICE_ID", "INT32", [device])
        else:
            raise DnnTypeError(f"a device is a number or a text, not {device!r}")
        self.descriptor.finalize()

    def serialize(self) -> bytes:
        """Return the description as JSON."""
        return self.descriptor.get_text("DEVICEPROP_JSON_REPRESENTATION").encode()


def create_device_properties(device: int | str | bytes) -> device_properties:
    """Return the description of a device; see `device_properties`."""
    return device_properties(device)
