"""Convolution fused with bias, residual sums, activations and inference's batch normalization.

Needs no GPU.
"""

from __future__ import annotations

import pickle
from collections import Counter
from math import prod
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import get_mode
from pytensor.gradient import disconnected_grad
from pytensor.graph.fg import FunctionGraph

from benchmarks import model_zoo
from benchmarks.peers.models.dnnops_cpu import InferenceLayers, training_step
from dnnops import nnet
from dnnops.gpu.conv import GpuDnnConvBase
from dnnops.gpu.fused.folded_filters import GpuFoldBatchNorm
from dnnops.gpuarray.elemwise import GpuElemwise
from dnnops.gpuarray.transfer import as_gpuarray_variable, host_from_gpu
from dnnops.gpuarray.type import GpuArrayType
from dnnops.gpuarray.variable import GpuArrayConstant
from dnnops.rewriting.fuse import fold_batchnorm
from tests.emulation import host_graphs
from tests.gpuarray.graphs import ops, rewritten
from tests.oracle import PERFORM_MODE, RELATIVE_ERROR, assert_close

FUSED = "GpuDnnConvActivation"
CUDNN = get_mode("CUDNN")
SHAPES = {"x": (2, 3, 6, 7), "w": (4, 3, 3, 3), "b": (4,), "z": (2, 4, 6, 7)}
NORM = ("gamma", "beta", "mean", "var")


@pytest.fixture(autouse=True)
def with_tensor_cores():
    with pytensor.config.change_flags(
        dnn__enabled="no_check", floatX="float32", dnn__allow_tf32=True
    ):
        yield


def variables(dtype: str = "float32") -> dict[str, Any]:
    wide = "float64" if dtype == "float64" else "float32"
    found = {n: pt.tensor(n, dtype=dtype, shape=(None, *s[1:])) for n, s in SHAPES.items()}
    found["b"] = pt.tensor("b", dtype=dtype, shape=SHAPES["b"])
    found["w"] = pt.tensor("w", dtype=dtype, shape=SHAPES["w"])
    return found | {n: pt.tensor(n, dtype=wide, shape=(4,)) for n in NORM}


def values(given: dict[str, Any]) -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    shapes = SHAPES | dict.fromkeys(NORM, (4,))
    arrays = {n: rng.standard_normal(shapes[n]) for n in given}
    return [
        (np.abs(a) + 0.1 if n == "var" else a).astype(given[n].type.dtype)
        for n, a in arrays.items()
    ]


def conv(given: dict[str, Any], **options: Any) -> Any:
    return nnet.conv2d(given["x"], given["w"], border_mode="half", **options)


def column(b: Any) -> Any:
    return b.dimshuffle("x", 0, "x", "x")


def normalized(given: dict[str, Any]) -> Any:
    return nnet.batch_normalization_test(conv(given), *(given[n] for n in NORM), axes="spatial")


def fused(fgraph: FunctionGraph) -> list[Any]:
    return [n.op for n in fgraph.toposort() if type(n.op).__name__ == FUSED]


def on_device(given: dict[str, Any], *outputs: Any) -> FunctionGraph:
    return rewritten([*given.values()], [as_gpuarray_variable(z) for z in outputs], CUDNN)


def check_values(
    fgraph: FunctionGraph, given: dict[str, Any], *outputs: Any, bound: float = 1e-5
) -> None:
    lowered = host_graphs.on_host(fgraph.outputs)
    f, oracle = (
        pytensor.function(i, o, mode=PERFORM_MODE, on_unused_input="ignore")
        for i, o in ((fgraph.inputs, lowered), ([*given.values()], list(outputs)))
    )
    data = values(given)
    for result, reference in zip(f(*data), oracle(*data), strict=True):
        assert_close(result, reference, bound=bound)


ACTIVATIONS = {
    "identity": (lambda z: z, 0.0),
    "relu": (nnet.relu, 0.0),
    "clipped_relu": (lambda z: nnet.clipped_relu(z, 0.75), 0.75),
    "tanh": (pt.tanh, 0.0),
    "sigmoid": (pt.sigmoid, 0.0),
    "elu": (lambda z: nnet.elu(z, 0.5), 0.5),
    "swish": (lambda z: nnet.swish(z, 1.5), 1.5),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name):
    given = variables()
    function, coef = ACTIVATIONS[name]
    out = function(conv(given) + column(given["b"]))
    fgraph = on_device(given, out)
    (op,) = fused(fgraph)
    assert (op.activation, op.coef, op.parts) == (name, coef, ["bias"])
    assert "GpuElemwise" not in ops(fgraph)
    check_values(fgraph, given, out)


def test_maximum_is_relu():
    given = variables()
    (op,) = fused(on_device(given, pt.maximum(conv(given) + column(given["b"]), np.float32(0))))
    assert op.activation == "relu"


@pytest.mark.parametrize("with_bias", [False, True])
def test_residual_sum(with_bias):
    given = variables()
    z = conv(given) + given["z"]
    out = nnet.relu(z + column(given["b"]) if with_bias else z)
    fgraph = on_device(given, out)
    (op,) = fused(fgraph)
    # Without a bias, there is one of zeros.
    assert (op.activation, op.parts) == ("relu", ["bias", "addend"])
    assert "GpuElemwise" not in ops(fgraph)
    check_values(fgraph, given, out)


@pytest.mark.parametrize("addend", [False, True])
@pytest.mark.parametrize("activates", [False, True])
def test_batch_normalization(activates, addend):
    """It is folded into the filters and a bias."""
    given = variables()
    out = normalized(given)
    out = out + given["z"] if addend else out
    out = nnet.relu(out) if activates else out
    fgraph = on_device(given, out)
    (op,) = fused(fgraph)
    assert op.activation == ("relu" if activates else "identity")
    assert op.parts == ["bias", "addend"][: 1 + addend]
    found = set(ops(fgraph)) - {"GpuFromHost", "GpuDimShuffle"}
    assert found == {FUSED, "GpuFoldBatchNorm"}
    check_values(fgraph, given, out)


def test_batch_normalization_of_constants():
    """With constants, it is folded when the function is compiled."""
    given = variables()
    numbers = dict(zip(given, values(given), strict=True))
    fixed = {n: pt.constant(numbers[n]) for n in ("w", *NORM)}
    out = normalized({"x": given["x"], **fixed})
    fgraph = on_device(given, out)
    assert sorted(set(ops(fgraph))) == [FUSED, "GpuFromHost"]
    check_values(fgraph, given, out)


def test_large_constants_stay_finite_in_float16():
    given = variables("float16")
    numbers = dict(zip(given, values(given), strict=True))
    numbers["w"][:], numbers["gamma"][:], numbers["mean"][:], numbers["var"][:] = 6e4, 100, 1e4, 1
    fixed = {n: pt.constant(numbers[n]) for n in ("w", *NORM)}
    fgraph = on_device(given, normalized({"x": given["x"], **fixed}))
    found = [x.host_data for x in fgraph.variables if isinstance(x, GpuArrayConstant)]
    assert [np.abs(x).max() for x in found if x.size > 1] == [65504, 65504]


def test_batch_normalization_in_float16():
    given = variables("float16")
    out = nnet.relu(normalized(given))
    fgraph = on_device(given, out)
    (op,) = fused(fgraph)
    assert op.parts == ["bias"]
    check_values(fgraph, given, out, bound=2 * RELATIVE_ERROR["float16"])


@pytest.mark.needs("ml_dtypes")
def test_mixed_precision():
    """Filters are scaled by the node that converts them, and the bias is converted."""
    given = variables()
    out = nnet.relu(normalized(given))
    with pytensor.config.change_flags(dnn__mixed_precision="bfloat16"):
        fgraph = on_device(given, out)
    (node,) = (n for n in fgraph.toposort() if type(n.op).__name__ == FUSED)
    assert {x.type.dtype for x in node.inputs if x.type.ndim} == {"bfloat16"}
    casts = [n for n in fgraph.toposort() if type(n.op).__name__ == "GpuCast"]
    assert {n.inputs[0].type.shape for n in casts} <= {(None, *SHAPES["x"][1:]), (None, 4, 6, 7)}


# -- training ---------------------------------------------------------------------------------


def test_gradient_of_relu():
    """The mask comes from the result of relu."""
    given = variables()
    out = nnet.relu(conv(given) + column(given["b"]))
    top = disconnected_grad(given["z"] * pt.sort(out, axis=0))
    wrt = [given[n] for n in ("x", "w", "b")]
    outputs = [out, *pytensor.grad((out * top).sum(), wrt)]
    fgraph = on_device(given, *outputs)
    (op,) = fused(fgraph)
    assert op.activation == "relu"
    assert all(z.type.dtype != "bool" for n in fgraph.toposort() for z in n.outputs)
    check_values(fgraph, given, *outputs)


def test_gradient_of_tanh_stays():
    given = variables()
    out = pt.tanh(conv(given) + column(given["b"]))
    outputs = [out, pytensor.grad(pt.sort(out, axis=0).sum(), given["x"])]
    fgraph = on_device(given, *outputs)
    check_values(fgraph, given, *outputs)


# -- what is not fused ------------------------------------------------------------------------


def other_user(given):
    y = conv(given)
    return nnet.relu(y + column(given["b"])) + pt.sort(y, axis=0)


def two_biases(given):
    return nnet.relu(conv(given) + column(given["b"]) + column(given["gamma"]))


def product(given):
    return nnet.relu(conv(given) * column(given["b"]))


def twice(given):
    y = conv(given)
    return nnet.relu(y + y)


def leaky(given):
    return nnet.relu(conv(given) + column(given["b"]), 0.1)


def map_of_bias(given):
    return conv(given) + given["z"].sum(axis=1, keepdims=True)


def normalization_per_element(given):
    ones = [pt.exp(given["z"][:1] * column(given[n])) for n in NORM]
    return nnet.batch_normalization_test(conv(given), *ones, axes="per-activation")


@pytest.mark.parametrize(
    "make",
    [other_user, two_biases, product, twice, leaky, map_of_bias, normalization_per_element],
)
def test_near_misses(make):
    given = variables()
    out = make(given)
    fgraph = on_device(given, out)
    assert all(op.activation == "identity" and not op.scale for op in fused(fgraph))
    check_values(fgraph, given, out)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"dnn__conv__algo_fwd": "time_once"}, 1),
        ({"dnn__conv__algo_fwd": "small"}, 0),
        ({"dnn__conv__algo_fwd": "winograd"}, 0),
        ({"dnn__allow_tf32": False}, 0),
        ({"dnn__allow_tf32": False, "dnn__conv__algo_fwd": "time_once"}, 1),
    ],
)
def test_flags(flags, expected):
    """Named algorithms compute no epilogue; without tensor cores, only timing can tell."""
    given = variables()
    with pytensor.config.change_flags(**flags):
        fgraph = on_device(given, nnet.relu(conv(given) + column(given["b"])))
    assert len(fused(fgraph)) == expected


def test_float64_is_not_fused():
    given = variables("float64")
    assert not fused(on_device(given, nnet.relu(conv(given) + column(given["b"]))))


@pytest.mark.parametrize("tag", ["fusion", "cudnn", "gpu_conv_epilogue"])
def test_excluded(tag):
    given = variables()
    out = as_gpuarray_variable(nnet.relu(conv(given) + column(given["b"])))
    fgraph = rewritten([*given.values()], [out], CUDNN.excluding(tag))
    assert not fused(fgraph)


def test_a_padded_convolution():
    """Padding that differs before and after an axis is applied to the image."""
    given = variables()
    y = nnet.conv2d(given["x"], given["w"], border_mode=((1, 1), (0, 2)))
    out = nnet.relu(y + column(given["b"]))
    fgraph = on_device(given, out)
    assert len(fused(fgraph)) == 1
    assert "GpuElemwise" not in ops(fgraph)


def test_pickle():
    given = variables()
    (op,) = fused(on_device(given, nnet.relu(conv(given) + column(given["b"]))))
    assert pickle.loads(pickle.dumps(op)) == op
    assert "activation='relu', bias=True" in str(op)


# -- networks ---------------------------------------------------------------------------------

#: What is left of inference besides transfers and views, with whole ResNet-50.
INFERENCE = {
    # The mean divides elementwise.
    "resnet": {FUSED: 53, "GpuDnnPool": 1, "GpuCAReduce": 1, "GpuDense": 1},
    "mobilenet": {FUSED: 19, "GpuCAReduce": 1, "GpuDense": 1},
    "unet": {FUSED: 10, "GpuDnnConvGradI": 2, "GpuDnnPool": 2, "GpuJoin": 2}
    | {"GpuCAReduce": 1, "GpuDense": 1},
}


def inference_graph(name: str) -> FunctionGraph:
    """Return the rewritten graph of a deep network with parameters on the device."""
    layers, sizes = InferenceLayers(), {**model_zoo.MODELS[name].sizes, "deep": 1}
    x = pt.tensor("x", dtype="float32", shape=(None, 3, 64, 64))
    out = model_zoo.MODELS[name].loss(layers, sizes, x, None)
    moved = {
        s: GpuArrayType("float32", s.type.shape)()
        for s in pytensor.graph.traversal.graph_inputs([out])
        if s is not x and s.type.ndim and s.name != "x" and hasattr(s, "get_value")
    }
    (out,) = pytensor.graph.clone_replace([out], [(s, host_from_gpu(v)) for s, v in moved.items()])
    return rewritten([x, *moved.values()], [as_gpuarray_variable(out)], CUDNN)


@pytest.mark.parametrize("name", INFERENCE)
def test_inference(name):
    fgraph = inference_graph(name)
    found = Counter(ops(fgraph))
    for view in ("GpuDimShuffle", "GpuFromHost", "GpuElemwise", "GpuFoldBatchNorm"):
        found.pop(view, None)
    assert found == INFERENCE[name]
    folds = [n.op for n in fgraph.toposort() if isinstance(n.op, GpuFoldBatchNorm)]
    assert [(op.count, op.memory_format) for op in folds] == [(found[FUSED], "channels_last")]
    # The division of the mean.
    assert len([n for n in fgraph.toposort() if isinstance(n.op, GpuElemwise)]) == 1


def test_filters_are_folded_in_parts(monkeypatch):
    """One kernel for all layers would need memory for all scaled filters at once."""
    limit = 2**16
    monkeypatch.setattr(fold_batchnorm, "_GROUP_BYTES", limit)
    fgraph = inference_graph("resnet")
    folds = [n for n in fgraph.toposort() if isinstance(n.op, GpuFoldBatchNorm)]
    assert sum(n.op.count for n in folds) == len(fused(fgraph))
    sizes = [[4 * prod(z.type.shape) for z in n.outputs[::2]] for n in folds]
    assert all(sum(of_part) <= limit or len(of_part) == 1 for of_part in sizes)
    assert 1 < len(folds) < len(fused(fgraph))


def test_training_of_vgg():
    sizes = {**model_zoo.MODELS["vgg"].sizes, "deep": 1}
    inputs, loss, updates = training_step("vgg", sizes)
    gradients = [new for _, new in updates]
    shared = [s for s, _ in updates]
    moved = {s: GpuArrayType("float32", s.type.shape)() for s in shared}
    outputs = pytensor.graph.clone_replace(
        [loss, *gradients], [(s, host_from_gpu(v)) for s, v in moved.items()]
    )
    outputs[1:] = [as_gpuarray_variable(z) for z in outputs[1:]]
    fgraph = rewritten([*inputs, *moved.values()], outputs, CUDNN)
    found = fused(fgraph)
    assert len(found) == 13
    assert {(op.activation, *op.parts) for op in found} == {("relu", "bias")}
    convolutions = [n for n in fgraph.toposort() if isinstance(n.op, GpuDnnConvBase)]
    for node in convolutions:
        if node.op.direction == "forward":
            readers = [user for user, _ in fgraph.clients[node.outputs[0]]]
            # Nothing else computes relu.
            assert not any(
                isinstance(user.op, GpuElemwise) and len(user.inputs) == 1 for user in readers
            )
