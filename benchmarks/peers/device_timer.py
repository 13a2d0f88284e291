"""Device time by events, for every library by the same code (``device_timer.cpp``)."""

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
#: How often to try until all is launched before it runs.
_ATTEMPTS = 3
# Until the process ends: workers have loaded the library that is in it.
_directory: tempfile.TemporaryDirectory[str] | None = None


def build(directory: Path, cuda: bool) -> tuple[Path, str]:
    """Compile the library.

    Parameters
    ----------
    directory : Path
        Where it goes.
    cuda : bool
        Whether it is for a GPU; if not, it reads the host's clock, to try the programs.

    Returns
    -------
    path : Path
        The library.
    without_jax : str
        Why it has no custom calls for JAX; empty if it has.

    Raises
    ------
    BenchmarkError
        If it doesn't compile.
    """
    options = ["-std=c++17", "-O1", "-shared", "-fPIC"]
    libraries: list[str] = []
    if cuda:
        from dnnops.runtime.find import find_cuda

        found = find_cuda()
        options += ["-DWITH_CUDA", *(f"-I{path}" for path in found.include_dirs)]
        libraries = [str(found.library), f"-Wl,-rpath,{found.library.parent}"]
    path = directory / "device_timer.so"
    # Not jax.ffi.include_dir(): that would load JAX here.
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
    """What `build` gives for a GPU, once in a process, in a directory that goes when it ends."""
    global _directory
    _directory = tempfile.TemporaryDirectory()
    path, without_jax = build(Path(_directory.name), cuda=True)
    return str(path), without_jax


class DeviceTimer:
    """The library, in a process that has one device.

    Parameters
    ----------
    path : str
        What `build` made.
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
        """Shut the gate, and note the time behind it."""
        self._check(self.library.timer_start(stream))

    def stop(self, stream: int | None) -> None:
        """Note the time behind all that was launched, and open the gate."""
        self._check(self.library.timer_stop(stream))

    def enable(self, on: bool) -> None:
        """Let `start` and `stop` do nothing, or what they are for."""
        self.library.timer_enable(int(on))

    def milliseconds(self) -> float:
        """Wait for the end, and give what lies between start and stop."""
        result = ctypes.c_double()
        self._check(self.library.timer_milliseconds(ctypes.byref(result)))
        return result.value

    @property
    def queued(self) -> bool:
        """Whether all that was timed last had been launched before it ran."""
        return bool(self.library.timer_queued())

    def timed(self, turn: Callable[[], None], attempts: int = _ATTEMPTS) -> tuple[float, bool]:
        """Time what is launched between start and stop.

        Parameters
        ----------
        turn : callable
            Starts, launches and stops.
        attempts : int
            How often to try until all is launched before it runs.

        Returns
        -------
        seconds : float
        was_queued : bool
            Whether it was, the last time.
        """
        for _ in range(attempts):
            turn()
            seconds = self.milliseconds() / 1e3
            if self.queued:
                return seconds, True
        return seconds, False
