"""Settings that tests of rewrites share."""

from __future__ import annotations

from collections.abc import Iterator

import pytensor
import pytest


@pytest.fixture
def float32_numbers() -> Iterator[None]:
    """``1e-4`` is a float32 beside one."""
    with pytensor.config.change_flags(floatX="float32"):
        yield
