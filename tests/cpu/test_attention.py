"""Attention on oneDNN against the abstract Ops' NumPy in float64."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from dnnops.cpu.attention import OneDnnAttention, OneDnnAttentionGrad
from dnnops.errors import DnnValueError
from dnnops.nnet import Attention, AttentionGrad, scaled_dot_product_attention
from tests.cpu.conv.test_conv import restrided
from tests.cpu.test_batchnorm import run_all
from tests.linkers import LINKERS
from tests.nnet.attention.attention_cases import Case, cases
from tests.oracle import PERFORM_MODE, UNIT, assert_close, fuzz

DTYPES = pytest.mark.parametrize("dtype", ["float32", "float64"])
#: Factor of the float32 bounds; the float64 reference is rounded as well.
FACTORS = {"float32": 1.0, "float64": 4 * 2.0**-29}


def check(case: Case, dtype: str) -> None:
    """Compare both Ops, on arrays with any strides."""
    rng = np.random.default_rng(case.seed)
    factor = FACTORS[dtype]
    arrays, gout = case.arrays(dtype)
    wide = [a.astype("float64") if a.dtype.kind == "f" else a for a in arrays]
    strided = [restrided(rng, a) if a.dtype.kind == "f" else a for a in arrays]
    out, stats = run_all(OneDnnAttention(**case.parameters), *strided)
    expected, wide_stats = run_all(Attention(**case.parameters), *wide)
    assert np.linalg.norm(out - expected) <= factor * 2e-6 * max(np.linalg.norm(expected), 1e-3)
    np.testing.assert_allclose(stats, wide_stats, rtol=1e-5 * factor, atol=1e-5 * factor)
    last = [restrided(rng, a) for a in (out, stats, gout)]
    grads = run_all(OneDnnAttentionGrad(**case.parameters), *strided, *last)
    references = run_all(
        AttentionGrad(**case.parameters), *wide, expected, wide_stats, gout.astype("float64")
    )
    # Gradients are differences of products with the output's gradient, and these are rounded.
    size = np.linalg.norm(gout) * max(1, *(np.abs(a).max() for a in arrays[:3])) ** 2
    for grad, reference in zip(grads, references, strict=True):
        bound = 1e-5 * np.linalg.norm(reference) + 1e-6 * size
        assert np.linalg.norm(grad - reference) <= factor * bound


@DTYPES
@fuzz(100, case=cases(max_length=9))
def test_random(case, dtype):
    check(case, dtype)


@DTYPES
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("mask", [None, "bool", "float"])
def test_several_blocks_of_queries(mask, is_causal, dtype):
    check(Case(2, 2, 2, 150, 170, 16, 8, is_causal, None, mask, (1,), True, True, seed=1), dtype)
    check(Case(1, 1, 1, 64, 65, 16, 8, is_causal, None, mask, (0, 2), False, False, seed=2), dtype)


@pytest.mark.parametrize("sizes", [(150, 530, 20, 9), (130, 520, 300, 5), (20, 30, 270, 600)])
def test_several_blocks_of_a_product(sizes):
    """float64 products are split along all three of their axes."""
    check(Case(1, 1, 2, *sizes, False, 0.05, None, (), False, False, seed=3), "float64")


@DTYPES
@pytest.mark.parametrize("p", [0.1, 0.7])
@pytest.mark.parametrize("is_causal", [False, True])
def test_dropout(p, is_causal, dtype):
    """The random numbers equal NumPy's, for blocks of any number of queries."""
    for sizes, seed in (((2, 2, 2, 150, 170, 16, 8), 1), ((3, 1, 2, 5, 7, 4, 3), 2)):
        case = Case(*sizes, is_causal, None, "bool", (1,), True, True, seed)
        arrays, gout = case.arrays(dtype)
        state = np.array([seed, 1 << 40])
        wide = [a.astype("float64") if a.dtype.kind == "f" else a for a in arrays]
        parameters = {**case.parameters, "dropout": p}
        out, stats = run_all(OneDnnAttention(**parameters), *arrays, state)
        expected, wide_stats = run_all(Attention(**parameters), *wide, state)
        assert_close(out, expected, allow_zero=True)
        last, wide_last = (out, stats, gout), (expected, wide_stats, gout.astype("float64"))
        grads = run_all(OneDnnAttentionGrad(**parameters), *arrays, state, *last)
        references = run_all(AttentionGrad(**parameters), *wide, state, *wide_last)
        for grad, reference in zip(grads, references, strict=True):
            assert_close(grad, reference, bound=2e-5 * FACTORS[dtype], allow_zero=True)


def side_by_side(x: np.ndarray) -> np.ndarray:
    """Store the heads of a sequence as columns of one matrix."""
    return x.transpose(0, 2, 1, 3).copy().transpose(0, 2, 1, 3)


@DTYPES
@pytest.mark.parametrize("linker", ["c", "py"])
@pytest.mark.parametrize("lengths", [(), (0, 2)])
def test_heads_that_are_columns_stay_columns(lengths, linker, dtype):
    """Results have the memory format of the operand, and no element of it is left out."""
    case = Case(3, 4, 2, 150, 7, 5, 6, True, None, None, (1,), bool(lengths), bool(lengths), seed=5)
    arrays, gout = case.arrays(dtype)
    # The mode by position; heads of the key are stored one after the other.
    stored = [side_by_side(arrays[0]), arrays[1].copy(), side_by_side(arrays[2]), *arrays[3:]]
    variables = [pt.tensor(dtype=a.dtype.name, shape=(None,) * a.ndim) for a in stored]
    top = pt.tensor(dtype=dtype, shape=(None,) * 4)
    out, stats = OneDnnAttention(**case.parameters)(*variables)
    grads = OneDnnAttentionGrad(**case.parameters)(*variables, out, stats, top)
    mode = pytensor.compile.Mode(linker=linker, optimizer=None)
    results = [out, stats, *grads]
    found = pytensor.function([*variables, top], results, mode=mode)(*stored, gout)
    expected = run_all(OneDnnAttention(**case.parameters), *arrays)
    expected += run_all(OneDnnAttentionGrad(**case.parameters), *arrays, *expected, gout)
    np.testing.assert_array_equal(found.pop(1), expected.pop(1))  # stats, which may be infinite
    for result, reference in zip(found, expected, strict=True):
        assert_close(result, reference, bound=1e-5 * FACTORS[dtype], allow_zero=True)
    is_column = [x.transpose(0, 2, 1, 3).flags.c_contiguous for x in found]
    assert is_column == [True, True, False, True]


def test_scores_of_any_size():
    """Weights far below the largest score are zero, and nothing overflows."""
    rng = np.random.default_rng(3)
    arrays = [(30 * rng.standard_normal((1, 2, 80, 20))).astype("float32") for _ in range(2)]
    value = rng.standard_normal((1, 2, 80, 4)).astype("float32")
    (out, stats) = run_all(OneDnnAttention(1.0), *arrays, value)
    wide = [a.astype("float64") for a in (*arrays, value)]
    expected, wide_stats = run_all(Attention(1.0), *wide)
    assert_close(out, expected, bound=1e-3)  # scores of thousands have few digits after the point
    np.testing.assert_allclose(stats, wide_stats, rtol=1e-6)


def test_nan_spoils_what_sees_it():
    case = Case(1, 2, 1, 5, 5, 3, 3, True, None, None, (), False, False, seed=4)
    (query, key, value), _ = case.arrays("float32")
    key[0, 1, 2, 0] = np.nan
    out, _ = run_all(OneDnnAttention(None, True), query, key, value)
    assert np.isfinite(out[0, 0]).all()
    assert np.isfinite(out[0, 1, :2]).all()
    assert np.isnan(out[0, 1, 2:]).all()


def test_empty():
    for shape in [(0, 2, 3, 4), (2, 0, 3, 4), (2, 2, 0, 4)]:
        query, key = np.zeros(shape, "float32"), np.zeros((shape[0], 2, 5, 4), "float32")
        out, stats = run_all(OneDnnAttention(), query, key, key)
        assert out.shape == shape
        assert stats.shape == shape[:3]
    # Without keys the output is zeros, and there are no gradients.
    query, none = np.ones((1, 2, 3, 4), "float32"), np.zeros((1, 2, 0, 4), "float32")
    out, stats = run_all(OneDnnAttention(), query, none, none)
    assert not out.any()
    dquery, *_ = run_all(OneDnnAttentionGrad(), query, none, none, out, stats, query)
    assert not dquery.any()
    # Values without elements have no gradients, either.
    query, key = (np.ones((1, 2, n, 4), "float32") for n in (3, 5))
    value = np.ones((1, 2, 5, 0), "float32")
    out, stats = run_all(OneDnnAttention(), query, key, value)
    assert out.shape == (1, 2, 3, 0)
    dquery, dkey, dvalue = run_all(OneDnnAttentionGrad(), query, key, value, out, stats, out)
    assert not dquery.any()
    assert not dkey.any()
    assert dvalue.shape == value.shape


@pytest.mark.parametrize(("operand", "bad"), [("key_lengths", 6), ("query_lengths", -1)])
@pytest.mark.parametrize("op_class", [Attention, OneDnnAttention])
def test_lengths_out_of_range(op_class, operand, bad):
    query, key = (np.ones((2, 2, n, 4), "float32") for n in (3, 5))
    with pytest.raises(DnnValueError, match=f"{operand} .* between 0 and [35], got {bad}"):
        run_all(op_class(None, False, (operand,)), query, key, key, np.array([2, bad]))


# -- in graphs ---------------------------------------------------------------------------


def ops_of(fn) -> set[str]:
    return {type(node.op).__name__ for node in fn.maker.fgraph.apply_nodes}


@LINKERS
def test_forward_and_gradients(mode):
    query, key, value, gout = (pt.ftensor4(name) for name in ("query", "key", "value", "gout"))
    mask, lengths = pt.tensor("mask", dtype="bool", shape=(None, 1, None, None)), pt.ivector("n")
    out = scaled_dot_product_attention(
        query, key, value, mask, True, enable_gqa=True, key_lengths=lengths
    )
    grads = pytensor.grad(None, [query, key, value], known_grads={out: gout})
    inputs = [query, key, value, mask, lengths, gout]
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        fn = pytensor.function(inputs, [out, *grads], mode=mode)
    assert {"OneDnnAttention", "OneDnnAttentionGrad"} <= ops_of(fn)
    plain = pytensor.function(inputs, [out, *grads], mode=PERFORM_MODE)
    rng = np.random.default_rng(5)
    for seed in range(5):
        sizes = (int(n) for n in rng.integers(1, 9, 7))
        case = Case(*sizes, True, None, "bool", (1,), False, True, seed)  # type: ignore[misc]
        arrays, gradient = case.arrays("float32")
        arrays[4] = arrays[4].astype("int32")
        for result, expected in zip(fn(*arrays, gradient), plain(*arrays, gradient), strict=True):
            assert np.linalg.norm(result - expected) <= 1e-5 * (1 + np.linalg.norm(expected))
    if mode == "CVM":
        with pytest.raises(DnnValueError, match="OneDnnAttention: batch, heads, keys or depth"):
            fn(arrays[0], arrays[1], np.concatenate([arrays[2]] * 2, 2), *arrays[3:], gradient)


@pytest.mark.parametrize(
    ("dtype", "mode", "expected"),
    [
        ("float16", "CVM", "OneDnnAttentionGrad"),
        ("float64", "CVM", "OneDnnAttentionGrad"),
        ("float64", None, "OneDnnAttentionGrad"),
        ("float32", "DNN", "OneDnnAttentionGrad"),
    ],
)
def test_dtypes_and_modes(dtype, mode, expected):
    inputs: list[Any] = [pt.tensor(dtype=dtype, shape=(None,) * 4) for _ in range(3)]
    out = scaled_dot_product_attention(*inputs)
    grads = pytensor.grad((out**2).sum(), inputs)
    fn = pytensor.function(inputs, [out, *grads], mode=mode)
    assert expected in ops_of(fn)
    arrays, _ = Case(2, 2, 1, 5, 6, 4, 3, False, None, None, (), False, False, 6).arrays(dtype)
    wide = [a.astype("float64") for a in arrays]
    references = run_all(Attention(), *wide)
    results = fn(*arrays)
    assert_close(results[0], references[0], dtype=dtype)
    references = run_all(AttentionGrad(), *wide, *references, 2 * references[0])
    for result, reference in zip(results[1:], references, strict=True):
        assert_close(result, reference, bound=5e-3 if dtype == "float16" else None)


def test_left_to_numpy():
    inputs = [pt.ftensor4() for _ in range(3)]
    without = pytensor.compile.get_mode("CVM").excluding("onednn")
    fn = pytensor.function(inputs, scaled_dot_product_attention(*inputs), mode=without)
    assert "Attention" in ops_of(fn)


#: Batch, heads, queries, keys, depth, value depth; each in turn is 0.
SIZES = (2, 3, 4, 5, 6, 7)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("mode", [PERFORM_MODE, "CVM", None], ids=["perform", "CVM", "default"])
def test_sizes_of_zero(mode, dtype):
    """Results equal PyTorch's: zeros for queries without keys, the mean of values without depth."""
    operands = [pt.tensor(dtype=dtype, shape=(None,) * 4) for _ in range(3)]
    out = scaled_dot_product_attention(*operands)
    gradients = pytensor.grad(out.sum(), operands)
    fn = pytensor.function(operands, [out, *gradients], mode=mode)
    rng = np.random.default_rng(4)
    for axis in range(len(SIZES)):
        sizes = [0 if i == axis else size for i, size in enumerate(SIZES)]
        batch, heads, queries, keys, depth, value_depth = sizes
        shapes = [
            (batch, heads, queries, depth),
            (batch, heads, keys, depth),
            (batch, heads, keys, value_depth),
        ]
        arrays = [rng.standard_normal(shape).astype(dtype) for shape in shapes]
        found, *by = fn(*arrays)
        expected, size = np.zeros((2, batch, heads, queries, value_depth))
        by_value = np.zeros(shapes[2])
        if not depth:
            expected += arrays[2].mean(axis=2, keepdims=True, dtype="float64")
            size += np.abs(arrays[2]).mean(axis=2, keepdims=True)
            by_value += queries / keys
        assert found.shape == expected.shape
        # A mean of 5 values is off by at most 15 units of their size: 10 for the weights, products
        # and sums of the Op, 5 for the reference. Where the size is 0, only zeros are right.
        assert (np.abs(found - expected) <= 16 * UNIT[dtype] * size).all(), sizes
        assert [g.shape for g in by] == shapes
        for gradient in by[:2]:
            np.testing.assert_array_equal(gradient, 0)
        np.testing.assert_allclose(by[2], by_value, rtol=1e-5)
