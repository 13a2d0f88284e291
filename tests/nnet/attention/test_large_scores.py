"""Attention whose scores are all large: the weights depend on their differences only."""

from __future__ import annotations

import warnings

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from dnnops.nnet import scaled_dot_product_attention
from tests.oracle import PERFORM_MODE

OFFSETS = (-1e5, -1000.0, -125.0, -20.0, 125.0, 1e5)


def operands(offset, dtype="float64"):
    """Return query, key, value and mask; the last feature adds the offset to every score."""
    rng = np.random.default_rng(0)
    query, key, value = (rng.standard_normal(s) for s in ((2, 2, 5, 9), (2, 2, 7, 9), (2, 2, 7, 3)))
    size = np.sqrt(3 * abs(offset))
    query[..., -1], key[..., -1] = size, np.copysign(size, offset)
    mask = rng.random((2, 1, 5, 7)) < 0.7
    mask[0, 0, 1] = False  # a query that sees nothing
    return [*(x.astype(dtype) for x in (query, key, value)), mask]


def gradients(is_causal=False, dtype="float64"):
    """Return variables for the operands, the output, and its gradients."""
    query, key, value = (pt.tensor(dtype=dtype, shape=(None,) * 4) for _ in range(3))
    mask = pt.tensor4(dtype="bool")
    out = scaled_dot_product_attention(query, key, value, mask, is_causal)
    first = pytensor.grad((out**3).sum(), [query, key, value])
    return [query, key, value, mask], [out, *first]


@pytest.mark.parametrize("is_causal", [False, True])
def test_reference_and_second_derivatives(is_causal):
    inputs, results = gradients(is_causal)
    second = pytensor.grad(sum((g**2).sum() for g in results[1:]), inputs[:3])
    function = pytensor.function(inputs, [*results, *second], mode=PERFORM_MODE)
    wanted = None
    for offset in (0.0, *OFFSETS):
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # such as NumPy's of an overflow
            found = function(*operands(offset))
        assert all(np.isfinite(x).all() for x in found)
        wanted = found if wanted is None else wanted
        # The offset changes only derivatives with respect to its own feature.
        for x, y in zip(found[:4], wanted[:4], strict=True):
            kept = slice(None, 8) if x.shape[-1] == 9 else slice(None)
            np.testing.assert_allclose(x[..., kept], y[..., kept], atol=1e-8)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_library(dtype):
    """In float32, the scores themselves have errors of their size times the unit."""
    inputs, results = gradients(dtype=dtype)
    function = pytensor.function(inputs, results, mode="CVM")
    assert any("Attention" in type(n.op).__name__ for n in function.maker.fgraph.apply_nodes)
    reference = pytensor.function(*gradients(), mode=PERFORM_MODE)
    for offset in OFFSETS:
        given = operands(offset, dtype)
        wide = [x.astype("float64") if x.dtype.kind == "f" else x for x in given]
        allowed = 1e-4 + 8 * abs(offset) * float(np.finfo(dtype).eps)
        for x, y in zip(function(*given), reference(*wide), strict=True):
            assert np.isfinite(x).all()
            scale = np.abs(y).max() + np.sqrt(3 * abs(offset))
            np.testing.assert_allclose(x, y, atol=allowed * scale)


@pytest.mark.parametrize("mode", [pytest.param("JAX", marks=pytest.mark.needs("jax"))])
def test_other_linkers(mode):
    inputs, results = gradients()
    function = pytensor.function(inputs, results, mode=mode)
    reference = pytensor.function(inputs, results, mode=PERFORM_MODE)
    for offset in (-1e5, -1000.0, 1000.0):
        for x, y in zip(function(*operands(offset)), reference(*operands(offset)), strict=True):
            np.testing.assert_allclose(np.asarray(x), y, atol=1e-7)
