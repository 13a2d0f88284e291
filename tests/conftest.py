"""Skips the tests that need a GPU where there is none, with the reason."""

from __future__ import annotations

from functools import lru_cache

import pytest

# Before any test imports PyTensor, so that the flags of dnnops are known to it.
import dnnops  # noqa: F401


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
