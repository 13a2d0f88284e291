"""Shared settings of the tests of rewrites."""

from __future__ import annotations

from collections.abc import Iterator

import pytensor
import pytest


@pytest.fixture
def float32_numbers() -> Iterator[None]:
    """Make constants such as ``1e-4`` float32 in float32 expressions."""
    with pytensor.config.change_flags(floatX="float32"):
        yield
