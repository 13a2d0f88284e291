"""Skips the tests that need a GPU where there is none, with the reason."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import pytest


def gpu_of_worker(environment: Mapping[str, str]) -> str:
    """The only GPU that a process of pytest-xdist is to see; empty if it is to see all.

    Parameters
    ----------
    environment : mapping
        ``DNNOPS_TEST_GPUS`` says over how many GPUs the processes are spread.

    Returns
    -------
    str
        An entry of ``CUDA_VISIBLE_DEVICES``, if that is set, else a number.
    """
    worker = environment.get("PYTEST_XDIST_WORKER")
    gpus = environment.get("DNNOPS_TEST_GPUS")
    if not worker or not gpus:
        return ""
    number = int(worker.removeprefix("gw")) % int(gpus)
    visible = [entry for entry in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if entry]
    return visible[number] if visible else str(number)


#: The end of a report of a failure, which has what was found.
REPORT_CHARACTERS = 4000
#: For modules that run a few times: the compiler takes 0.25 s for one, and 0.43 s with -O3.
QUICK = "-O0"
#: Processes of pytest-xdist that share what is compiled. One at a time compiles.
WORKERS_OF_A_COMPILEDIR = 2


def flags_of_worker(environment: Mapping[str, str]) -> str:
    """PyTensor's flags for a process of pytest-xdist; empty if they are to stay as they are.

    Parameters
    ----------
    environment : mapping
        ``DNNOPS_TEST_COMPILEDIRS`` is a folder for the directories of compiled modules, of which
        many processes have several, as each of them is locked while a module is compiled.

    Returns
    -------
    str
        ``PYTENSOR_FLAGS``.
    """
    worker = environment.get("PYTEST_XDIST_WORKER")
    folder = environment.get("DNNOPS_TEST_COMPILEDIRS")
    if not worker or not folder:
        return ""
    number = int(worker.removeprefix("gw")) // WORKERS_OF_A_COMPILEDIR
    flags = [flag for flag in environment.get("PYTENSOR_FLAGS", "").split(",") if flag]
    return ",".join([*flags, f"base_compiledir={folder}/{number}", f"gcc__cxxflags={QUICK}"])


# Before CUDA is used for the first time, and PyTensor is imported.
if _flags := flags_of_worker(os.environ):
    os.environ["PYTENSOR_FLAGS"] = _flags
if _gpu := gpu_of_worker(os.environ):
    os.environ["CUDA_VISIBLE_DEVICES"] = _gpu

# Before any test imports PyTensor, so that the flags of dnnops are known to it.
import dnnops  # noqa: E402, F401
from dnnops.errors import DnnError  # noqa: E402
from tests.configurations_run import FOLDER, Configurations  # noqa: E402


def share_libraries(folder: Path, own: Path, build: Callable[[], None]) -> None:
    """Build the runtime libraries once for all directories of compiled modules in a folder.

    In each of them they would take longer than most tests, which wait for that.

    Parameters
    ----------
    folder : Path
        What ``DNNOPS_TEST_COMPILEDIRS`` names.
    own : Path
        Where this process looks for the libraries.
    build : callable
        Makes them there.
    """
    from filelock import FileLock

    folder.mkdir(parents=True, exist_ok=True)
    shared = folder / "libraries"
    with FileLock(folder / "libraries.lock"):
        if own.exists():
            return
        if not shared.exists():
            with suppress(DnnError):  # the tests say why
                build()
            if own.exists():
                shutil.copytree(own, shared)
        else:
            shutil.copytree(shared, own)


def build_libraries() -> None:
    """Build the runtime libraries without loading them."""
    from dnnops.runtime.build import CUDNN, ONEDNN

    for library in (CUDNN, ONEDNN):
        _ = library.path


if _flags:
    from pytensor import config

    share_libraries(
        Path(os.environ["DNNOPS_TEST_COMPILEDIRS"]),
        Path(config.compiledir) / "dnnops",
        build_libraries,
    )


if _folder := os.environ.get(FOLDER):
    from dnnops.cudnn.base import CudnnOp

    _configurations = Configurations()
    _configurations.watch(CudnnOp)

    def pytest_sessionfinish() -> None:
        """Leave what ran to the command that records it."""
        _configurations.write(Path(_folder))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Tell why a test failed on a GPU as soon as that is known: its run may not reach its end."""
    if report.failed and os.environ.get("DNNOPS_TEST_COMPILEDIRS"):
        print(f"\n{report.nodeid}\n{report.longreprtext[-REPORT_CHARACTERS:]}", flush=True)


@lru_cache(maxsize=1)
def gpu_missing() -> str:
    """Say why the tests marked ``gpu`` cannot run here; empty if they can."""
    try:
        import cupy
    except ImportError as error:
        return f"CuPy cannot be imported: {error}"
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return f"no CUDA device: {error}"
    return "" if count else "no CUDA device"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and (reason := gpu_missing()):
        skip = pytest.mark.skip(reason=reason)
        for item in marked:
            item.add_marker(skip)
