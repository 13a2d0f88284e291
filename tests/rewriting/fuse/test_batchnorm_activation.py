"""Batch normalization fused with relu and residual sums; needs no GPU."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import get_mode
from pytensor.gradient import disconnected_grad
from pytensor.graph.fg import FunctionGraph

from benchmarks import model_zoo
from benchmarks.peers.models.dnnops_cpu import training_step
from dnnops import nnet
from dnnops.compat import inferred_shapes
from dnnops.errors import DnnTypeError
from dnnops.gpu.batchnorm import GpuDnnBatchNorm
from dnnops.gpu.fused.batchnorm_activation import (
    GpuDnnBatchNormActivation,
    GpuDnnBatchNormActivationGrad,
    GpuDnnBatchNormActivationInference,
)
from dnnops.gpuarray.elemwise import GpuElemwise
from dnnops.gpuarray.transfer import as_gpuarray_variable, host_from_gpu
from dnnops.gpuarray.type import GpuArrayType
from tests.emulation import host_graphs
from tests.gpuarray.graphs import rewritten
from tests.oracle import PERFORM_MODE, RELATIVE_ERROR, assert_close

PLAIN, PLAIN_GRAD = "GpuDnnBatchNorm", "GpuDnnBatchNormGrad"
FUSED, FUSED_GRAD = "GpuDnnBatchNormActivation", "GpuDnnBatchNormActivationGrad"
INFERENCE = "GpuDnnBatchNormActivationInference"
SHAPE = (4, 3, 5, 6)
CUDNN = get_mode("CUDNN")


@pytest.fixture(autouse=True)
def without_probing():
    with pytensor.config.change_flags(dnn__enabled="no_check", floatX="float32"):
        yield


def counts(fgraph: FunctionGraph) -> dict[str, int]:
    """Return how many nodes of batch normalization and how many elementwise ones there are."""
    names = [type(node.op).__name__ for node in fgraph.toposort()]
    return {n: names.count(n) for n in names if "BatchNorm" in n or n == "GpuElemwise"}


def op_of(fgraph: FunctionGraph, name: str) -> Any:
    (op,) = (n.op for n in fgraph.toposort() if type(n.op).__name__ == name)
    return op


def variables(dtype: str) -> list[Any]:
    """Return x, scale, bias, an addend, and the gradient of the result."""
    small = (1, 3, 1, 1)
    of = "float64" if dtype == "float64" else "float32"
    shapes = [(None, 3, None, None), small, small, (None, 3, None, None), (None, 3, None, None)]
    return [
        pt.tensor(dtype=d, shape=s)
        for d, s in zip((dtype, of, of, dtype, dtype), shapes, strict=True)
    ]


def values(dtype: str) -> list[np.ndarray]:
    """Return values for `variables`; a constant channel is zero after normalization."""
    rng = np.random.default_rng(0)
    of = "float64" if dtype == "float64" else "float32"
    x, z, top = (rng.standard_normal(SHAPE).astype(dtype) for _ in range(3))
    scale, bias = (rng.standard_normal((1, 3, 1, 1)).astype(of) for _ in range(2))
    x[:, 1], bias[:, 1] = 2, 0
    z[0, 1, 0] = 0
    return [x, scale, bias, z, top]


def normalized(x: Any, scale: Any, bias: Any) -> Any:
    return nnet.batch_normalization_train(x, scale, bias, "spatial")[0]


def later(x: Any) -> Any:
    """Return an expression of `x` that cannot be fused with elementwise nodes."""
    return pt.sort(x, axis=0)


def step(make: Any, dtype: str, by: tuple[int, ...] = (0, 1, 2)) -> tuple[list[Any], list[Any]]:
    """Return operands and the result of ``make(x, scale, bias, z)`` with some gradients."""
    given = variables(dtype)
    out = make(*given[:4])
    # The gradient depends on the result, as in a network; otherwise, one loop computes both.
    top = given[4] * later(out)
    return given, [out, *pytensor.grad(None, [given[i] for i in by], known_grads={out: top})]


def on_device(given: list[Any], outputs: list[Any], mode: Any = CUDNN) -> FunctionGraph:
    return rewritten(given, [as_gpuarray_variable(z) for z in outputs], mode)


def check_values(fgraph: FunctionGraph, given: list[Any], outputs: list[Any], dtype: str) -> None:
    lowered = host_graphs.on_host(fgraph.outputs)
    f = pytensor.function(fgraph.inputs, lowered, mode=PERFORM_MODE, on_unused_input="ignore")
    oracle = pytensor.function(given, outputs, mode=PERFORM_MODE, on_unused_input="ignore")
    found, expected = f(*values(dtype)), oracle(*values(dtype))
    for result, reference in zip(found, expected, strict=True):
        assert_close(result, reference, bound=2 * RELATIVE_ERROR[dtype])


def relu(x: Any, scale: Any, bias: Any, z: Any) -> Any:
    return nnet.relu(normalized(x, scale, bias))


def maximum(x: Any, scale: Any, bias: Any, z: Any) -> Any:
    return pt.maximum(normalized(x, scale, bias), np.zeros((), x.type.dtype))


@pytest.mark.usefixtures("lowered_loops")
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize(
    ("make", "at_zero", "at_nan"), [(relu, False, True), (maximum, True, False)]
)
def test_relu(make, at_zero, at_nan, dtype):
    """Neither relu nor its gradient is left; slopes at zero stay as they are."""
    given, outputs = step(make, dtype)
    fgraph = on_device(given, outputs)
    # What is left is the product with the given gradient.
    assert counts(fgraph) == {FUSED: 1, FUSED_GRAD: 1, "GpuElemwise": 1}
    op = op_of(fgraph, FUSED_GRAD)
    assert (op.slope_at_zero, op.slope_at_nan) == (at_zero, at_nan)
    # It overwrites the incoming gradient; x is needed to compute the mask again.
    assert op.inplace
    assert not op_of(fgraph, FUSED).inplace_output
    check_values(fgraph, given, outputs, dtype)


@pytest.mark.usefixtures("lowered_loops")
def test_one_loop_for_both_directions():
    given = variables("float32")
    out = relu(*given[:4])
    grads = pytensor.grad(None, given[:3], known_grads={out: given[4]})
    fgraph = on_device(given, [out, *grads])
    assert counts(fgraph) == {FUSED: 1, FUSED_GRAD: 1}
    check_values(fgraph, given, [out, *grads], "float32")


@pytest.mark.usefixtures("lowered_loops")
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_residual_sum(dtype):
    """The mask comes from the result. The gradient of the addend is the masked one."""
    given, outputs = step(
        lambda x, scale, bias, z: nnet.relu(z + normalized(x, scale, bias)), dtype, (0, 1, 2, 3)
    )
    fgraph = on_device(given, outputs)
    # What is left is the product with the given gradient.
    assert counts(fgraph) == {FUSED: 1, FUSED_GRAD: 1, "GpuElemwise": 1}
    assert op_of(fgraph, FUSED).addend
    op = op_of(fgraph, FUSED_GRAD)
    assert op.addend
    assert op.destroy_map == {0: [0], 3: [1]}
    check_values(fgraph, given, outputs, dtype)


@pytest.mark.usefixtures("lowered_loops")
def test_sum_without_relu():
    given, outputs = step(lambda x, scale, bias, z: normalized(x, scale, bias) + z, "float32")
    fgraph = on_device(given, outputs)
    op = op_of(fgraph, FUSED)
    assert (op.relu, op.addend) == (False, True)
    check_values(fgraph, given, outputs, "float32")


@pytest.mark.usefixtures("lowered_loops")
def test_sum_of_gradients():
    """A loop that sums gradients before relu's gradient still sums them, without the mask."""
    given = variables("float32")
    out = relu(*given[:4])
    tops = [disconnected_grad(given[4] * later(out)), disconnected_grad(later(out))]
    outputs = [out, *pytensor.grad(sum((out * top).sum() for top in tops), given[:3])]
    fgraph = on_device(given, outputs)
    assert counts(fgraph)[FUSED_GRAD] == 1
    assert PLAIN_GRAD not in counts(fgraph)
    check_values(fgraph, given, outputs, "float32")


@pytest.mark.usefixtures("lowered_loops")
@pytest.mark.parametrize("addend", [False, True])
def test_inference(addend):
    given = variables("float32")
    x, scale, bias, z, _ = given
    mean, var = pt.exp(scale), pt.exp(bias)
    y = nnet.batch_normalization_test(pt.exp(x), scale, bias, mean, var, "spatial")
    outputs = [nnet.relu(y + z if addend else y)]
    fgraph = on_device(given, outputs)
    assert counts(fgraph) == {INFERENCE: 1, "GpuElemwise": 3}
    assert op_of(fgraph, INFERENCE).inplace
    check_values(fgraph, given, outputs, "float32")


def test_bfloat16():
    """Loops return float32, which is converted, so the sum is fused first, and relu then."""
    x, z = (GpuArrayType("bfloat16", (None, 3, None, None))() for _ in range(2))
    scale, bias = (GpuArrayType("float32", (1, 3, 1, 1))() for _ in range(2))
    y = GpuDnnBatchNorm("spatial")(x, scale, bias)[0]
    for out, addend in ((nnet.relu(y), False), (nnet.relu(y + z), True)):
        out = as_gpuarray_variable(out).astype("bfloat16")
        fgraph = rewritten([x, z, scale, bias], [as_gpuarray_variable(out)], CUDNN)
        assert counts(fgraph) == {FUSED: 1}
        op = op_of(fgraph, FUSED)
        assert (op.relu, op.addend) == (True, addend)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # What is left are normalizations of shortcuts and those before a sum without relu.
        ("resnet", {FUSED: 13, FUSED_GRAD: 13, PLAIN: 4, PLAIN_GRAD: 4}),
        ("mobilenet", {FUSED: 16, FUSED_GRAD: 13, PLAIN: 3, PLAIN_GRAD: 6}),
        ("unet", {FUSED: 10, FUSED_GRAD: 10}),
    ],
)
def test_networks(name, expected):
    inputs, loss, updates = training_step(name, model_zoo.MODELS[name].sizes)
    moved = {
        s: GpuArrayType("float32", s.type.shape)()
        for s, _ in updates
        if s.type.ndim and s.type.dtype == "float32"
    }
    replaced = [(s, host_from_gpu(x)) for s, x in moved.items()]
    outputs = pytensor.graph.clone_replace(
        [loss, *(new for s, new in updates if s in moved)], replaced
    )
    outputs[1:] = [as_gpuarray_variable(new) for new in outputs[1:]]
    rest = [s for s, _ in updates if s not in moved]
    fgraph = rewritten([*inputs, *rest, *moved.values()], outputs, CUDNN)
    found = counts(fgraph)
    del found["GpuElemwise"]
    assert found == expected
    for node in fgraph.toposort():
        if isinstance(node.op, GpuElemwise):
            assert all(z.type.dtype != "bool" for z in node.outputs)


# -- what is not fused ------------------------------------------------------------------------


def other_user(x, scale, bias, z):
    y = normalized(x, scale, bias)
    return nnet.relu(y) + pt.sort(y, axis=0)


def nan_becomes_zero(x, scale, bias, z):
    y = normalized(x, scale, bias)
    return pt.switch(y > 0, y, np.float32(0))


def addend_of_other_shape(x, scale, bias, z):
    return nnet.relu(normalized(x, scale, bias) + z.sum((0, 2, 3), keepdims=True))


def addend_of_the_mean(x, scale, bias, z):
    y, mean, _ = nnet.batch_normalization_train(x, scale, bias, "spatial")
    return nnet.relu(y + pt.sort(z * mean, axis=0))


def leaky(x, scale, bias, z):
    return nnet.relu(normalized(x, scale, bias), 0.1)


@pytest.mark.parametrize(
    "make", [other_user, nan_becomes_zero, addend_of_other_shape, addend_of_the_mean, leaky]
)
def test_near_misses(make):
    given = variables("float32")
    fgraph = on_device(given, [make(*given[:4])])
    assert PLAIN in counts(fgraph)
    assert FUSED not in counts(fgraph)


def test_a_maximum_of_a_sum_stays():
    """Its slope at zero is 1, and its result doesn't tell zero from negative numbers."""
    given, outputs = step(
        lambda x, scale, bias, z: pt.maximum(normalized(x, scale, bias) + z, np.float32(0)),
        "float32",
    )
    assert counts(on_device(given, outputs)).keys() == {PLAIN, PLAIN_GRAD, "GpuElemwise"}


def test_a_mask_of_other_users_stays():
    given = variables("float32")
    y = normalized(*given[:3])
    fgraph = on_device(given, [nnet.relu(y), y <= 0])
    assert PLAIN in counts(fgraph)


def test_without_fusion():
    given, outputs = step(relu, "float32")
    assert FUSED not in counts(on_device(given, outputs, CUDNN.excluding("fusion")))
    mode = CUDNN.excluding("gpu_batchnorm_activation")
    assert FUSED not in counts(on_device(given, outputs, mode))


# -- the Ops ----------------------------------------------------------------------------------


def device_operands(dtype: str = "float32") -> list[Any]:
    small = [GpuArrayType("float32", (1, 3, 1, 1))() for _ in range(4)]
    return [GpuArrayType(dtype, (None, 3, 4, None))(), *small]


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("addend", [False, True])
@pytest.mark.parametrize("running", [False, True])
def test_operands_and_results(relu, addend, running):
    x, *p = device_operands()
    z = [GpuArrayType("float32", (5, 3, None, None))()] if addend else []
    op = GpuDnnBatchNormActivation("spatial", running, relu=relu, addend=addend)
    averages = [0.1, *p[2:]] if running else []
    node = op.make_node(x, *p[:2], 0.1, *averages, *z)
    has_offsets = relu and not addend
    assert len(node.outputs) == (5 if running else 3) + has_offsets
    assert node.outputs[0].type.shape == (5 if addend else None, 3, 4, None)
    assert {o.type.shape for o in node.outputs[1:]} == {(1, 3, 1, 1)}
    assert pickle.loads(pickle.dumps(node.op)) == node.op
    shapes = [tuple(v.shape) if v.type.ndim else () for v in node.inputs]
    inferred = inferred_shapes(node.op, node, shapes)
    assert [len(s) for s in inferred] == [4] * len(node.outputs)
    versions = node.op.inplace_versions()
    assert len(versions) == (7 if running else 1)
    assert all((v.relu, v.addend) == (relu, addend) for v in versions)
    assert (node.op._layouts(0), node.op._layouts(1)) == (3, 1)
    if addend:
        assert node.op._layouts(len(node.inputs) - 1) == 3


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_derivatives(dtype):
    """Gradients of the fused Ops are those of the Ops that they stand for."""
    x, *p = device_operands(dtype)
    out = GpuDnnBatchNormActivation("spatial")(x, *p[:2], 0.1)[0]
    grads = pytensor.grad(host_from_gpu(out).astype("float32").sum(), [x, *p[:2]])
    assert [g.type.ndim for g in grads] == [4, 4, 4]
    grad = GpuDnnBatchNormActivationGrad("spatial")(x, x, *p)[0]
    grads = pytensor.grad(host_from_gpu(grad).astype("float32").sum(), [x, *p])
    assert [g.type.ndim for g in grads] == [4] * 5


def test_bad_operands():
    x, *p = device_operands()
    z = GpuArrayType("float16", (None, 3, 4, None))()
    op = GpuDnnBatchNormActivation("spatial", addend=True)
    with pytest.raises(DnnTypeError, match="must have the same dtype"):
        op(x, *p[:2], 0.1, z)
    with pytest.raises(DnnTypeError, match="expected more operands"):
        op()
    with pytest.raises(ValueError, match="addend"):
        op(x, *p[:2], 0.1, GpuArrayType("float32", (None, 4, 4, None))())
    op = GpuDnnBatchNormActivationInference("spatial", addend=True)
    with pytest.raises(DnnTypeError):
        op(x, *p, 0.1)
    wrong = GpuArrayType("float32", (1, 4, 1, 1))()
    with pytest.raises(ValueError, match="offset"):
        GpuDnnBatchNormActivationGrad("spatial")(x, x, *p[:3], wrong)
