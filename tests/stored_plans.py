"""A fixture that keeps the selections of earlier processes away from tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pytensor import config


@pytest.fixture
def no_stored_plans() -> Iterator[None]:
    """Neither read what other processes chose, nor write what this one chooses."""
    with config.change_flags(dnn__conv__cache="off"):
        yield
