"""Recurrent networks under JAX and PyTorch."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from dnnops.nnet import RNNForward
from tests.link.conversions import DTYPES, assert_converted, both_libraries, of_dtype, perform
from tests.nnet.rnn.rnn_cases import rnn_cases
from tests.oracle import fuzz, normal


@both_libraries
def test_gradient_of_relu_keeps_nan(library):
    network = RNNForward("rnn_relu", 2, 1)
    w, states = np.ones(network.layout.param_size(2)), np.zeros((1, 1, 2))
    x = np.array([[[np.nan, 1.0]]])
    y, hy, reserve = perform(network, w, x, states)
    arrays = (w, x, states, y, reserve, np.ones_like(y), np.ones_like(hy))
    assert_converted(library, network.gradient(), *arrays, dtype="float64", atol=10)


@both_libraries
@fuzz(max_examples=6, case=rnn_cases(), dtype=st.sampled_from(DTYPES))
def test_forward_and_gradient(library, case, dtype):
    # Rounded, so that the reference's forward pass uses the conversion's operands.
    operands = of_dtype(case.forward, "float64", *of_dtype(case.forward, dtype, *case.operands()))
    assert_converted(
        library,
        case.forward,
        *operands,
        dtype=dtype,
        atol=500,
        skip=[3 if case.rnn_mode == "lstm" else 2],
    )
    results = perform(case.forward, *operands)
    rng = np.random.default_rng(case.seed)
    cotangents = [normal(rng, r.shape, "float64") for r in results[:-1]]
    arrays = (*operands, results[0], results[-1], *cotangents)
    saved = (len(operands), len(operands) + 1)
    assert_converted(library, case.backward, *arrays, dtype=dtype, saved=saved, atol=5000)
