"""PyTensor's modes for debugging check graphs with nodes of dnnops, on the host and on a GPU."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.debug.debugmode import DebugMode
from pytensor.compile.debug.nanguardmode import NanGuardMode
from pytensor.graph.rewriting.db import RewriteDatabaseQuery

from dnnops import nnet
from dnnops.gpuarray import shared
from dnnops.gpuarray.op import is_on_device

TAGS = {"cpu": ["fast_run", "onednn"], "gpu": ["fast_run", "gpu", "cudnn"]}


@pytest.fixture(params=["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def device(request) -> str:
    return request.param


def query(device: str) -> RewriteDatabaseQuery:
    return RewriteDatabaseQuery(include=TAGS[device])


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype("float32")


def step(device: str, mode) -> pytensor.compile.executor.Function:
    """Compile a training step of a small convolutional network."""
    make = shared if device == "gpu" else pytensor.shared
    x, y = pt.tensor4("x", dtype="float32"), pt.lvector("y")
    w, u = make(normal(4, 3, 3, 3)), make(normal(4, 5))
    z = nnet.pool_2d(nnet.relu(nnet.conv2d(x, w)), (2, 2), ignore_border=True)
    loss = nnet.cross_entropy(z.mean(axis=(2, 3)) @ u, y).mean()
    updates = [
        (p, p.type.filter_variable(p - np.float32(0.1) * g))
        for p, g in zip((w, u), pytensor.grad(loss, [w, u]), strict=True)
    ]
    f = pytensor.function([x, y], loss, updates=updates, mode=mode)
    nodes = f.maker.fgraph.toposort()
    assert any("Dnn" in type(node.op).__name__ for node in nodes)
    assert any(map(is_on_device, f.maker.fgraph.variables)) == (device == "gpu")
    return f


def test_debug_mode_accepts_a_training_step(device):
    images, labels = normal(2, 3, 8, 8), np.array([1, 4])
    plain = step(device, pytensor.compile.mode.Mode("cvm", query(device)))
    checked = step(device, DebugMode(optimizer=query(device), stability_patience=2))
    for _ in range(2):
        np.testing.assert_allclose(
            checked(images, labels), plain(images, labels), rtol=1e-4, atol=1e-5
        )


def test_nan_guard_mode_finds_the_node(device):
    guarded = step(device, NanGuardMode(True, True, True, optimizer=query(device)))
    images, labels = normal(2, 3, 8, 8), np.array([1, 4])
    assert np.isfinite(guarded(images, labels))
    with pytest.raises(AssertionError, match="NaN detected"):
        guarded(images * np.float32("nan"), labels)
    with pytest.raises(AssertionError, match=r"(Inf|Big value) detected"):
        guarded(images * np.float32(1e38), labels)


def test_nan_guard_mode_names_the_operation(device):
    x = pt.fmatrix("x")
    out = pt.log(nnet.softmax(x) - 1)
    f = pytensor.function([x], out, mode=NanGuardMode(True, False, False, optimizer=query(device)))
    with pytest.raises(AssertionError, match="found an error in the output of a node"):
        f(normal(3, 4))
