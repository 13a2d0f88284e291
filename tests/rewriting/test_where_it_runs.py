"""What mode CUDNN moves to the GPU, what mode DNN does not, and what stays without cuDNN."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import get_mode
from pytensor.graph.fg import Output
from pytensor.tensor.shape import SpecifyShape

from dnnops import nnet
from dnnops.dnn import GpuDnnSoftmax
from dnnops.gpuarray import GpuArrayType
from dnnops.gpuarray.op import is_on_device
from dnnops.gpuarray.transfer import GpuFromHost, HostFromGpu
from dnnops.modes import CudnnMode, DnnMode
from tests.gpuarray.graphs import ops, rewritten


@pytest.fixture(autouse=True)
def without_probing():
    """Rewrite as if cuDNN worked, even on machines without a GPU."""
    with pytensor.config.change_flags(dnn__enabled="no_check"):
        yield


ONES = np.ones(2, "float32")


def image(dtype="float32", shape=(None,) * 4):
    return pt.tensor(dtype=dtype, shape=shape)


def ctc(x):
    return nnet.ctc(x[0], np.array([[1, 2]]), np.array([3]))


#: Functions of one image, and the Op that computes them on the GPU.
ALONE = {
    "pooling": (lambda x: nnet.pool_2d(x, (2, 2), True), "GpuDnnPool"),
    "pooling with a border": (lambda x: nnet.pool_2d(x, (2, 2), False), "GpuPool"),
    "softmax": (lambda x: pt.special.softmax(x, axis=1), "GpuDnnSoftmax"),
    "log-softmax": (lambda x: pt.special.log_softmax(x, axis=3), "GpuDnnSoftmax"),
    "batch normalization": (
        lambda x: nnet.batch_normalization_train(x, ONES, ONES, "spatial")[0],
        "GpuDnnBatchNorm",
    ),
    "its inference": (
        lambda x: nnet.batch_normalization_test(x, *[ONES] * 4, "spatial"),
        "GpuDnnBatchNormInference",
    ),
    "response normalization": (nnet.local_response_normalization, "GpuDnnLRN"),
    "divisive normalization": (nnet.divisive_normalization, "GpuWindowSum"),
    "dropout": (lambda x: nnet.dropout(x, 0.5, state=pt.constant([1, 0]))[0], "GpuDnnDropoutOp"),
    "ctc": (ctc, "GpuCTC"),
    "spatial transformer": (
        lambda x: nnet.spatial_transformer(x, pt.zeros((2, 2, 3), dtype=x.dtype)),
        "GpuTransformerSampler",
    ),
    "relu": (nnet.relu, "GpuElemwise"),
    "attention": (lambda x: nnet.scaled_dot_product_attention(x, x, x), "GpuBatchedDot"),
    "elementwise": (lambda x: pt.exp(x) + 1, "GpuElemwise"),
    "sum": (lambda x: x.sum(axis=1), "GpuCAReduce"),
}


@pytest.mark.parametrize(("function", "op"), ALONE.values(), ids=ALONE)
def test_cudnn_moves_all_that_it_can(function, op):
    """With inputs on the host, transfers are only at inputs and outputs."""
    x = image(shape=(None, 2, None, None))
    graph = rewritten([x], [function(x)], CudnnMode())
    assert op in ops(graph)
    for node in graph.toposort():
        if isinstance(node.op, HostFromGpu):
            clients = [c.op for c, _ in graph.clients[node.outputs[0]]]
            assert all(isinstance(client, Output | SpecifyShape) for client in clients)
        elif not isinstance(node.op, GpuFromHost):
            floats = [z for z in node.outputs if z.type.ndim and "float" in z.type.dtype]
            # A constant may be made on the host and moved.
            assert all(is_on_device(z) for z in floats) or not any(
                is_on_device(y) for y in node.inputs
            )


def test_dnn_weighs_the_transfer():
    """A pooling does not move to the GPU if its image is on the host; a convolution does."""
    x = image()
    assert "GpuDnnPool" not in ops(rewritten([x], [nnet.pool_2d(x, (2, 2), True)], DnnMode()))
    w = image()
    pooled = nnet.pool_2d(nnet.conv2d(x, w), (2, 2), True)
    assert {"GpuDnnConv", "GpuDnnPool"} <= set(ops(rewritten([x, w], [pooled], DnnMode())))


def test_half_precision_softmax():
    """There is no cast, and no oneDNN Op."""
    x = pt.matrix(dtype="float16")
    graph = rewritten([x], [pt.special.softmax(x, axis=1)], CudnnMode())
    assert ops(graph) == ["GpuFromHost", "GpuDnnSoftmax", "HostFromGpu"]
    (node,) = [n for n in graph.toposort() if isinstance(n.op, GpuDnnSoftmax)]
    assert node.inputs[0].type.dtype == "float16"


def test_ops_without_cudnn_stay_on_the_gpu():
    """Batch normalization, pooling, dropout, cross-entropy and so on, with their gradients."""
    mode = get_mode("CVM").including("gpu").excluding("onednn", "cudnn")
    x = GpuArrayType("float32", (None, 2, None, None))()
    gamma, beta = (GpuArrayType("float32", (2,))() for _ in range(2))
    host = pt.as_tensor_variable(x)
    normal = nnet.batch_normalization_train(host, gamma, beta, "spatial")[0]
    tested = nnet.batch_normalization_test(host, gamma, beta, gamma, gamma, "spatial")
    dropped = nnet.dropout(nnet.pool_2d(normal, (2, 2), True), 0.5, state=pt.constant([1, 0]))[0]
    turned = nnet.spatial_transformer(dropped, pt.zeros((2, 2, 3), dtype="float32"))
    scores = turned.flatten(2)
    loss = nnet.cross_entropy(scores, pt.zeros(scores.shape[0], dtype="int64")).sum()
    loss += tested.sum() + nnet.local_response_normalization(host).sum()
    graph = rewritten([x, gamma, beta], pytensor.grad(loss, [x, gamma, beta]), mode)
    assert {
        "GpuDnnBatchNorm", "GpuDnnBatchNormGrad", "GpuDnnDropoutGrad", "GpuPoolGrad",
        "GpuTransformerGradI", "GpuCrossEntropyGrad",
    } <= set(ops(graph))  # fmt: skip
    left = [n for n in graph.toposort() if isinstance(n.op, HostFromGpu)]
    clients = [c.op for n in left for c, _ in graph.clients[n.outputs[0]]]
    assert all(isinstance(op, Output) for op in clients), clients


def test_excluded_from_mode_cudnn():
    """With cuDNN excluded, everything that can still moves."""
    x = image(shape=(None, 2, None, None))
    out = nnet.batch_normalization_train(x, ONES, ONES, "spatial")[0]
    pooled = nnet.pool_2d(out, (2, 2), True)
    names = ops(rewritten([x], [pooled], CudnnMode().excluding("cudnn")))
    assert {"GpuDnnBatchNorm", "GpuPool"} <= set(names)
    assert "GpuDnnPool" not in names
