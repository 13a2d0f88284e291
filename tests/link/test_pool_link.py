"""Pooling and its gradients under JAX and PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import strategies as st

from dnnops.nnet import AveragePoolGrad, MaxPoolGrad, MaxPoolGradGrad, Pool
from tests.link.conversions import DTYPES, assert_converted, both_libraries, perform
from tests.oracle import fuzz, pool_cases


@both_libraries
@fuzz(
    max_examples=6, case=pool_cases(empty=True), dtype=st.sampled_from(DTYPES), ties=st.booleans()
)
def test_forward_and_gradients(library, case, dtype, ties):
    x, gz, ggx = case.arrays(ties=ties)
    pool = Pool(case.ndim, case.mode, case.ignore_border)
    assert_converted(library, pool, x, *case.vectors, dtype=dtype)
    if case.mode != "max":
        op = AveragePoolGrad(case.ndim, case.mode, case.ignore_border)
        assert_converted(library, op, x, gz, *case.vectors, dtype=dtype)
        return
    (maxout,) = perform(pool, x, *case.vectors)
    for gradient, moving in ((MaxPoolGrad, gz), (MaxPoolGradGrad, ggx)):
        op = gradient(case.ndim, case.ignore_border)
        assert_converted(library, op, x, maxout, moving, *case.vectors, dtype=dtype)


@both_libraries
@pytest.mark.parametrize("mode", ["max", "sum"])
def test_windows_larger_than_the_image(library, mode):
    x, vectors = np.ones((2, 3, 4, 5)), (np.array([6, 2]), np.array([1, 2]), np.array([0, 0]))
    nothing = np.ones((2, 3, 0, 2))
    assert_converted(library, Pool(2, mode, True), x, *vectors, dtype="float64")
    if mode == "sum":
        op = AveragePoolGrad(2, "sum", True)
        assert_converted(library, op, x, nothing, *vectors, dtype="float64")
        return
    for op, moving in ((MaxPoolGrad(2, True), nothing), (MaxPoolGradGrad(2, True), x)):
        assert_converted(library, op, x, nothing, moving, *vectors, dtype="float64")


@both_libraries
def test_first_of_several_nan_and_infinities(library):
    # Windows with NaN behind and before an infinity, twice, and of minus infinities alone.
    nan, inf = np.nan, np.inf
    x = np.array([[inf, nan, nan, 0], [nan, 1, inf, nan], [-inf] * 4, [2, 2, inf, inf]])
    x = x.reshape(1, 1, 4, 4)
    vectors = (np.array([2, 4]), np.array([2, 4]), np.array([1, 3]))
    shape = Pool(2, "max", True).make_node(x, *vectors).outputs[0].type.shape
    gz, ggx = np.arange(1.0, 1 + np.prod(shape)).reshape(shape), np.arange(16.0).reshape(x.shape)
    for op, operands in (
        (Pool(2, "max", True), (x,)),
        (MaxPoolGrad(2, True), (x, gz, gz)),
        (MaxPoolGradGrad(2, True), (x, gz, ggx)),
    ):
        assert_converted(library, op, *operands, *vectors, dtype="float32", atol=1)


@pytest.mark.needs("jax")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 0])
def test_tangents_of_equal_maxima(dtype, value):
    """Windows that the border cuts, with several maxima: the first one's tangent."""
    rng = np.random.default_rng(0)
    x = np.where(rng.random((1, 4, 7, 7)) < 0.4, value, rng.standard_normal((1, 4, 7, 7)))
    x[0, 3] = value
    tangent = rng.standard_normal(x.shape)
    sizes = np.array([2, 2]), np.array([2, 2]), np.array([0, 0])
    maxout = perform(Pool(2, "max", False), x, *sizes)[0]
    assert_converted("jax", MaxPoolGradGrad(2, False), x, maxout, tangent, *sizes, dtype=dtype)
