"""Separable and causal convolutions, against SciPy's convolution of each channel."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from scipy.signal import convolve

from dnnops.errors import DnnNotSupportedError, DnnTypeError, DnnValueError
from dnnops.nnet import causal_conv1d, separable_conv2d, separable_conv3d
from tests.oracle import assert_close, check_gradient, evaluate

RNG = np.random.default_rng(12)


def separable(x, depthwise, pointwise, strides, flip) -> np.ndarray:
    per_channel = len(depthwise) // x.shape[1]
    stride = tuple(slice(None, None, s) for s in strides)
    out = []
    for image in x:
        mixed = []
        for i, filters in enumerate(depthwise[:, 0]):
            taps = filters if flip else np.flip(filters)
            mixed.append(convolve(image[i // per_channel], taps, "valid", "direct")[stride])
        out.append(np.tensordot(pointwise.reshape(len(pointwise), -1), np.array(mixed), 1))
    return np.array(out)


@pytest.mark.parametrize("flip", [True, False])
@pytest.mark.parametrize("ndim", [2, 3])
def test_separable(ndim, flip):
    function = separable_conv2d if ndim == 2 else separable_conv3d
    sizes, kernel, strides = (7, 6, 5)[:ndim], (3, 2, 2)[:ndim], (2, 1, 2)[:ndim]
    arrays = [
        RNG.standard_normal(shape)
        for shape in ((2, 3, *sizes), (6, 1, *kernel), (4, 6, *(1,) * ndim))
    ]
    inputs = [pt.tensor(dtype="float64", shape=(None,) * a.ndim) for a in arrays]
    shapes = [a.shape for a in arrays]
    outs = [
        function(*inputs, 3, subsample=strides, filter_flip=flip),
        function(*inputs, 3, *shapes, subsample=strides, filter_flip=flip),
    ]
    expected = separable(*arrays, strides, flip)
    for out in evaluate(outs, dict(zip(inputs, arrays, strict=True))):
        assert_close(out, expected)
    assert outs[1].type.shape == expected.shape
    check_gradient(lambda *v: function(*v, 3, border_mode="half", filter_flip=flip), arrays)


def causal(x, filters, stride, dilation, flip, groups) -> np.ndarray:
    """Each output is a sum over the present and the past."""
    taps = filters if flip else filters[:, :, ::-1]
    per_group = len(filters) // groups
    out = np.zeros((len(x), len(filters), len(range(0, x.shape[2], stride))))
    for b, o, i in np.ndindex(*out.shape):
        for c in range(filters.shape[1]):
            channel = x[b, o // per_group * filters.shape[1] + c]
            for tap in range(filters.shape[2]):
                t = i * stride - tap * dilation
                out[b, o, i] += taps[o, c, tap] * channel[t] if t >= 0 else 0
    return out


@pytest.mark.parametrize("flip", [True, False])
@pytest.mark.parametrize(("stride", "dilation", "groups"), [(1, 1, 1), (2, 1, 2), (1, 3, 2)])
def test_causal(stride, dilation, groups, flip):
    arrays = [RNG.standard_normal(s) for s in ((2, 4, 9), (6, 4 // groups, 3))]
    x, w = pt.dtensor3(), pt.dtensor3()
    params = {"subsample": stride, "filter_dilation": dilation, "num_groups": groups}

    def made(image, kernel):
        return causal_conv1d(image, kernel, (None, None, 3), filter_flip=flip, **params)

    (out,) = evaluate([made(x, w)], dict(zip((x, w), arrays, strict=True)))
    assert_close(out, causal(*arrays, stride, dilation, flip, groups))
    check_gradient(made, arrays)
    future = pytensor.grad(made(x, w)[:, :, 2].sum(), x)
    (future,) = evaluate([future], dict(zip((x, w), arrays, strict=True)))
    assert future[:, :, : 2 * stride + 1].any()
    assert not future[:, :, 2 * stride + 1 :].any()


def test_causal_filter_length():
    x = pt.ftensor3()
    static = pt.tensor(dtype="float32", shape=(None, None, 4))
    assert causal_conv1d(x, static, None, (2, 3, 10)).type.shape == (2, None, 10)
    with pytest.raises(DnnValueError, match="the last entry of filter_shape must be an int"):
        causal_conv1d(x, x, (2, 3, None))
    with pytest.raises(DnnTypeError, match="filter_dilation must be an int, got"):
        causal_conv1d(x, x, (2, 3, 4), filter_dilation=(2,))
    with pytest.raises(DnnNotSupportedError, match="causal_conv1d: unshared=True"):
        causal_conv1d(x, x, (2, 3, 4), unshared=True)


def test_reach_onednn():
    x, depthwise, pointwise = pt.ftensor4(), pt.ftensor4(), pt.ftensor4()
    out = separable_conv2d(x, depthwise, pointwise, 3, border_mode=1)
    fn = pytensor.function([x, depthwise, pointwise], out, mode="ONEDNN")
    ops = [type(node.op).__name__ for node in fn.maker.fgraph.apply_nodes]
    assert sum("OneDnnConv" in op for op in ops) == 2
    shapes = (2, 3, 6, 5), (3, 1, 3, 3), (4, 3, 1, 1)
    arrays = [RNG.standard_normal(s).astype("float32") for s in shapes]
    padded = np.pad(arrays[0].astype("float64"), ((0, 0), (0, 0), (1, 1), (1, 1)))
    wide = [padded, *(a.astype("float64") for a in arrays[1:])]
    assert_close(fn(*arrays), separable(*wide, (1, 1), True))
