"""Measure device time with events, with the same code (``device_timer.cpp``) for every library."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import subprocess
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

from benchmarks.harness import BenchmarkError

__all__ = ["DeviceTimer", "build", "built_for_gpu"]

_SOURCE = Path(__file__).with_name("device_timer.cpp")
#: How often to try until all work is launched before it runs.
_ATTEMPTS = 3
# Kept until the process ends, because workers have loaded the library in it.
_directory: tempfile.TemporaryDirectory[str] | None = None


def build(directory: Path, cuda: bool) -> tuple[Path, str]:
    """Compile the library.

    Parameters
    ----------
    directory : Path
        Directory for the library.
    cuda : bool
        Whether to build for a GPU. Otherwise it reads the host's clock, for a quick check.

    Returns
    -------
    path : Path
        The library.
    without_jax : str
        Reason why it has no custom calls for JAX; empty if it has them.

    Raises
    ------
    BenchmarkError
        If it does not compile.
    """
    options = ["-std=c++17", "-O1", "-shared", "-fPIC"]
    libraries: list[str] = []
    if cuda:
        from dnnops.runtime.find import find_cuda

        found = find_cuda()
        options += ["-DWITH_CUDA", *(f"-I{path}" for path in found.include_dirs)]
        libraries = [str(found.library), f"-Wl,-rpath,{found.library.parent}"]
    path = directory / "device_timer.so"
    # jax.ffi.include_dir() would load JAX in this process.
    jaxlib = importlib.util.find_spec("jaxlib")
    without_jax = "there is no jaxlib"
    if jaxlib is not None and jaxlib.origin is not None:
        include = Path(jaxlib.origin).parent / "include"
        try:
            _compile([*options, "-DWITH_JAX", f"-I{include}"], libraries, path)
            return path, ""
        except BenchmarkError as error:
            without_jax = str(error)
    _compile(options, libraries, path)
    return path, without_jax


def _compile(options: list[str], libraries: list[str], path: Path) -> None:
    command = [os.environ.get("CXX", "g++"), *options, str(_SOURCE), *libraries, "-o", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchmarkError(f"{_SOURCE.name} failed to compile:\n{done.stderr[-2000:]}")


@cache
def built_for_gpu() -> tuple[str, str]:
    """Return the result of `build` for a GPU, once per process, in a temporary directory."""
    global _directory
    _directory = tempfile.TemporaryDirectory()
    path, without_jax = build(Path(_directory.name), cuda=True)
    return str(path), without_jax


class DeviceTimer:
    """The library, in a process that uses one device.

    Parameters
    ----------
    path : str
        Path returned by `build`.
    """

    def __init__(self, path: str) -> None:
        self.library = ctypes.CDLL(path)
        self.library.timer_start.argtypes = [ctypes.c_void_p]
        self.library.timer_stop.argtypes = [ctypes.c_void_p]
        self.library.timer_error.restype = ctypes.c_char_p

    def _check(self, failed: int) -> None:
        if failed:
            raise BenchmarkError(self.library.timer_error().decode())

    def start(self, stream: int | None) -> None:
        """Shut the gate, and record the start time behind it."""
        self._check(self.library.timer_start(stream))

    def stop(self, stream: int | None) -> None:
        """Record the stop time behind all launched work, and open the gate."""
        self._check(self.library.timer_stop(stream))

    def enable(self, on: bool) -> None:
        """Enable or disable `start` and `stop`."""
        self.library.timer_enable(int(on))

    def milliseconds(self) -> float:
        """Wait for the end, and return the time between start and stop."""
        result = ctypes.c_double()
        self._check(self.library.timer_milliseconds(ctypes.byref(result)))
        return result.value

    @property
    def queued(self) -> bool:
        """Return whether all of the last timed work was launched before it ran."""
        return bool(self.library.timer_queued())

    def timed(self, turn: Callable[[], None], attempts: int = _ATTEMPTS) -> tuple[float, bool]:
        """Time the work that is launched between start and stop.

        Parameters
        ----------
        turn : callable
            Calls `start`, launches the work, and calls `stop`.
        attempts : int
            Number of tries until all work is launched before it runs.

        Returns
        -------
        seconds : float
        was_queued : bool
            Whether the last try launched all work before it ran.
        """
        for _ in range(attempts):
            turn()
            seconds = self.milliseconds() / 1e3
            if self.queued:
                return seconds, True
        return seconds, False
