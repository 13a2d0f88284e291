"""Depthwise convolution in loops; test_own_ways.py has further tests."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from dnnops.errors import DnnNotSupportedError
from dnnops.plans.cpu import PlanList, conv_node
from tests.cpu.conv.test_conv import PAIRS, operands
from tests.cpu.own_ways import (  # noqa: F401
    DIRECTIONS,
    FORWARD,
    GRAD_INPUTS,
    GRAD_WEIGHTS,
    Way,
    two_threads,
)
from tests.oracle import ConvCase, assert_close, run_op


def make_case(
    batch: int = 2,
    channels: int = 3,
    size: tuple[int, int] = (9, 8),
    kernel: int = 3,
    stride: int = 1,
    pads: Any = ((1, 1), (1, 1)),
    flip: bool = True,
    seed: int = 0,
) -> ConvCase:
    return ConvCase(
        img_shape=(batch, channels, *size),
        kern_shape=(channels, 1, kernel, kernel),
        border_mode=tuple(pads),
        subsample=(stride, stride),
        filter_flip=flip,
        filter_dilation=(1, 1),
        num_groups=channels,
        seed=seed,
    )


@st.composite
def depthwise_cases(draw: st.DrawFn) -> ConvCase:
    """Return a strategy for all filters and strides, with rows of less than a vector to several."""
    kernel = draw(st.sampled_from([3, 5, 7]))
    pad = st.integers(0, kernel - 1)
    pads = tuple((draw(pad), draw(pad)) for _ in range(2))
    widths = st.one_of(st.integers(1, 9), st.integers(10, 40), st.integers(60, 130))
    heights = st.one_of(st.integers(1, 9), st.integers(10, 60))
    size = (draw(heights), draw(widths))
    return make_case(
        batch=draw(st.integers(1, 4)),
        channels=draw(st.integers(1, 5)),
        size=tuple(max(n, kernel - sum(pair)) for n, pair in zip(size, pads, strict=True)),
        kernel=kernel,
        stride=draw(st.integers(1, 2)),
        pads=pads,
        flip=draw(st.booleans()),
        seed=draw(st.integers(0, 2**32 - 1)),
    )


def chosen(case: ConvCase, index: int, dtype: str = "float32", algo: str = "auto") -> str:
    """Return the name of the plan that the Op takes."""
    arrays = operands(case, index, dtype)
    output = np.empty((case.top_shape, case.img_shape, case.kern_shape)[index], dtype)
    op = PAIRS[index][0](**case.params)
    with PlanList(conv_node(op, arrays), list(arrays), output) as plans:
        return plans.choice(algo)


WAY = Way(
    "depthwise",
    lambda index: depthwise_cases(),
    repeated=lambda index: [
        (make_case(5, 7, size), make_case(4, 8, (20, 24), 5)) for size in ((14, 14), (30, 33))
    ],
    spoilt=lambda index: make_case(3, 5, (15, 16)),
    bound=2e-6,
)


@DIRECTIONS
@pytest.mark.parametrize(
    "case",
    [
        make_case(1, 2, (300, 7)),  # more rows than are summed in float32
        make_case(1, 2, (7, 3000), 5, 2),  # rows of many vectors
        make_case(3, 37, (14, 14), 3, 2),  # blocks of channels of different sizes
        make_case(1, 1, (200, 150), 7),  # one channel, several bands
    ],
    ids=lambda case: "x".join(map(str, case.img_shape)),
)
def test_shapes(index, case):
    WAY.check(case, index)


def without_border(case: ConvCase, index: int, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Compute in float64, without the products of zeros around the image."""
    result = np.zeros((case.top_shape, case.img_shape, case.kern_shape)[index])
    img, kern, top = ((first, second, result), (result, first, second), (first, result, second))[
        index
    ]
    kern = kern[:, :, ::-1, ::-1] if case.filter_flip else kern
    (height, width), (rows, columns) = img.shape[2:], top.shape[2:]
    size, stride = kern.shape[2], case.subsample[0]
    for y, x, i, j in np.ndindex(rows, columns, size, size):
        at = y * stride + i - case.padding[0][0], x * stride + j - case.padding[1][0]
        if not (0 <= at[0] < height and 0 <= at[1] < width):
            continue
        if index == FORWARD:
            top[:, :, y, x] += img[(..., *at)] * kern[:, 0, i, j]
        elif index == GRAD_INPUTS:
            img[(..., *at)] += top[:, :, y, x] * kern[:, 0, i, j]
        else:
            kern[:, 0, i, j] += (top[:, :, y, x] * img[(..., *at)]).sum(0)
    return result


@DIRECTIONS
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("width", [9, 25])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_zeros_around_the_image_make_no_nan(index, stride, width, value):
    """Neither operand's infinities become NaN where the border is multiplied."""
    case = make_case(2, 3, (8, width), 3, stride)
    backend = PAIRS[index][0](**case.params, algo="depthwise")
    arrays = operands(case, index, "float32")
    for which in range(2):
        spoilt = tuple(a.copy() for a in arrays)
        spoilt[which][(-1, 0)[spoilt[which].shape[1] == 1], 0, 0, 0] = value
        with np.errstate(invalid="ignore"):
            expected = without_border(case, index, *(a.astype("float64") for a in spoilt[:2]))
        out = run_op(backend, *spoilt)
        np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5)
        assert not np.isfinite(out).all()


@DIRECTIONS
def test_used_unless_direct_or_slower(index):
    case = make_case(8, 16, (28, 28))
    assert chosen(case, index) == "depthwise"
    assert chosen(case, index, algo="direct") != "depthwise"
    assert chosen(case, index, "float64") == "gemm (BLAS)"
    small = make_case(1, 16, (14, 14))
    assert (chosen(small, index) == "depthwise") == (index != GRAD_WEIGHTS)
    arrays = operands(case, index, "float32")
    auto, named, direct = (
        run_op(PAIRS[index][0](**case.params, algo=algo), *arrays)
        for algo in ("auto", "depthwise", "direct")
    )
    np.testing.assert_array_equal(auto, named)
    assert_close(direct, auto)


@DIRECTIONS
@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (
            ConvCase((2, 4, 9, 9), (4, 2, 3, 3), ((1, 1),) * 2, (1, 1), True, (1, 1), 2, 0),
            "groups of one channel and one filter",
        ),
        (
            ConvCase((2, 4, 9, 9), (8, 1, 3, 3), ((1, 1),) * 2, (1, 1), True, (1, 1), 4, 0),
            "groups of one channel and one filter",
        ),
        (
            ConvCase((2, 4, 9, 9), (4, 1, 3, 5), ((1, 1),) * 2, (1, 1), True, (1, 1), 4, 0),
            "3 x 3, 5 x 5 or 7 x 7",
        ),
        (
            ConvCase((2, 4, 9, 9), (4, 1, 3, 3), ((1, 1),) * 2, (2, 1), True, (1, 1), 4, 0),
            "stride 1 or 2 along both axes",
        ),
        (
            ConvCase((2, 4, 9, 9), (4, 1, 3, 3), ((1, 1),) * 2, (1, 1), True, (1, 2), 4, 0),
            "dilation 1",
        ),
        (
            ConvCase((2, 4, 9, 9), (4, 1, 3, 3), ((1, 3),) * 2, (1, 1), True, (1, 1), 4, 0),
            "padding smaller than the filters",
        ),
        (
            ConvCase((2, 4, 9), (4, 1, 3), ((1, 1),), (1,), True, (1,), 4, 0),
            "two spatial axes",
        ),
    ],
)
def test_other_convolutions_are_left_to_onednn(index, case, reason):
    assert chosen(case, index) != "depthwise"
    op = PAIRS[index][0](**case.params, algo="depthwise")
    with pytest.raises(DnnNotSupportedError, match=reason):
        run_op(op, *operands(case, index, "float32"))
