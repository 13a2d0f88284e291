"""The energy that a GPU takes for a piece of work, by the counter of NVIDIA's driver.

NVML counts the millijoules of a whole board since the driver was loaded
(``nvmlDeviceGetTotalEnergyConsumption``, from Volta on). The counter moves every 20 to 100 ms, much
longer than a convolution takes. So the work is repeated: from one move of the counter to another,
at least `SECONDS` later, and the difference is divided by how many times it ran in between. What
that includes: memory, fans, what the board takes while it is idle, and what other processes do on
it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from dnnops.errors import DnnNotSupportedError, DnnUnavailableError
from dnnops.gpuarray.device import on_device

__all__ = ["EnergyMeter"]

#: How long a measurement takes at least, between two moves of the counter.
SECONDS = 0.4
#: How long a counter that doesn't move is waited for.
PATIENCE = 2.0
#: Between two looks at the counter the work is repeated for about as long.
LOOK_MS = 4.0


class EnergyMeter:
    """Measures what a piece of work takes on one GPU.

    Parameters
    ----------
    device : int
        The number of the CUDA device.

    Raises
    ------
    DnnUnavailableError
        If the package nvidia-ml-py, or the library that it calls, is missing.
    DnnNotSupportedError
        If the device doesn't count energy.
    """

    def __init__(self, device: int):
        self.device = device
        try:
            import pynvml
        except ImportError as error:
            raise DnnUnavailableError(
                f"energy is measured through NVML: pip install nvidia-ml-py ({error})"
            ) from error
        self._nvml = pynvml
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise DnnUnavailableError(f"NVML, which measures energy, fails: {error}") from error
        try:
            self._handle = pynvml.nvmlDeviceGetHandleByPciBusId(_bus_id(device))
        except pynvml.NVMLError as error:
            raise DnnNotSupportedError(f"NVML doesn't know cuda{device}: {error}") from error
        self.read()

    def read(self) -> int:
        """Millijoules that the board has taken since its driver was loaded.

        Raises
        ------
        DnnNotSupportedError
            If it doesn't count them.
        """
        try:
            return int(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle))
        except self._nvml.NVMLError as error:
            raise DnnNotSupportedError(f"cuda{self.device} doesn't tell: {error}") from error

    def millijoules(self, run: Callable[[int], Any], milliseconds: float) -> float:
        """Measure what a piece of work takes.

        Parameters
        ----------
        run : callable
            Does the work so many times, and waits until it is done.
        milliseconds : float
            About how long the work takes once.

        Returns
        -------
        float
            Millijoules for doing it once.

        Raises
        ------
        DnnNotSupportedError
            If the counter doesn't move.
        """
        repeats = max(1, math.ceil(LOOK_MS / max(milliseconds, 1e-3)))
        run(repeats)
        latest, moved = self.read(), time.perf_counter()
        first: int | None = None
        began, calls = 0.0, 0
        while True:
            run(repeats)
            calls += repeats
            reading, now = self.read(), time.perf_counter()
            if reading == latest:
                if now - moved > PATIENCE + 2 * repeats * milliseconds / 1000:
                    raise DnnNotSupportedError(
                        f"the energy counter of cuda{self.device} did not move in"
                        f" {now - moved:.1f} s of work"
                    )
                continue
            latest, moved = reading, now
            if first is None:
                # From here on: the counter has just moved.
                first, began, calls = reading, now, 0
            elif now - began >= SECONDS:
                return (reading - first) / calls


def _bus_id(device: int) -> str:
    """The PCI address, by which NVML knows a device whatever CUDA_VISIBLE_DEVICES makes of it."""
    with on_device(device) as cupy:
        return cupy.cuda.runtime.deviceGetPCIBusId(device)
