"""Explanations of functions on a GPU."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import dnnops
from dnnops import nnet
from dnnops.gpuarray import GpuArrayType, shared

pytestmark = pytest.mark.gpu

BATCH = (32, 3, 24, 24)


def training_step():
    """A step of a small network whose data, parameters and loss are on the device."""
    rng = np.random.default_rng(0)

    def normal(*shape, scale=0.05):
        return shared((scale * rng.standard_normal(shape)).astype("float32"))

    images, target = normal(*BATCH, scale=1), normal(BATCH[0], 10, scale=1)
    w, v, u = normal(16, 3, 5, 5), normal(16, 16, 3, 3), normal(16 * 9 * 9, 10)
    y = nnet.relu(nnet.conv2d(pt.as_tensor_variable(images), w, border_mode="half"))
    y = nnet.pool_2d(y, (2, 2), True)
    y = nnet.relu(nnet.conv2d(y, v))
    y = y[:, :, :9, :9].flatten(2)
    probabilities = pt.special.softmax(y @ pt.as_tensor_variable(u), axis=1)
    # Not the mean: its size is unknown, and would be transferred.
    loss = pt.sqr(probabilities - pt.as_tensor_variable(target)).sum() / np.float32(10 * BATCH[0])
    parameters = [w, v, u]
    gradients = pytensor.grad(loss, parameters)
    updates = {
        p: (pt.as_tensor_variable(p) - np.float32(0.1) * g).transfer("cuda")
        for p, g in zip(parameters, gradients, strict=True)
    }
    outputs = loss.transfer("cuda")
    return pytensor.function([], outputs, updates=updates, mode="CUDNN", name="step"), parameters


def test_no_transfers_in_a_training_step():
    f, _ = training_step()
    e = dnnops.explain(f, calls=3)
    assert e.transfers == ()
    assert {"GpuDnnConv", "GpuDnnConvGradW", "GpuDnnPool"} <= {node.op for node in e.nodes}
    # Sizes may be computed on the host, but no arrays.
    for node in e.between:
        assert all(x.shape is None or len(x.shape) < 2 for x in node.outputs), node
    assert all(node.calls == 3 for node in e.nodes)
    convolutions = [node for node in e.nodes if node.op.startswith("GpuDnnConv")]
    assert all(node.plan and node.time_ms > 0 for node in convolutions)
    assert e.peak_bytes > 32 * 16 * 24 * 24 * 4


def test_shared_variables_keep_their_values():
    f, states = training_step()
    f()
    before = [np.asarray(x.get_value()) for x in states]
    dnnops.explain(f, calls=2)
    for x, value in zip(states, before, strict=True):
        np.testing.assert_array_equal(np.asarray(x.get_value()), value)
    f()
    assert any(
        not np.array_equal(np.asarray(x.get_value()), value)
        for x, value in zip(states, before, strict=True)
    )


def test_transfers_are_listed():
    x = pt.matrix("x", dtype="float32")
    w = shared(np.ones((50, 70), "float32"))
    f = pytensor.function([x], pt.tanh(x @ pt.as_tensor_variable(w)), mode="CUDNN")
    e = dnnops.explain(f, np.ones((20, 50), "float32"), calls=2)
    assert [node.transfer for node in e.transfers] == ["to device", "to host"]
    assert [node.moved_bytes for node in e.transfers] == [20 * 50 * 4, 20 * 70 * 4]
    assert all(node.time_ms > 0 for node in e.transfers)
    assert not e.between


def test_a_large_product_takes_the_time():
    """Events measure the device's time, not that of the launch."""
    x = GpuArrayType("float32", (None, None))("x")
    y = pt.as_tensor_variable(x)
    f = pytensor.function([x], (y @ y).sum().transfer("cuda"), mode="CUDNN")
    import cupy

    e = dnnops.explain(f, cupy.ones((6000, 6000), "float32"), calls=3)
    slowest = max(e.nodes, key=lambda node: node.time_ms or 0)
    assert "Dot" in slowest.op or "Gemm" in slowest.op
    # 432 GFLOP at less than 1000 TFLOP/s.
    assert slowest.time_ms > 0.4


def test_reductions_of_short_rows_are_left_to_cupy():
    import cupy

    x = GpuArrayType("float32", (None, None))("x")
    f = pytensor.function([x], pt.sum(x, axis=1).transfer("cuda"), mode="CUDNN")
    for length, library in ((20, "CuPy"), (4096, "dnnops")):
        e = dnnops.explain(f, cupy.ones((100, length), "float32"), calls=1)
        assert [node.library for node in e.nodes] == [library]


def test_libraries_without_prepared_calls():
    import cupy

    x = GpuArrayType("float32", (None,))("x")
    for prepared, library in ((True, "dnnops"), (False, "CuPy")):
        with pytensor.config.change_flags(dnn__prepared_calls=prepared):
            f = pytensor.function([x], pt.exp(x).transfer("cuda"), mode="CUDNN")
        e = dnnops.explain(f, cupy.ones(4, "float32"), calls=1)
        assert [node.library for node in e.nodes] == [library]
