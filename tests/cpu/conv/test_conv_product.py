"""Convolution with filters of one pixel as matrix products; test_own_ways.py has further tests."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from hypothesis import strategies as st

import dnnops
from dnnops.cpu.conv import OneDnnConv
from dnnops.errors import DnnNotSupportedError
from dnnops.nnet import conv2d
from tests.cpu.conv.test_conv import in_double, operands
from tests.cpu.own_ways import DIRECTIONS, Way, two_threads  # noqa: F401  every test runs with them
from tests.oracle import ConvCase, assert_close, run_op


def make_case(
    batch: int, channels: tuple[int, int], size: tuple[int, ...], groups: int = 1, seed: int = 0
) -> ConvCase:
    ones = (1,) * len(size)
    return ConvCase(
        img_shape=(batch, channels[0], *size),
        kern_shape=(channels[1], channels[0] // groups, *ones),
        border_mode=((0, 0),) * len(size),
        subsample=ones,
        filter_flip=True,
        filter_dilation=ones,
        num_groups=groups,
        seed=seed,
    )


@st.composite
def product_cases(draw: st.DrawFn) -> ConvCase:
    """Return a strategy for few and many channels, pixels and images."""
    ndim, groups = draw(st.integers(1, 3)), draw(st.sampled_from([1, 1, 2, 3]))
    channel = st.one_of(st.integers(1, 40), st.sampled_from([64, 130]))
    return make_case(
        batch=draw(st.integers(1, 6)),
        channels=(groups * draw(channel), groups * draw(channel)),
        size=tuple(draw(st.integers(1, (1500, 40, 11)[ndim - 1])) for _ in range(ndim)),
        groups=groups,
        seed=draw(st.integers(0, 2**32 - 1)),
    )


WAY = Way(
    "product",
    lambda index: product_cases(),
    repeated=lambda index: [(make_case(5, (40, 33), size),) * 2 for size in ((60, 70), (7, 7))],
    spoilt=lambda index: make_case(3, (20, 24), (15, 16)),
    copies=False,
)


@DIRECTIONS
def test_channels_last_and_slices_of_channels(index):
    """These are read in place."""
    case = make_case(3, (40, 33), (9, 12))
    backend, abstract = WAY.ops(case, index)
    arrays = operands(case, index, "float32")
    expected = run_op(abstract, *in_double(arrays))
    last = [np.moveaxis(np.moveaxis(a, 1, -1).copy(), -1, 1) if a.ndim == 4 else a for a in arrays]
    assert_close(run_op(backend, *last), expected)
    sliced = [np.concatenate([a, a], axis=1)[:, : a.shape[1]] if a.ndim == 4 else a for a in arrays]
    assert_close(run_op(backend, *sliced), expected)


@DIRECTIONS
@pytest.mark.parametrize(
    ("batch", "channels", "size", "groups"),
    [
        (1, (30, 50), (40, 41), 1),  # one image, cut into columns of pixels
        (1, (300, 500), (7, 7), 1),  # cut into rows of channels
        (37, (70, 300), (7, 7), 1),  # images joined for one product, rows in two parts
        (5, (3, 40), (64,), 1),  # few channels
        (2, (1100, 1000), (16, 16), 1),
        (5, (32, 48), (40, 30), 16),
        (3, (8, 8), (5, 6, 7), 8),
    ],
)
def test_shapes(index, batch, channels, size, groups):
    WAY.check(make_case(batch, channels, size, groups), index)


@DIRECTIONS
def test_many_terms_are_accurate(index):
    WAY.check(make_case(2, (2048, 16), (8, 8)), index)
    WAY.check(make_case(2, (16, 2048), (8, 8)), index)
    WAY.check(make_case(4, (16, 16), (128, 128)), index)


def test_compiled_functions_use_it():
    x, w = pt.ftensor4("x"), pt.ftensor4("w")
    case = make_case(4, (64, 48), (28, 28))
    image, filters, _ = case.arrays("float32")
    with pytensor.config.change_flags(device="cpu"):
        f = pytensor.function([x, w], conv2d(x, w), mode="DNN")
    f(image, filters)
    (row,) = dnnops.chosen_plans(f)
    assert row.plan == "product"


def test_it_cannot_be_named_for_other_filters():
    image, filters = np.ones((1, 2, 5, 5), "float32"), np.ones((3, 2, 1, 3), "float32")
    with pytest.raises(
        DnnNotSupportedError, match=r"product cannot be run: .* filters of one pixel"
    ):
        run_op(OneDnnConv(2, algo="product"), image, filters)
