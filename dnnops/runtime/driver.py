"""Look for an NVIDIA GPU and its driver without CuPy, and say what is missing."""

from __future__ import annotations

import ctypes
from pathlib import Path

__all__ = ["cuda_extra", "driver_cuda_version", "has_nvidia_device", "why_no_device"]

_DOCTOR = "`python -m dnnops doctor` shows what was found"


def driver_cuda_version() -> tuple[int, int] | None:
    """Return the newest CUDA version that the driver supports, or None without a driver."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    version = ctypes.c_int()
    if cuda.cuDriverGetVersion(ctypes.byref(version)) != 0 or version.value == 0:
        return None
    return version.value // 1000, version.value % 1000 // 10


def has_nvidia_device() -> bool:
    """Return whether an NVIDIA display or 3D controller is on the PCI bus."""
    for device in Path("/sys/bus/pci/devices").glob("*"):
        try:
            vendor, kind = ((device / name).read_text().strip() for name in ("vendor", "class"))
        except OSError:
            continue
        if vendor == "0x10de" and kind.startswith("0x03"):
            return True
    return False


def cuda_extra() -> str:
    """Return the command that installs the GPU requirements in a version matching the driver."""
    version = driver_cuda_version()
    return f"pip install 'dnnops[{'cuda12' if version and version[0] == 12 else 'cuda13'}]'"


def why_no_device(error: BaseException) -> str:
    """Return why no device can be used, and what to do about it.

    Parameters
    ----------
    error : exception
        What CuPy raised when it was imported or asked for a device.

    Returns
    -------
    str
        That there is no GPU or no driver, if so: then CuPy is not what is missing. Otherwise, the
        command that installs CuPy, or the error.
    """
    if driver_cuda_version() is None:
        if has_nvidia_device():
            return f"NVIDIA's driver is not installed (libcuda.so.1 is missing); {_DOCTOR}"
        return f"there is no NVIDIA GPU in this machine; {_DOCTOR}"
    if isinstance(error, ImportError):
        return f"CuPy cannot be imported ({error}): {cuda_extra()}; {_DOCTOR}"
    return f"{error}; {_DOCTOR}"
