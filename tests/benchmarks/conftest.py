"""Fixtures of the benchmarks' tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from benchmarks.peers.device_timer import build


@pytest.fixture(autouse=True)
def gradients_on_again() -> Iterator[None]:
    """Undo the changes of `benchmarks.peers.conv_torch` to the process that other tests share."""
    yield
    if torch := sys.modules.get("torch"):
        torch.set_grad_enabled(True)


@pytest.fixture(scope="session")
def timer(tmp_path_factory) -> str:
    """Return the path of a `device_timer` for the host's clock; JAX loads only one per process."""
    return str(build(tmp_path_factory.mktemp("timer"), cuda=False)[0])
