"""A fixture that hides stored plan selections from tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pytensor import config


@pytest.fixture
def no_stored_plans() -> Iterator[None]:
    """Neither read selections of other processes, nor store those of this one."""
    with config.change_flags(dnn__conv__cache="off"):
        yield
