"""Maxima whose windows extend past the end, with padding, as PyTorch defines them."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from hypothesis import strategies as st

from dnnops import layers
from tests.oracle import PERFORM_MODE, check_gradient, fuzz

SEEDS = st.integers(0, 2**32 - 1)


def pooled(x, kernel, stride, pad):
    """Return the maxima of all windows that start within the input or the padding before it."""
    steps = []
    for n, k, s, p in zip(x.shape[-len(kernel) :], kernel, stride, pad, strict=True):
        count = max(-(-(n + 2 * p - k) // s), 0) + 1
        steps.append(count - ((count - 1) * s >= n + p))
    result = np.empty((*x.shape[: -len(kernel)], *steps))
    for at in np.ndindex(*steps):
        slices = tuple(
            slice(max(i * s - p, 0), max(i * s - p + k, 0))
            for i, k, s, p in zip(at, kernel, stride, pad, strict=True)
        )
        axes = tuple(range(-len(kernel), 0))
        result[(..., *at)] = x[(..., *slices)].max(axes)
    return result


def random_layer(rng, ndim):
    kernel = rng.integers(2, 5, ndim)
    stride, pad = rng.integers(1, 5, ndim), [int(rng.integers(0, k // 2 + 1)) for k in kernel]
    pad[0] = max(pad[0], 1)
    order = [0, 2, 1] if ndim == 3 else [1, 0]
    arguments = [np.asarray(values)[order].tolist() for values in (kernel, stride, pad)]
    make = layers.VolumetricMaxPooling if ndim == 3 else layers.SpatialMaxPooling
    return make(*chain(*arguments)).ceil(), kernel.tolist(), stride.tolist(), pad


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("ndim", [2, 3])
@fuzz(15, seed=SEEDS)
def test_against_numpy(ndim, known, seed):
    rng = np.random.default_rng(seed)
    layer, kernel, stride, pad = random_layer(rng, ndim)
    x = rng.standard_normal((2, 3, *rng.integers(4, 10, ndim)))
    v = pt.tensor(dtype="float64", shape=x.shape if known else (None,) * x.ndim)
    result = pytensor.function([v], layer(v), mode=PERFORM_MODE)(x)
    np.testing.assert_array_equal(result, pooled(x, kernel, stride, pad))


def test_gradient():
    layer = layers.SpatialMaxPooling(3, 3, 2, 2, 1, 1).ceil()
    x = np.random.default_rng(0).permutation(60).reshape(1, 1, 6, 10) / 8.0
    check_gradient(layer, [x])


def test_in_the_cpu_mode():
    layer = layers.SpatialMaxPooling(3, 2, 2, 2, 1, 1).ceil()
    x = np.random.default_rng(0).standard_normal((2, 3, 7, 8)).astype("float32")
    v = pt.tensor4("v", dtype="float32")
    result = pytensor.function([v], layer(v), mode="ONEDNN")(x)
    np.testing.assert_array_equal(result, pooled(x, (2, 3), (2, 2), (1, 1)).astype("float32"))
