"""Theano's functions for shapes of convolutions, against actual convolutions."""

from __future__ import annotations

import itertools

import numpy as np
import pytensor.tensor as pt
import pytest

from dnnops.errors import DnnNotSupportedError, DnnValueError
from dnnops.nnet import (
    check_conv_gradinputs_shape,
    get_conv_gradinputs_shape,
    get_conv_gradinputs_shape_1axis,
    get_conv_gradweights_shape,
    get_conv_gradweights_shape_1axis,
    get_conv_output_shape,
    get_conv_shape_1axis,
)
from tests.oracle import conv_cases, evaluate, fuzz


def image_positions(size: int, kernel: int, pads, stride: int, dilation: int) -> int:
    """Count the positions of a filter."""
    begin, end = pads
    last = (kernel - 1) * dilation
    return sum(at + last < size + begin + end for at in range(0, size + begin + end, stride))


@fuzz(150, case=conv_cases())
def test_shapes(case):
    given = (case.border_mode, case.subsample, case.filter_dilation)
    counted = tuple(
        image_positions(*axis)
        for axis in zip(
            case.img_shape[2:],
            case.kern_shape[2:],
            case.padding,
            case.subsample,
            case.filter_dilation,
            strict=True,
        )
    )
    top = (case.img_shape[0], case.kern_shape[0], *counted)
    assert get_conv_output_shape(case.img_shape, case.kern_shape, *given) == top
    assert check_conv_gradinputs_shape(case.img_shape, case.kern_shape, top, *given)
    for axis in range(2, len(top)):
        wrong = (*top[:axis], top[axis] + 1, *top[axis + 1 :])
        assert not check_conv_gradinputs_shape(case.img_shape, case.kern_shape, wrong, *given)

    images = get_conv_gradinputs_shape(case.kern_shape, top, *given, case.num_groups)
    kernels = get_conv_gradweights_shape(case.img_shape, top, *given, case.num_groups)
    assert images[:2] == case.img_shape[:2]
    assert kernels[:2] == (case.kern_shape[0] // case.num_groups, case.img_shape[1])
    for i, stride in enumerate(case.subsample):
        expected = case.img_shape[2 + i] if stride == 1 else None
        assert images[2 + i] == expected
        several = stride != 1 or case.border_mode == "half"
        assert kernels[2 + i] == (None if several else case.kern_shape[2 + i])


def test_unknown_and_symbolic_sizes():
    mode = ((1, 2), "half")
    found = get_conv_output_shape((None, 3, None, 7), (4, 3, 2, 3), mode, (1, 2))
    assert found == (None, 4, None, 4)
    rows, pad, stride = pt.lscalars("rows", "pad", "stride")
    outs = [
        *get_conv_output_shape((2, 3, rows, 5), (4, 3, 3, 3), (pad, (0, pad)), (stride, 1))[2:],
        get_conv_shape_1axis(rows, 4, "full", stride, 2),
        get_conv_gradinputs_shape_1axis(3, rows, pad, 1, 1),
        get_conv_gradweights_shape_1axis(rows, 6, (pad, 0), 1, 1),
    ]
    found = evaluate(outs, {rows: 9, pad: 2, stride: 2})
    assert [int(v) for v in found] == [6, 5, 8, 7, 6]
    assert check_conv_gradinputs_shape((2, 3, rows, 5), (4, 3, 3, 3), (2, 4, 1, 3), "valid", (1, 1))
    assert not check_conv_gradinputs_shape((2, 3, rows, 5), (4, 3, 3), (2, 4, 1, 3), 0, (1, 1))


def test_numpy_sizes():
    shape = np.array([2, 3, 8, 8])
    assert get_conv_output_shape(shape, (4, 3, 3, 3), 1, np.array([2, 1])) == (2, 4, 4, 8)


def test_errors():
    with pytest.raises(DnnValueError, match="border_mode must be 'valid', 'half', 'full', a non"):
        get_conv_shape_1axis(5, 3, "same", 1)
    with pytest.raises(DnnValueError, match="a non-negative int or a pair of such ints, got -1"):
        get_conv_shape_1axis(5, 3, -1, 1)
    with pytest.raises(
        DnnValueError, match=r"border_mode \(for image_shape of 4 entries\) must have 2"
    ):
        get_conv_output_shape((1, 1, 5, 5), (1, 1, 3, 3), (1,), (1, 1))
    with pytest.raises(DnnNotSupportedError, match=r"unshared=True .* is not supported"):
        get_conv_gradweights_shape((1, 1, 5, 5), (1, 1, 3, 3), 0, (1, 1), unshared=True)


@pytest.mark.parametrize("border_mode", ["valid", "half", "full", (0, 2)])
def test_outputs_of_negative_size(border_mode):
    """Theano's functions compute with them."""
    for size, kernel, dilation in itertools.product((1, 4), (1, 4, 5), (1, 3)):
        images, kernels = (2, 3, size, size), (5, 3, kernel, kernel)
        given = border_mode, (1, 1), (dilation, dilation)
        top = get_conv_output_shape(images, kernels, *given)
        assert get_conv_gradinputs_shape(kernels, top, *given) == images
        if border_mode != "half":
            assert get_conv_gradweights_shape(images, top, *given) == kernels
        for off in (-2, 0, 1):
            other = (*top[:2], top[2] + off, top[3])
            assert check_conv_gradinputs_shape(images, kernels, other, *given) is (off == 0)
    assert not check_conv_gradinputs_shape((2, 3, 5, 5), (4, 3, 3, 3), (2, 4, -1, 3), 0, (1, 1))
    for top in ((-1, 3, 5, 5), (2, -3, 5, 5)):
        with pytest.raises(DnnValueError, match="top_shape must not be negative, got -"):
            get_conv_gradinputs_shape((3, 4, 3, 3), top, border_mode, (1, 1))
