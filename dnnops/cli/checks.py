"""Checks of the doctor command, one function for each requirement of a CPU or GPU run."""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import platform
import re
import subprocess
import sys
import sysconfig
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from dnnops.errors import DnnUnavailableError
from dnnops.runtime.driver import cuda_extra, driver_cuda_version, has_nvidia_device

if TYPE_CHECKING:
    from dnnops.runtime.find import Library

__all__ = ["CPU_CHECKS", "GPU_CHECKS", "Finding"]

# dnnl_cpu_isa_t of dnnl_types.h.
_INSTRUCTION_SETS = {
    0x1: "SSE4.1",
    0x3: "AVX",
    0x7: "AVX2",
    0xF: "AVX2 with VNNI",
    0x1F: "AVX2 with VNNI 2",
    0x27: "AVX-512",
    0x67: "AVX-512 with VNNI",
    0xE7: "AVX-512 with bfloat16",
    0x1EF: "AVX-512 with float16",
    0xFEF: "AVX-512 with AMX",
    0x1FEF: "AVX-512 with AMX float16",
}


@dataclass(frozen=True)
class Finding:
    """A line of the report.

    Attributes
    ----------
    name : str
        Name of the requirement.
    status : {"ok", "advice", "missing", "unneeded"}
        ``ok`` if found; ``advice`` if usable but not optimal; ``missing`` if not usable, with the
        reason in `value`; ``unneeded`` if the device is absent, so that its other requirements do
        not matter.
    value : str
        Version, name or problem.
    where : str
        Path, if there is one.
    install : str
        Command that fixes the problem.
    """

    name: str
    status: Literal["ok", "advice", "missing", "unneeded"]
    value: str
    where: str = ""
    install: str = ""


def check_python() -> Iterator[Finding]:
    """Report the versions of Python, PyTensor and NumPy."""
    yield Finding("Python", "ok", platform.python_version(), sys.executable)
    for package in ("PyTensor", "NumPy"):
        yield Finding(package, "ok", importlib.metadata.version(package.lower()))


def check_compiler() -> Iterator[Finding]:
    """Look for the C++ compiler that PyTensor uses, and for Python's headers."""
    from pytensor.configdefaults import config

    if config.cxx and (problem := _why_no_compiler(config.cxx)):
        fix = "apt-get install g++; export PYTENSOR_FLAGS=cxx=/usr/bin/g++"
        yield Finding("C++ compiler", "missing", problem, config.cxx, fix)
    elif config.cxx:
        version = _first_line([config.cxx, "--version"])
        yield Finding("C++ compiler", "ok", version or "of unknown version", config.cxx)
    else:
        yield Finding("C++ compiler", "missing", "no g++ on the PATH", "", "apt-get install g++")

    header = Path(sysconfig.get_path("include")) / "Python.h"
    if header.exists():
        yield Finding("Python headers", "ok", sysconfig.get_python_version(), str(header.parent))
    else:
        package = "python3-dev" if sys.prefix == "/usr" else f"python{_python_series()}-dev"
        yield Finding("Python headers", "missing", f"no {header}", "", f"apt-get install {package}")


def _why_no_compiler(program: str) -> str:
    """Return why a program cannot compile C++, or an empty string."""
    with tempfile.TemporaryDirectory() as folder:
        source, output = Path(folder, "empty.cpp"), Path(folder, "empty.o")
        source.write_text("namespace a::b {}\n")
        command = [program, "-c", str(source), "-o", str(output)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        except (OSError, subprocess.SubprocessError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            reason = "it is a folder" if Path(program).is_dir() else reason
            return f"cannot be run: {reason}"
        if done.returncode == 0 and output.exists():
            return ""
        words = (done.stderr.strip() or "no output file").splitlines()[0]
        return f"cannot compile an empty C++ file: {words}"


def check_blas() -> Iterator[Finding]:
    """Report the BLAS that PyTensor links; dnnops itself works without one."""
    from pytensor.configdefaults import config

    with warnings.catch_warnings():
        # PyTensor prints a long warning if it finds none, which this line already reports.
        warnings.simplefilter("ignore")
        try:
            flags = config.blas__ldflags
        except OSError:
            # PyTensor runs the C++ compiler to find BLAS, and that is not a program.
            flags = ""
    if flags:
        yield Finding("BLAS", "ok", flags)
    else:
        yield Finding(
            "BLAS",
            "advice",
            "none to link: NumPy computes matrix products that oneDNN does not",
            "",
            "apt-get install libopenblas-dev; export PYTENSOR_FLAGS=blas__ldflags=-lopenblas",
        )


def check_onednn() -> Iterator[Finding]:
    """Look for oneDNN, load it, and query its instruction set."""
    from dnnops.runtime.find import find_onednn

    def describe(library: Library) -> str:
        handle = ctypes.CDLL(str(library.library))
        isa = handle.dnnl_get_effective_cpu_isa()
        return f"{library.version_text}, {_INSTRUCTION_SETS.get(isa, f'instruction set {isa:#x}')}"

    command = "pip install onednn-cpu-gomp onednn-devel-cpu-gomp"
    yield _check_library("oneDNN", find_onednn, describe, command)
    threads = os.environ.get("OMP_NUM_THREADS")
    cores = len(os.sched_getaffinity(0))
    yield Finding(
        "CPU threads",
        "ok",
        f"{threads} (OMP_NUM_THREADS)" if threads else f"{cores} (OMP_NUM_THREADS is not set)",
    )


def check_driver() -> Iterator[Finding]:
    """Look for NVIDIA's driver without using any other part of CUDA."""
    version = driver_cuda_version()
    if version:
        try:
            text = Path("/proc/driver/nvidia/version").read_text()
        except OSError:
            text = ""
        number = re.search(r"\b\d{3,}\.\d[\d.]*", text)
        cuda = f"CUDA {version[0]}.{version[1]}"
        yield Finding("NVIDIA driver", "ok", f"{number[0]}, {cuda}" if number else cuda)
    elif has_nvidia_device():
        yield Finding(
            "NVIDIA driver",
            "missing",
            "libcuda.so.1 is missing",
            "",
            "apt-get install nvidia-driver",
        )
    else:
        yield Finding("NVIDIA GPU", "unneeded", "none found, so no GPU libraries are needed")


def check_cupy() -> Iterator[Finding]:
    """Look for CuPy, and use it to look for devices."""
    try:
        import cupy
    except Exception as error:  # a CuPy that does not match CUDA fails in many ways
        yield Finding("CuPy", "missing", _first_words(error), "", cuda_extra())
        return
    yield Finding("CuPy", "ok", cupy.__version__, str(Path(cupy.__file__).parent))
    runtime = cupy.cuda.runtime
    try:
        count = runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:
        yield Finding("GPU", "missing", _first_words(error))
        return
    for index in range(count):
        properties = runtime.getDeviceProperties(index)
        yield Finding(
            f"GPU {index}",
            "ok",
            f"{properties['name'].decode()}, compute capability "
            f"{properties['major']}.{properties['minor']}, "
            f"{properties['totalGlobalMem'] / 2**30:.0f} GiB",
        )


def check_cuda_headers() -> Iterator[Finding]:
    """Look for CUDA's headers and runtime library, which is loaded only if there is a GPU."""
    from dnnops.runtime.find import find_cuda

    try:
        cuda = find_cuda()
    except DnnUnavailableError as error:
        yield Finding("CUDA headers", "missing", _first_words(error), "", cuda_extra())
    else:
        yield Finding("CUDA headers", "ok", cuda.version_text, str(cuda.include_dirs[0]))


def check_cudnn() -> Iterator[Finding]:
    """Look for cuDNN and load it."""
    from dnnops.runtime.find import find_cudnn

    def describe(library: Library) -> str:
        handle = ctypes.CDLL(str(library.library))
        handle.cudnnGetVersion.restype = ctypes.c_size_t
        loaded = handle.cudnnGetVersion()
        version = (loaded // 10000, loaded // 100 % 100, loaded % 100)
        if version != library.version:
            raise DnnUnavailableError(
                f"headers have version {library.version_text}, "
                f"but the library has {'.'.join(map(str, version))}"
            )
        return library.version_text

    yield _check_library("cuDNN", find_cudnn, describe, cuda_extra())


CPU_CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (
    check_python,
    check_compiler,
    check_blas,
    check_onednn,
)
GPU_CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (
    check_driver,
    check_cupy,
    check_cuda_headers,
    check_cudnn,
)


def _check_library(
    name: str, find: Callable[[], Library], describe: Callable[[Library], str], install: str
) -> Finding:
    try:
        library = find()
    except DnnUnavailableError as error:
        return Finding(name, "missing", _first_words(error), "", install)
    where = str(library.library)
    try:
        return Finding(name, "ok", describe(library), where)
    except (OSError, DnnUnavailableError) as error:
        if "libgomp" in str(error):
            install = "apt-get install libgomp1"
        return Finding(name, "missing", _first_words(error), where, install)


def _first_words(error: BaseException) -> str:
    """Return an error's first paragraph on one line, or its type if the message is empty."""
    return " ".join(str(error).strip().split("\n\n")[0].split()) or type(error).__name__


def _first_line(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except OSError:
        return ""
    return done.stdout.partition("\n")[0]


def _python_series() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"
