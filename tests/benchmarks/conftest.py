"""What the benchmarks' tests share."""

from __future__ import annotations

import pytest

from benchmarks.peers.device_timer import build


@pytest.fixture(scope="session")
def timer(tmp_path_factory) -> str:
    """The path of `device_timer`'s library, by the host's clock; JAX takes one in a process."""
    return str(build(tmp_path_factory.mktemp("timer"), cuda=False)[0])
