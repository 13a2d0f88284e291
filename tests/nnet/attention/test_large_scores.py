"""Attention whose scores are all large: the weights depend on their differences only."""

from __future__ import annotations

import warnings

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from dnnops.nnet import scaled_dot_product_attention
from tests.nnet.attention.large_scores import error_of, exact_operands
from tests.oracle import PERFORM_MODE, SEED, repeat_command

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


# -- up to the limits of the dtype ---------------------------------------------------------

#: The scale of the scores, which rounds nothing.
SCALE = 0.25


def exact_gradients(dtype):
    """Return variables for the operands, an added mask and the output's gradient, and results."""
    *arrays, mask, gout = (pt.tensor(dtype=dtype, shape=(None,) * 4) for _ in range(5))
    out = scaled_dot_product_attention(*arrays, mask, scale=SCALE)
    first = pytensor.grad(None, arrays, known_grads={out: gout})
    return [*arrays, mask, gout], [out, *first]


def exact_cases(dtype, count):
    for seed in range(count):
        rng = np.random.default_rng([SEED, seed])
        shapes = ((2, 2, 5, 4), (2, 2, 9, 4), (2, 2, 9, 3), (2, 1, 5, 9), (2, 2, 5, 3))
        query, key, value, mask, gout = (rng.standard_normal(s) for s in shapes)
        exact_operands(rng, query, key, mask, dtype)
        mask[rng.random(mask.shape) < 0.3] = -np.inf
        yield [np.asarray(x, dtype) for x in (query, key, value, mask, gout)]


def assert_exact(function, reference, dtype, cases):
    unit = float(np.finfo(dtype).eps)
    for given in cases:
        names = ("query", "key", "value", "mask", "gout")
        wide = dict(zip(names, (x.astype("float64") for x in given), strict=True))
        found, wanted = function(*given), reference(*wide.values())
        for name, x, y in zip(("out", "dquery", "dkey", "dvalue"), found, wanted, strict=True):
            error = error_of(name, np.asarray(x), y, wide, SCALE, 16 * unit, 4 * unit)
            assert error <= 1, (name, error, repeat_command())


def test_reference_of_exact_scores():
    """Keys with the largest score share the weight equally."""
    function = pytensor.function(*exact_gradients("float64"), mode=PERFORM_MODE)
    for given in exact_cases("float64", 20):
        query, key, value, mask, gout = given
        scores = SCALE * query @ key.swapaxes(2, 3) + mask
        largest = scores.max(axis=3, keepdims=True)
        weights = ((scores == largest) & (largest > -np.inf)).astype("float64")
        weights /= np.maximum(weights.sum(axis=3, keepdims=True), 1)
        by_weights = gout @ value.swapaxes(2, 3)
        by_scores = weights * (by_weights - (weights * by_weights).sum(axis=3, keepdims=True))
        wanted = [weights @ value, SCALE * by_scores @ key]
        wanted += [SCALE * by_scores.swapaxes(2, 3) @ query, weights.swapaxes(2, 3) @ gout]
        for x, y in zip(function(*given), wanted, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-13 * max(1, np.abs(y).max()))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_exact_scores_in_the_library(dtype):
    function = pytensor.function(*exact_gradients(dtype), mode="CVM")
    assert any("OneDnnAttentionGrad" in str(n.op) for n in function.maker.fgraph.apply_nodes)
    reference = pytensor.function(*exact_gradients("float64"), mode=PERFORM_MODE)
    assert_exact(function, reference, dtype, exact_cases(dtype, 20))


@pytest.mark.parametrize("written_out", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_exact_scores_in_numpy(dtype, written_out):
    """Without a library, in one Op or as expressions; float16 is computed in float32."""
    inputs, outputs = exact_gradients(dtype)
    if written_out:
        (node,) = {x.owner for x in outputs[1:]}
        outputs[1:] = node.op.expressions(*node.inputs)
    function = pytensor.function(inputs, outputs, mode=PERFORM_MODE)
    reference = pytensor.function(*exact_gradients("float64"), mode=PERFORM_MODE)
    cases = exact_cases(dtype, 10)
    if dtype == "float16":  # otherwise, gradients would overflow
        cases = ([*given[:4], given[4] * np.float16(2**-9)] for given in cases)
    assert_exact(function, reference, dtype, cases)


@pytest.mark.parametrize("mode", [pytest.param("JAX", marks=pytest.mark.needs("jax"))])
def test_exact_scores_in_other_linkers(mode):
    function = pytensor.function(*exact_gradients("float64"), mode=mode)
    reference = pytensor.function(*exact_gradients("float64"), mode=PERFORM_MODE)
    assert_exact(function, reference, "float64", exact_cases("float64", 5))
