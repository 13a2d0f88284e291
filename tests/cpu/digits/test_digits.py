"""Compare each element relative to itself, over the whole range of its dtype.

The norm of an array hides small elements without a correct digit. References have extended
precision.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.tensor.special import log_softmax, softmax

from dnnops.nnet import Activation, CrossEntropy, WholeSoftmax
from tests.oracle import PERFORM_MODE, assert_digits

DTYPES = ("float32", "float64")
MODES = pytest.mark.parametrize("mode", ["CVM", None], ids=["CVM", "default"])
WIDE: Any = np.longdouble

pytestmark = pytest.mark.skipif(
    np.finfo(WIDE).nmant <= np.finfo("float64").nmant,
    reason="long double has no more digits than double here",
)


def whole_range(dtype: str, count: int = 20000) -> np.ndarray:
    """Return numbers of all magnitudes and both signs, many of them with finite exponentials."""
    info = np.finfo(dtype)
    rng = np.random.default_rng(0)
    least, most = np.log2(float(info.tiny)) - info.nmant, np.log2(float(info.max))
    exponents = rng.uniform(least, np.floor(most), count)
    edge = -np.log(float(info.tiny)) * 1.3
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, info.max, -info.max, info.tiny]
    parts = [
        np.exp2(exponents),
        -np.exp2(exponents),
        rng.uniform(-edge, edge, count),
        rng.standard_normal(count),
        special,
    ]
    with np.errstate(over="ignore", under="ignore"):
        return np.concatenate(parts).astype(dtype)


def sigmoid(x: np.ndarray) -> np.ndarray:
    small = np.exp(-np.abs(x))
    return np.where(x < 0, small, 1) / (1 + small)


def swish(x: np.ndarray, coef: float) -> np.ndarray:
    # At an infinity where the sigmoid is 0, the product is NaN and its limit 0.
    return np.where(np.isinf(x) & (coef * x < 0), 0, x * sigmoid(coef * x))


#: The coefficients are exact in every dtype.
ACTIVATIONS = {
    ("relu", 0.0): lambda x: np.where(x < 0, 0, x),
    ("clipped_relu", 1.5): lambda x: np.clip(x, 0, 1.5),
    ("tanh", 0.0): np.tanh,
    ("sigmoid", 0.0): sigmoid,
    ("elu", 1.25): lambda x: np.where(x > 0, x, 1.25 * np.expm1(np.minimum(x, 0))),
    ("swish", 1.0): lambda x: swish(x, 1),
    ("swish", 0.75): lambda x: swish(x, 0.75),
    ("swish", -3.0): lambda x: swish(x, -3),
}


@MODES
@pytest.mark.parametrize("dtype", DTYPES)
def test_activations(dtype, mode):
    x = pt.vector(dtype=dtype)
    outputs = [Activation(name, coef)(x) for name, coef in ACTIVATIONS]
    fn = pytensor.function([x], outputs, mode=mode)
    values = whole_range(dtype)
    with np.errstate(all="ignore"):
        results = fn(values)
        for ((name, coef), formula), result in zip(ACTIVATIONS.items(), results, strict=True):
            expected = formula(values.astype(WIDE))
            assert_digits(result, expected, what=f"{name}({coef})")


@MODES
@pytest.mark.parametrize("dtype", DTYPES)
def test_gradient_of_swish(dtype, mode):
    """The two terms cancel at one point; there, errors are relative to the terms."""
    x = pt.vector(dtype=dtype)
    fn = pytensor.function([x], pytensor.grad(Activation("swish", 0.75)(x).sum(), x), mode=mode)
    values = whole_range(dtype)
    values = values[np.isfinite(values)]
    with np.errstate(all="ignore"):
        wide = values.astype(WIDE)
        s, other = sigmoid(0.75 * wide), sigmoid(-0.75 * wide)
        terms = s, 0.75 * wide * s * other
        assert_digits(fn(values), sum(terms), 8, np.abs(terms[0]) + np.abs(terms[1]))


def rows_of(dtype: str) -> list[np.ndarray]:
    """Return scores of few and many classes, close to and far from each other."""
    rng = np.random.default_rng(1)
    shapes = ((2000, 2), (1000, 10), (100, 33), (30, 1000), (2, 20011))
    scales = (1e-3, 1, 30, 300)
    return [(s * rng.standard_normal(shape)).astype(dtype) for shape in shapes for s in scales]


def exact_softmax(x: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """The softmax and its logarithm lose no digits."""
    distances = x.astype(WIDE) - x.max(axis=axis, keepdims=True)
    order = np.argmax(x, axis=axis, keepdims=True)
    others = np.exp(distances)
    np.put_along_axis(others, order, 0, axis=axis)
    rest = others.sum(axis=axis, keepdims=True)
    return np.exp(distances) / (1 + rest), distances - np.log1p(rest)


@MODES
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", DTYPES)
def test_softmax_and_its_logarithm(dtype, axis, mode):
    x = pt.matrix(dtype=dtype)
    fn = pytensor.function([x], [softmax(x, axis=axis), log_softmax(x, axis=axis)], mode=mode)
    for rows in rows_of(dtype):
        values = np.ascontiguousarray(rows if axis else rows.T)
        for result, expected in zip(fn(values), exact_softmax(values, axis), strict=True):
            assert_digits(result, expected, what=f"{values.shape}")


@pytest.mark.parametrize("mode", [PERFORM_MODE, "CVM", None], ids=["perform", "CVM", "default"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_no_probability_is_more_than_one(dtype, mode):
    x = pt.matrix(dtype=dtype)
    out = WholeSoftmax((1,), True)(x) if mode is PERFORM_MODE else log_softmax(x, axis=1)
    result = pytensor.function([x], out, mode=mode)(np.array([[16, 0], [14, 0]], dtype))
    assert (result <= 0).all()
    np.testing.assert_allclose(
        result, [[-1.1253516e-07, -16.00000011], [-8.3152822e-07, -14.0000008]], 1e-6
    )


@MODES
@pytest.mark.parametrize("dtype", DTYPES)
def test_cross_entropy(dtype, mode):
    """Losses are compared relative to themselves, also for labels that are almost certain."""
    x, labels = pt.matrix(dtype=dtype), pt.ivector()
    costs = CrossEntropy().make_node(x, labels).outputs[0]
    outputs = [costs, pytensor.grad(costs.sum(), x)]
    fn = pytensor.function([x, labels], outputs, mode=mode)
    for rows in rows_of(dtype):
        order = np.argsort(rows, axis=1)
        for chosen in (order[:, -1], order[:, -2], order[:, 0]):
            found, gradient = fn(rows, chosen.astype("int32"))
            shares, logarithms = exact_softmax(rows, 1)
            places = np.arange(len(rows)), chosen
            assert_digits(found, -logarithms[places], what=f"{rows.shape}")
            shares[places] = np.expm1(logarithms[places])
            assert_digits(gradient, shares, what=f"{rows.shape}")
