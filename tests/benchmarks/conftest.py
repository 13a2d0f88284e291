"""What the benchmarks' tests share."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from benchmarks.peers.device_timer import build


@pytest.fixture(autouse=True)
def gradients_on_again() -> Iterator[None]:
    """Undo what `benchmarks.peers.conv_torch` does to its process, which the other tests share."""
    yield
    if torch := sys.modules.get("torch"):
        torch.set_grad_enabled(True)


@pytest.fixture(scope="session")
def timer(tmp_path_factory) -> str:
    """The path of `device_timer`'s library, by the host's clock; JAX takes one in a process."""
    return str(build(tmp_path_factory.mktemp("timer"), cuda=False)[0])
