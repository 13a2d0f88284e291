"""Shared settings of the tests of rewrites."""

from __future__ import annotations

from collections.abc import Iterator

import pytensor
import pytest
from pytensor.tensor.elemwise import Elemwise

from dnnops.gpuarray.elemwise import GpuElemwise


@pytest.fixture(autouse=True)
def failing_rewrites_raise() -> Iterator[None]:
    """Let the error of a rewrite fail a test; PyTensor only logs it by default."""
    with pytensor.config.change_flags(on_opt_error="raise"):
        yield


@pytest.fixture
def float32_numbers() -> Iterator[None]:
    """Make constants such as ``1e-4`` float32 in float32 expressions."""
    with pytensor.config.change_flags(floatX="float32"):
        yield


@pytest.fixture
def lowered_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let elementwise Ops of the device run on the host as they are."""
    monkeypatch.setattr(
        GpuElemwise,
        "host_expressions",
        lambda op, *x: Elemwise(op.scalar_op).make_node(*x).outputs,
    )
