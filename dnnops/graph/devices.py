"""Handles of cuDNN, versions, and descriptions of devices."""

from __future__ import annotations

import json
import threading
from typing import Any

from dnnops import libcudnn
from dnnops.errors import DnnTypeError, DnnUnavailableError, DnnValueError
from dnnops.graph.descriptors import Descriptor
from dnnops.runtime.driver import why_no_device

__all__ = [
    "backend_version",
    "backend_version_string",
    "create_device_properties",
    "create_handle",
    "current_device",
    "default_handle",
    "destroy_handle",
    "device_properties",
    "get_last_error_string",
    "get_stream",
    "set_stream",
]


_MAX_CHARACTERS = 1 << 14


def backend_version() -> int:
    """Return the version of cuDNN as a number, such as 92801."""
    return int(libcudnn.cudnnGetVersion())


def backend_version_string() -> str:
    """Return the version of cuDNN, such as ``"9.28.1"``."""
    version = backend_version()
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"


def get_last_error_string() -> str:
    """Return cuDNN's text about the last error in this thread."""
    return libcudnn.cudnnGetLastErrorString(_MAX_CHARACTERS)


def create_handle() -> Any:
    """Return a new handle of cuDNN for the current device.

    Raises
    ------
    CudnnError
        If there is no GPU, or cuDNN does not support it.
    """
    return libcudnn.cudnnCreate()


def destroy_handle(handle: Any) -> None:
    """Destroy a handle.

    Parameters
    ----------
    handle : cudnnHandle_t
        Handle from `create_handle`, which no graph may use afterwards.

    Raises
    ------
    CudnnError
        If cuDNN refuses.
    """
    libcudnn.cudnnDestroy(handle)


def set_stream(stream: Any, handle: Any) -> None:
    """Set the stream in which a handle's graphs run.

    Parameters
    ----------
    stream : int or object with ``__cuda_stream__``
        Address of a CUDA stream, such as ``cupy.cuda.Stream().ptr``, or a stream of any library.
    handle : cudnnHandle_t
        Handle from `create_handle`.

    Raises
    ------
    CudnnError
        If cuDNN refuses.
    """
    libcudnn.cudnnSetStream(handle, stream)


def get_stream(handle: Any) -> int:
    """Return the address of a handle's stream.

    Parameters
    ----------
    handle : cudnnHandle_t
        Handle from `create_handle`.

    Returns
    -------
    int
        Address of the CUDA stream; 0 is the default stream.

    Raises
    ------
    CudnnError
        If cuDNN refuses.
    """
    return int(libcudnn.cudnnGetStream(handle))


class _Defaults(threading.local):
    """This thread's handle for each device, with the stream that it has."""

    def __init__(self) -> None:
        self.handles: dict[int, Any] = {}
        self.streams: dict[int, int] = {}


_defaults = _Defaults()


def current_device() -> int:
    """Return the number of the current device.

    Raises
    ------
    DnnUnavailableError
        If there is no GPU, or no CuPy.
    """
    try:
        import cupy

        return int(cupy.cuda.runtime.getDevice())
    except (ImportError, RuntimeError) as error:
        raise DnnUnavailableError(
            f"cuDNN cannot be used: {why_no_device(error)}; without a GPU, graphs are planned with"
            " a device_property"
        ) from error


def default_handle() -> Any:
    """Return this thread's handle for the current device, in CuPy's current stream.

    Raises
    ------
    DnnUnavailableError
        If there is no GPU, or no CuPy.
    """
    device = current_device()
    import cupy

    if device not in _defaults.handles:
        _defaults.handles[device], _defaults.streams[device] = create_handle(), 0
    handle, stream = _defaults.handles[device], cupy.cuda.get_current_stream().ptr
    if _defaults.streams[device] != stream:
        set_stream(stream, handle)
        _defaults.streams[device] = stream
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
            try:
                text = device.encode() if isinstance(device, str) else device
                # cuDNN's parser exhausts the stack where Python's raises an error.
                is_object = isinstance(json.loads(text), dict)
            except (ValueError, RecursionError):
                is_object = False
            if not is_object:
                raise DnnValueError("the description of a device must be an object of JSON")
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
