"""Factors such as ``alpha`` and ``beta``, which cuDNN reads from the host's memory."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable
from typing import Any

import numpy as np

from dnnops.errors import DnnTypeError
from dnnops.libcudnn.calls import Symbols, void_pointer
from dnnops.libcudnn.handles import place
from dnnops.libcudnn.memory import host_memory, is_pointer
from dnnops.libcudnn.pointers import is_on_device
from dnnops.libcudnn.values import as_float

__all__ = ["Scaling"]

_DOUBLE = 1  # CUDNN_DATA_DOUBLE
_DIMENSIONS = 8  # CUDNN_DIM_MAX
_TENSOR, _FILTER = array("q", bytes(16)), array("q", bytes(24 + 4 * _DIMENSIONS))
_float, _double = struct.Struct("f").pack, struct.Struct("d").pack


class Scaling:
    """Converts factors to the type that cuDNN expects: double for tensors of doubles, else float.

    The methods return a function that turns a number, or its address as a pointer of ctypes, into
    an argument of type ``void *``.
    """

    def __init__(self, symbols: Symbols) -> None:
        self._symbols = symbols

    def of_tensor(self, tensor: int) -> Callable[[Any, str], Any]:
        """Return the function for a tensor with this descriptor."""
        return _as_double if self.tensor_type(tensor) == _DOUBLE else _as_float

    def of_filter(self, filter_: int) -> Callable[[Any, str], Any]:
        """Return the function for filters with this descriptor."""
        out = _FILTER[:]
        at, _ = out.buffer_info()
        self._symbols.cudnnGetFilterNdDescriptor(filter_, _DIMENSIONS, at, at + 8, at + 16, at + 24)
        return _as_double if out[0] == _DOUBLE else _as_float

    def tensor_type(self, tensor: int) -> int:
        """Return the type of a tensor's elements.

        If the descriptor is not set, the function that uses it reports that.
        """
        out = _TENSOR[:]
        at, _ = out.buffer_info()
        self._symbols.cudnnGetTensorNdDescriptor(tensor, 0, at, at + 8, 0, 0)
        return out[0]


def _as_float(value: Any, name: str) -> Any:
    return _float(value) if type(value) is float else _other(value, name, _float)


def _as_double(value: Any, name: str) -> Any:
    return _double(value) if type(value) is float else _other(value, name, _double)


def _other(value: Any, name: str, pack: Callable[[float], bytes]) -> Any:
    """Convert another number than a float, or a pointer; an integer is a number, too."""
    if is_pointer(value):
        return void_pointer(host_memory(value, len(pack(0.0)), name))
    # NumPy's arrays with one element are numbers, and those on the device are not copied.
    if isinstance(value, bool | np.bool_) or (hasattr(value, "tolist") and is_on_device(value)):
        raise DnnTypeError(f"{place(name)} is of type {type(value).__name__}; expected a number")
    return pack(as_float(value, name))
