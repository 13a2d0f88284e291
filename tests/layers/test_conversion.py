"""Layers and graphs that a chosen library runs."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.utils import is_same_graph
from pytensor.graph.traversal import ancestors

from dnnops import layers, nnet
from dnnops.errors import DnnTypeError, DnnUnavailableError, DnnValueError
from dnnops.gpuarray.op import is_on_device
from dnnops.rewriting.registry import is_abstract
from tests.oracle import PERFORM_MODE


@pytest.fixture
def cudnn_without_probing():
    with pytensor.config.change_flags(dnn__enabled="no_check"):
        yield


def network() -> layers.Sequential:
    """Return the network of cudnn.torch's page."""
    net = layers.Sequential()
    net.add(layers.SpatialConvolution(3, 96, 11, 11, 3, 3, dtype="float32"))
    return net.add(layers.ReLU())


def ops(*outputs) -> list[str]:
    nodes = {x.owner for x in ancestors(outputs) if x.owner is not None}
    return sorted(type(node.op).__name__ for node in nodes)


def image(dtype: str = "float32"):
    return pt.tensor("x", dtype=dtype, shape=(2, 3, 20, 20))


def is_relu(layer) -> bool:
    return "ReLU" in type(layer).__name__


def test_the_examples_of_cudnn_torch():
    assert repr(layers.convert(network(), "cudnn")) == (
        "nn.Sequential {\n"
        "  [input -> (0) -> (1) -> output]\n"
        "  (0): cudnn.SpatialConvolution(3 -> 96, 11x11, 3,3)\n"
        "  (1): cudnn.ReLU\n"
        "}"
    )
    assert repr(layers.convert(network(), "cudnn", is_relu)) == (
        "nn.Sequential {\n"
        "  [input -> (0) -> (1) -> output]\n"
        "  (0): cudnn.SpatialConvolution(3 -> 96, 11x11, 3,3)\n"
        "  (1): nn.ReLU\n"
        "}"
    )


def test_layers_change_in_place_and_back():
    net, x = network(), image()
    parameters = net.parameters()
    assert layers.convert(net, "onednn") is net
    assert [layer.library for layer in net] == ["onednn", "onednn"]
    out = net(x)
    assert "OneDnnConv" in ops(out)
    assert all(p is q for p, q in zip(net.parameters(), parameters, strict=True))
    assert "OneDnnConv" in ops(copy.deepcopy(net)(x))
    assert "OneDnnConv" in ops(pickle.loads(pickle.dumps(net))(x))
    plain = layers.convert(net, "abstract")(x)
    assert "OneDnnConv" not in ops(plain)
    value = np.random.default_rng(0).standard_normal((2, 3, 20, 20)).astype("float32")
    found, wanted = pytensor.function([x], [out, plain], mode="ONEDNN")(value)
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.usefixtures("cudnn_without_probing")
def test_only_what_is_not_excluded_runs_in_cudnn():
    x = image()
    out = layers.convert(network(), "cudnn", is_relu)(x)
    assert out.type.dtype == "float32"
    assert not is_on_device(out)
    assert "GpuDnnConv" in ops(out)
    assert "Activation" in ops(out)
    everything = layers.convert(network(), "cudnn")(x)
    assert "GpuDnnConv" in ops(everything)
    assert "GpuDnnActivation" in ops(everything)
    gradient = pytensor.grad(everything.sum(), x)
    assert {"GpuDnnConvGradI", "GpuDnnActivationGrad"} <= {*ops(gradient)}


@pytest.mark.usefixtures("cudnn_without_probing")
@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (layers.SpatialConvolution(3, 4, 3, 3, dtype="float32"), (2, 3, 8, 8)),
        (layers.VolumetricConvolution(3, 4, 3, 3, 1, dtype="float32"), (2, 3, 8, 8, 4)),
        (layers.SpatialFullConvolution(3, 4, 3, 3, dtype="float32"), (2, 3, 8, 8)),
        (layers.SpatialMaxPooling(2, 2), (2, 3, 8, 8)),
        (layers.VolumetricAveragePooling(2, 2, 2), (2, 3, 8, 8, 4)),
        (layers.SpatialBatchNormalization(3, dtype="float32"), (2, 3, 8, 8)),
        (layers.SpatialCrossMapLRN(3), (2, 3, 8, 8)),
        (layers.SpatialSoftMax(), (2, 3, 8, 8)),
        (layers.LogSoftMax(), (2, 3)),
        (layers.ClippedReLU(6), (2, 3, 8, 8)),
        (layers.Tanh(), (2, 3)),
        (layers.Sigmoid(), (2, 3)),
        (layers.LSTM(3, 4, 2, dtype="float32"), (5, 2, 3)),
        (layers.GRU(3, 4, bidirectional=True, dtype="float32"), (5, 2, 3)),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, layers.Layer) else "",
)
def test_converted_layers_run_on_a_gpu_and_can_be_differentiated(layer, shape):
    layers.convert(layer, "cudnn")
    x = pt.tensor("x", dtype="float32", shape=shape)
    out = layer(x)
    assert any(name.startswith("Gpu") and name != "GpuFromHost" for name in ops(out))
    gradients = pytensor.grad(out.sum(), [x, *layer.parameters()])
    assert [g.type.ndim for g in gradients] == [v.type.ndim for v in (x, *layer.parameters())]


@pytest.mark.usefixtures("cudnn_without_probing")
@pytest.mark.parametrize(
    ("library", "op"), [("onednn", "OneDnnBatchNormTrain"), ("cudnn", "GpuDnnBatchNorm")]
)
def test_running_averages_come_from_the_same_node(library, op):
    layer = layers.convert(layers.SpatialBatchNormalization(3, dtype="float32"), library)
    found = ops(layer(image()), *layer.updates().values())
    assert found.count(op) == 1
    assert "BatchNormTrain" not in found


def test_two_calls_convert_nothing_before_the_layer():
    """The new averages of the second call depend on the input of the first."""
    first = layers.SpatialConvolution(3, 3, 1, 1, dtype="float32")
    layer = layers.convert(layers.SpatialBatchNormalization(3, dtype="float32"), "onednn")
    layer(first(image()))
    layer(first(image()))
    found = ops(*layer.updates().values())
    assert found.count("OneDnnBatchNormTrain") == 2
    assert "BatchNormTrain" not in found
    assert "OneDnnConv" not in found
    assert found.count("Conv") == 2


@pytest.mark.usefixtures("cudnn_without_probing")
def test_an_inner_layer():
    net = layers.Sequential(
        layers.Residual(layers.VolumetricConvolution(2, 2, 1, 1, 1), layers.Tanh()),
        layers.SpatialMaxPooling(2, 2),
        layers.View(-1),
    )
    layers.convert(net, "cudnn", lambda layer: isinstance(layer, layers.SpatialMaxPooling))
    found = [layer.library for _, layer in net.modules()]
    assert found == ["abstract", "abstract", "cudnn", "cudnn", "abstract", "abstract"]


def test_cudnn_that_cannot_be_used():
    net = layers.convert(network(), "cudnn")
    with (
        pytensor.config.change_flags(dnn__enabled="False"),
        pytest.raises(DnnUnavailableError, match="convert: cuDNN cannot be used: disabled by"),
    ):
        net(image())


# -- graphs ----------------------------------------------------------------------------------


def forward(dtype: str = "float32"):
    """Return inputs and results of many abstract Ops."""
    x = image(dtype)
    w = pt.tensor("w", dtype=dtype, shape=(4, 3, 3, 3))
    y = nnet.conv2d(x, w)
    pooled = nnet.pool_2d(y, (2, 2), ignore_border=True)
    out = nnet.local_response_normalization(pooled)
    return [x, w], [out, pytensor.grad(out[0, 0, 0, 0], w)]


def test_variables_and_back():
    inputs, outputs = forward()
    found = layers.convert(outputs, "onednn")
    assert not any(is_abstract(x.owner.op, "cpu") for x in ancestors(found) if x.owner is not None)
    assert {"OneDnnConv", "OneDnnConvGradWeights", "OneDnnPool", "OneDnnLRN"} <= {*ops(*found)}
    back = layers.convert(found, "abstract")
    assert ops(*back) == ops(*outputs)
    assert all(is_same_graph(a, b) for a, b in zip(back, outputs, strict=True))
    rng = np.random.default_rng(0)
    values = [rng.standard_normal(v.type.shape).astype("float32") for v in inputs]
    f = pytensor.function(inputs, [*found, *outputs], mode=PERFORM_MODE)
    results = f(*values)
    for a, b in zip(results[:2], results[2:], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)
    (one,) = layers.convert((outputs[0],), "onednn")
    assert "OneDnnConv" in ops(one)
    assert "OneDnnConv" in ops(layers.convert(outputs[0], "onednn"))
    assert "OneDnnConv" not in ops(*outputs)


def test_nodes_can_be_excluded():
    _, (out, _) = forward()
    found = layers.convert(out, "onednn", lambda node: isinstance(node.op, nnet.Conv))
    assert "OneDnnConv" not in ops(found)
    assert "OneDnnPool" in ops(found)


@pytest.mark.usefixtures("cudnn_without_probing")
def test_a_graph_in_cudnn():
    inputs, outputs = forward()
    graph = FunctionGraph(inputs, outputs, clone=True)
    assert layers.convert(graph, "cudnn") is graph
    names = {type(node.op).__name__ for node in graph.apply_nodes}
    assert {"GpuDnnConv", "GpuDnnConvGradW", "GpuDnnPool", "GpuDnnLRN"} <= names
    assert not any(is_on_device(x) for x in graph.outputs)
    assert layers.convert(graph, "abstract") is graph
    assert not any(is_on_device(x) for node in graph.apply_nodes for x in node.outputs)
    assert {*ops(*outputs)} == {*ops(*graph.outputs)}


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((network(), "mkldnn"), DnnValueError, "library must be one of abstract, cudnn, onednn"),
        ((network(), "cudnn", "ReLU"), DnnTypeError, "exclude must be callable"),
        (("net", "cudnn"), DnnTypeError, "net must be a layer, a graph or variables"),
        (([1, 2], "cudnn"), DnnTypeError, "net must be a layer, a graph or variables"),
    ],
)
def test_errors(arguments, error, message):
    with pytest.raises(error, match=message):
        layers.convert(*arguments)
