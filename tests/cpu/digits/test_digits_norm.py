"""Normalizations, element by element, in units of the last digit of an element's terms.

If terms are subtracted from each other, bounds are relative to the terms: no formula that reads
rounded operands can preserve digits that cancel. References have extended precision.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dnnops.cpu.batchnorm import (
    OneDnnBatchNormInference,
    OneDnnBatchNormTrain,
    OneDnnBatchNormTrainGrad,
)
from dnnops.cpu.divisive_normalization import (
    OneDnnDivisiveNormalization,
    OneDnnDivisiveNormalizationGrad,
)
from dnnops.cpu.group_norm import OneDnnGroupNorm, OneDnnGroupNormGrad
from dnnops.cpu.lrn import OneDnnLRN, OneDnnLRNGrad
from dnnops.nnet.norm.batchnorm import BatchNormTrain
from tests.cpu.digits.test_digits import DTYPES, WIDE, pytestmark  # noqa: F401
from tests.cpu.test_batchnorm import run_all
from tests.oracle import assert_digits

ALL_DTYPES = pytest.mark.parametrize("dtype", DTYPES)
AXES = (0, 2, 3)


def image(dtype: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Return numbers of many magnitudes and both signs, whose squares are finite and normal."""
    rng = np.random.default_rng(seed)
    reach = 8 if dtype == "float32" else 100
    x = rng.standard_normal(shape) * 10.0 ** rng.uniform(-reach, 2, shape)
    return x.astype(dtype)


# -- batch normalization -----------------------------------------------------------------


def batch(dtype: str, kind: str, layout: str) -> list[np.ndarray]:
    """Return data, the output's gradient, scale and bias; one channel is constant."""
    rng = np.random.default_rng(3)
    shape = (6, 5, 33, 21)
    x = {
        "usual": lambda: 3 + 2 * rng.standard_normal(shape),
        "far from 0": lambda: 1000 + rng.standard_normal(shape),
        "magnitudes": lambda: image("float64", shape, 4),
        "an outlier first": lambda: np.where(
            np.indices(shape)[[0, 2, 3]].sum(axis=0) == 0, 1e4, rng.standard_normal(shape)
        ),
    }[kind]()
    x[:, 1] = 7
    gout = rng.standard_normal(shape)
    if layout == "channels last":
        x, gout = (
            np.ascontiguousarray(a.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2) for a in (x, gout)
        )
    scale, bias = rng.standard_normal((2, 1, 5, 1, 1))
    return [a.astype(dtype) for a in (x, gout, scale, bias)]


KINDS = pytest.mark.parametrize("kind", ["usual", "far from 0", "magnitudes", "an outlier first"])
LAYOUTS = pytest.mark.parametrize("layout", ["contiguous", "channels last"])


def statistics(x: np.ndarray) -> tuple[Any, Any]:
    """Return mean and variance in extended precision."""
    wide = x.astype(WIDE)
    mean = wide.mean(axis=AXES, keepdims=True)
    mean = mean + (wide - mean).mean(axis=AXES, keepdims=True)
    return mean, ((wide - mean) ** 2).mean(axis=AXES, keepdims=True)


@LAYOUTS
@KINDS
@ALL_DTYPES
def test_batch_normalization(dtype, kind, layout):
    """Return the terms of the output: the normalized data, and the bias."""
    x, _, scale, bias = batch(dtype, kind, layout)
    epsilon = 1e-4
    out, mean, invstd = run_all(OneDnnBatchNormTrain(AXES), x, scale, bias, epsilon)
    exact_mean, variance = statistics(x)
    exact_invstd = 1 / np.sqrt(variance + WIDE(epsilon))
    normalized = (x.astype(WIDE) - exact_mean) * exact_invstd * scale
    assert_digits(mean, exact_mean, scale=np.sqrt(variance), what="mean")
    assert_digits(invstd, exact_invstd, what="invstd")
    assert_digits(out, normalized + bias, scale=np.maximum(np.abs(normalized), np.abs(bias)))
    operands = [x, scale, bias, mean, (1 / exact_invstd**2).astype(dtype)]
    (tested,) = run_all(OneDnnBatchNormInference(AXES), *operands, epsilon)
    x, scale, bias, mean, given = (a.astype(WIDE) for a in operands)
    normalized = (x - mean) * scale / np.sqrt(given + WIDE(epsilon))
    size = np.maximum(np.abs(normalized), np.abs(bias))
    assert_digits(tested, normalized + bias, scale=size, what="by given statistics")


@LAYOUTS
@KINDS
@ALL_DTYPES
def test_gradients_of_batch_normalization(dtype, kind, layout):
    """Return the terms of the gradient: the output's gradient, its mean, and the deviation's."""
    x, gout, scale, _ = batch(dtype, kind, layout)
    exact_mean, variance = statistics(x)
    invstd = (1 / np.sqrt(variance + WIDE(1e-4))).astype(dtype)
    mean = exact_mean.astype(dtype)
    dx, dscale, dbias = run_all(OneDnnBatchNormTrainGrad(AXES), x, gout, scale, mean, invstd)
    count = x.size / x.shape[1]
    top, factor, by = gout.astype(WIDE), scale.astype(WIDE) * invstd, invstd.astype(WIDE)
    normalized = (x.astype(WIDE) - exact_mean) * by
    products = top * normalized

    def total(terms: Any) -> Any:
        return terms.sum(axis=AXES, keepdims=True)

    assert_digits(dbias, total(top), scale=total(np.abs(top)), what="bias")
    assert_digits(dscale, total(products), scale=total(np.abs(products)), what="scale")
    expected = factor * (top - total(top) / count - normalized * total(products) / count)
    size = np.abs(top) + total(np.abs(top)) / count
    size += np.abs(normalized) * total(np.abs(products)) / count
    assert_digits(dx, expected, scale=np.abs(factor) * size, what="x")


def test_float16_is_rounded_once():
    """Batch normalization of float16 data, both in NumPy and in float32 on the CPU."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal((6, 5, 33, 21)).astype("float16")
    scale, bias = rng.standard_normal((2, 1, 5, 1, 1)).astype("float16")
    wide = [a.astype("float32") for a in (x, scale, bias)]
    out = run_all(OneDnnBatchNormTrain(AXES), *wide, 1e-4)[0].astype("float16")
    mean, variance = statistics(x)
    expected = (x - mean) / np.sqrt(variance + WIDE(1e-4)) * scale
    size = np.maximum(np.abs(expected), np.abs(bias))
    assert_digits(out, expected + bias, 1, scale=size)
    (plain, *_) = run_all(BatchNormTrain(AXES), x, scale, bias, 1e-4)
    assert_digits(plain, expected + bias, 1, scale=size)


# -- group normalization -----------------------------------------------------------------


@KINDS
@ALL_DTYPES
@pytest.mark.parametrize("num_groups", [3, 15])
def test_group_normalization_and_its_gradients(num_groups, dtype, kind):
    """Compare groups of channels with other means, and of one channel."""
    x, gy, gamma, beta = batch(dtype, kind, "contiguous")
    # The sum of gy multiplies the rounding error of the mean.
    x, gy = (a.reshape(2, 15, 33, 21) for a in (x, gy + gy.dtype.type(1)))
    gamma, beta = (np.tile(a.ravel(), 3) for a in (gamma, beta))
    channels = 15 // num_groups

    def mean_of(terms: Any) -> Any:
        means = terms.reshape(2 * num_groups, -1).mean(axis=1, dtype=WIDE)
        return np.repeat(means, channels).reshape(2, 15, 1, 1)

    mean = mean_of(x.astype(WIDE))
    centered = x.astype(WIDE) - mean
    centered -= mean_of(centered)
    invstd = 1 / np.sqrt(mean_of(centered**2) + WIDE(1e-4))
    normalized, scale = centered * invstd, gamma.astype(WIDE).reshape(15, 1, 1)
    (y,) = run_all(OneDnnGroupNorm(num_groups, 1e-4), x, gamma, beta)
    scaled, shift = normalized * scale, beta.reshape(15, 1, 1)
    assert_digits(y, scaled + shift, scale=np.maximum(np.abs(scaled), np.abs(shift)), what="y")

    dx, dgamma, dbeta = run_all(OneDnnGroupNormGrad(num_groups, 1e-4), x, gamma, gy)
    top, products = gy.astype(WIDE), gy * normalized
    for found, terms, what in ((dgamma, products, "gamma"), (dbeta, top, "beta")):
        bound = np.abs(terms).sum(axis=(0, 2, 3))
        assert_digits(found, terms.sum(axis=(0, 2, 3)), scale=bound, what=what)
    top, products = top * scale, products * scale
    expected = invstd * (top - mean_of(top) - normalized * mean_of(products))
    size = np.abs(top) + mean_of(np.abs(top)) + np.abs(normalized) * mean_of(np.abs(products))
    assert_digits(dx, expected, scale=invstd * size, what="x")


# -- by squares in a window --------------------------------------------------------------


def window_sums(values: np.ndarray, n: int, axes: tuple[int, ...], reverse: bool = False) -> Any:
    """Return sums over windows along axes, ``(n - 1) // 2`` behind and ``n // 2`` ahead."""
    behind, ahead = (n - 1) // 2, n // 2
    if reverse:
        behind, ahead = ahead, behind
    for axis in axes:
        padding = [(0, 0)] * values.ndim
        padding[axis] = (behind, ahead)
        padded = np.pad(values, padding)
        windows = np.lib.stride_tricks.sliding_window_view(padded, n, axis)
        values = windows.sum(axis=-1)
    return values


PARAMETERS = [
    {"n": 5, "alpha": 1e-4, "beta": 0.75, "k": 2.0},
    {"n": 5, "alpha": 2.0, "beta": 0.5, "k": 1.0},
    {"n": 4, "alpha": 100.0, "beta": 1.0, "k": 1e-3},
    {"n": 3, "alpha": 1.0, "beta": 0.3, "k": 0.5},
    {"n": 3, "alpha": 1.0, "beta": 5.5, "k": 0.5},
]


@pytest.mark.parametrize("parameters", PARAMETERS, ids=lambda p: f"beta={p['beta']}")
@pytest.mark.parametrize("family", ["LRN", "divisive", "divisive, with means"])
@ALL_DTYPES
def test_norms_by_squares(dtype, family, parameters):
    """The output is compared relative to itself; the gradient's terms are subtracted.

    A power multiplies the rounding error of its base by the exponent.
    """
    x, gout = image(dtype, (3, 9, 17, 16), 1), image(dtype, (3, 9, 17, 16), 2)
    n, alpha, beta, k = (parameters[name] for name in ("n", "alpha", "beta", "k"))
    axes = (1,) if family == "LRN" else (2, 3)
    wide = x.astype(WIDE)
    if family == "LRN":
        forward: Any = OneDnnLRN(**parameters)
        backward: Any = OneDnnLRNGrad(**parameters)
        operands, away = [x], wide
    else:
        has_means = family != "divisive"
        forward = OneDnnDivisiveNormalization(**parameters, has_means=has_means)
        backward = OneDnnDivisiveNormalizationGrad(**parameters, has_means=has_means)
        operands = [x, *([image(dtype, x.shape, 3)] if has_means else [])]
        # The difference is rounded, and the error of its square is relative to it.
        away = (x - operands[1]).astype(WIDE) if has_means else wide
    scale = WIDE(alpha) / WIDE(n) ** len(axes)
    base = WIDE(k) + scale * window_sums(away**2, n, axes)
    power = base ** -WIDE(beta)
    (out,) = run_all(forward, *operands)
    assert_digits(out, wide * power, 4 * max(1, beta), what="output")
    shares = gout.astype(WIDE) * wide * power / base
    factor = 2 * scale * WIDE(beta) * away
    through = factor * window_sums(shares, n, axes, reverse=True)
    size = np.abs(factor) * window_sums(np.abs(shares), n, axes, reverse=True)
    direct = gout * power
    found = run_all(backward, *operands, gout)
    # The power of the base, with an exponent larger by one, and the sum of shares.
    units = 4 * (2 + beta)
    terms = np.maximum(np.abs(direct), size)
    if family == "divisive, with means":
        assert_digits(found[0], direct - through, units, scale=terms, what="gradient of x")
        assert_digits(found[1], through, units, scale=size, what="gradient of the means")
    else:
        assert_digits(found[0], direct - through, units, scale=terms, what="gradient")
