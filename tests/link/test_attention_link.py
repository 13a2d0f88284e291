"""Attention and its gradient under JAX and PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import strategies as st

from dnnops.nnet import Attention, AttentionGrad
from tests.link.conversions import DTYPES, assert_converted, both_libraries, converted, perform
from tests.nnet.attention.attention_cases import cases
from tests.oracle import fuzz


@both_libraries
@fuzz(
    max_examples=6,
    case=cases(),
    dropout=st.sampled_from([0.0, 0.0, 0.4]),
    dtype=st.sampled_from(DTYPES),
)
def test_forward_and_gradient(library, case, dropout, dtype):
    arrays, gout = case.arrays()
    if dropout:
        arrays.append(np.array([case.seed, case.seed << 7]))
    op = Attention(**case.parameters, dropout=dropout)
    assert_converted(library, op, *arrays, dtype=dtype, atol=300)
    results = perform(op, *arrays)
    op = AttentionGrad(**case.parameters, dropout=dropout)
    assert_converted(library, op, *arrays, *results, gout, dtype=dtype, atol=2000)


@both_libraries
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("is_causal", [False, True])
def test_negative_scale(library, is_causal, dtype):
    """PyTorch takes square roots of the scale in some of its functions."""
    arrays = np.random.default_rng(0).standard_normal((3, 2, 1, 5, 4))
    op = Attention(scale=-1.0, is_causal=is_causal)
    assert_converted(library, op, *arrays, dtype=dtype, atol=300)


@both_libraries
def test_no_keys(library):
    query, nothing = np.ones((2, 3, 4, 5)), np.ones((2, 3, 0, 5))
    arrays = (query, nothing, nothing)
    out, stats = converted(library, Attention(), *arrays)(*arrays)
    np.testing.assert_array_equal(out, np.zeros((2, 3, 4, 5)))
    np.testing.assert_array_equal(stats, np.full((2, 3, 4), -np.inf))
