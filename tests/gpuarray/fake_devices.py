"""Two CUDA devices that exist only in Python, for code that has to select one of them.

As with CuPy, arrays are allocated, copied and filled on the current device, and streams and events
belong to the device that was current when they were made.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

__all__ = ["FakeArray", "FakeDevices"]


class FakeArray(np.ndarray):
    """Array in the host's memory that claims to be on a device."""

    devices: FakeDevices
    number: int

    def __array_finalize__(self, parent: Any) -> None:
        if parent is not None:
            self.devices = getattr(parent, "devices", None)
            self.number = getattr(parent, "number", None)

    @property
    def device(self) -> Any:
        return self.devices.cuda.Device(self.number)

    @property
    def data(self) -> Any:
        return SimpleNamespace(ptr=self.ctypes.data)

    def copy(self, order: str = "C") -> FakeArray:
        self.devices.log.append(("copy", self.number, self.devices.current))
        return self.devices.array(np.array(self, order=order))


class FakeDevices(ModuleType):
    """Stands in for the module ``cupy``.

    Attributes
    ----------
    current : int
        Number of the current device.
    log : list of tuple
        What was called, in order.
    """

    ndarray = FakeArray

    def __init__(self) -> None:
        super().__init__("cupy")
        self.current, self.log = 0, []
        self._streams = [_Stream(self, number) for number in range(2)]
        runtime = SimpleNamespace(
            getDevice=lambda: self.current,
            setDevice=lambda number: setattr(self, "current", number),
            memcpyPeerAsync=self._copy_peer,
            deviceCanAccessPeer=lambda device, peer: False,
            CUDARuntimeError=RuntimeError,
        )
        self.cuda = SimpleNamespace(
            Device=self._device,
            Event=lambda disable_timing: _Event(self),
            get_current_stream=lambda: self._streams[self.current],
            runtime=runtime,
        )

    def array(self, values: Any) -> FakeArray:
        """Return an array on the current device, without copying `values`."""
        made = np.asarray(values).view(FakeArray)
        made.devices, made.number = self, self.current
        return made

    def empty(self, shape: Any, dtype: Any) -> FakeArray:
        return self.array(np.full(shape, -77, dtype))

    def zeros(self, shape: Any, dtype: Any) -> FakeArray:
        return self.array(np.zeros(shape, dtype))

    def _device(self, number: int | None = None) -> Any:
        return _Device(self, self.current if number is None else number)

    def _copy_peer(self, to: int, to_device: int, start: int, device: int, size: int, stream: int):
        assert stream == self._streams[self.current].ptr
        self.log.append(("peer", device, to_device))
        ctypes.memmove(to, start, size)

    @contextmanager
    def used(self, number: int) -> Iterator[None]:
        """Make a device current within a ``with`` block."""
        former, self.current = self.current, number
        try:
            yield
        finally:
            self.current = former


class _Device:
    def __init__(self, devices: FakeDevices, number: int):
        self.id, self._context = number, devices.used(number)

    def __enter__(self) -> None:
        self._context.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._context.__exit__(*(error or (None, None, None)))


class _Stream:
    """A device's default stream, which exists under one address on all devices."""

    ptr = 0
    captures = False

    def __init__(self, devices: FakeDevices, number: int):
        self._devices, self._number = devices, number

    def synchronize(self) -> None:
        pass

    def is_capturing(self) -> bool:
        return self.captures

    def wait_event(self, event: _Event) -> None:
        assert self._devices.current == self._number
        self._devices.log.append(("wait", self._number, event.number))


class _Event:
    def __init__(self, devices: FakeDevices):
        self._devices, self.number = devices, devices.current

    def record(self, stream: Any) -> None:
        assert self._devices.current == self.number == stream._number
        self._devices.log.append(("record", self.number))
