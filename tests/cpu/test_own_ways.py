"""What is true of all of dnnops' own ways to compute a convolution."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import strategies as st

from dnnops.runtime.build import ONEDNN
from tests.cpu.conv import test_conv_product, test_depthwise, test_winograd
from tests.cpu.conv.test_conv import in_double, operands, restrided
from tests.cpu.own_ways import DIRECTIONS, GRAD_INPUTS, run_into, two_threads  # noqa: F401
from tests.oracle import assert_close, fuzz, run_op

EVERY_WAY = pytest.mark.parametrize(
    "way",
    [
        pytest.param(test_winograd.WAY, marks=pytest.mark.needs("avx512")),
        test_conv_product.WAY,
        test_depthwise.WAY,
    ],
    ids=lambda way: way.name,
)


@EVERY_WAY
@DIRECTIONS
@fuzz(max_examples=60, data=st.data(), seed=st.integers(0, 2**32 - 1))
def test_random(way, index, data, seed):
    """Results are right whatever strides the operands and the output have."""
    case = data.draw(way.cases(index))
    backend, oracle = way.ops(case, index)
    arrays = operands(case, index, "float32")
    expected, bound = way.expected(oracle, arrays)
    plain = run_op(backend, *arrays)
    assert_close(plain, expected, bound=bound, allow_zero=True)
    rng = np.random.default_rng(seed)
    strided = tuple(restrided(rng, a) if a.dtype.kind == "f" else a for a in arrays)
    out = restrided(rng, np.full(expected.shape, np.nan, "float32"))
    run_into(backend, out, *strided)
    for found in (run_op(backend, *strided), out):
        if way.copies:
            np.testing.assert_array_equal(found, plain)
        else:
            assert_close(found, expected, bound=bound, allow_zero=True)


@EVERY_WAY
@DIRECTIONS
@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_repeats_bit_by_bit(way, index, threads):
    ONEDNN.library.omp_set_num_threads(threads)
    for case, other in way.repeated(index):
        (backend, oracle), (between, _) = way.ops(case, index), way.ops(other, index)
        arrays, others = (operands(made, index, "float32") for made in (case, other))
        poisoned = [a * np.nan if a.dtype.kind == "f" else a for a in others]
        first = run_op(backend, *arrays)
        for _ in range(5):
            # The scratch memory may contain results of another call.
            assert np.isnan(run_op(between, *poisoned)).all()
            assert run_op(backend, *arrays).tobytes() == first.tobytes()
        assert_close(first, run_op(oracle, *in_double(arrays)))


@EVERY_WAY
@DIRECTIONS
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_not_finite(way, index, value):
    """It spreads at least as far as in float64, and not to results that do not read it."""
    case = way.spoilt(index)
    backend, oracle = way.ops(case, index)
    arrays = operands(case, index, "float32")
    clean = run_op(backend, *arrays)
    spoilt = tuple(a.copy() for a in arrays)
    spoilt[1 if index == GRAD_INPUTS else 0][2, 3, 5, 6] = value
    result = run_op(backend, *spoilt)
    with np.errstate(invalid="ignore"):
        finite = np.isfinite(run_op(oracle, *in_double(spoilt)))
    assert not finite.all()
    assert not np.isfinite(result[~finite]).any()
    unspoilt = way.unspoilt(index, finite)
    assert unspoilt.any()
    np.testing.assert_array_equal(result[unspoilt], clean[unspoilt])
    np.testing.assert_array_equal(run_op(backend, *arrays), clean)
