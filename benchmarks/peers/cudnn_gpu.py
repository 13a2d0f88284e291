"""Bare cuDNN, called by a C++ program (``bare_cudnn.cpp``) on CuPy's memory."""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import cupy
import numpy as np

from benchmarks.harness import BenchmarkError, Task
from benchmarks.networks import conv_arrays
from dnnops.runtime.find import find_cuda, find_cudnn


@cache
def driver() -> ctypes.CDLL:
    """Compile and load the program, with the cuDNN that dnnops uses."""
    libraries = (find_cudnn(), find_cuda())
    source = Path(__file__).with_name("bare_cudnn.cpp")
    with tempfile.TemporaryDirectory() as directory:
        made = Path(directory) / "bare_cudnn.so"
        command = [os.environ.get("CXX", "g++"), "-std=c++17", "-O2", "-shared", "-fPIC"]
        command += ["-Wno-deprecated-declarations"]
        command += [f"-I{path}" for lib in libraries for path in lib.include_dirs]
        command += [str(source), *(str(lib.library) for lib in libraries)]
        command += [f"-Wl,-rpath,{lib.library.parent}" for lib in libraries]
        done = subprocess.run(
            [*command, "-o", str(made)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise BenchmarkError(f"{source.name} failed to compile:\n{done.stderr}")
        library = ctypes.CDLL(str(made))
    library.bare_error.restype = ctypes.c_char_p
    library.bare_version.restype = ctypes.c_size_t
    library.bare_chain.restype = ctypes.c_void_p
    library.bare_workspace_size.restype = ctypes.c_int64
    library.bare_time.restype = ctypes.c_double
    return library


def versions() -> dict[str, Any]:
    """Return the versions of what is measured."""
    number = driver().bare_version()
    return {"cudnn": f"{number // 10000}.{number // 100 % 100}.{number % 100}"}


class Chain(Task):
    """A chain of convolutions, with the plan that dnnops selected.

    ``case`` is a case of `networks.conv_arrays` with the length of the ``chain`` and with ``api``,
    ``number`` and ``knobs`` of the plan, as returned by `dnnops_gpu.Chain.facts`.
    """

    def __init__(self, case: dict[str, Any]) -> None:
        self.library = driver()
        self.chain = case["chain"]
        image, filters, _ = conv_arrays(case)
        self.arrays = [cupy.asarray(image)]
        self.arrays += [cupy.full(image.shape, cupy.nan, "float32") for _ in range(self.chain)]
        self.filters = cupy.asarray(filters)
        sizes = (case["batch"], case["channels"], case["size"], case["kernel"])
        knobs = [word for knob in case["knobs"] for word in knob]
        # An empty array of knobs is not the same as no array.
        words = (ctypes.c_int64 * max(1, len(knobs)))(*knobs) if case["api"] == "graph" else None
        handle = self.library.bare_chain(
            (ctypes.c_int64 * 4)(*sizes),
            ctypes.c_int64(case["number"]),
            ctypes.c_int64(len(knobs) // 2),
            words,
        )
        if not handle:
            raise self._error()
        self.handle = ctypes.c_void_p(handle)
        size = self.library.bare_workspace_size(self.handle)
        self.workspace = cupy.empty(max(1, size), "uint8")
        pointers = (ctypes.c_void_p * len(self.arrays))(*(x.data.ptr for x in self.arrays))
        filters_at = ctypes.c_void_p(self.filters.data.ptr)
        workspace_at = ctypes.c_void_p(self.workspace.data.ptr)
        calls = ctypes.c_int64(self.chain)
        # CuPy's stream fills the arrays.
        cupy.cuda.runtime.deviceSynchronize()
        if self.library.bare_bind(self.handle, pointers, calls, filters_at, workspace_at):
            raise self._error()

    def _error(self) -> BenchmarkError:
        return BenchmarkError(self.library.bare_error().decode())

    def _time(self, calls: int) -> float:
        seconds = self.library.bare_time(self.handle, ctypes.c_int64(calls))
        if seconds < 0:
            raise self._error()
        return seconds

    def times(self, calls: int) -> list[float]:
        """Return the host's seconds per convolution of the chain."""
        return [(self._time(self.chain) - self._time(1)) / (self.chain - 1) for _ in range(calls)]

    def results(self) -> dict[str, np.ndarray]:
        self._time(self.chain)
        return {"y": self.arrays[-1].get()}


def make_task(case: dict[str, Any]) -> Task:
    """Prepare a case of ``benchmarks/gpu.py``."""
    return Chain(case)
