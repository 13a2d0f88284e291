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
from pytensor.tensor.blas import BatchedDot
from pytensor.tensor.math import Sum
from pytensor.tensor.special import softmax

from dnnops.gpuarray.blas import GpuBatchedDot, GpuDot
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


def test_graphs_without_networks_stay_what_they_are():
    variables = operands((None,))
    for mode in (get_default_mode(), get_mode("CVM")):
        f = pytensor.function(variables, gradient(*variables), mode=mode, on_unused_input="ignore")
        assert any(isinstance(node.op, BatchedDot) for node in f.maker.fgraph.apply_nodes)
