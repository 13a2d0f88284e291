"""Gradients of products with stacked matrices become one product with the same numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import get_default_mode, get_mode
from pytensor.graph.basic import Apply
from pytensor.graph.fg import FunctionGraph
from pytensor.tensor.blas import BatchedDot, Dot22, Dot22Scalar
from pytensor.tensor.math import Sum
from pytensor.tensor.special import softmax

from dnnops.cpu.gemm import OneDnnDot, OneDnnGemm
from dnnops.gpuarray.products.blas import GpuBatchedDot, GpuDot
from dnnops.gpuarray.reduction import GpuCAReduce
from dnnops.gpuarray.type import GpuArrayType
from tests.gpuarray.graphs import rewritten
from tests.oracle import assert_close, normal

#: Batch axes of `x`, with and without static sizes.
BATCHES: tuple[tuple[int | None, ...], ...] = ((None,), (4, 3), (None, 1, None))


def products_that_are_summed(fgraph: FunctionGraph) -> list[Apply]:
    """Return products of stacked matrices, and sums of more than a matrix."""
    products, sums = BatchedDot | GpuBatchedDot, Sum | GpuCAReduce
    return [
        node
        for node in fgraph.apply_nodes
        if isinstance(node.op, products)
        or (isinstance(node.op, sums) and node.inputs[0].type.ndim > 2)
    ]


def gradient(x: Any, w: Any, g: Any) -> Any:
    return pytensor.grad(None, w, known_grads={x @ w: g})


def operands(batch: tuple[int | None, ...], dtype: str = "float32") -> list[Any]:
    shapes = ((*batch, None, 5), (5, 6), (*batch, None, 6))
    return [pt.tensor(name, dtype=dtype, shape=s) for name, s in zip("xwg", shapes, strict=True)]


def arrays(batch: tuple[int | None, ...], dtype: str = "float32", empty: bool = False) -> list:
    rng = np.random.default_rng(7)
    sizes = tuple((0 if empty else 4) if size is None else size for size in batch)
    return [normal(rng, s, dtype) for s in ((*sizes, 7, 5), (5, 6), (*sizes, 7, 6))]


@pytest.mark.parametrize("mode", ["DNN", "NUMBA", pytest.param("CUDNN", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gradient_is_one_product(mode: str, dtype: str):
    """Any batch axes are supported; without rows, the result is zeros."""
    variables = [operands(batch, dtype) for batch in BATCHES]
    logits = pt.matrix("logits", dtype=dtype)
    # The softmax makes a neural network of it, for modes that aren't dnnops' own.
    outputs = [*(gradient(*of_case) for of_case in variables), softmax(logits, axis=1)]
    inputs = [x for of_case in variables for x in of_case]
    f = pytensor.function([*inputs, logits], outputs, mode=mode, on_unused_input="ignore")
    assert not products_that_are_summed(f.maker.fgraph)
    for empty in (False, True):
        values = [arrays(batch, dtype, empty) for batch in BATCHES]
        flat = [a for of_case in values for a in of_case]
        *gradients, _ = f(*flat, np.ones((2, 3), dtype=dtype))
        for out, (x, _, g) in zip(gradients, values, strict=True):
            rows = [a.reshape(-1, a.shape[-1]).astype("float64") for a in (x, g)]
            expected = rows[0].T @ rows[1]
            assert_close(np.asarray(out), expected, dtype, allow_zero=empty)


def test_graphs_for_the_gpu_have_one_product_too():
    variables = [GpuArrayType("float32", (None,) * ndim)() for ndim in (3, 2, 3)]
    with pytensor.config.change_flags(dnn__enabled="no_check"):  # also without a GPU
        fgraph = rewritten(variables, [gradient(*variables)], get_mode("CVM").including("gpu"))
    assert any(isinstance(node.op, GpuDot) for node in fgraph.apply_nodes)
    assert not products_that_are_summed(fgraph)


def test_other_sums_of_products_stay():
    """A batch axis that is left, sums of rows, a product that would need `x` transposed."""
    x, g = pt.ftensor4("x"), pt.ftensor4("g")
    outputs = [
        (x.mT @ g).sum(axis=0),
        (x.mT @ g).sum(axis=(0, 1, 2)),
        (x @ g.mT).sum(axis=(0, 1)),
    ]
    f = pytensor.function([x, g], outputs, mode="DNN")
    assert sum(isinstance(node.op, Sum) for node in f.maker.fgraph.apply_nodes) == len(outputs)


def products(fgraph: FunctionGraph) -> list[Apply]:
    kinds = (Dot22, Dot22Scalar, OneDnnDot, OneDnnGemm, GpuDot)
    return [node for node in fgraph.toposort() if isinstance(node.op, kinds)]


def adam(gradient: Any, mean: Any, variance: Any) -> list[Any]:
    new_mean = np.float32(0.9) * mean + np.float32(0.1) * gradient
    new_variance = np.float32(0.99) * variance + np.float32(0.01) * gradient**2
    return [new_mean, new_variance]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_product_that_is_scaled_twice_is_computed_once(dtype: str):
    """PyTensor computes a product again for each number by which an optimizer scales it."""
    variables = [pt.matrix(name, dtype=dtype) for name in "xgmv"]
    x, g, m, v = variables
    f = pytensor.function(variables, adam(x.T @ g, m, v), mode="DNN")
    assert len(products(f.maker.fgraph)) == 1
    values = [normal(np.random.default_rng(i), (4, 4), dtype) for i in range(4)]
    wide = [a.astype("float64") for a in values]
    for out, expected in zip(f(*values), adam(wide[0].T @ wide[1], *wide[2:]), strict=True):
        assert_close(out, expected, dtype)


def test_a_product_that_is_scaled_twice_is_computed_once_on_a_gpu():
    variables = [GpuArrayType("float32", (None, None))() for _ in range(4)]
    x, g, m, v = (pt.as_tensor_variable(a) for a in variables)
    fgraph = rewritten(variables, adam(x.T @ g, m, v), get_mode("CVM").including("gpu"))
    assert len(products(fgraph)) == 1


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_scaled_product(dtype: str):
    """A scale joins the next elementwise Op; without one, the library multiplies by it."""
    x, y = (pt.matrix(name, dtype=dtype) for name in "xy")
    scale = pt.scalar("scale", dtype=dtype)
    # oneDNN computes products next to other Ops of oneDNN, such as the softmax.
    outputs = [scale * (x @ y), np.float32(2) * (y @ x) * pt.exp(x), softmax(x, axis=1)]
    f = pytensor.function([x, y, scale], outputs, mode="DNN")
    kinds = [type(node.op) for node in products(f.maker.fgraph)]
    assert kinds.count(Dot22Scalar) == (dtype == "float64")
    assert kinds.count(OneDnnGemm) == (dtype == "float32")
    a, b = (normal(np.random.default_rng(i), (5, 5), dtype) for i in range(2))
    wide_a, wide_b = a.astype("float64"), b.astype("float64")
    for value in (0.0, -1.5):
        out, joined, _ = f(a, b, value)
        assert_close(out, value * (wide_a @ wide_b), dtype, allow_zero=True)
        assert_close(joined, 2 * (wide_b @ wide_a) * np.exp(wide_a), dtype)


def test_graphs_without_networks_stay_what_they_are():
    variables = operands((None,))
    for mode in (get_default_mode(), get_mode("CVM")):
        f = pytensor.function(variables, gradient(*variables), mode=mode, on_unused_input="ignore")
        assert any(isinstance(node.op, BatchedDot) for node in f.maker.fgraph.apply_nodes)
    x, g, m, v = (pt.fmatrix(name) for name in "xgmv")
    f = pytensor.function([x, g, m, v], adam(x.T @ g, m, v), mode="CVM")
    assert any(isinstance(node.op, Dot22Scalar) for node in products(f.maker.fgraph))
