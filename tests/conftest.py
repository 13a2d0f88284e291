"""Settings of all test runs: needs of tests, and separate resources of pytest-xdist's processes."""

from __future__ import annotations

import gc
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

import pytest

# Commands and tables would wrap lines that tests look for.
os.environ.pop("COLUMNS", None)


def gpu_of_worker(environment: Mapping[str, str]) -> str:
    """Return the only GPU that a pytest-xdist process may see; empty if it may see all.

    Parameters
    ----------
    environment : mapping
        Environment, where ``DNNOPS_TEST_GPUS`` is the number of GPUs for all processes.

    Returns
    -------
    str
        An entry of ``CUDA_VISIBLE_DEVICES`` if that is set, otherwise a number.
    """
    worker = environment.get("PYTEST_XDIST_WORKER")
    gpus = environment.get("DNNOPS_TEST_GPUS")
    if not worker or not gpus:
        return ""
    number = int(worker.removeprefix("gw")) % int(gpus)
    visible = [entry for entry in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if entry]
    return visible[number] if visible else str(number)


#: Length of the printed end of a failure's report, which contains the values that differ.
REPORT_CHARACTERS = 4000
#: Most modules run only a few times. Compiling one takes twice as long with -O3, and a quarter
#: longer with information for debuggers.
QUICK = "-O0 -g0"
#: Number of pytest-xdist processes that share compiled modules; only one at a time compiles.
WORKERS_OF_A_COMPILEDIR = 2


#: PyTensor's name for the folder below ``base_compiledir``.
COMPILEDIR = "compiledir_%(short_platform)s-%(processor)s-%(python_version)s-%(python_bitwidth)s"


def flags_of_worker(environment: Mapping[str, str]) -> str:
    """Return PyTensor's flags for a pytest-xdist process; empty if they should not change.

    PyTensor locks a directory of compiled modules while it compiles one, so the processes use
    several directories. They are beside PyTensor's own, and the next run uses them again.

    Parameters
    ----------
    environment : mapping
        Environment, where ``DNNOPS_TEST_COMPILEDIRS`` is a folder for temporary directories.

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


# Before CUDA is first used, and before PyTensor is imported.
if _flags := flags_of_worker(os.environ):
    os.environ["PYTENSOR_FLAGS"] = _flags
    # Spinning threads would take time from the other process.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
if _gpu := gpu_of_worker(os.environ):
    os.environ["CUDA_VISIBLE_DEVICES"] = _gpu

# Before any test imports PyTensor, so that PyTensor knows the flags of dnnops.
import dnnops  # noqa: E402, F401
from dnnops.errors import DnnError  # noqa: E402
from tests import configurations_run, drawing, needs, skips  # noqa: E402
from tests.precompiled import precompiled  # noqa: E402
from tests.shared_modules import share_modules  # noqa: E402
from tests.stored_plans import no_stored_plans  # noqa: E402, F401


def share_libraries(shared: Path, own: Path, build: Callable[[], None]) -> None:
    """Build the runtime libraries once for the compile directories of all processes.

    Building them in each directory would take longer than most of the tests that wait for it.

    Parameters
    ----------
    shared : Path
        Folder where libraries are stored for other processes and later runs.
    own : Path
        Folder where this process looks for them.
    build : callable
        Builds missing libraries in `own`.
    """
    from filelock import FileLock

    shared.mkdir(parents=True, exist_ok=True)
    with FileLock(shared.with_name(f"{shared.name}.lock")):
        _copy_missing(shared, own)
        build()
        _copy_missing(own, shared)


def _copy_missing(source: Path, target: Path) -> None:
    """Copy the files of a folder that the target does not have."""
    for file in source.glob("*"):
        if file.is_file() and not (copy := target / file.name).exists():
            target.mkdir(mode=0o700, parents=True, exist_ok=True)
            shutil.copy2(file, copy)


def build_libraries() -> None:
    """Build the runtime libraries without loading them; tests report why one cannot be built."""
    from dnnops.runtime.build import CUDNN, ONEDNN

    for library in (CUDNN, ONEDNN):
        with suppress(DnnError):
            _ = library.path


#: Headers of every module and of every elementwise module, in PyTensor's order.
HEADERS = (
    *("Python.h", "pytensor_mod_helper.h", "math.h", "numpy/arrayobject.h"),
    *("numpy/arrayscalars.h", "numpy/npy_math.h", "vector", "algorithm"),
)


def flags_with_headers(folder: Path) -> str:
    """Return PyTensor's flags for the compiler, with the headers of all modules precompiled.

    Parameters
    ----------
    folder : Path
        Folder for the headers.

    Returns
    -------
    str
        ``gcc__cxxflags``.
    """
    from pytensor import config
    from pytensor.link.c.cmodule import GCC_compiler, std_include_dirs

    from dnnops.cpu.elemwise import OPENMP_ARGUMENTS

    if not config.cxx or set(" ,'\"\\") & set(str(folder)):
        return config.gcc__cxxflags
    text = "".join(f"#include <{name}>\n" for name in HEADERS)
    # GCC ignores a precompiled header unless options like these are those of the modules.
    arguments = ["-g", "-O3", "-fno-math-errno", *GCC_compiler.compile_args()]
    arguments += [f"-I{path}" for path in std_include_dirs()]
    versions = [sys.version, *(version(name) for name in ("numpy", "pytensor"))]
    variants = ((), OPENMP_ARGUMENTS)
    header = precompiled(folder, text, [config.cxx, *arguments], repr(versions), variants)
    return f"{config.gcc__cxxflags} -include {header}"


def flags_of_children() -> str:
    """Return the same flags for processes that tests start, with the options of the processor.

    PyTensor does not find these options if it has to include the headers: it looks for them without
    the headers' folders. Modules and the runtime library would be compiled again without them.
    """
    from pytensor import config
    from pytensor.link.c.cmodule import GCC_compiler

    return " ".join([config.gcc__cxxflags, *(GCC_compiler.march_flags or [])])


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
    config.gcc__cxxflags = flags_with_headers(Path(_shared) / "dnnops_test_headers")
    share_modules(Path(_shared) / "dnnops_test_modules")
    os.environ["PYTENSOR_FLAGS"] += f",gcc__cxxflags={flags_of_children()}"


if _folder := os.environ.get(configurations_run.FOLDER):
    _configurations = configurations_run.watch_all()


def pytest_addoption(parser: pytest.Parser) -> None:
    skips.add_option(parser)
    drawing.add_option(parser)


def pytest_configure(config: pytest.Config) -> None:
    import pytensor

    # Otherwise each variable stores the lines that created it, which takes a fifth of the time to
    # build a graph. Tests of those lines set the flag.
    pytensor.config.traceback__limit = 0
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(skips.SkipCounter(config), "skips of tests")


def pytest_collection_finish() -> None:
    """Exclude modules and tests, which stay in memory, from garbage collection."""
    gc.collect()
    gc.freeze()
    # A full collection takes up to 0.5 s and frees little, because PyTensor keeps much of each
    # graph. A tenth as many collections use 70 MB more.
    gc.set_threshold(*gc.get_threshold()[:2], 100)


def pytest_sessionfinish() -> None:
    """Store the configurations that ran for the command that counts them."""
    if _folder:
        _configurations.write(Path(_folder))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Print a failure on a GPU at once, because the run may not reach its end."""
    if report.failed and os.environ.get("DNNOPS_TEST_COMPILEDIRS"):
        print(f"\n{report.nodeid}\n{report.longreprtext[-REPORT_CHARACTERS:]}", flush=True)


# After pytest has deselected tests by their markers and names.
@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    skips.keep_skipped(config, items)
    needs.mark_missing(items)
    drawing.keep_drawn(config, items)
