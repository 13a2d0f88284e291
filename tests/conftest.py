"""Settings of every run: what tests need, what each process of pytest-xdist has for itself."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
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


#: PyTensor's own name of the folder below ``base_compiledir``.
COMPILEDIR = "compiledir_%(short_platform)s-%(processor)s-%(python_version)s-%(python_bitwidth)s"


def flags_of_worker(environment: Mapping[str, str]) -> str:
    """PyTensor's flags for a process of pytest-xdist; empty if they are to stay as they are.

    Each directory of compiled modules is locked while one of them is compiled, so that processes
    have several. They stay where PyTensor would keep them, for the next run.

    Parameters
    ----------
    environment : mapping
        ``DNNOPS_TEST_COMPILEDIRS`` is a folder for these directories, if they are not to be kept.

    Returns
    -------
    str
        ``PYTENSOR_FLAGS``.
    """
    worker = environment.get("PYTEST_XDIST_WORKER")
    if not worker:
        return ""
    flags = [flag for flag in environment.get("PYTENSOR_FLAGS", "").split(",") if flag]
    if folder := environment.get("DNNOPS_TEST_COMPILEDIRS"):
        number = int(worker.removeprefix("gw")) // WORKERS_OF_A_COMPILEDIR
        own = f"base_compiledir={folder}/{number}"
    else:
        own = f"compiledir_format={COMPILEDIR}-{worker}"
    return ",".join([*flags, own, f"gcc__cxxflags={QUICK}"])


# Before CUDA is used for the first time, and PyTensor is imported.
if _flags := flags_of_worker(os.environ):
    os.environ["PYTENSOR_FLAGS"] = _flags
    # Threads that wait for their like would take the time of the other process.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
if _gpu := gpu_of_worker(os.environ):
    os.environ["CUDA_VISIBLE_DEVICES"] = _gpu

# Before any test imports PyTensor, so that the flags of dnnops are known to it.
import dnnops  # noqa: E402, F401
from dnnops.errors import DnnError  # noqa: E402
from tests import configurations_run, needs, skips  # noqa: E402
from tests.stored_plans import no_stored_plans  # noqa: E402, F401


def share_libraries(shared: Path, own: Path, build: Callable[[], None]) -> None:
    """Build the runtime libraries once for the directories of compiled modules of all processes.

    In each of them they would take longer than most tests, which wait for that.

    Parameters
    ----------
    shared : Path
        Where libraries are left for other processes, and for later runs.
    own : Path
        Where this process looks for them.
    build : callable
        Makes there what is missing.
    """
    from filelock import FileLock

    shared.mkdir(parents=True, exist_ok=True)
    with FileLock(shared.with_name(f"{shared.name}.lock")):
        _copy_missing(shared, own)
        build()
        _copy_missing(own, shared)


def _copy_missing(source: Path, target: Path) -> None:
    """Copy the files of a folder that another one doesn't have."""
    for file in source.glob("*"):
        if file.is_file() and not (copy := target / file.name).exists():
            target.mkdir(mode=0o700, parents=True, exist_ok=True)
            shutil.copy2(file, copy)


def build_libraries() -> None:
    """Build the runtime libraries without loading them; the tests say why one cannot be built."""
    from dnnops.runtime.build import CUDNN, ONEDNN

    for library in (CUDNN, ONEDNN):
        with suppress(DnnError):
            _ = library.path


if _flags:
    from pytensor import config

    from dnnops.runtime import ahead

    # The processes share the cores.
    _share = max(1, ahead.cores() // int(os.environ["PYTEST_XDIST_WORKER_COUNT"]))
    ahead.cores = lambda: _share

    _shared = os.environ.get("DNNOPS_TEST_COMPILEDIRS") or str(config.base_compiledir)
    share_libraries(
        Path(_shared) / "dnnops_test_libraries",
        Path(config.compiledir) / "dnnops",
        build_libraries,
    )


if _folder := os.environ.get(configurations_run.FOLDER):
    _configurations = configurations_run.watch_all()


def pytest_configure(config: pytest.Config) -> None:
    import pytensor

    # Each variable would remember the lines that made it, which takes a fifth of the time to build
    # a graph. The test of that sets the flag.
    pytensor.config.traceback__limit = 0
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(skips.SkipCounter(config), "skips of tests")


def pytest_collection_finish() -> None:
    """Keep the collector from going through what stays, modules and tests, again and again."""
    gc.collect()
    gc.freeze()
    # PyTensor keeps much of each graph: a full collection takes up to 0.5 s and finds little. A
    # tenth of them leaves 70 MB more.
    gc.set_threshold(*gc.get_threshold()[:2], 100)


def pytest_sessionfinish() -> None:
    """Leave what ran to the command that counts it."""
    if _folder:
        _configurations.write(Path(_folder))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Tell why a test failed on a GPU as soon as that is known: its run may not reach its end."""
    if report.failed and os.environ.get("DNNOPS_TEST_COMPILEDIRS"):
        print(f"\n{report.nodeid}\n{report.longreprtext[-REPORT_CHARACTERS:]}", flush=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    needs.mark_missing(items)
