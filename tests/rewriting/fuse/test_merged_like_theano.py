"""Fusions and in-place Ops as in Theano: convolutions on cuDNN, and softmax."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import dfs_rewriter

from dnnops import dnn, nnet
from dnnops.capture.schedule import schedule
from dnnops.gpu.base import CudnnOp
from dnnops.gpuarray import GpuArrayType
from dnnops.gpuarray.basic import GpuAllocEmpty
from dnnops.gpuarray.op import depends_on_values, is_on_device
from dnnops.modes import CudnnMode
from dnnops.rewriting.gpu.softmax import (
    local_gradient_of_log_of_softmax,
    local_log_of_softmax,
)
from tests.emulation.host_graphs import on_host
from tests.gpuarray.graphs import ops, rewritten
from tests.oracle import PERFORM_MODE, assert_close

MODE = CudnnMode()


@pytest.fixture(autouse=True)
def without_probing():
    """Rewrite as if cuDNN worked, even on machines without a GPU."""
    with pytensor.config.change_flags(dnn__enabled="no_check"):
        yield


def device(ndim=4, dtype="float32"):
    return GpuArrayType(dtype, (None,) * ndim)()


X, W = (
    np.random.default_rng(i).standard_normal(shape).astype("float32")
    for i, shape in enumerate(((2, 3, 6, 6), (4, 3, 3, 3)))
)
RATE = np.array(0.3, "float32")


@pytest.mark.parametrize(
    ("form", "alpha", "beta"),
    [
        (lambda c, out, r: r * (c + out), 0.3, 0.3),
        (lambda c, out, r: (out - c) * r, -0.3, 0.3),
        (lambda c, out, r: -(c - np.float32(2) * out), -1, 2),
        (lambda c, out, r: (c + out) / np.float32(4), 0.25, 0.25),
        (lambda c, out, r: r * (np.float32(2) * c + out * np.float32(3)), 0.6, 0.9),
        (lambda c, out, r: r * c, 0.3, None),
    ],
)
def test_factors_of_sums(form, alpha, beta):
    """A single convolution scales its result and its addend."""
    for make, first, second in (
        (nnet.conv2d, X, W),
        (
            lambda w, g: nnet.conv2d_grad_wrt_inputs(g, w, (None, None, 6, 6)),
            W,
            np.ones((2, 4, 4, 4), "float32"),
        ),
        (
            lambda x, g: nnet.conv2d_grad_wrt_weights(x, g, (None, None, 3, 3)),
            X,
            np.ones((2, 4, 4, 4), "float32"),
        ),
    ):
        variables = [pt.tensor4(dtype="float32") for _ in range(3)]
        conv = make(*variables[:2])
        graph = rewritten(variables, [form(conv, variables[2], RATE)], MODE)
        (node,) = [n for n in graph.toposort() if "GpuDnnConv" in type(n.op).__name__]
        assert node.op.accumulate == (beta is not None)
        assert not {"GpuElemwise", "Elemwise"} & {
            type(n.op).__name__ for n in graph.toposort() if any(z.type.ndim for z in n.outputs)
        }
        plain = pytensor.function(variables[:2], conv, mode=PERFORM_MODE)(first, second)
        addend = np.random.default_rng(3).standard_normal(plain.shape).astype("float32")
        reference = alpha * plain.astype("float64") + (beta or 0) * addend
        (found,) = _computed(graph, [first, second, addend])
        assert_close(found, reference, bound=1e-5)


@pytest.mark.parametrize("kind", ["GpuDnnConv", "GpuDnnConvGradW", "GpuDnnConvGradI", "add"])
def test_factors_that_may_change_are_not_part_of_the_call(kind):
    """cuDNN would read them on the host, where a captured graph cannot."""
    arrays = [pt.tensor4(dtype="float32") for _ in range(3)]
    first, second, out = arrays
    factors = pt.fscalar("alpha"), pt.dscalar("beta")
    if kind == "add":
        result = dnn.dnn_add(first, out, *factors)
    else:
        sizes = () if kind == "GpuDnnConv" else (np.array([3, 3]),)
        result = getattr(dnn, kind)(border_mode="half")(first, second, *sizes, *factors, out)
    graph = rewritten([*arrays, *factors], [result], MODE)
    order = graph.toposort()
    operands = [x for node in order if isinstance(node.op, CudnnOp) for x in node.inputs]
    assert not depends_on_values(x for x in operands if not is_on_device(x))
    assert schedule(graph, order, [None] * len(order)).by_value == ()
    assert sum(type(node.op).__name__ == "GpuElemwise" for node in order) == 1
    if kind != "GpuDnnConv":
        return
    x, w, z = X, W[:3], np.random.default_rng(2).standard_normal(X.shape).astype("float32")
    (plain,) = _computed(rewritten(arrays[:2], [nnet.conv2d(first, second, border_mode="half")],
                                   MODE), [x, w])  # fmt: skip
    for alpha, beta in ((0.5, 2.0), (-1.0, 0.0)):
        addend = z if beta else z * np.float32(np.nan)
        (found,) = _computed(graph, [x, w, addend, np.float32(alpha), beta])
        reference = alpha * plain.astype("float64") + (beta * z if beta else 0)
        assert_close(found, reference, bound=1e-5)


def _computed(graph, values):
    """Return the value of a graph whose only device Ops are convolutions."""
    hosts = on_host(list(graph.outputs))
    return pytensor.function(
        list(graph.inputs), hosts, mode=PERFORM_MODE, on_unused_input="ignore"
    )(*values)


def test_a_sum_with_other_uses_stays():
    """If it were merged, the sum would be computed twice."""
    x, w, out = (pt.tensor4(dtype="float32") for _ in range(3))
    total = nnet.conv2d(x, w) + out
    graph = rewritten([x, w, out], [total * np.float32(3), total.sum(axis=1)], MODE)
    (node,) = [n for n in graph.toposort() if type(n.op).__name__ == "GpuDnnConv"]
    assert "GpuElemwise" in ops(graph)
    assert np.float64(3) not in [getattr(x, "data", None) for x in node.inputs]


@pytest.mark.parametrize("algo", ["accurate", "fast"])
def test_logarithm_of_a_softmax(algo):
    """Also if it underflows to zero: the logarithm and its gradient are finite."""
    x = GpuArrayType("float64", (None,) * 4)()
    out = pt.log(dnn.GpuDnnSoftmax(algo, "channel")(x))
    weights = np.arange(24.0).reshape(2, 3, 2, 2)
    for cost in (out.sum(), (out * weights).sum()):
        graph = rewritten([x], [out, pytensor.grad(cost, x)], MODE)
        algos = {n.op.algo for n in graph.toposort() if "Softmax" in type(n.op).__name__}
        assert algos == {"log"}, ops(graph)
        assert "GpuDnnSoftmaxGrad" in ops(graph)


def test_numbers_of_a_logarithm_of_a_softmax():
    host = pt.tensor4(dtype="float64")
    out = pt.log(dnn.GpuDnnSoftmax("accurate", "channel")(host))
    weights = np.random.default_rng(0).standard_normal((2, 3, 2, 2))
    outputs = [out, pytensor.grad((out * weights).sum(), host)]
    graph = FunctionGraph([host], outputs, clone=True)
    for rewriter in (local_log_of_softmax, local_gradient_of_log_of_softmax):
        dfs_rewriter(rewriter).rewrite(graph)
    x = np.zeros((2, 3, 2, 2))
    x[:, 0] = 2000
    found, slopes = pytensor.function([graph.inputs[0]], on_host(list(graph.outputs)),
                                      mode=PERFORM_MODE)(x)  # fmt: skip
    np.testing.assert_allclose(found[:, 1], -2000)
    share = np.zeros_like(x)
    share[:, 0] = 1
    np.testing.assert_allclose(
        slopes, weights - share * weights.sum(axis=1, keepdims=True), atol=1e-12
    )


@pytest.mark.parametrize("kind", ["GpuDnnConv", "GpuDnnConvGradW", "GpuDnnConvGradI"])
def test_two_convolutions_into_preallocated_outputs(kind):
    """Equal allocations are merged; each convolution gets its own again, and writes into it."""
    first, second = device(), device()
    size = pt.lscalar()
    shape = () if kind == "GpuDnnConv" else (pt.stack([size, size]),)
    results = []
    for flip in (True, False):
        out = GpuAllocEmpty("float32")(*(size,) * 4)
        op = getattr(dnn, kind)(filter_flip=flip)
        results.append(op(first, second, *shape, 1.0, 0.0, out))
    graph = rewritten([first, second, size], results, MODE)
    found = [n for n in graph.toposort() if type(n.op).__name__ == kind]
    assert len(found) == 2
    assert all(node.op.inplace for node in found)
    assert ops(graph).count("GpuAllocEmpty") == 2
