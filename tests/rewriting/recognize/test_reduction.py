"""Norms on the GPU: recognized without a GPU, computed with one."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import dnnops.rewriting.recognize.reduction as rewriting
from dnnops.gpuarray.reduction import PREMAPS, reduction_kernel
from dnnops.gpuarray.type import GpuArrayType
from tests.gpu.device import host, on_gpu, rounded
from tests.gpuarray.cuda_source import compile_log, reduction_source
from tests.gpuarray.graphs import GPU_MODE, rewritten
from tests.oracle import SEED

NORMS = {
    "norm1": lambda x, axis: abs(x).sum(axis=axis),
    "absmax": lambda x, axis: abs(x).max(axis=axis),
    "sum of squares": lambda x, axis: pt.sqr(x).sum(axis=axis),
    "norm2": lambda x, axis: pt.sqrt((x**2).sum(axis=axis)),
}
PREMAP = {"norm1": "abs", "absmax": "abs", "sum of squares": "sqr", "norm2": "sqr"}


def nodes(fgraph):
    return {type(node.op).__name__: node for node in fgraph.toposort()}


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("norm", NORMS)
def test_recognized(norm, dtype):
    x = GpuArrayType(dtype, (None, None, None))()
    out = NORMS[norm](pt.as_tensor_variable(x), (0, 2))
    found = nodes(rewritten([x], [out]))
    assert found["GpuCAReduce"].op.premap == PREMAP[norm]
    assert found["GpuCAReduce"].inputs[0].owner is None
    assert ("GpuElemwise" in found) == (norm == "norm2")


def test_not_recognized():
    x = GpuArrayType("float32", (None, None))()
    host_x = pt.as_tensor_variable(x)
    squares = pt.sqr(host_x)
    for outputs in ([squares.max(axis=0)], [squares.sum(axis=0), squares], [host_x.sum()]):
        assert nodes(rewritten([x], outputs))["GpuCAReduce"].op.premap is None
    n = GpuArrayType("int32", (None, None))()
    found = nodes(rewritten([n], [abs(pt.as_tensor_variable(n)).sum()]))
    assert found["GpuCAReduce"].op.premap is None
    found = nodes(rewritten([x], [NORMS["norm1"](host_x, 0)], GPU_MODE.excluding("gpu_norms")))
    assert found["GpuCAReduce"].op.premap is None


def test_cudnn_reduces_where_it_is_faster(monkeypatch):
    monkeypatch.setattr(
        rewriting, "CUDNN_REDUCTIONS", frozenset({("absmax", "first"), ("norm1", "first")})
    )
    with pytensor.config.change_flags(dnn__enabled="no_check"):
        x = GpuArrayType("float32", (None, None))()
        host_x = pt.as_tensor_variable(x)
        node = nodes(rewritten([x], [abs(host_x).max(axis=0)]))["GpuDnnReduction"]
        assert (node.op.red_op, node.op.axis) == ("absmax", (0,))
        # Not over other axes, nor where the graph asks for another accumulator.
        for out in (abs(host_x).max(axis=1), abs(host_x).sum(axis=0)):
            assert "GpuDnnReduction" not in nodes(rewritten([x], [out]))
        out = abs(host_x).sum(axis=0, acc_dtype="float32")
        assert "GpuDnnReduction" in nodes(rewritten([x], [out]))
    with pytensor.config.change_flags(dnn__enabled="False"):
        out = abs(host_x).max(axis=0)
        assert "GpuDnnReduction" not in nodes(rewritten([x], [out]))


@pytest.mark.needs("nvrtc")
@pytest.mark.parametrize("premap", PREMAPS)
def test_gpu_compiler(premap):
    from pytensor.scalar.basic import add

    for dtypes in (("float16", "float32", "float16"), ("float32", "float64", "float32")):
        assert compile_log(reduction_source(reduction_kernel(add, *dtypes, premap), 2)) == ""


@pytest.mark.gpu
@pytest.mark.parametrize("norm", NORMS)
def test_on_a_gpu(norm):
    oracles = {
        "norm1": lambda x: abs(x).sum(axis=(0, 2)),
        "absmax": lambda x: abs(x).max(axis=(0, 2)),
        "sum of squares": lambda x: (x**2).sum(axis=(0, 2)),
        "norm2": lambda x: np.sqrt((x**2).sum(axis=(0, 2))),
    }
    rng = np.random.default_rng(SEED)
    for dtype, bound in (("float16", 2e-3), ("float32", 1e-6), ("float64", 1e-13)):
        x = GpuArrayType(dtype, (None, None, None))()
        f = pytensor.function(
            [x],
            NORMS[norm](pt.as_tensor_variable(x), (0, 2)),
            mode=pytensor.compile.get_mode("CVM").including("gpu"),
        )
        for _ in range(25):
            value = rounded(rng.standard_normal(rng.integers(1, 30, 3)), dtype)
            out = f(on_gpu(value, dtype))
            out = host(out) if hasattr(out, "get") else np.asarray(out, "float64")
            np.testing.assert_allclose(
                out, oracles[norm](value), rtol=bound, err_msg=f"{dtype}{value.shape}"
            )


@pytest.mark.parametrize(
    "make",
    [
        lambda x: pt.exp(x).sum(axis=0),
        lambda x: (2 * pt.tanh(x) + 1).sum(),
        lambda x: (1 - x).prod(axis=(0, 2)),
        lambda x: pt.exp(x - 1).mean(),
        lambda x: (x > 0).sum(axis=2),
    ],
)
def test_ops_fused_with_a_sum_stay_on_the_device(make):
    x = GpuArrayType("float32", (None, None, None))()
    graph = rewritten([x], [make(pt.as_tensor_variable(x))])
    found = nodes(graph)
    assert "GpuCAReduce" in found
    assert "CAReduce" not in found
    transfers = [n for n in graph.toposort() if type(n.op).__name__ == "HostFromGpu"]
    assert all(n.inputs[0].owner is not None for n in transfers)


def test_where_the_reduced_axes_are():
    for ndim in range(1, 5):
        for count in range(1, ndim + 1):
            for axes in combinations(range(ndim), count):
                kept = [i not in axes for i in range(ndim)]
                if not any(kept):
                    expected = "all"
                elif kept == sorted(kept):
                    expected = "first"
                else:
                    expected = "last" if kept == sorted(kept, reverse=True) else "other"
                assert rewriting.axes_kind(axes, ndim) == expected
