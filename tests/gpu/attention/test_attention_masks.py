"""Masks on a GPU, any size of which may be 1, whether or not their type says so."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from dnnops.modes import CudnnMode
from dnnops.nnet import scaled_dot_product_attention
from tests.emulation.host_graphs import on_host
from tests.gpuarray.graphs import ops, rewritten, to_host
from tests.oracle import PERFORM_MODE

SIZES = (2, 3, 4, 5)
#: The dtype, the number of heads if the type of the operands has it, and the Op.
PATHS = [
    ("float32", 3, "GpuTiledAttention"),
    ("float16", 3, "GpuDnnAttention"),
    ("float64", 3, "GpuAttentionWeights"),
    ("float64", None, ""),
]
TOLERANCE = {"float16": 5e-3, "float32": 1e-4, "float64": 1e-10}


def results(dtype: str, heads: int | None, mask_dtype: str) -> tuple[list[Any], list[Any]]:
    """Return operands and attention with its gradients, also with respect to an added mask."""
    x = [pt.tensor(dtype=dtype, shape=(None, heads, None, 8)) for _ in range(3)]
    mask = pt.tensor(dtype=mask_dtype, shape=(None,) * 4)
    out = scaled_dot_product_attention(*x, mask)
    loss = (pt.cast(out, "float64") ** 3).sum()
    return [*x, mask], [out, *pytensor.grad(loss, x if mask_dtype == "bool" else [*x, mask])]


def drawn(dtype: str, mask_dtype: str, ones: tuple[bool, ...]) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = [(2, 3, n, 8) for n in (4, 5, 5)]
    shapes.append(tuple(1 if one else n for one, n in zip(ones, SIZES, strict=True)))
    given = [rng.standard_normal(shape).astype(dtype) for shape in shapes]
    return [*given[:3], given[3] > -0.5] if mask_dtype == "bool" else given


def check(function: Any, dtype: str, heads: int | None, mask_dtype: str) -> None:
    reference = pytensor.function(*results("float64", heads, mask_dtype), mode=PERFORM_MODE)
    if mask_dtype != "bool":
        mask_dtype = dtype
    for ones in product((False, True), repeat=4):
        given = drawn(dtype, mask_dtype, ones)
        wide = [x if x.dtype == bool else x.astype("float64") for x in given]
        for found, wanted in zip(function(*given), reference(*wide), strict=True):
            assert found.shape == wanted.shape
            error = np.linalg.norm(to_host(found).astype("float64") - wanted)
            assert error <= TOLERANCE[dtype] * max(1, np.linalg.norm(wanted)), ones


@pytest.mark.parametrize("is_added", [False, True], ids=["bool", "added"])
@pytest.mark.parametrize(("dtype", "heads", "name"), PATHS)
def test_rewritten(dtype, heads, name, is_added):
    """NumPy computes the graph that would run on a GPU."""
    inputs, outputs = results(dtype, heads, dtype if is_added else "bool")
    with pytensor.config.change_flags(dnn__enabled="no_check", on_opt_error="raise"):
        graph = rewritten(inputs, outputs, CudnnMode().excluding("inplace"))
    assert (name in ops(graph)) == bool(name)
    function = pytensor.function(graph.inputs, on_host(graph.outputs), mode=PERFORM_MODE)
    check(function, dtype, heads, "float64" if is_added else "bool")


@pytest.mark.gpu
@pytest.mark.parametrize("is_added", [False, True], ids=["bool", "added"])
@pytest.mark.parametrize(("dtype", "heads", "name"), PATHS)
def test_on_a_gpu(dtype, heads, name, is_added):
    inputs, outputs = results(dtype, heads, dtype if is_added else "bool")
    function = pytensor.function(inputs, outputs, mode=CudnnMode())
    assert not name or name in {type(n.op).__name__ for n in function.maker.fgraph.toposort()}
    check(function, dtype, heads, "float64" if is_added else "bool")
