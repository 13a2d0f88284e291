"""Measure the energy that a GPU uses for a piece of work, with the counter of NVIDIA's driver.

NVML counts the millijoules that a whole board has used since the driver was loaded
(``nvmlDeviceGetTotalEnergyConsumption``, from Volta on). The counter is updated every 20 to 100 ms,
much longer than a convolution takes. The work is therefore repeated from one update of the counter
to another at least `SECONDS` later, and the difference is divided by the number of repetitions. The
result includes the memory, the fans, the board's idle power and the work of other processes on the
same board.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from dnnops.errors import DnnNotSupportedError, DnnUnavailableError
from dnnops.gpuarray.device import on_device

__all__ = ["EnergyMeter"]

#: Minimum duration of a measurement in seconds, between two updates of the counter.
SECONDS = 0.4
#: Seconds to wait for a counter that isn't updated.
UPDATE_TIMEOUT = 2.0
#: Approximate milliseconds of work between two readings of the counter.
READING_INTERVAL_MS = 4.0


class EnergyMeter:
    """Meter of the energy that a piece of work uses on one GPU.

    Parameters
    ----------
    device : int
        CUDA device number.

    Raises
    ------
    DnnUnavailableError
        If the package nvidia-ml-py, or the library that it calls, is missing.
    DnnNotSupportedError
        If the device has no energy counter.
    """

    def __init__(self, device: int):
        self.device = device
        try:
            import pynvml
        except ImportError as error:
            raise DnnUnavailableError(
                f"measuring energy needs NVML: pip install nvidia-ml-py ({error})"
            ) from error
        self._nvml = pynvml
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise DnnUnavailableError(
                f"measuring energy needs NVML, which cannot be initialized: {error}"
            ) from error
        try:
            self._handle = pynvml.nvmlDeviceGetHandleByPciBusId(_bus_id(device))
        except pynvml.NVMLError as error:
            raise DnnNotSupportedError(f"NVML cannot find cuda{device}: {error}") from error
        self.read()

    def read(self) -> int:
        """Return the millijoules that the board has used since its driver was loaded.

        Raises
        ------
        DnnNotSupportedError
            If the device has no energy counter.
        """
        try:
            return int(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle))
        except self._nvml.NVMLError as error:
            raise DnnNotSupportedError(
                f"cannot read the energy counter of cuda{self.device}: {error}"
            ) from error

    def millijoules(self, run: Callable[[int], Any], milliseconds: float) -> float:
        """Measure the energy that a piece of work uses.

        Parameters
        ----------
        run : callable
            Function that does the work a given number of times and waits until it is done.
        milliseconds : float
            Approximate duration of doing the work once.

        Returns
        -------
        float
            Millijoules for doing the work once.

        Raises
        ------
        DnnNotSupportedError
            If the counter isn't updated.
        """
        repeats = max(1, math.ceil(READING_INTERVAL_MS / max(milliseconds, 1e-3)))
        run(repeats)
        latest, moved = self.read(), time.perf_counter()
        first: int | None = None
        began, calls = 0.0, 0
        while True:
            run(repeats)
            calls += repeats
            reading, now = self.read(), time.perf_counter()
            if reading == latest:
                if now - moved > UPDATE_TIMEOUT + 2 * repeats * milliseconds / 1000:
                    raise DnnNotSupportedError(
                        f"the energy counter of cuda{self.device} did not move in"
                        f" {now - moved:.1f} s of work"
                    )
                continue
            latest, moved = reading, now
            if first is None:
                # Start here: the counter has just been updated.
                first, began, calls = reading, now, 0
            elif now - began >= SECONDS:
                return (reading - first) / calls


def _bus_id(device: int) -> str:
    """Return the PCI address, which identifies a device for NVML despite CUDA_VISIBLE_DEVICES."""
    with on_device(device) as cupy:
        return cupy.cuda.runtime.deviceGetPCIBusId(device)
