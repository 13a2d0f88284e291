"""Activations, softmaxes, normalizations and losses of rows under JAX and PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import strategies as st

from dnnops.nnet import (
    LRN,
    Activation,
    ActivationGrad,
    BatchNormTrain,
    CrossEntropy,
    CrossEntropyGrad,
    DivisiveNormalization,
    DivisiveNormalizationGrad,
    GroupNorm,
    GroupNormGrad,
    LogSoftmaxGrad,
    LRNGrad,
    SoftmaxGrad,
    WholeSoftmax,
)
from dnnops.nnet.norm.window_base import WindowSum
from tests.link.conversions import DTYPES, assert_converted, both_libraries, converted, perform
from tests.nnet.activation import activation_cases
from tests.nnet.norm import batchnorm_cases, window_norm_cases
from tests.oracle import fuzz

SPECIAL = np.array([-np.inf, -800.0, -3.0, -0.5, -0.0, 0.0, 0.5, 2.0, 3.0, 800.0, np.inf, np.nan])
ACTIVATIONS = [
    ("relu", 0),
    ("clipped_relu", 2.0),
    ("tanh", 0),
    ("sigmoid", 0),
    ("elu", 0.7),
    ("elu", -0.5),
    ("swish", 1.0),
    ("swish", -0.3),
]


@both_libraries
@pytest.mark.parametrize(("mode", "coef"), ACTIVATIONS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_activation(library, dtype, mode, coef):
    x = np.stack([SPECIAL, np.linspace(-4, 4, len(SPECIAL))])
    y = perform(Activation(mode, coef), x)[0]
    gy = np.linspace(-1, 2, x.size).reshape(x.shape)
    assert_converted(library, Activation(mode, coef), x, dtype=dtype, atol=8)
    assert_converted(library, ActivationGrad(mode, coef), x, y, gy, dtype=dtype, atol=8)


@both_libraries
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.filterwarnings("ignore:overflow")
def test_slopes_of_elu_and_swish_at_every_magnitude(library, dtype):
    x = activation_cases.magnitudes(dtype)
    x = x[np.abs(x) >= np.finfo(dtype).smallest_normal]  # XLA takes smaller numbers for 0
    for mode, coef in activation_cases.CASES:
        if mode in ("elu", "swish"):
            y = perform(Activation(mode, coef), x)[0]
            op = ActivationGrad(mode, coef)
            (slope,) = converted(library, op, x, y, np.ones_like(x))(x, y, np.ones_like(x))
            activation_cases.check(mode, coef, x, y, slope)


@both_libraries
@pytest.mark.parametrize("axis", [(1,), (0, 2)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_softmax(library, dtype, axis):
    rng = np.random.default_rng(len(axis))
    x, gz = 3 * rng.standard_normal((3, 4, 5)), rng.standard_normal((3, 4, 5))
    for log, gradient in ((False, SoftmaxGrad), (True, LogSoftmaxGrad)):
        whole = WholeSoftmax(axis, log)
        assert_converted(library, whole, x, dtype=dtype)
        assert_converted(library, gradient(axis), gz, perform(whole, x)[0], dtype=dtype)
    assert_converted(library, SoftmaxGrad(None), gz, abs(gz), dtype=dtype)


@both_libraries
@fuzz(max_examples=6, case=batchnorm_cases.cases(min_count=2), dtype=st.sampled_from(DTYPES))
def test_batch_normalization(library, case, dtype):
    for op in batchnorm_cases.ops_of(case):
        arrays = batchnorm_cases.operands_of(op, case)
        assert_converted(
            library, op, *arrays, dtype=dtype, atol=3000 if dtype == "float64" else 500
        )


@both_libraries
@fuzz(
    max_examples=6,
    case=window_norm_cases.cases(min_ndim=3, max_ndim=5),
    dtype=st.sampled_from(DTYPES),
)
def test_window_normalization(library, case, dtype):
    x, means, gy = case.arrays(3)
    parameters = case.parameters
    assert_converted(library, LRN(**parameters), x, dtype=dtype)
    assert_converted(library, LRNGrad(**parameters), x, gy, dtype=dtype)
    for has_means, operands in ((False, [x]), (True, [x, means])):
        op = DivisiveNormalization(**parameters, has_means=has_means)
        assert_converted(library, op, *operands, dtype=dtype)
        op = DivisiveNormalizationGrad(**parameters, has_means=has_means)
        assert_converted(library, op, *operands, gy, dtype=dtype)
    for backward in (False, True):
        assert_converted(library, WindowSum(case.n, (1, 2), backward), x, dtype=dtype)


@both_libraries
@pytest.mark.parametrize("shape", [(2, 6), (3, 6, 5), (2, 6, 4, 3)], ids=len)
@pytest.mark.parametrize("dtype", DTYPES)
def test_group_normalization(library, dtype, shape):
    rng = np.random.default_rng(0)
    x, gy = rng.standard_normal((2, *shape))
    gamma, beta = rng.standard_normal((2, shape[1]))
    assert_converted(library, GroupNorm(3, 0.1), x, gamma, beta, dtype=dtype, atol=50)
    assert_converted(library, GroupNormGrad(3, 0.1), x, gamma, gy, dtype=dtype, atol=50)


@both_libraries
@fuzz(
    max_examples=6,
    rows=st.integers(1, 6),
    classes=st.integers(1, 6),
    fewer=st.integers(0, 3),
    every_row=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
    dtype=st.sampled_from(DTYPES),
)
def test_cross_entropy(library, rows, classes, fewer, every_row, seed, dtype):
    rng = np.random.default_rng(seed)
    count = rows if every_row else max(rows - fewer, 1)
    x = 10 * rng.standard_normal((rows, classes))
    labels = rng.integers(-classes, classes, count, "int32")
    assert_converted(library, CrossEntropy(every_row), x, labels, dtype=dtype, atol=200)
    statistics = perform(CrossEntropy(every_row), x, labels)[1]
    op = CrossEntropyGrad(every_row)
    for size in sorted({1, count}):
        g = rng.standard_normal(size)
        assert_converted(library, op, g, x, labels, statistics, dtype=dtype, atol=200)


@both_libraries
@pytest.mark.parametrize("largest", [1.0, 1e18, 1e30])
def test_normalization_of_large_numbers(library, largest):
    rng = np.random.default_rng(0)
    x, gy = (rng.standard_normal((2, 6, 3, 5)) for _ in range(2))
    x[:, :2] *= 1e-3
    x = (largest * x).astype("float32")
    gy, gamma = gy.astype("float32"), np.ones(6, "float32")
    parameters = {"n": 3, "alpha": 0.5, "beta": 0.5, "k": 1.0}
    for op, arrays in (
        (GroupNorm(3), (x, gamma, gamma)),
        (GroupNormGrad(3), (x, gamma, gy)),
        (BatchNormTrain((0, 2, 3)), (x, *(gamma.reshape(1, 6, 1, 1),) * 2, np.array(1e-5))),
        (LRN(**parameters), (x,)),
        (LRNGrad(**parameters), (x, gy)),
    ):
        found = converted(library, op, *arrays)(*arrays)
        wanted = perform(op, *(a.astype("float64") for a in arrays))
        for out, ref in zip(found[:1], wanted[:1], strict=True):
            error = np.abs(out - ref).max() / np.abs(ref).max()
            assert error < 1e-4, (op, error)


@both_libraries
def test_cross_entropy_and_log_softmax_of_infinity_are_nan(library):
    x, labels = np.array([[np.inf, 1, 2], [0, 1, 2], [-np.inf] * 3]), np.array([1, 1, 0])
    costs, statistics = converted(library, CrossEntropy(), x, labels)(x, labels)
    np.testing.assert_array_equal(np.isnan(costs), [True, False, True])
    arrays = (np.ones(3), x, labels, statistics)
    (gradient,) = converted(library, CrossEntropyGrad(), *arrays)(*arrays)
    (logarithm,) = converted(library, WholeSoftmax((1,), True), x)(x)
    for found in (gradient, logarithm):
        np.testing.assert_array_equal(np.isnan(found), [[True] * 3, [False] * 3, [True] * 3])


@both_libraries
def test_cross_entropy_of_one_label_for_all_rows(library):
    rng = np.random.default_rng(0)
    x, label, g = rng.standard_normal((3, 4)), np.array([2]), rng.standard_normal(3)
    op = CrossEntropy(one_for_all=True)
    assert_converted(library, op, x, label, dtype="float64", atol=50)
    arrays = (g, x, label, perform(op, x, label)[1])
    assert_converted(library, CrossEntropyGrad(one_for_all=True), *arrays, dtype="float64", atol=50)


@pytest.mark.needs("jax")
def test_cross_entropy_of_a_label_out_of_bounds_is_nan_in_jax():
    library = "jax"
    x, labels = np.zeros((4, 3)), np.array([0, 3, -4, -3])
    costs, statistics = converted(library, CrossEntropy(), x, labels)(x, labels)
    np.testing.assert_array_equal(np.isnan(costs), [False, True, True, False])
    arrays = (np.ones(4), x, labels, statistics)
    (gradient,) = converted(library, CrossEntropyGrad(), *arrays)(*arrays)
    np.testing.assert_array_equal(np.isnan(gradient).any(axis=1), [False, True, True, False])
