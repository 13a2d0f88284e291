"""What tests need besides the package's own requirements, and why it is missing.

A test declares it with ``@pytest.mark.needs("cudnn", "cupy")``, and is skipped with the reason if
one of them is missing. ``pytest.mark.gpu`` implies ``needs("gpu")``, ``pytest.mark.alone`` implies
``needs("one process")``, and both can be selected.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from dnnops.errors import DnnUnavailableError

__all__ = [
    "NEEDS",
    "SOURCES",
    "TUTORIALS",
    "UnknownNeedError",
    "mark_missing",
    "missing",
    "of_dtypes",
    "require",
]


class UnknownNeedError(pytest.UsageError):
    """Raised when a test needs something that is not in the table."""


def _packages(*names: str) -> Callable[[], str]:
    """Return a function that looks for packages without importing them."""

    def find() -> str:
        absent = [name for name in names if importlib.util.find_spec(name) is None]
        return f"not installed: {', '.join(absent)}" if absent else ""

    return find


def _one_of(*names: str) -> Callable[[], str]:
    """Return a function that looks for any of the packages."""

    def find() -> str:
        if any(importlib.util.find_spec(name) for name in names):
            return ""
        return f"none is installed of: {', '.join(names)}"

    return find


def _gpu(least: int = 1) -> str:
    try:
        import cupy
    except ImportError as error:
        return f"CuPy cannot be imported: {error}"
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return f"no CUDA device: {error}"
    return "" if count >= least else f"{count or 'no'} CUDA device"


def _one_process() -> str:
    others = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1)) - 1
    return f"{others} other processes run tests; use -n 0" if others else ""


def _nvrtc() -> str:
    try:
        from cupy.cuda import nvrtc

        nvrtc.getVersion()
    except ImportError as error:
        return f"NVRTC cannot be loaded through CuPy: {error}"
    return _libraries("find_cuda")()


def _avx512() -> str:
    # Not dnnops' own answer: if that were wrong, tests would be skipped instead of failing.
    found = re.search(r"\bavx512f\b", Path("/proc/cpuinfo").read_text())
    return "" if found else "the processor has no AVX-512"


def _libraries(*finders: str) -> Callable[[], str]:
    """Return a function that looks for libraries and headers with `dnnops.runtime.find`."""

    def find() -> str:
        from dnnops.runtime import find as places

        try:
            for finder in finders:
                getattr(places, finder)()
        except DnnUnavailableError as error:
            return str(error)
        return ""

    return find


#: Where ``make`` unpacks source distributions; wheels have no tests.
SOURCES = Path(os.environ.get("DNNOPS_TEST_SOURCES", sys.prefix))
#: The folder ``code`` of the Deep Learning Tutorials.
TUTORIALS = Path(os.environ.get("TUTORIALS", "not given"))


def _source(name: str, target: str, *packages: str) -> Callable[[], str]:
    """Return a function that looks for a source distribution and the packages of its tests."""

    def find() -> str:
        if not (SOURCES / name).is_dir():
            return f"its source distribution is not in {SOURCES / name} (make {target})"
        return _packages(*packages)()

    return find


#: What markers other than ``needs`` imply.
IMPLIED = {"gpu": "gpu", "alone": "one process"}

#: Functions by need. Each returns why the need is missing, or "" if it is there. An exception stops
#: the run, because then nobody knows whether it is there.
NEEDS: dict[str, Callable[[], str]] = {
    "gpu": _gpu,
    "two gpus": lambda: _gpu(2),
    # The runtime library is compiled for the instructions that the processor supports.
    "avx512": _avx512,
    "one process": _one_process,
    "no gpu": lambda: "" if missing("gpu") else "there is a GPU",
    # Headers and libraries of cuDNN and CUDA, to compile and link the cuDNN Ops.
    "cudnn": _libraries("find_cudnn", "find_cuda"),
    "cupy": _packages("cupy"),
    # CUDA's compiler and headers; no GPU is necessary.
    "nvrtc": _nvrtc,
    "ml_dtypes": _packages("ml_dtypes"),
    "pymc": _packages("pymc"),
    "fastapi": _packages("fastapi", "httpx"),
    "pynvml": _packages("pynvml"),
    "torch": _packages("torch"),
    "jax": _packages("jax"),
    "torch or jax": _one_of("torch", "jax"),
    "matplotlib": _packages("matplotlib"),
    "sklearn": _packages("sklearn"),
    "ruff": _packages("ruff"),
    "xdist": _packages("xdist"),
    "git": lambda: "" if shutil.which("git") else "Git is not installed",
    "root": lambda: "" if os.geteuid() == 0 else "only root may do that",
    "no root": lambda: "root may write everywhere" if os.geteuid() == 0 else "",
    "Lasagne": _source("Lasagne-0.1", "test-lasagne", "mock"),
    "Keras": _source("Keras-2.3.1", "test-keras", "h5py", "keras_preprocessing", "six"),
    "Theano": _source("Theano-1.0.5", "test-theano", "parameterized", "six"),
    "tutorials": lambda: (
        _packages("PIL", "six")()
        if (TUTORIALS / "logistic_sgd.py").is_file()
        else "make test-tutorials TUTORIALS=path/to/DeepLearningTutorials/code"
    ),
    "checkout": lambda: (
        "" if Path(__file__).parents[1].joinpath("setup.cfg").exists() else "not a checkout"
    ),
}


@cache
def missing(name: str) -> str:
    """Return why something is missing; empty if it is there.

    Parameters
    ----------
    name : str
        A key of :data:`NEEDS`.

    Raises
    ------
    UnknownNeedError
        If `name` is not in the table.
    """
    if name not in NEEDS:
        raise UnknownNeedError(f"tests/needs.py does not know {name!r}; it has {sorted(NEEDS)}")
    return NEEDS[name]()


def _reasons(names: tuple[str, ...]) -> Iterator[str]:
    for name in names:
        if reason := missing(name):
            yield f"needs {name}: {reason}"


def of_dtypes(*names: str, quick: str = "") -> list[Any]:
    """Return ``parametrize`` arguments for dtypes; bfloat16 needs ``ml_dtypes``.

    If `quick` is given, the tests of all other dtypes are slow.
    """
    return [
        pytest.param(
            name,
            marks=[
                *([pytest.mark.needs("ml_dtypes")] if name == "bfloat16" else []),
                *([pytest.mark.slow] if quick not in ("", name) else []),
            ],
        )
        for name in names
    ]


def require(*names: str) -> None:
    """Skip the running test if something is missing that only its last part needs."""
    for reason in _reasons(names):
        pytest.skip(reason)


def mark_missing(items: list[pytest.Item]) -> None:
    """Skip tests with missing needs, and give the reason.

    Raises
    ------
    UnknownNeedError
        If a need is not in the table; the message names the test.
    """
    for item in items:
        names = dict.fromkeys(
            [
                *(need for name, need in IMPLIED.items() if item.get_closest_marker(name)),
                *(name for marker in item.iter_markers("needs") for name in marker.args),
            ]
        )
        try:
            reason = next(_reasons(tuple(names)), None)
        except UnknownNeedError as error:
            raise UnknownNeedError(f"{item.nodeid}: {error}") from None
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))
