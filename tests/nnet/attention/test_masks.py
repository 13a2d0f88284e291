"""Masks of attention, any size of which may be 1, whether or not their type says so."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from dnnops.nnet import scaled_dot_product_attention
from dnnops.nnet.attention.op import Attention
from tests.oracle import PERFORM_MODE

SIZES = (2, 3, 4, 5)


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape) for shape in ((2, 3, 4, 6), (2, 3, 5, 6), (2, 3, 5, 2))]


def masks(dtype):
    """Return a mask for each set of axes of size 1, and these axes."""
    rng = np.random.default_rng(1)
    for ones in product((False, True), repeat=4):
        shape = [1 if one else size for one, size in zip(ones, SIZES, strict=True)]
        axes = tuple(axis for axis, one in enumerate(ones) if one)
        yield (rng.random(shape) < 0.7 if dtype == "bool" else rng.standard_normal(shape)), axes


@pytest.mark.parametrize("dtype", ["bool", "float64"])
def test_written_out(data, dtype):
    """The expressions run where no library does, and PyTensor broadcasts only what types say."""
    operands = [pt.dtensor4() for _ in range(3)]
    mask = pt.tensor(dtype=dtype, shape=(None,) * 4)
    op = Attention(optional=("mask",))
    written_out = pytensor.function(
        [*operands, mask], op.expressions(*operands, mask), mode=PERFORM_MODE
    )
    whole = pytensor.function([*operands, mask], op(*operands, mask), mode=PERFORM_MODE)
    for value, _ in masks(dtype):
        for found, wanted in zip(written_out(*data, value), whole(*data, value), strict=True):
            np.testing.assert_allclose(found, wanted, atol=1e-13)


@pytest.mark.parametrize(
    "mode",
    [PERFORM_MODE, pytest.param("JAX", marks=pytest.mark.needs("jax"))],
    ids=["NumPy", "JAX"],
)
def test_gradient_with_respect_to_a_mask_of_unknown_sizes(data, mode):
    x, mask = pt.dtensor4(), pt.dtensor4()
    out = scaled_dot_product_attention(x, *data[1:], mask)
    gradients = pytensor.function([x, mask], pytensor.grad((out**3).sum(), [x, mask]), mode=mode)
    for value, axes in masks("float64") if mode is PERFORM_MODE else [*masks("float64")][4:6]:
        found = [np.asarray(z) for z in gradients(data[0], value)]
        spread = np.broadcast_to(value, SIZES)
        by_x, by_mask = (np.asarray(z) for z in gradients(data[0], spread))
        assert found[1].shape == value.shape
        np.testing.assert_allclose(found[0], by_x, atol=1e-12)
        np.testing.assert_allclose(found[1], by_mask.sum(axis=axes, keepdims=True), atol=1e-12)


def test_second_derivatives_and_tangents(data):
    x, mask = pt.dtensor4(), pt.dtensor4()
    out = scaled_dot_product_attention(x, *data[1:], mask)
    (by_mask,) = pytensor.grad((out**3).sum(), [mask])
    second = pytensor.grad((by_mask**2).sum(), [x, mask])
    function = pytensor.function([x, mask], second, mode=PERFORM_MODE)
    known = pt.tensor(dtype="float64", shape=(2, 1, 4, 1))
    (by_known,) = pytensor.grad(
        (scaled_dot_product_attention(x, *data[1:], known) ** 3).sum(), [known]
    )
    of_known = pytensor.grad((by_known**2).sum(), [x, known])
    reference = pytensor.function([x, known], of_known, mode=PERFORM_MODE)
    value = np.random.default_rng(2).standard_normal((2, 1, 4, 1))
    for found, wanted in zip(function(data[0], value), reference(data[0], value), strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-11)


def test_sizes_that_do_not_match():
    operands = [pt.dtensor4() for _ in range(3)]
    mask = pt.tensor4(dtype="bool")
    out = Attention(optional=("mask",)).expressions(*operands, mask)[0]
    function = pytensor.function([*operands, mask], out, mode=PERFORM_MODE)
    x = np.ones((2, 4, 4, 4))
    with pytest.raises(ValueError, match="reshape"):
        function(x, x, x, np.ones((2, 2, 4, 4), bool))
