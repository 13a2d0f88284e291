"""Shared variables that functions of JAX and of other linkers read and update in turn."""

from __future__ import annotations

import numpy as np
import pytensor
import pytest

from dnnops import nnet
from dnnops.modes import DnnMode
from tests.oracle import assert_close

pytestmark = pytest.mark.needs("jax")

IMAGE = np.random.default_rng(0).standard_normal((1, 1, 4, 4))


def halving():
    """Return a shared image, and a JAX function that halves it and returns what is then stored."""
    x = pytensor.shared(IMAGE, shape=IMAGE.shape, name="x")
    halves = x * 0.5
    return x, pytensor.function([], halves, updates=[(x, halves)], mode="JAX")


@pytest.mark.parametrize("mode", ["CVM", "DNN", "NUMBA", DnnMode(linker="py")])
def test_other_linkers_read_what_jax_has_stored(mode):
    x, halve = halving()
    pooled = pytensor.function([], nnet.pool_2d(x, (2, 2), ignore_border=True), mode=mode)
    wanted = IMAGE.reshape(2, 2, 2, 2).max(axis=(1, 3))[None, None]
    for scale in (1, 0.5, 0.25):
        assert_close(pooled(), scale * wanted)
        halve()


def test_updates_in_turn():
    """The function in place does not overwrite an array that JAX has returned."""
    x, halve = halving()
    double = pytensor.function([], [], updates=[(x, nnet.relu(x, 0.5) * 2)], mode="CVM")
    wanted = IMAGE.copy()
    for _ in range(3):
        returned = halve()
        wanted *= 0.5
        double()
        assert_close(np.asarray(returned), wanted)
        wanted = 2 * np.where(wanted > 0, wanted, 0.5 * wanted)
        assert_close(x.get_value(), wanted)
        assert x.get_value().dtype == "float64"


def test_float64_with_jax_in_32_bits():
    """A JAX function without 64 bits leaves float32 in a float64 variable."""
    import jax

    x = pytensor.shared(IMAGE)
    x.container.storage[0] = jax.numpy.asarray(IMAGE.astype("float32"))
    pooled = nnet.pool_2d(x, (2, 2), ignore_border=True, mode="sum")
    found = pytensor.function([], pooled, mode=DnnMode(linker="py"))()
    assert found.dtype == "float64"
    assert_close(found, IMAGE.reshape(2, 2, 2, 2).sum(axis=(1, 3))[None, None], bound=1e-7)
