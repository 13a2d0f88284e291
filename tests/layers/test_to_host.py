"""Graphs that are moved to a GPU and back to the host compute the same."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.graph.basic import Apply
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.traversal import ancestors
from pytensor.scalar.basic import add, mul
from pytensor.tensor.blas import Gemm
from pytensor.tensor.elemwise import CAReduce, Elemwise

import dnnops.gpu
from dnnops import layers, nnet
from dnnops.errors import DnnNotSupportedError
from dnnops.gpu.conv import GpuDnnConv
from dnnops.gpu.derivatives import GpuAbstractOp
from dnnops.gpu.reduction import GpuDnnReduction
from dnnops.gpu.rnn import GpuDnnRNNBackward, GpuDnnRNNForward
from dnnops.gpu.spatial_transformer import GpuDnnTransformerGradT, GpuDnnTransformerGrid
from dnnops.gpu.transform import GpuDnnAddTensor
from dnnops.gpuarray.basic import GpuContiguous
from dnnops.gpuarray.elemwise import GpuElemwise
from dnnops.gpuarray.multi_elemwise.op import GpuMultiElemwise
from dnnops.gpuarray.op import DeviceOp, GpuOp, is_on_device
from dnnops.gpuarray.pad import GpuPad
from dnnops.gpuarray.products.blas import GpuGemm
from dnnops.gpuarray.reduction import GpuCAReduce
from dnnops.gpuarray.subtensor import GpuIncSubtensor
from dnnops.gpuarray.transfer import (
    GpuFromHost,
    GpuToGpu,
    HostFromGpu,
    as_gpuarray_variable,
    cast,
)
from dnnops.gpuarray.type import GpuArrayType
from dnnops.modes import CudnnMode
from dnnops.rewriting.registry import is_abstract
from tests.examples import examples
from tests.oracle import PERFORM_MODE
from tests.rewriting.golden_functions import FUNCTIONS
from tests.rewriting.golden_text import rewritten


@pytest.fixture(autouse=True)
def cudnn_without_probing():
    with pytensor.config.change_flags(dnn__enabled="no_check", floatX="float32"):
        yield


@cache
def passes() -> Any:
    return CudnnMode().optimizer


#: Static lengths of the examples that are not known, if they must not be 3.
LENGTHS = {
    "conv3d_flipped_strided": {"x": (2, 3, 5, 4, 4), "w": (2, 3, 2, 2, 2)},
    "conv2d_momentum": {"x": (2, 2, 5, 5), "w": (3, 2, 3, 3), "v": (2, 3, 3, 3)},
    "ctc": {"labels": (3, 2)},
    "ctc_without_gradient": {"labels": (3, 2)},
}


def value(name: str, x: Any, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Return a value that an operand of this name may have."""
    if x.type.dtype == "bool":
        return rng.random(shape) < 0.8
    if x.type.dtype.startswith("int"):  # lengths of sequences, labels, or a generator's state
        least, most = (5, 8) if name == "lengths" else (1, 5)
        return rng.integers(least, most, shape).astype(x.type.dtype)
    found = rng.standard_normal(shape) if name != "var" else rng.uniform(0.5, 2, shape)
    return found.astype(x.type.dtype)


def values(name: str, inputs: list[Any], outputs: list[Any]) -> list[np.ndarray]:
    """Return values of inputs; those named g0, g1... have the shapes of the outputs."""
    rng, given = np.random.default_rng(0), {}
    tops = [x for x in inputs if x.name[0] == "g" and x.name[1:].isdigit()]
    for x in inputs:
        if x not in tops:
            shape = LENGTHS.get(name, {}).get(x.name) or tuple(n or 3 for n in x.type.shape)
            given[x] = value(x.name, x, shape, rng)
    first = [outputs[int(x.name[1:])] for x in tops]
    for x, z in zip(tops, evaluated(given, first), strict=True):
        given[x] = value(x.name, x, z.shape, rng)
    return [given[x] for x in inputs]


def evaluated(given: dict[Any, Any], outputs: list[Any]) -> list[np.ndarray]:
    f = pytensor.function([*given], outputs, mode=PERFORM_MODE, on_unused_input="ignore")
    return f(*given.values())


def on_device(outputs: Any) -> list[Any]:
    return [x for x in ancestors(list(outputs)) if is_on_device(x)]


def names(outputs: Any) -> set[str]:
    return {type(x.owner.op).__name__ for x in ancestors(list(outputs)) if x.owner is not None}


def check_values(found: Any, wanted: Any, dtype: str) -> None:
    tolerance = {"float16": 3e-2, "float32": 1e-5, "float64": 1e-12}[dtype]
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * np.abs(b).max())


# -- every Op ------------------------------------------------------------------------------

#: What has no counterpart on the host, and an Op that only checks a shape on the host.
NOT_MOVED = ("attention_masked_with_dropout", "checked_shape")


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, d) for name, f in FUNCTIONS.items() if name not in NOT_MOVED for d in f.dtypes],
)
def test_rewritten_graphs_and_back(name, dtype):
    inputs, outputs = FUNCTIONS[name].build(dtype)
    graph = rewritten(inputs, outputs, passes())
    assert on_device(graph.outputs)
    assert layers.convert(graph, "abstract") is graph
    assert on_device(graph.outputs) == []
    assert [z.type for z in graph.outputs] == [z.type for z in outputs]
    given = values(name, inputs, outputs)
    wanted = evaluated(dict(zip(inputs, given, strict=True)), outputs)
    found = evaluated(dict(zip(graph.inputs, given, strict=True)), list(graph.outputs))
    check_values(found, wanted, dtype)


@pytest.mark.parametrize("example", examples(), ids=lambda e: e.function.__name__)
def test_converted_examples_and_back(example):
    inputs, outputs = FUNCTIONS[example.function.__name__].build("float32")
    moved = layers.convert(outputs, "cudnn")
    back = layers.convert(moved, "abstract")
    assert on_device(back) == []
    assert [z.type for z in back] == [z.type for z in outputs]
    given = values(example.function.__name__, inputs, outputs)
    wanted = evaluated(dict(zip(inputs, given, strict=True)), outputs)
    check_values(evaluated(dict(zip(inputs, given, strict=True)), back), wanted, "float32")


@pytest.mark.parametrize(
    "name", ["conv2d", "pool_max", "batch_normalization_train", "softmax_ops", "lstm", "ctc"]
)
def test_abstract_ops_come_back(name):
    _, outputs = FUNCTIONS[name].build("float32")
    abstract = {
        x.owner.op for x in ancestors(outputs) if x.owner and is_abstract(x.owner.op, "gpu")
    }
    moved = layers.convert(outputs, "cudnn")
    assert not any(x.owner and x.owner.op in abstract for x in ancestors(moved))
    back = layers.convert(moved, "abstract")
    assert abstract <= {x.owner.op for x in ancestors(back) if x.owner}


def device_ops(of: type = DeviceOp) -> Iterator[type]:
    """Return the classes of device Ops that have no subclasses, or are not only bases."""
    for op in of.__subclasses__():
        yield op
        yield from device_ops(op)


def test_every_device_op_has_expressions():
    """A new Op needs `abstract_class`, `abstract_op` or `host_expressions`."""
    for module in pkgutil.walk_packages(dnnops.gpu.__path__, "dnnops.gpu."):
        importlib.import_module(module.name)
    lacking = {
        op.__name__
        for op in device_ops()
        if op.__module__.startswith("dnnops.")
        and not op.__subclasses__()
        and op.abstract_class is None
        and op.abstract_op is DeviceOp.abstract_op
        and op.host_expressions in (DeviceOp.host_expressions, GpuAbstractOp.host_expressions)
    }
    assert lacking == set()


# -- networks ------------------------------------------------------------------------------


def network(training: bool) -> tuple[list[Any], list[Any], list[np.ndarray]]:
    """Return inputs, results and values of a network, and of a step with momentum."""
    rng = np.random.default_rng(0)
    shapes = {
        "x": (4, 3, 8, 8), "w": (4, 3, 3, 3), "gamma": (4,), "beta": (4,), "mean": (4,),
        "var": (4,), "v": (36, 5), "b": (5,),
    }  # fmt: skip
    of = {n: pt.tensor(n, dtype="float32", shape=shape) for n, shape in shapes.items()}
    labels = pt.tensor("labels", dtype="int64", shape=(4,))
    given = [value(n, x, x.type.shape, rng) for n, x in of.items()]
    statistics: Any = [of["gamma"], of["beta"]]
    y = nnet.conv2d(of["x"], of["w"])
    results = []
    if training:
        y, _, _, *results = nnet.batch_normalization_train(
            y, *statistics, "spatial", running_mean=of["mean"], running_var=of["var"]
        )
    else:
        y = nnet.batch_normalization_test(y, *statistics, of["mean"], of["var"], "spatial")
    y = nnet.pool_2d(nnet.relu(y), (2, 2), ignore_border=True)
    scores = nnet.relu(y.flatten(2) @ of["v"] + of["b"])
    loss = nnet.cross_entropy(scores, labels).mean()
    inputs = [*of.values(), labels]
    if training:
        trained = [of[n] for n in ("w", "gamma", "beta", "v", "b")]
        velocities = [x.type(f"velocity_{x.name}") for x in trained]
        for x, u, g in zip(trained, velocities, pytensor.grad(loss, trained), strict=True):
            changed = np.float32(0.9) * u - np.float32(0.1) * g
            results += [changed, x + changed]
        inputs += velocities
        given.append(rng.integers(0, 5, 4))
        given += [value(u.name, u, u.type.shape, rng) for u in velocities]
    else:
        given.append(rng.integers(0, 5, 4))
    return inputs, [loss, scores, *results], given


@pytest.mark.parametrize("precision", ["off", "float16", "bfloat16"])
@pytest.mark.parametrize("training", [True, False])
def test_networks_and_back(training, precision):
    inputs, outputs, given = network(training)
    with pytensor.config.change_flags(dnn__mixed_precision=precision):
        graph = rewritten(inputs, outputs, passes())
    found = names(graph.outputs)
    fused = {
        True: {"GpuDnnBatchNormActivation"},
        False: {"GpuDnnBatchNormActivationInference", "GpuFoldBatchNorm"},
    }
    assert found & fused[training]
    assert ("GpuCast" in found) is (precision != "off")
    assert any(node.op.destroy_map for node in graph.apply_nodes)
    layers.convert(graph, "abstract")
    assert on_device(graph.outputs) == []
    assert not any(node.op.destroy_map for node in graph.apply_nodes)
    wanted = evaluated(dict(zip(inputs, given, strict=True)), outputs)
    found = evaluated(dict(zip(graph.inputs, given, strict=True)), list(graph.outputs))
    for a, b in zip(found, wanted, strict=True):
        # bfloat16 arrays are float32 on the host, and are not rounded.
        bound = 5e-2 if precision == "float16" else 2e-5
        np.testing.assert_allclose(a, b, rtol=bound, atol=bound * np.abs(b).max())


# -- transfers -----------------------------------------------------------------------------


def gpu(dtype: str, *shape: int | None, name: str | None = None) -> Any:
    return GpuArrayType(dtype, shape)(name)


def test_excluded_nodes_stay_and_get_transfers():
    x, w = pt.tensor4("x", dtype="float32"), pt.tensor4("w", dtype="float32")
    out = nnet.local_response_normalization(nnet.conv2d(pt.exp(x), w))
    moved = layers.convert(out, "cudnn")
    back = layers.convert(moved, "abstract", lambda node: isinstance(node.op, GpuDnnConv))
    assert names([back]) == {
        "GpuDnnConv", "GpuFromHost", "HostFromGpu", "LRN", "Elemwise"
    }  # fmt: skip
    (lrn,) = (y.owner for y in ancestors([back]) if y.owner and isinstance(y.owner.op, nnet.LRN))
    assert isinstance(lrn.inputs[0].owner.op, HostFromGpu)
    assert isinstance(lrn.inputs[0].owner.inputs[0].owner.op, GpuDnnConv)
    everything = layers.convert(moved, "abstract", lambda node: True)
    assert everything is moved


def test_graphs_keep_the_types_of_outputs_and_variables_do_not():
    x, y = pt.matrix("x", dtype="float32"), gpu("float32", None, None)
    z = GpuElemwise(add)(as_gpuarray_variable(x), y)
    (host,) = layers.convert([z], "abstract")
    assert not is_on_device(host)
    assert names([host]) == {"Elemwise", "HostFromGpu"}
    assert layers.convert(y, "abstract") is y
    graph = FunctionGraph([x, y], [z, y], clone=False)
    layers.convert(graph, "abstract")
    assert [v.type for v in graph.outputs] == [z.type, y.type]
    assert isinstance(graph.outputs[0].owner.op, GpuFromHost)
    assert graph.outputs[1] is y


def test_bfloat16_is_float32_on_the_host():
    x = gpu("bfloat16", 2, 3)
    y = cast(
        GpuElemwise(add)(x, cast(as_gpuarray_variable(np.ones((2, 3))), "bfloat16")), "float32"
    )
    z = cast(y, "bfloat16")
    (host,) = layers.convert([z], "abstract")
    assert host.type.dtype == "float32"
    assert names([host]) == {"Elemwise", "HostFromGpu", "GpuCast"}  # the input stays on the GPU
    half = layers.convert([z], "abstract", lambda node: node is z.owner)[0]
    assert half.type == z.type
    graph = FunctionGraph([x], [z], clone=False)
    layers.convert(graph, "abstract")
    assert graph.outputs[0].type == z.type


def test_operands_that_are_overwritten_on_the_host_are_copied():
    """After a transfer to the host, an Op there may overwrite the copy."""
    x = pt.vector("x", dtype="float64")
    y = as_gpuarray_variable(pt.exp(x))
    copied = HostFromGpu()(y)
    overwriting = Elemwise(add, {0: 0})(copied, copied)
    outputs = [overwriting, HostFromGpu()(GpuElemwise(mul)(y, y))]
    back = layers.convert(outputs, "abstract")
    assert on_device(back) == []
    found = pytensor.function([x], back, mode=PERFORM_MODE)(np.arange(3.0))
    wanted = np.exp(np.arange(3.0))
    check_values(found, [2 * wanted, wanted**2], "float64")
    alone = Elemwise(add, {0: 0})(pt.exp(x), x)
    assert layers.convert(alone, "abstract") is alone


def test_products_and_subtensors_no_longer_overwrite():
    x, y = (pt.matrix(name, dtype="float64") for name in "xy")
    a, b = (as_gpuarray_variable(v) for v in (x, y))
    two, three = (pt.constant(number, dtype="float64") for number in (2, 3))
    z = GpuGemm(Gemm(True))(a, two, b, b, three)
    row = pt.vector("row", dtype="float64")
    part = pt.inc_subtensor(x[0], row).owner
    part = GpuIncSubtensor(type(part.op)(part.op.idx_list, inplace=True))
    z = part(z, as_gpuarray_variable(row), *pt.inc_subtensor(x[0], row).owner.inputs[2:])
    assert z.owner.op.destroy_map
    (back,) = layers.convert([z], "abstract")
    assert not any(v.owner.op.destroy_map for v in ancestors([back]) if v.owner is not None)
    rng = np.random.default_rng(0)
    m, n, r = rng.standard_normal((2, 2)), rng.standard_normal((2, 2)), rng.standard_normal(2)
    wanted = 3 * m + 2 * n @ n
    wanted[0] += r
    check_values(evaluated({x: m, y: n, row: r}, [back]), [wanted], "float64")


def test_results_are_broadcast_as_on_the_gpu():
    """Otherwise, PyTensor would refuse to broadcast an axis that is not known to have length 1."""

    class GpuFirstRow(GpuOp):
        __props__ = ()

        def make_node(self, x):
            return Apply(self, [x], [gpu("float32", 1, None)])

        def host_expressions(self, x):
            return [x[: pt.minimum(x.shape[0], 1)]]

    x = pt.matrix("x", dtype="float32")
    on_gpu = as_gpuarray_variable(x)
    back = layers.convert([GpuElemwise(add)(GpuFirstRow()(on_gpu), on_gpu)], "abstract")
    given = np.arange(6, dtype="float32").reshape(2, 3)
    check_values(evaluated({x: given}, back), [given[:1] + given], "float32")


# -- Ops that rewrites do not insert -------------------------------------------------------

X = np.random.default_rng(0).standard_normal((2, 3, 4)).astype("float32")


OTHERS: dict[str, tuple[Any, Any]] = {
    "maximum and its place": (
        lambda x: GpuDnnReduction("max", (1, 2), return_indices=True).make_node(x).outputs,
        [X.max((1, 2)), X.reshape(2, 12).argmax(1)],
    ),
    "minimum and its place": (
        lambda x: GpuDnnReduction("min", 2, return_indices=True).make_node(x).outputs,
        [X.min(2), X.argmin(2)],
    ),
    "norm": (lambda x: [GpuDnnReduction("norm2", 1)(x)], [np.sqrt((X**2).sum(1))]),
    "scaled sum": (lambda x: [GpuDnnAddTensor()(x, x, 2.0, 3.0)], [5 * X]),
    "pad": (
        lambda x: [GpuPad([(1, 0), (0, 2), (0, 0)])(x)],
        [np.pad(X, [(1, 0), (0, 2), (0, 0)])],
    ),
    "crop": (lambda x: [GpuPad([(0, -1), (-1, 0), (0, 0)])(x)], [X[:1, 1:]]),
    "sum of squares": (
        lambda x: [GpuCAReduce(CAReduce(add, (0,)), "sqr")(x)],
        [(X**2).sum(0)],
    ),
    "contiguous": (lambda x: [GpuContiguous()(x)], [X]),
    "another device": (lambda x: [GpuToGpu(1)(x)], [X]),
    "several items": (
        lambda x: (
            GpuMultiElemwise(mul, ("dense", "scalar"), 2)
            .make_node(x, GpuElemwise(add)(x, x), pt.constant(np.float32(3)))
            .outputs
        ),
        [3 * X, 6 * X],
    ),
    "convolution that adds": (
        lambda x: [
            GpuDnnConv(ndim=1, border_mode="half")(x, x[:, :, :1] * 0 + 1, 2.0, 0.5, x[:, :2])
        ],
        [2 * X.sum(1, keepdims=True) + 0.5 * X[:, :2]],
    ),
    "convolution that ignores what it adds to": (
        lambda x: [GpuDnnConv(ndim=1)(x, x[:, :, :1] * 0 + 1, 1.0, 0.0, x[:, :2] / 0)],
        [np.repeat(X.sum(1, keepdims=True), 2, 1)],
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_ops(name):
    build, wanted = OTHERS[name]
    x = pt.tensor("x", dtype="float32", shape=X.shape)
    outputs = build(as_gpuarray_variable(x))
    back = layers.convert(list(outputs), "abstract")
    assert on_device(back) == []
    check_values(evaluated({x: X}, back), wanted, "float32")


@pytest.mark.parametrize("out_shape", [(1, 1), (1, 3), (2, 1), (2, 3)])
def test_a_single_row_or_column_of_cudnn(out_shape):
    """cuDNN's only row lies at -1, like the first of several."""
    theta = pt.tensor("theta", dtype="float64", shape=(2, 2, 3))
    values = np.random.default_rng(0).standard_normal((2, 2, 3))
    sizes = pt.vector("sizes", dtype="int64")
    found = layers.convert(
        [GpuDnnTransformerGrid()(as_gpuarray_variable(theta), sizes)], "abstract"
    )
    (grid,) = evaluated({theta: values, sizes: np.array(out_shape)}, found)
    rows, columns = (np.linspace(-1, 1, n) for n in out_shape)
    points = np.stack([*np.meshgrid(columns, rows), np.ones(out_shape)], axis=-1)
    np.testing.assert_allclose(grid, np.einsum("nij,rcj->nrci", values, points), atol=1e-12)
    dgrid = pt.tensor4("dgrid", dtype="float64")
    moved = layers.convert([GpuDnnTransformerGradT()(as_gpuarray_variable(dgrid))], "abstract")
    (dtheta,) = evaluated({dgrid: grid}, moved)
    np.testing.assert_allclose(dtheta, np.einsum("nrci,rcj->nij", grid, points), atol=1e-12)


# -- what is refused -----------------------------------------------------------------------


def test_attention_with_dropout():
    _, outputs = FUNCTIONS["attention_masked_with_dropout"].build("float16")
    moved = layers.convert(outputs, "cudnn")
    with pytest.raises(DnnNotSupportedError, match=r"GpuDnnAttention.*cuDNN's random numbers"):
        layers.convert(moved, "abstract")


@pytest.mark.parametrize("excluded", [GpuDnnRNNForward, GpuDnnRNNBackward])
def test_only_cudnn_reads_its_reserve(excluded):
    _, outputs = FUNCTIONS["lstm"].build("float32")
    moved = layers.convert(outputs, "cudnn")
    with pytest.raises(DnnNotSupportedError, match=r"GpuDnnRNNBackward.*exclude both"):
        layers.convert(moved, "abstract", lambda node: isinstance(node.op, excluded))
    both = (GpuDnnRNNForward, GpuDnnRNNBackward)
    back = layers.convert(moved, "abstract", lambda node: isinstance(node.op, both))
    assert {op.__name__ for op in both} <= names(back)


def test_an_op_without_a_counterpart():
    class GpuUnknown(GpuOp):
        __props__ = ()

        def make_node(self, x):
            return Apply(self, [x], [x.type()])

    with pytest.raises(DnnNotSupportedError, match="GpuUnknown has no counterpart on the host"):
        layers.convert([GpuUnknown()(gpu("float32", 3))], "abstract")
