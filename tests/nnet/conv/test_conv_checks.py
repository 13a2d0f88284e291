"""Known and declared shapes are checked; padding as numbers."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.gradient import pushforward

from dnnops import nnet
from dnnops.errors import DnnNotSupportedError, DnnTypeError, DnnValueError
from tests.oracle import PERFORM_MODE

IMAGE, FILTERS = np.ones((2, 3, 8, 7)), np.ones((4, 3, 3, 3))


def test_a_known_shape_that_is_contradicted():
    """Errors are raised when the graph is built if types tell, else at the call."""
    x, w = pt.tensor4(shape=(2, 3, 8, 7), dtype="float64"), pt.dtensor4()
    with pytest.raises(DnnValueError, match=r"conv2d: input_shape \(2, 3, 9, 7\) contradicts"):
        nnet.conv2d(x, w, input_shape=(2, 3, 9, 7))
    with pytest.raises(DnnValueError, match=r"image_shape \(5, \?, \?, \?\) contradicts"):
        nnet.conv2d(x, w, image_shape=(pt.constant(5), None, None, None))


@pytest.mark.parametrize("mode", [PERFORM_MODE, "NUMBA"])
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda x, w: nnet.conv2d(x, w, input_shape=(None, 3, 9, None)),
            r"conv2d: the shape of input does not match the input_shape argument \(\?, 3, 9, \?\)",
        ),
        (
            lambda x, w: nnet.conv2d(x, w, filter_shape=(4, 3, pt.as_tensor(5) + w.shape[0], 3)),
            r"conv2d: the shape of filters does not match the filter_shape argument"
            r" \(4, 3, \?, 3\)",
        ),
        (
            lambda x, w: nnet.conv2d_grad_wrt_weights(x, x[:, :, 2:, 2:], (3, 2, 3, 3)),
            "conv2d_grad_wrt_weights: the shape of the result does not match the filter_shape"
            " argument",
        ),
    ],
)
def test_a_shape_that_is_contradicted_at_the_call(make, words, mode):
    x, w = pt.dtensor4(), pt.dtensor4()
    f = pytensor.function([x, w], make(x, w), mode=mode, on_unused_input="ignore")
    with pytest.raises(DnnValueError, match=words):
        f(IMAGE, FILTERS)


def test_a_shape_that_is_right():
    x, w = pt.dtensor4(), pt.dtensor4()
    y = nnet.conv2d(x, w, input_shape=(None, 3, 8, x.shape[3]), filter_shape=(4, 3, 3, 3))
    assert y.type.shape == (None, 4, 6, None)
    derivatives = [*pytensor.grad(y.sum(), [x, w]), pushforward(y, [x], [x])]
    f = pytensor.function([x, w], [y, *derivatives], mode=PERFORM_MODE)
    shapes = [z.shape for z in f(IMAGE, FILTERS)]
    assert shapes == [(2, 4, 6, 5), IMAGE.shape, FILTERS.shape, (2, 4, 6, 5)]


def test_assert_conv_shape():
    n = pt.iscalar()
    assert nnet.assert_conv_shape((0, 0, 1, 2)) == (0, 0, 1, 2)
    sizes = nnet.assert_conv_shape([n, n, n])
    channels, rows = (pytensor.function([n], sizes[i], mode=PERFORM_MODE) for i in (1, 2))
    assert (channels(0), rows(1)) == (0, 1)
    for f, value in ((channels, -1), (rows, 0)):
        with pytest.raises(DnnValueError, match=r"must be at least . on axis"):
            f(value)
    for shape in ((-1, 1, 1), (1, 1, 0), (1, 1, pt.constant(-3))):
        with pytest.raises(DnnValueError, match=r"must be at least . on axis"):
            nnet.assert_conv_shape(shape)
    for bad in (3, (1, 2, 0.5)):
        with pytest.raises(DnnTypeError):
            nnet.assert_conv_shape(bad)


def test_assert_shape():
    x = pt.dmatrix()
    assert nnet.assert_shape(x, None) is x
    assert nnet.assert_shape(x, (None, None)) is x
    f = pytensor.function([x], nnet.assert_shape(x, (2, None), "Two rows."), mode=PERFORM_MODE)
    # Theano raised an AssertionError.
    with pytest.raises(AssertionError, match="Two rows"):
        f(np.ones((3, 3)))
    assert f(np.ones((2, 3))).shape == (2, 3)
    with pytest.raises(DnnValueError, match="Two rows"):
        f(np.ones((3, 2)))
    with pytest.raises(DnnValueError, match="Unexpected shape"):
        nnet.assert_shape(np.ones((2, 3)), (2, 4))


def test_border_mode_to_pad():
    pad = nnet.border_mode_to_pad
    assert pad("valid", 2, (3, 4)) == ((0, 0), (0, 0))
    assert pad("half", 2, (3, 4)) == ((1, 1), (2, 2))
    assert pad("full", 3, (3, 4, 1)) == ((2, 2), (3, 3), (0, 0))
    assert pad((1, (2, 3)), 2, (9, 9)) == ((1, 1), (2, 3))
    for bad in ("same", 1, (1,), (-1, 0), (1, (0, -1))):
        with pytest.raises(DnnValueError):
            pad(bad, 2, (3, 3))
    with pytest.raises(DnnNotSupportedError):
        pad((1, (1, 2, 3)), 2, (3, 3))


def test_windows_of_neighbourhoods_are_bounded_when_the_graph_is_built():
    x = pt.dtensor4()
    for window in ((2**31 - 1, 1), (1, 2**26 + 1), (2**14, 2**14)):
        with pytest.raises(DnnValueError, match="neib_shape"):
            nnet.images2neibs(x, window, mode="full")
        with pytest.raises(DnnValueError, match="neib_shape"):
            nnet.images2neibs(x, window, (1, 1))
