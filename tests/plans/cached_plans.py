"""Shared helpers for tests of plans on disk: a key, choices, a cache, warnings and failures."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from dnnops.errors import DnnWarning
from dnnops.plans.cache import CachedChoice, CachedPlan, PlanCache

KEY: dict[str, Any] = {
    "schema": 1,
    "gpu": "NVIDIA H200",
    "driver": "580.159.04",
    "cudnn": 91900,
    "policy": "time",
    "case": {
        "direction": "forward",
        "dtype": "float32",
        "compute": "float32",
        "groups": 1,
        "flip": 0,
        "stride": [1, 1],
        "dilation": [1, 1],
        "pad": [3, 3],
        "image": {"shape": [64, 128, 9, 9], "strides": [10368, 81, 9, 1], "alignment": 16},
        "filters": {"shape": [128, 128, 7, 7], "strides": [6272, 49, 7, 1], "alignment": 16},
        "allow_tf32": 0,
        "deterministic": False,
        "workspace_limit": -1,
        "beta": 0.0,
    },
}
CHOICE = CachedChoice(
    (
        CachedPlan("FFT_TILING", 3.640625, 123456),
        CachedPlan("engine7_k2=4_k18=0", 7.1, 0),
        CachedPlan("engine0", 36.125, 2**40),
    )
)


def key(number: int = 0) -> dict[str, Any]:
    return {**KEY, "number": number}


def choice(number: int) -> CachedChoice:
    return CachedChoice(((f"engine{number}_k1=-2", number + 0.5, number),))


@pytest.fixture(name="cache")
def cache_fixture(tmp_path: Path) -> PlanCache:
    return PlanCache(tmp_path / "deep" / "plans")


@pytest.fixture(autouse=True)
def warnings_are_errors() -> Iterator[None]:
    """Fail if there is a warning that the test does not expect."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", DnnWarning)
        yield


def one_warning(*parts: object) -> AbstractContextManager[None]:
    """Expect exactly one warning, which names the flag and contains these parts."""
    return _one_warning_at(sys._getframe(1).f_globals["__file__"], parts)


@contextmanager
def _one_warning_at(file: str, parts: tuple[object, ...]) -> Iterator[None]:
    with pytest.warns(DnnWarning) as caught:
        yield
    (warning,) = caught
    # The warning points at the cache's caller.
    assert warning.filename == file
    message = str(warning.message)
    for part in ("flag dnn.conv.cache", *parts):
        assert str(part) in message


def the_file(cache: PlanCache) -> Path:
    (file,) = cache.path.iterdir()
    return file


def failing(function: Any, number: int, only: Any = lambda *args: True) -> Any:
    """Make a function of os fail with an error number if its arguments match."""

    def fail(*args: Any, **kwargs: Any) -> Any:
        if only(*args):
            raise OSError(number, os.strerror(number))
        return function(*args, **kwargs)

    return fail


def numbers(cache: PlanCache) -> set[int]:
    return {entry.key["number"] for entry in cache.entries()}
