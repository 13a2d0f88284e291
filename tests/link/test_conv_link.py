"""Convolution and its gradients under JAX and PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import strategies as st

from dnnops.nnet import Conv, ConvGradInputs, ConvGradWeights
from tests.link.conversions import DTYPES, assert_converted, both_libraries
from tests.oracle import conv_cases, fuzz


@both_libraries
@fuzz(max_examples=6, case=conv_cases(), dtype=st.sampled_from(DTYPES))
def test_forward_and_gradients(library, case, dtype):
    img, kern, top = case.arrays()
    image_sizes, filter_sizes = (np.array(x.shape[2:]) for x in (img, kern))
    assert_converted(library, Conv(**case.params), img, kern, dtype=dtype)
    assert_converted(library, ConvGradInputs(**case.params), kern, top, image_sizes, dtype=dtype)
    assert_converted(library, ConvGradWeights(**case.params), img, top, filter_sizes, dtype=dtype)


@both_libraries
@pytest.mark.parametrize(("batch", "channels"), [(0, 2), (2, 0)])
def test_empty(library, batch, channels):
    rng = np.random.default_rng(0)
    img, kern = rng.random((batch, channels, 4, 5)), rng.random((3, channels, 2, 2))
    top = rng.random((batch, 3, 3, 4))
    assert_converted(library, Conv(), img, kern, dtype="float64")
    assert_converted(library, ConvGradInputs(), kern, top, np.array([4, 5]), dtype="float64")
    assert_converted(library, ConvGradWeights(), img, top, np.array([2, 2]), dtype="float64")
