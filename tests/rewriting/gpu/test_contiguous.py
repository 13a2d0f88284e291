"""Transposed arrays that several Ops read are copied once."""

from __future__ import annotations

import pytensor
import pytest

from dnnops.gpuarray import GpuArrayType
from dnnops.gpuarray.transfer import host_from_gpu
from dnnops.modes import CudnnMode
from tests.gpuarray.graphs import ops, rewritten


@pytest.fixture(autouse=True)
def without_probing():
    """Rewrite as if cuDNN worked, even on machines without a GPU."""
    with pytensor.config.change_flags(dnn__enabled="no_check"):
        yield


def copies(build):
    """Return how many copies a graph of two arrays (batch, steps, heads, depth) has."""
    x, y = (GpuArrayType("float32", (None, 5, 4, 8))() for _ in range(2))
    outputs = build(host_from_gpu(x), host_from_gpu(y))
    return ops(rewritten([x, y], [z.transfer("cuda") for z in outputs], CudnnMode())).count(
        "GpuContiguous"
    )


def heads(x):
    return x.transpose(0, 2, 1, 3)


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        # The heads of attention: a copy of each operand, although several products read them.
        (
            lambda x, y: [
                heads(x) @ heads(y).swapaxes(2, 3),
                heads(y).swapaxes(2, 3) * 2 @ heads(x),
            ],
            2,
        ),
        (lambda x, y: [heads(x).reshape((-1, 8)), heads(x).reshape((-1, 40))], 1),
        # Products read transposed matrices, and elementwise Ops read any order.
        (lambda x, y: [x.swapaxes(2, 3) @ y], 0),
        (lambda x, y: [heads(x) * 2 + heads(y)], 0),
        (lambda x, y: [heads(x).sum(axis=3)], 0),
    ],
)
def test_copies(build, expected):
    assert copies(build) == expected
