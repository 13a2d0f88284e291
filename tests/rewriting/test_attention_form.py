"""Attention that is written out: what is recognized, what is not, and that it stays the same."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from dnnops.gpuarray.type import GpuArrayType
from tests.rewriting.test_to_cudnn import (
    GPU_MODE,
    names,
    rewritten,
    without_probing,  # noqa: F401
)

PLAIN = pytensor.compile.get_mode("CVM").excluding("onednn")


def tensors(dtype: str = "float32", depth: int | None = 8) -> list:
    return [pt.tensor(n, dtype=dtype, shape=(None, None, None, depth)) for n in ("q", "k", "v")]


FORMS = {
    "swapped": lambda q, k, s: (q @ k.swapaxes(2, 3)) * s,
    "transposed": lambda q, k, s: s * (q @ k.transpose(0, 1, 3, 2)),
    "divided": lambda q, k, s: (q @ k.mT) / np.sqrt(np.asarray(12, k.dtype)),
    "before": lambda q, k, s: (q * s) @ k.mT,
    "plain": lambda q, k, s: q @ k.mT,
}


def written_out(form: str, q, k, v, mask=None):
    scores = FORMS[form](q, k, np.asarray(0.3, v.dtype))
    if mask is not None:
        scores = scores + mask
    return pt.special.softmax(scores, axis=-1) @ v


@pytest.mark.parametrize(
    ("form", "masked", "by"),
    [
        *((form, form in ("swapped", "plain"), "qkv") for form in FORMS),
        ("swapped", False, ""),
        ("divided", True, ""),
        ("before", False, "v"),
        ("transposed", True, "qk"),
    ],
)
def test_on_the_cpu(form, masked, by):
    q, k, v = tensors()
    gout = pt.tensor4("g", dtype="float32")
    mask = pt.tensor("m", dtype="float32", shape=(None, 1, None, None)) if masked else None
    inputs = [q, k, v, gout, *([mask] if masked else [])]
    out = written_out(form, q, k, v, mask)
    wrt = [x for x in (q, k, v) if x.name in by]
    grads = pytensor.grad(None, wrt, known_grads={out: gout}) if wrt else []
    options = {"on_unused_input": "ignore"}
    fn = pytensor.function(inputs, [out, *grads], mode="CVM", **options)
    found = names(fn.maker.fgraph)
    assert "OneDnnAttention" in found
    assert ("OneDnnAttentionGrad" in found) == bool(by)
    assert not any("Softmax" in name or "Batched" in name for name in found)
    plain = pytensor.function(inputs, [out, *grads], mode=PLAIN, **options)
    rng = np.random.default_rng(0)
    shapes = [(2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 8), (2, 3, 5, 8), (2, 1, 5, 7)]
    arrays = [rng.standard_normal(s).astype("float32") for s in shapes[: len(inputs)]]
    for result, expected in zip(fn(*arrays), plain(*arrays), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_on_a_gpu(dtype):
    q, k, v, gout = (GpuArrayType(dtype, (None, None, None, 64))() for _ in range(4))
    host = [pt.as_tensor_variable(x) for x in (q, k, v)]
    out = written_out("swapped", *host)
    grads = pytensor.grad(None, [q, k, v], known_grads={out: pt.as_tensor_variable(gout)})
    found = names(rewritten([q, k, v, gout], [out, *grads], GPU_MODE))
    is_narrow = dtype != "float32"
    assert ("GpuDnnAttention" in found) == ("GpuDnnAttentionGrad" in found) == is_narrow
    assert ("GpuBatchedDot" in found) == (not is_narrow)


def _seen_weights(q, k, v):
    weights = pt.special.softmax(q @ k.mT, axis=-1)
    return [weights @ v, weights]


def _other_axis(q, k, v):
    return [pt.special.softmax(q @ k.mT, axis=2) @ v]


def _broadcast_key(q, k, v):
    return [pt.special.softmax(q @ pt.specify_broadcastable(k, 0).mT, axis=-1) @ v]


def _gradient_by_keys_alone(q, k, v):
    out = pt.special.softmax(q @ k.mT, axis=-1) @ v
    return [out, pytensor.grad((out**2).sum(), k)]


def _gradient_by_mask(q, k, v):
    mask = pt.zeros((1, 1, q.shape[2], k.shape[2]), dtype="float32")
    out = pt.special.softmax(q @ k.mT + mask, axis=-1) @ v
    return [out, pytensor.grad((out**2).sum(), mask)]


@pytest.mark.parametrize(
    "make",
    [_seen_weights, _other_axis, _broadcast_key, _gradient_by_mask, _gradient_by_keys_alone],
    ids=lambda make: make.__name__,
)
def test_what_is_left(make):
    inputs = tensors()
    fn = pytensor.function(inputs, make(*inputs), mode="CVM")
    assert not any("Attention" in name for name in names(fn.maker.fgraph))


def test_not_in_float64_nor_without_onednn():
    for dtype, mode in (("float64", "CVM"), ("float32", PLAIN)):
        inputs = tensors(dtype)
        fn = pytensor.function(inputs, written_out("swapped", *inputs), mode=mode)
        assert not any("Attention" in name for name in names(fn.maker.fgraph))
