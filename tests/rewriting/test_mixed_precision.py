"""Graphs and results with the flag ``dnn.mixed_precision``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode, get_mode
from pytensor.graph.fg import FunctionGraph

from benchmarks import model_zoo
from benchmarks.peers.models.dnnops_cpu import training_step
from dnnops import nnet
from dnnops.dtypes import HALF_DTYPES
from dnnops.errors import DnnWarning
from dnnops.gpuarray import GpuArrayType
from dnnops.gpuarray.op import is_on_device
from dnnops.gpuarray.products.blas import GpuDot
from dnnops.gpuarray.transfer import as_gpuarray_variable, host_from_gpu
from tests.emulation.host_graphs import on_host
from tests.gpuarray.graphs import TOLERANCE, rewritten
from tests.needs import of_dtypes
from tests.rewriting.mixed_networks import NETWORKS, Network, batches, start, step

PRECISIONS = HALF_DTYPES
CUDNN = get_mode("CUDNN")

#: Ops of which none may run in float32.
PRODUCTS = (
    "GpuDnnConv",
    "GpuDnnConvGradI",
    "GpuDnnConvGradW",
    "GpuDot",
    "GpuBatchedDot",
    "GpuDnnAttention",
    "GpuDnnAttentionGrad",
    "GpuDnnRNNForward",
    "GpuDnnRNNBackward",
    "GpuDnnPool",
    "GpuDnnPoolGrad",
    "GpuDnnBatchNorm",
    "GpuDnnBatchNormGrad",
)


@pytest.fixture(autouse=True)
def without_a_device() -> Iterator[None]:
    with pytensor.config.change_flags(dnn__enabled="no_check", on_opt_error="raise"):
        yield


def mixed(inputs: Any, outputs: Any, dtype: str = "bfloat16", mode: Any = CUDNN) -> FunctionGraph:
    with pytensor.config.change_flags(dnn__mixed_precision=dtype):
        return rewritten(inputs, outputs, mode)


def device(*shape: int | None, dtype: str = "float32") -> Any:
    return GpuArrayType(dtype, shape)()


def nodes(graph: FunctionGraph, *names: str) -> list[Any]:
    return [node for node in graph.toposort() if type(node.op).__name__ in names]


def dtypes(graph: FunctionGraph, *names: str) -> set[tuple[str, str]]:
    """Return the dtypes of the first operand and the first result of some nodes."""
    return {
        (node.inputs[0].type.dtype, node.outputs[0].type.dtype) for node in nodes(graph, *names)
    }


def casts(graph: FunctionGraph) -> list[Any]:
    return nodes(graph, "GpuCast")


# -- whole networks ------------------------------------------------------------------------


@cache
def network_graph(name: str) -> FunctionGraph:
    """Return the graph of a training step with everything on the device."""
    inputs, loss, updates = training_step(name, model_zoo.MODELS[name].sizes)
    on_device = {
        s: device(*s.type.shape) for s, _ in updates if s.type.ndim and s.type.dtype == "float32"
    }
    arrays = [device(*x.type.shape, dtype=x.type.dtype) for x in inputs]
    replaced = [(s, host_from_gpu(x)) for s, x in on_device.items()]
    replaced += [
        (x, x.type.filter_variable(host_from_gpu(array)))
        for x, array in zip(inputs, arrays, strict=True)
    ]
    outputs = pytensor.graph.clone_replace(
        [loss, *(new for s, new in updates if s in on_device)], replaced
    )
    outputs[1:] = [as_gpuarray_variable(new) for new in outputs[1:]]
    rest = [s for s, _ in updates if s not in on_device]
    return mixed([*arrays, *rest, *on_device.values()], outputs)


#: The start of the LSTM is a constant, which is rounded.
MODELS = [
    pytest.param(name, marks=pytest.mark.needs("ml_dtypes") if name == "lstm" else ())
    for name in sorted(model_zoo.MODELS)
]


@pytest.mark.parametrize("name", MODELS)
def test_networks(name):
    graph = network_graph(name)
    assert dtypes(graph, *PRODUCTS) == {("bfloat16", "bfloat16")}
    assert not nodes(graph, "GpuGemm", "GpuGemv")
    assert len(nodes(graph, "GpuFromHost", "HostFromGpu")) == 1  # the loss
    (loss,) = nodes(graph, "GpuCrossEntropy")
    assert [z.type.dtype for z in (loss.inputs[0], *loss.outputs)] == ["bfloat16", *2 * ["float32"]]
    (gradient,) = nodes(graph, "GpuCrossEntropyGrad")
    found = [z.type.dtype for z in (*gradient.inputs[:2], gradient.out)]
    assert found == ["float32", "bfloat16", "bfloat16"]
    # Updates are float32.
    assert {z.type.dtype for z in graph.outputs} == {"float32"}


@pytest.mark.xfail(
    not pytensor.__version__.startswith("3.0."),
    reason="with PyTensor 3.1 and newer, a loop with relu and its gradient stays elementwise",
)
@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("mlp", {"RELU_BIAS": 3, "BIAS": 1}),
        ("transformer", {"RELU_BIAS": 2, "BIAS": 10}),
    ],
)
def test_dense_layers(name, layers):
    graph = network_graph(name)
    found = nodes(graph, "GpuDense")
    assert dtypes(graph, "GpuDense") == {("bfloat16", "bfloat16")}
    assert Counter(node.op.epilogue for node in found) == layers
    # Residual sums are part of the products, too.
    assert sum(node.op.addend for node in found) == (3 if name == "transformer" else 0)


@pytest.mark.parametrize("name", MODELS)
def test_casts_of_networks(name):
    """Parameters and inputs are cast once, and what an elementwise loop computes never is."""
    graph = network_graph(name)
    sources = Counter(node.inputs[0] for node in casts(graph))
    assert set(sources.values()) == {1}
    computed = [type(x.owner.op).__name__ for x in sources if x.owner]
    # Rows of an embedding, whose gradient is summed in float32.
    expected = {"GpuAdvancedSubtensor": 1, "GpuReshape": 1} if name == "lstm" else {}
    assert Counter(computed) == expected


@pytest.mark.parametrize("name", ["resnet", "mobilenet", "unet", "vgg"])
def test_images_have_16_bits(name):
    graph = network_graph(name)
    wide = [
        node
        for node in graph.toposort()
        for z in node.outputs
        # Those of the data have an unknown length, the batch.
        if is_on_device(z) and z.type.ndim == 4 and None in z.type.shape
        if z.type.dtype == "float32"
    ]
    assert wide == []


# -- single rules --------------------------------------------------------------------------


def test_off():
    x, w = device(None, 3, 8, 8), device(4, 3, 3, 3)
    graph = mixed([x, w], [nnet.conv2d(x, w).transfer("cuda")], "off")
    assert dtypes(graph, "GpuDnnConv") == {("float32", "float32")}


def test_the_host_computes_in_float32():
    x, w = pt.tensor4(dtype="float32"), pt.tensor4(dtype="float32")
    outputs = [nnet.conv2d(x, w)]
    given = mixed([x, w], outputs, mode=get_mode("ONEDNN"))
    assert {z.type.dtype for node in given.apply_nodes for z in node.outputs} == {"float32"}


def test_float64_stays():
    x, w = device(None, 3, dtype="float64"), device(3, 4, dtype="float64")
    graph = mixed([x, w], [(x @ w).transfer("cuda")])
    assert dtypes(graph, "GpuDot") == {("float64", "float64")}


def test_outputs_are_float32():
    x, w = device(None, 16), device(16, 16)
    hidden = nnet.relu(x @ w)
    graph = mixed([x, w], [hidden.transfer("cuda"), (hidden @ w).transfer("cuda")])
    assert {z.type.dtype for z in graph.outputs} == {"float32"}
    # The first result was not rounded.
    assert graph.outputs[0].owner.op.out_dtypes[0] == "float32"
    assert dtypes(graph, "GpuDot") == {("bfloat16", "bfloat16")}


@pytest.mark.parametrize("add", [False, True])
def test_products_with_a_vector(add):
    """PyTensor writes products with a single column in this way."""
    x, w, b = device(None, 16), device(16, 1), device(None, 1)
    out = pt.as_tensor_variable(x) @ w
    graph = mixed([x, w, b], [(out + b if add else out).transfer("cuda")])
    assert dtypes(graph, "GpuDot") == {("bfloat16", "bfloat16")}
    assert not nodes(graph, "GpuGemv")
    assert graph.outputs[0].type.dtype == "float32"


def test_a_loss_without_a_gradient_reads_what_is_stored():
    x, w, labels = device(None, 16), device(16, 16), device(None, dtype="int64")
    costs = nnet.cross_entropy(pt.exp(x @ w), pt.as_tensor_variable(labels))
    graph = mixed([x, w, labels], [costs.transfer("cuda")])
    (loss,) = nodes(graph, "GpuCrossEntropy")
    assert {z.type.dtype for z in (loss.inputs[0], *loss.outputs)} == {"float32"}


def test_what_no_product_reads_stays():
    x = device(None, 16)
    y = pt.exp(x) * 2
    assert casts(mixed([x], [y.transfer("cuda"), y.sum()])) == []


def test_results_of_exponentials_are_not_rounded():
    """As in PyTorch; a square could overflow in float16."""
    x, w = device(None, 16), device(16, 16)
    squares = pt.sqr(x @ w)
    out = (squares / squares.sum(axis=1, keepdims=True)) @ w
    graph = mixed([x, w], [out.transfer("cuda")], "float16")
    (reduction,) = nodes(graph, "GpuCAReduce")
    assert reduction.outputs[0].type.dtype == "float32"
    found = {str(node.op.scalar_op): node.out.type.dtype for node in nodes(graph, "GpuElemwise")}
    assert found["sqr"] == "float32"
    assert found["true_div"] == "float16"


@pytest.mark.parametrize("norm", [abs, pt.sqr])
def test_norms_of_products_are_float32(norm):
    """PyTensor fuses them to reductions that have the dtype of their operand."""
    x, w = device(None, 16), device(16, 16)
    graph = mixed([x, w], [norm(x @ w).sum().transfer("cuda")], "float16")
    (reduction,) = nodes(graph, "GpuCAReduce")
    assert reduction.inputs[0].type.dtype == "float16"
    assert reduction.op.host_op.acc_dtype == reduction.outputs[0].type.dtype == "float32"


@pytest.mark.parametrize("mode", ["max", "average_inc_pad"])
def test_pooling_that_cudnn_lacks(mode):
    x, w = device(None, 3, 10, 10), device(4, 3, 3, 3)
    out = nnet.pool_2d(nnet.conv2d(x, w), (3, 3), False, stride=(2, 2), mode=mode)
    gradient = pytensor.grad((out**2).sum(), w)
    graph = mixed([x, w], [gradient])
    assert dtypes(graph, "GpuPool", "GpuPoolGrad") == {("bfloat16", "bfloat16")}


def test_batch_normalization_has_float32_parameters():
    x, w, gamma, beta = device(None, 3, 9, 9), device(3, 3, 3, 3), device(3), device(3)
    out, mean, *_ = nnet.batch_normalization_train(nnet.conv2d(x, w), gamma, beta, axes="spatial")
    graph = mixed([x, w, gamma, beta], [nnet.conv2d(out, w), mean])
    (node,) = nodes(graph, "GpuDnnBatchNorm")
    assert [x.type.dtype for x in node.inputs[:3]] == ["bfloat16", "float32", "float32"]
    assert [z.type.dtype for z in node.outputs] == ["bfloat16", "float32", "float32"]


def test_softmax_between_products():
    """Its sums are float32, whatever the dtype of its arrays."""
    x, w = device(None, 16), device(16, 16)
    graph = mixed([x, w], [(pt.special.softmax(x @ w, axis=1) @ w).transfer("cuda")])
    assert dtypes(graph, "GpuDnnSoftmax") == {("bfloat16", "bfloat16")}
    graph = mixed([x, w], [pt.special.log_softmax(x @ w, axis=1).sum()])
    assert dtypes(graph, "GpuDnnSoftmax") == {("float32", "float32")}


def test_velocities_are_not_rounded():
    """Libraries could add them to a product of 16-bit arrays, but only in 16 bits."""
    x, g, v = device(None, 16), device(None, 8), device(16, 8)
    moved = np.float32(0.9) * v - np.float32(0.1) * (pt.as_tensor_variable(x).T @ g)
    graph = mixed([x, g, v], [moved.transfer("cuda")])
    assert dtypes(graph, "GpuDot") == {("bfloat16", "bfloat16")}
    (last,) = nodes(graph, "GpuElemwise")
    assert {y.type.dtype for y in last.inputs if y.type.ndim} == {"bfloat16", "float32"}
    assert v in last.inputs or graph.inputs[2] in last.inputs

    image, w, velocity = device(None, 3, 8, 8), device(4, 3, 3, 3), device(4, 3, 3, 3)
    gradient = pytensor.grad(pt.sqr(nnet.conv2d(image, w)).sum(), w)
    moved = np.float32(0.9) * velocity - np.float32(0.1) * gradient
    graph = mixed([image, w, velocity], [moved.transfer("cuda")])
    (node,) = nodes(graph, "GpuDnnConvGradW")
    assert not node.op.accumulate
    assert graph.outputs[0].owner.inputs[-1].type.dtype == "float32"


def test_gradients_are_added_by_the_convolution():
    """A sum of 16-bit arrays stays part of the convolution."""
    graph = network_graph("resnet")
    added = [node for node in nodes(graph, "GpuDnnConvGradI") if node.op.accumulate]
    assert added
    assert {node.inputs[-1].type.dtype for node in added} == {"bfloat16"}


@pytest.mark.parametrize("written_out", [False, True])
def test_attention(written_out):
    arrays = [device(2, 4, 16, 8) for _ in range(3)]
    q, k, v = map(pt.as_tensor_variable, arrays)
    if written_out:
        scores = q @ k.transpose(0, 1, 3, 2) * np.float32(8**-0.5)
        out = pt.special.softmax(scores, axis=-1) @ v
    else:
        out = nnet.scaled_dot_product_attention(q, k, v)
    gradients = pytensor.grad((out**2).sum(), arrays)
    graph = mixed(arrays, gradients, "float16")
    expected = {"GpuDnnAttention": 1, "GpuDnnAttentionGrad": 1}
    names = Counter(type(node.op).__name__ for node in graph.apply_nodes)
    assert expected.items() <= names.items()
    assert dtypes(graph, *expected) == {("float16", "float16")}
    assert {z.type.dtype for z in graph.outputs} == {"float32"}


def test_the_shape_is_read_without_a_cast():
    x, w = device(None, 16), device(16, 16)
    hidden = x @ w
    graph = mixed([x, w], [hidden @ w, hidden.shape[0]])
    assert len([node for node in casts(graph) if node.op.dtype == "float32"]) == 1


def test_a_node_that_fails_stays_float32(monkeypatch):
    def broken(self, *inputs):
        if any(x.type.dtype == "bfloat16" for x in inputs):
            raise ZeroDivisionError("a mistake")
        return make_node(self, *inputs)

    make_node = GpuDot.make_node
    monkeypatch.setattr(GpuDot, "make_node", broken)
    x, w, v = device(None, 3, 8, 8), device(4, 3, 3, 3), device(4, 5)
    out = nnet.conv2d(x, w).mean(axis=(2, 3)) @ v
    with pytest.raises(ZeroDivisionError):
        mixed([x, w, v], [out.transfer("cuda")])
    with (
        pytensor.config.change_flags(on_opt_error="warn"),
        pytest.warns(DnnWarning, match=r"GpuDot stays float32.*ZeroDivisionError: a mistake"),
    ):
        graph = mixed([x, w, v], [out.transfer("cuda")])
    assert dtypes(graph, "GpuDot") == {("float32", "float32")}
    assert dtypes(graph, "GpuDnnConv") == {("bfloat16", "bfloat16")}


# -- bfloat16 by the user's own casts --------------------------------------------------------


def _by_casts(x: Any, w: Any, v: Any, u: Any) -> Any:
    def half(y: Any) -> Any:
        return y.astype("bfloat16")

    z = nnet.relu(nnet.conv2d(half(x), half(w), border_mode="half"))
    z = nnet.pool_2d(z, (2, 2), ignore_border=True)
    z = nnet.relu(nnet.conv2d(half(z), half(v), border_mode="half")) + z
    return half(z.mean(axis=(2, 3))) @ half(u)


def test_casts_of_the_user():
    arrays = [device(None, 3, 8, 8), device(8, 3, 3, 3), device(8, 8, 3, 3), device(8, 4)]
    labels = device(None, dtype="int64")
    loss = nnet.cross_entropy(_by_casts(*arrays), pt.as_tensor_variable(labels)).mean()
    graph = mixed([*arrays, labels], [loss, *pytensor.grad(loss, arrays[1:])], "off")
    products = ("GpuDnnConv", "GpuDnnConvGradI", "GpuDnnConvGradW", "GpuDot")
    assert dtypes(graph, *products) == {("bfloat16", "bfloat16")}
    assert dtypes(graph, "GpuDnnPool", "GpuDnnPoolGrad") == {("bfloat16", "bfloat16")}
    narrowed = [node for node in casts(graph) if node.op.dtype == "bfloat16"]
    assert len(narrowed) == len(arrays)
    assert {z.type.dtype for z in graph.outputs} == {"float32"}


@pytest.mark.needs("ml_dtypes")
def test_casts_around_a_recurrent_network():
    """Its first state, which is constant, does not make it float32."""
    block = nnet.RNNBlock("float32", 8, 1, "lstm")
    x, w = device(5, 3, 4), device(block.get_param_size((3, 4)))
    zeros = pt.zeros((1, 3, 8), dtype="float32")
    y = block.apply(w.astype("bfloat16"), x.astype("bfloat16"), zeros, zeros)[0]
    graph = mixed([x, w], [pytensor.grad((y * y).sum(), w)], "off")
    names = ("GpuDnnRNNForward", "GpuDnnRNNBackward")
    assert len(nodes(graph, *names)) == 2
    assert dtypes(graph, *names) == {("bfloat16", "bfloat16")}


def test_a_float32_operand_makes_a_product_float32():
    x, w = device(None, 16), device(16, 16)
    graph = mixed([x, w], [x @ w.astype("bfloat16")], "off")
    assert dtypes(graph, "GpuDot") == {("float32", "float32")}


# -- results -------------------------------------------------------------------------------


def train(f: Callable[..., Any], network: Network, dtype: str) -> tuple[list[float], np.ndarray]:
    """Return the losses of a training run, and all parameters after it."""
    parameters = [value.astype(dtype) for value in start(network)]
    state = [*parameters, *(np.zeros_like(value) for value in parameters)]
    losses = []
    for x, y in batches(network):
        loss, *state = f(x.astype(dtype), y, *state)
        losses.append(float(loss))
    trained = [np.ravel(np.asarray(p, "float64")) for p in state[: len(parameters)]]
    return losses, np.concatenate(trained)


#: Scales of the loss. Without one, gradients in float16 lose digits, because they are small.
SCALES = {"bfloat16": 1.0, "float16": 2.0**12}


@cache
def reference(name: str) -> tuple[list[float], np.ndarray]:
    inputs, outputs = step(NETWORKS[name], "float64")
    mode = get_mode("CVM").excluding("onednn")
    return train(pytensor.function(inputs, outputs, mode=mode), NETWORKS[name], "float64")


def assert_trains(f: Callable[..., Any], name: str, dtype: str) -> None:
    losses, parameters = train(f, NETWORKS[name], "float32")
    expected_losses, expected = reference(name)
    assert expected_losses[-1] < expected_losses[0]
    np.testing.assert_allclose(losses, expected_losses, rtol=TOLERANCE[dtype])
    error = np.linalg.norm(parameters - expected) / np.linalg.norm(expected)
    assert error <= TOLERANCE[dtype]
    # It did compute in 16 bits.
    assert error > TOLERANCE["float32"]


@pytest.mark.parametrize("name", sorted(NETWORKS))
@pytest.mark.parametrize("dtype", of_dtypes(*PRECISIONS))
def test_training_with_rounded_arrays(name, dtype):
    """The rewritten graph trains as in float64, if the host computes its nodes and rounds."""
    inputs, outputs = step(NETWORKS[name], "float32", SCALES[dtype])
    graph = mixed(inputs, outputs, dtype, CUDNN.excluding("inplace"))
    assert any(x.type.dtype == dtype for x in graph.variables if is_on_device(x))
    hosted = on_host(graph.outputs, rounding=True)
    assert_trains(pytensor.function(graph.inputs, hosted, mode=Mode("py", None)), name, dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("name", sorted(NETWORKS))
@pytest.mark.parametrize("dtype", PRECISIONS)
def test_training(name, dtype):
    inputs, outputs = step(NETWORKS[name], "float32", SCALES[dtype])
    with pytensor.config.change_flags(dnn__mixed_precision=dtype, dnn__enabled="True"):
        f = pytensor.function(inputs, outputs, mode="CUDNN")
    assert_trains(f, name, dtype)
