"""Products fused with biases, residual sums and activations; needs no GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import get_mode
from pytensor.gradient import disconnected_grad
from pytensor.graph.fg import FunctionGraph
from pytensor.tensor.elemwise import Elemwise

from benchmarks import model_zoo
from benchmarks.peers.models.dnnops_cpu import training_step
from dnnops import nnet
from dnnops.gpu.fused.dense import GpuDense
from dnnops.gpuarray.basic import GpuReshape
from dnnops.gpuarray.elemwise import GpuElemwise
from dnnops.gpuarray.transfer import as_gpuarray_variable, host_from_gpu
from dnnops.gpuarray.type import GpuArrayType
from tests.emulation import host_graphs
from tests.gpuarray.graphs import rewritten
from tests.oracle import PERFORM_MODE, RELATIVE_ERROR, assert_close

newer_loops = pytest.mark.xfail(
    not pytensor.__version__.startswith("3.0."),
    reason="with PyTensor 3.1 and newer, a loop with relu and its gradient stays elementwise",
)

CUDNN = get_mode("CUDNN").excluding("inplace")
DENSE, LOOP, DOT, GEMM = "GpuDense", "GpuElemwise", "GpuDot", "GpuGemm"
INNER, COLUMNS = 5, 6


@pytest.fixture(autouse=True)
def settings(monkeypatch):
    monkeypatch.setattr(
        GpuElemwise,
        "host_expressions",
        lambda op, *x: Elemwise(op.scalar_op).make_node(*x).outputs,
    )
    with pytensor.config.change_flags(dnn__enabled="no_check", floatX="float32"):
        yield


def counts(fgraph: FunctionGraph) -> dict[str, int]:
    """Return how many products and elementwise nodes there are."""
    names = [type(node.op).__name__ for node in fgraph.toposort()]
    return {n: names.count(n) for n in (DENSE, LOOP, DOT, GEMM) if n in names}


def layers(fgraph: FunctionGraph) -> list[str]:
    """Return the parameters of the dense layers, in topological order."""
    found = [str(n.op) for n in fgraph.toposort() if type(n.op).__name__ == DENSE]
    return [text.removeprefix(f"{DENSE}{{").removesuffix("}") for text in found]


def variables(dtype: str, ndim: int, static: bool = True) -> list[Any]:
    """Return x, w, a bias, an addend and the gradient of the result."""
    inner, columns = (INNER, COLUMNS) if static else (None, None)
    batch = (None,) * (ndim - 1)
    shapes = [(*batch, inner), (inner, columns), (columns,), (*batch, columns), (*batch, columns)]
    return [pt.tensor(dtype=dtype, shape=s) for s in shapes]


def values(dtype: str, ndim: int, rows: int = 7) -> list[np.ndarray]:
    """Return values for `variables`: integers, so that sums are exact, and some are zero."""
    rng = np.random.default_rng(0)
    batch = (rows,) if ndim == 2 else (2, rows)
    shapes = [(*batch, INNER), (INNER, COLUMNS), (COLUMNS,), (*batch, COLUMNS), (*batch, COLUMNS)]
    return [rng.integers(-2, 3, s).astype(dtype) for s in shapes]


def gelu(x: Any) -> Any:
    c = np.sqrt(2 / np.pi).astype("float32")
    return np.float32(0.5) * x * (1 + pt.tanh(c * (x + np.float32(0.044715) * x**3)))


def gelu_by_sigmoid(x: Any) -> Any:
    c = np.sqrt(8 / np.pi).astype("float32")
    return x * pt.sigmoid(c * (x + np.float32(0.044715) * x * x * x))


FORMS: dict[str, tuple[Callable[..., Any], str]] = {
    "bias": (lambda x, w, b, z: x @ w + b, "bias"),
    "sum": (lambda x, w, b, z: x @ w + z, "addend"),
    "bias_sum": (lambda x, w, b, z: z + (x @ w + b), "bias, addend"),
    "relu": (lambda x, w, b, z: nnet.relu(x @ w), "relu"),
    "relu_bias": (lambda x, w, b, z: nnet.relu(x @ w + b), "relu, bias"),
    "maximum": (lambda x, w, b, z: pt.maximum(x @ w + b, np.float32(0)), "relu, bias"),
    "relu_bias_sum": (lambda x, w, b, z: nnet.relu(x @ w + b + z), "relu, bias, addend"),
    "gelu": (lambda x, w, b, z: gelu(x @ w), "gelu"),
    "gelu_bias": (lambda x, w, b, z: gelu(x @ w + b), "gelu, bias"),
    "gelu_by_sigmoid": (lambda x, w, b, z: gelu_by_sigmoid(x @ w + b), "gelu, bias"),
}


def later(x: Any) -> Any:
    """Return an expression of `x` that cannot be fused with elementwise nodes."""
    return pt.sort(x, axis=0)


def on_device(given: list[Any], outputs: list[Any], mode: Any = CUDNN) -> FunctionGraph:
    return rewritten(given, [as_gpuarray_variable(z) for z in outputs], mode)


def check_values(
    fgraph: FunctionGraph, given: list[Any], outputs: list[Any], arrays: list[np.ndarray]
) -> None:
    lowered = host_graphs.on_host(fgraph.outputs)
    f = pytensor.function(fgraph.inputs, lowered, mode=PERFORM_MODE, on_unused_input="ignore")
    oracle = pytensor.function(given, outputs, mode=PERFORM_MODE, on_unused_input="ignore")
    bound = 2 * RELATIVE_ERROR[arrays[0].dtype.name]
    for found, expected in zip(f(*arrays), oracle(*arrays), strict=True):
        assert_close(found, expected, bound=bound, allow_zero=True)


@pytest.mark.parametrize("ndim", [2, 3])
@pytest.mark.parametrize("name", FORMS)
def test_forms(name, ndim):
    make, expected = FORMS[name]
    given = variables("float32", ndim)
    outputs = [make(*given[:4])]
    fgraph = on_device(given, outputs)
    # PyTensor merges a sum with a matrix into its own Op.
    assert counts(fgraph) == {GEMM if (name, ndim) == ("sum", 2) else DENSE: 1}
    assert layers(fgraph) == [expected] * counts(fgraph).get(DENSE, 0)
    if DENSE in counts(fgraph):
        check_values(fgraph, given, outputs, values("float32", ndim))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("static", [True, False])
def test_dtypes_and_unknown_sizes(dtype, static):
    given = variables(dtype, 3, static)
    outputs = [nnet.relu(given[0] @ given[1] + given[2] + given[3])]
    fgraph = on_device(given, outputs)
    assert counts(fgraph) == {DENSE: 1}
    for rows in (7, 0):
        check_values(fgraph, given, outputs, values(dtype, 3, rows))


def loops_after_layers(fgraph: FunctionGraph) -> list[Any]:
    """Return the elementwise nodes that read the result of a dense layer."""

    def is_layer(x: Any) -> bool:
        if x.owner is not None and isinstance(x.owner.op, GpuReshape):
            x = x.owner.inputs[0]
        return x.owner is not None and isinstance(x.owner.op, GpuDense)

    loops = [n for n in fgraph.toposort() if isinstance(n.op, GpuElemwise)]
    return [n for n in loops if any(map(is_layer, n.inputs))]


def step(make: Any, ndim: int, dtype: str = "float32") -> tuple[list[Any], list[Any]]:
    """Return operands, and two layers with the gradients with respect to all parameters."""
    given = variables(dtype, ndim)
    v = pt.tensor(dtype=dtype, shape=(COLUMNS, COLUMNS))
    hidden = make(*given[:4])
    out = later(hidden @ v)
    known = {out: given[4] * disconnected_grad(later(out))}
    return [*given, v], [out, *pytensor.grad(None, [*given[:3], v], known_grads=known)]


def step_values(ndim: int, dtype: str = "float32") -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    return [*values(dtype, ndim), rng.integers(-2, 3, (COLUMNS, COLUMNS)).astype(dtype)]


@newer_loops
@pytest.mark.parametrize("ndim", [2, 3])
@pytest.mark.parametrize("name", ["relu_bias", "relu_bias_sum"])
def test_gradient_of_relu(name, ndim):
    """The mask is computed from the result, in the loop that applies it."""
    given, outputs = step(FORMS[name][0], ndim)
    fgraph = on_device(given, outputs)
    assert layers(fgraph) == [FORMS[name][1]]
    # The other loop computes the known gradient.
    assert counts(fgraph)[LOOP] == 2
    (masked,) = loops_after_layers(fgraph)
    assert [z.type.dtype for z in masked.outputs] == ["float32"]
    check_values(fgraph, given, outputs, step_values(ndim))


@newer_loops
def test_the_gradient_is_masked_in_place():
    given, outputs = step(FORMS["relu_bias"][0], 2)
    fgraph = on_device(given, outputs, get_mode("CUDNN"))
    (masked,) = loops_after_layers(fgraph)
    (place,) = masked.op.destroy_map[0]
    assert type(masked.inputs[place].owner.op).__name__ == DOT


@newer_loops
def test_a_mask_of_other_gradients_is_computed_from_the_result():
    """The gradient may come from something other than a product."""
    given = variables("float32", 2)
    out = nnet.relu(given[0] @ given[1] + given[2])
    top = given[4] * disconnected_grad(later(out))
    outputs = [out, *pytensor.grad(None, given[:3], known_grads={out: top})]
    fgraph = on_device(given, outputs)
    assert layers(fgraph) == ["relu, bias"]
    loops = [n for n in fgraph.toposort() if isinstance(n.op, GpuElemwise)]
    assert all(z.type.dtype != "bool" for n in loops for z in n.outputs)
    check_values(fgraph, given, outputs, values("float32", 2))


@pytest.mark.parametrize("ndim", [2, 3])
def test_gradient_of_gelu(ndim):
    """The gradient reads the operand of GELU, which is the result of the fused product."""
    given, outputs = step(FORMS["gelu_bias"][0], ndim)
    fgraph = on_device(given, outputs)
    assert layers(fgraph) == ["bias"]
    # GELU, the known gradient and the masked one: neither the hyperbolic tangent nor another part
    # of the gradient is stored.
    loops = [n for n in fgraph.toposort() if isinstance(n.op, GpuElemwise)]
    assert [len(n.outputs) for n in loops] == [1, 1, 1]
    check_values(fgraph, given, outputs, step_values(ndim))


def test_the_rest_of_a_loop_stays():
    x, w, b, _, g = given = variables("float32", 2)
    y = x @ w + b
    outputs = [y, pt.exp(y) * g]
    fgraph = on_device(given, outputs)
    assert counts(fgraph) == {DENSE: 1, LOOP: 1}
    check_values(fgraph, given, outputs, values("float32", 2))


def test_another_function_of_the_addend_stays():
    """The layer's result replaces its terms only in what reads the product."""
    x, w, _, z, g = given = variables("float32", 3)
    y = x @ w + z
    outputs = [y, pt.exp(y) * g, pt.exp(z)]
    fgraph = on_device(given, outputs)
    assert counts(fgraph) == {DENSE: 1, LOOP: 2}
    check_values(fgraph, given, outputs, values("float32", 3))


# -- networks ------------------------------------------------------------------------------


def network(name: str) -> FunctionGraph:
    """Return the graph of a training step with everything on the device."""
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
    return rewritten([*inputs, *rest, *moved.values()], outputs, CUDNN)


# Mixed precision is in tests/rewriting/test_mixed_precision.py.


@newer_loops
def test_mlp():
    fgraph = network("mlp")
    assert layers(fgraph) == [*["relu, bias"] * 3, "bias"]
    # The only loops over activations mask a gradient. Each writes it once, for the products that
    # continue the gradient, and for the sum that is the gradient with respect to the bias.
    masked = loops_after_layers(fgraph)
    loops = [n for n in fgraph.toposort() if isinstance(n.op, GpuElemwise)]
    assert [n for n in loops if n.outputs[0].type.shape == (None, 512)] == masked
    assert len(masked) == 3
    for node in masked:
        assert len(node.outputs) == 1
        users = [type(user.op).__name__ for user, _ in fgraph.clients[node.outputs[0]]]
        assert {"GpuCAReduce", DOT} <= set(users)


@newer_loops
def test_transformer():
    found = layers(network("transformer"))
    # The first of the 4 residual sums adds up an embedding and a position, too.
    assert found.count("bias, addend") == 3
    assert found.count("relu, bias") == 2
    assert found.count("bias") == 3 * 2 + 1


# -- what is not fused ------------------------------------------------------------------------


def gelu_with_erf(x, w, b, z):
    y = x @ w + b
    return y * np.float32(0.5) * (1 + pt.erf(y * np.float32(np.sqrt(0.5))))


def other_user(x, w, b, z):
    y = x @ w
    return nnet.relu(y + b) + later(y)


def leaky(x, w, b, z):
    return nnet.relu(x @ w + b, 0.1)


def bias_of_rows(x, w, b, z):
    return x @ w + z.sum(axis=-1, keepdims=True)


def number(x, w, b, z):
    return x @ w + np.float32(3)


def two_addends(x, w, b, z):
    return x @ w + z + pt.exp(z)


def product_in_an_expression(x, w, b, z):
    return pt.tanh(x @ w + b)


@pytest.mark.parametrize(
    "make",
    [
        gelu_with_erf,
        other_user,
        leaky,
        bias_of_rows,
        number,
        two_addends,
        product_in_an_expression,
    ],
)
def test_near_misses(make):
    given = variables("float32", 3)
    assert DENSE not in counts(on_device(given, [make(*given[:4])]))


def test_a_reshape_that_splits_columns():
    """A bias of each head is not one of the product's columns."""
    x, w = (GpuArrayType("float32", s)() for s in ((None, 5), (5, 6)))
    bias = GpuArrayType("float32", (3,))()
    y = (x @ w).reshape((-1, 2, 3)) + bias
    assert DENSE not in counts(on_device([x, w, bias], [y]))


def test_an_addend_that_follows_from_the_product():
    x, w, b, *_ = given = variables("float32", 2)
    y = x @ w
    fgraph = on_device(given, [nnet.relu(y + later(pt.exp(y)) + b)])
    assert DENSE not in counts(fgraph)


def test_without_fusion():
    given = variables("float32", 2)
    outputs = [FORMS["relu_bias"][0](*given[:4])]
    for tag in ("fusion", "gpu_dense"):
        assert DENSE not in counts(on_device(given, outputs, CUDNN.excluding(tag)))
