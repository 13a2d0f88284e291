"""Gradients of max pooling that add another gradient; needs no GPU."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.graph.fg import FunctionGraph

from benchmarks import model_zoo
from benchmarks.peers.models.dnnops_cpu import training_step
from dnnops import nnet
from dnnops.errors import DnnValueError
from dnnops.gpu.fused.pool_sum import GpuDnnPoolGradSum
from dnnops.gpuarray.transfer import as_gpuarray_variable, host_from_gpu
from dnnops.gpuarray.type import GpuArrayType
from dnnops.modes import CudnnMode
from tests.emulation import host_graphs
from tests.gpuarray.graphs import rewritten
from tests.oracle import PERFORM_MODE, assert_close

MODE = CudnnMode()
PLAIN, FUSED = "GpuDnnPoolGrad", "GpuDnnPoolGradSum"
CHANNELS = 8


@pytest.fixture(autouse=True)
def channels_last():
    """Rewrite as if cuDNN worked, and let convolutions make images channels-last."""
    flags = {"dnn__enabled": "no_check", "floatX": "float32", "dnn__allow_tf32": True}
    # Otherwise, PyTensor leaves a graph as it is if its rewrite is wrong.
    with pytensor.config.change_flags(**flags, on_opt_error="raise"):
        yield


class Network:
    """A convolution, pooling, and the gradient of its operand.

    ``given`` are an image, filters, the gradient with respect to the pooled image, and an array
    with the channels of the image in the middle.
    """

    def __init__(
        self,
        dtype: str = "float32",
        channels: int = CHANNELS,
        window: Any = 2,
        mode: str = "max",
    ):
        shapes = (4, 10, 10), (channels, 4, 3, 3), (channels, None, None), (3 * channels, 10, 10)
        self.given = [
            pt.tensor(dtype=dtype, shape=shape if len(shape) == 4 else (None, *shape))
            for shape in shapes
        ]
        x, w, top, joined = self.given
        image = nnet.conv2d(x, w, border_mode="half")
        pooled = nnet.pool_2d(image, (window, window), ignore_border=True, mode=mode)
        self.addend = joined[:, channels : 2 * channels]
        (self.gradient,) = pytensor.grad(None, [image], known_grads={pooled: top})

    def graph(self, *outputs: Any, mode: Any = MODE, more: tuple[Any, ...] = ()) -> FunctionGraph:
        return rewritten([*self.given, *more], [as_gpuarray_variable(z) for z in outputs], mode)


def counts(fgraph: FunctionGraph) -> Counter[str]:
    return Counter(type(node.op).__name__ for node in fgraph.toposort())


def later(x: Any) -> Any:
    """Return an expression of `x` that cannot be part of an elementwise node."""
    return pt.sort(x, axis=0)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("window", [2, 3])
@pytest.mark.parametrize("first", [False, True])
def test_sum(lowered_loops, dtype, window, first):
    network = Network(dtype, window=window)
    gradient, addend = network.gradient, network.addend
    total = addend + gradient if first else gradient + addend
    fgraph = network.graph(total)
    found = counts(fgraph)
    assert found[FUSED] == 1
    assert found[PLAIN] == found["GpuElemwise"] == 0
    lowered = host_graphs.on_host(fgraph.outputs)
    f = pytensor.function(fgraph.inputs, lowered, mode=PERFORM_MODE)
    oracle = pytensor.function(network.given, [total], mode=PERFORM_MODE)
    rng = np.random.default_rng(0)
    size = 10 // window
    shapes = (2, 4, 10, 10), (CHANNELS, 4, 3, 3), (2, CHANNELS, size, size), (2, 24, 10, 10)
    values = [rng.standard_normal(shape).astype(dtype) for shape in shapes]
    assert_close(f(*values)[0], oracle(*values)[0], dtype)


def test_both_addends_are_gradients():
    """One of them adds the other."""
    one, other = Network(), Network(window=3)
    given = [*one.given, *other.given]
    outputs = [as_gpuarray_variable(one.gradient + other.gradient)]
    found = counts(rewritten(given, outputs, MODE))
    assert (found[FUSED], found[PLAIN], found["GpuElemwise"]) == (1, 1, 0)


@pytest.mark.parametrize("mixed", [False, True])
def test_unet(mixed):
    inputs, loss, updates = training_step("unet", model_zoo.MODELS["unet"].sizes)
    given, outputs = [*inputs, *(s for s, _ in updates)], [loss, *(u for _, u in updates)]
    with pytensor.config.change_flags(dnn__mixed_precision="bfloat16" if mixed else "off"):
        fgraph = rewritten(given, outputs, MODE)
    assert (counts(fgraph)[FUSED], counts(fgraph)[PLAIN]) == (2, 0)
    for node in fgraph.toposort():
        if type(node.op) is GpuDnnPoolGradSum:
            assert type(node.inputs[3].owner.op).__name__ == "GpuSplit"
            ((user, _),) = fgraph.clients[node.outputs[0]]
            assert type(user.op).__name__ == "GpuDnnBatchNormActivationGrad"


# -- what is not fused ------------------------------------------------------------------------


def other_user(gradient, addend):
    return gradient + addend, later(gradient)


def other_dtype(gradient, addend):
    return (gradient + pt.cast(addend, "float64"),)


def rounded_sum(gradient, addend):
    return (pt.cast(gradient + addend, "float16"),)


def broadcast(gradient, addend):
    return (gradient + later(addend.sum((0, 2, 3), keepdims=True)),)


def scaled(gradient, addend):
    return (np.float32(0.5) * gradient + addend,)


def difference(gradient, addend):
    return (gradient - addend,)


def product(gradient, addend):
    return (gradient * addend,)


def doubled(gradient, addend):
    return (gradient + gradient,)


def three_terms(gradient, addend):
    return (gradient + addend + later(addend),)


@pytest.mark.parametrize(
    "make",
    [
        other_user,
        other_dtype,
        rounded_sum,
        broadcast,
        scaled,
        difference,
        product,
        doubled,
        three_terms,
    ],
)
def test_near_misses(make):
    network = Network()
    found = counts(network.graph(*make(network.gradient, network.addend)))
    assert (found[FUSED], found[PLAIN]) == (0, 1)


@pytest.mark.parametrize(
    "changes",
    [
        {"mode": "average_inc_pad"},
        {"mode": "sum"},
        {"window": 5},
        {"channels": 6},
        {"window": pt.lscalar("window")},
    ],
)
def test_gradients_without_a_kernel(changes):
    network = Network(**changes)
    window = changes.get("window")
    more = (window,) if isinstance(window, pt.TensorVariable) else ()
    found = counts(network.graph(network.gradient + network.addend, more=more))
    assert (found[FUSED], found[PLAIN]) == (0, 1)


def test_contiguous_images():
    network = Network()
    with pytensor.config.change_flags(dnn__allow_tf32=False):
        found = counts(network.graph(network.gradient + network.addend))
    assert (found[FUSED], found[PLAIN]) == (0, 1)


@pytest.mark.parametrize("name", ["fusion", "gpu_pool_sum"])
def test_the_pass_can_be_excluded(name):
    network = Network()
    graph = network.graph(network.gradient + network.addend, mode=MODE.excluding(name))
    assert (counts(graph)[FUSED], counts(graph)[PLAIN]) == (0, 1)


# -- the Op -----------------------------------------------------------------------------------


def test_derivatives():
    given = [pt.tensor(dtype="float32", shape=(2, 4, n, n)) for n in (4, 2, 2, 4, 4)]
    *operands, weights = given
    out = host_from_gpu(GpuDnnPoolGradSum()(*operands, [2, 2], [2, 2], [0, 0]))
    by = pytensor.grad((out * weights).sum(), operands[2:])
    f = pytensor.function(
        given, host_graphs.on_host(by), mode=PERFORM_MODE, on_unused_input="ignore"
    )
    rng = np.random.default_rng(0)
    values = [rng.standard_normal(v.type.shape).astype("float32") for v in given]
    values[1] = values[0].reshape(2, 4, 2, 2, 2, 2).max((3, 5))
    by_top, by_addend = f(*values)
    windows = values[0].reshape(2, 4, 2, 2, 2, 2) == values[1][:, :, :, None, :, None]
    chosen = np.where(windows, values[4].reshape(2, 4, 2, 2, 2, 2), 0).sum((3, 5))
    assert_close(by_top, chosen, "float32")
    assert_close(by_addend, values[4], "float32")


def test_addends_of_other_shapes_are_refused():
    shapes = (2, 4, 4, 4), (2, 4, 2, 2), (2, 4, 5, 4)
    x, top, addend = (GpuArrayType("float32", shape)() for shape in shapes)
    with pytest.raises(DnnValueError, match="addend"):
        GpuDnnPoolGradSum()(x, top, top, addend, [2, 2], [2, 2], [0, 0])
