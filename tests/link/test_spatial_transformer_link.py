"""Spatial transformers under JAX and PyTorch."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from dnnops.nnet import (
    SpatialTransformerGrid,
    SpatialTransformerGridGrad,
    SpatialTransformerSampler,
    SpatialTransformerSamplerGrad,
)
from tests.link.conversions import DTYPES, assert_converted, both_libraries
from tests.nnet.resample.spatial_transformer_cases import cases
from tests.oracle import fuzz


@both_libraries
@fuzz(max_examples=6, case=cases(), dtype=st.sampled_from(DTYPES))
def test_grid_and_sampler(library, case, dtype):
    img, grid, gout = case.arrays()
    sizes = np.array(case.out_shape)
    assert_converted(library, SpatialTransformerGrid(), case.theta(), sizes, dtype=dtype, atol=20)
    assert_converted(library, SpatialTransformerGridGrad(), grid, dtype=dtype, atol=500)
    assert_converted(library, SpatialTransformerSampler(), img, grid, dtype=dtype, atol=100)
    op = SpatialTransformerSamplerGrad()
    assert_converted(library, op, img, grid, gout, dtype=dtype, atol=500)


@both_libraries
def test_pixels_without_weight_and_coordinates_that_are_nan(library):
    # The identity meets each pixel's center: its neighbors have no part, though one is infinite.
    y, x = np.meshgrid([-1, 0, 1.0], [-1, 0, 1.0], indexing="ij")
    grid = np.stack([x, y], axis=-1)[None]
    grid[0, 2, 2, 0] = np.nan
    grid[0, 0, 0, 1] = np.inf
    img = np.arange(9.0).reshape(1, 1, 3, 3)
    img[0, 0, 1, 1] = np.inf
    gout = np.ones((1, 1, 3, 3))
    assert_converted(library, SpatialTransformerSampler(), img, grid, dtype="float64", atol=1)
    img[0, 0, 1, 1] = 7
    op = SpatialTransformerSamplerGrad()
    assert_converted(library, op, img, grid, gout, dtype="float64", atol=1)
