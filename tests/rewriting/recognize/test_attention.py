"""Attention in graphs for a GPU, without one: which nodes it becomes."""

from __future__ import annotations

import pytensor
import pytensor.tensor as pt
import pytest

from dnnops.gpu.attention import GpuDnnAttention
from dnnops.gpuarray.transfer import as_gpuarray_variable, cast
from dnnops.gpuarray.type import GpuArrayType
from dnnops.nnet import scaled_dot_product_attention
from tests.rewriting.gpu.test_to_cudnn import (
    GPU_MODE,
    names,
    nodes,
    rewritten,
    transfers,
    without_probing,  # noqa: F401
)


def attention(dtype: str, depth: int | None = None, mode=GPU_MODE, mask: str | None = None):
    """Rewrite attention of device arrays with its gradients, all with lengths."""
    operands = [GpuArrayType(dtype, (None, None, None, depth))() for _ in range(4)]
    query, key, value, gout = operands
    lengths = pt.lvector("lengths")
    inputs, keywords = [*operands, lengths], {}
    if mask:
        keywords["mask"] = pt.tensor("mask", dtype=mask, shape=(None, 1, None, None))
        inputs.append(keywords["mask"])
    out = scaled_dot_product_attention(
        query, key, value, is_causal=True, enable_gqa=True, key_lengths=lengths, **keywords
    )
    known = {out: pt.as_tensor_variable(gout)}
    grads = pytensor.grad(None, [query, key, value], known_grads=known)
    results = [as_gpuarray_variable(x, 0) for x in (out, *grads)]
    if dtype == "bfloat16":
        results = [cast(x, dtype) for x in results]
    return rewritten(inputs, results, mode)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("depth", [None, 64, 256])
@pytest.mark.parametrize("mask", [None, "bool", "same"])
def test_on_cudnn(dtype, depth, mask):
    mask = ("float16" if dtype == "float16" else "float32") if mask == "same" else mask
    fgraph = attention(dtype, depth, mask=mask)
    assert names(fgraph) >= {"GpuDnnAttention", "GpuDnnAttentionGrad"}
    # Only the lengths and the mask; nothing is computed in another dtype.
    assert transfers(fgraph) == (1 + (mask is not None), 0)
    casts = {"GpuCast"} if mask == "float32" else set()
    assert names(fgraph) == {"GpuDnnAttention", "GpuDnnAttentionGrad", "GpuFromHost"} | casts
    (node,) = nodes(fgraph, "GpuDnnAttentionGrad")
    assert [x.type.dtype for x in node.outputs] == [dtype] * 3
    assert not node.op.is_deterministic


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_statistics_only_for_gradients(dtype):
    operands = [GpuArrayType(dtype, (None,) * 4)() for _ in range(4)]
    gout = operands.pop()
    out = scaled_dot_product_attention(*operands, is_causal=True)
    result = cast(as_gpuarray_variable(out, 0), dtype)
    fgraph = rewritten(operands, [result])
    (node,) = nodes(fgraph, "GpuDnnAttention")
    assert names(fgraph) == {"GpuDnnAttention"}
    assert not node.op.with_stats
    assert [x.type.dtype for x in node.outputs] == [dtype]
    known = {out: pt.as_tensor_variable(gout)}
    (grad,) = pytensor.grad(None, operands[:1], known_grads=known)
    grad = cast(as_gpuarray_variable(grad, 0), dtype)
    fgraph = rewritten([*operands, gout], [result, grad])
    (node,) = nodes(fgraph, "GpuDnnAttention")
    assert node.op.with_stats
    assert len(node.outputs) == 2


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    "mode", ["CVM", "FAST_COMPILE", GPU_MODE], ids=["CVM", "FAST_COMPILE", "GPU"]
)
def test_statistics_of_ops_made_explicitly(dtype, mode):
    """This holds in any mode; requested statistics and those that a gradient needs stay."""
    mode = pytensor.compile.get_mode(mode)
    operands = [GpuArrayType(dtype, (2, 4, 6, 8))() for _ in range(3)]
    for with_stats in (True, False):
        op = GpuDnnAttention(None, True, with_stats=with_stats)
        out, *stats = op.make_node(*operands).outputs
        (node,) = rewritten(operands, [out], mode).apply_nodes
        assert node.op == GpuDnnAttention(None, True, with_stats=False)
        (node,) = rewritten(operands, [out, *stats], mode).apply_nodes
        assert node.op == op


def test_statistics_that_are_merged():
    """Two nodes of the same Op, one of which needs the statistics, are merged."""
    operands = [GpuArrayType("float16", (2, 4, 6, 8))() for _ in range(3)]
    first, second = (GpuDnnAttention().make_node(*operands).outputs for _ in range(2))
    (node,) = rewritten(operands, [first[0], *second]).apply_nodes
    assert node.op.with_stats


def test_the_flag_for_determinism():
    with pytensor.config.change_flags(dnn__deterministic=True):
        (node,) = nodes(attention("float16"), "GpuDnnAttentionGrad")
    assert node.op.is_deterministic


@pytest.mark.parametrize(
    ("dtype", "depth", "mode"),
    [
        ("float32", None, GPU_MODE),
        ("float64", 64, GPU_MODE),
        ("float16", 264, GPU_MODE),
        ("float16", 64, GPU_MODE.excluding("cudnn")),
        ("bfloat16", 512, GPU_MODE),
    ],
)
@pytest.mark.parametrize("mask", [None, "bool"])
def test_otherwise_products_on_the_device(dtype, depth, mode, mask):
    fgraph = attention(dtype, depth, mode, mask)
    assert "GpuBatchedDot" in names(fgraph)
    assert not any("Attention" in name for name in names(fgraph))
    moved, back = transfers(fgraph)
    assert back == 0
    assert moved == 1 + (mask is not None)
    # Only numbers and the lengths stay on the host.
    for node in fgraph.apply_nodes:
        if not type(node.op).__name__.startswith("Gpu"):
            arrays = [x for x in node.outputs if getattr(x.type, "ndim", 0) > 1]
            assert all(x.type.dtype == "int64" and sum(x.type.broadcastable) == 3 for x in arrays)


def test_float16_is_worth_the_transfer():
    inputs = [pt.tensor(dtype="float16", shape=(None,) * 4) for _ in range(3)]
    fgraph = rewritten(inputs, [scaled_dot_product_attention(*inputs)])
    assert names(fgraph) == {"GpuFromHost", "GpuDnnAttention", "HostFromGpu"}
