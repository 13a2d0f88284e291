"""Bilinear upsampling, against interpolation by NumPy."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.gradient import verify_grad

from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.nnet import (
    bilinear_kernel_1D,
    bilinear_kernel_2D,
    bilinear_upsampling,
    frac_bilinear_upsampling,
)
from tests.oracle import PERFORM_MODE, assert_close, evaluate


def differentiate(fun, x: np.ndarray) -> None:
    """Compare the gradient with finite differences."""
    verify_grad(fun, [x], rng=np.random.default_rng(1), mode=PERFORM_MODE)


def interpolated(x: np.ndarray, ratios, steps=(1, 1)) -> np.ndarray:
    """Interpolate along rows, then along columns; values beyond the ends are those at the ends."""
    for axis, ratio, step in zip((2, 3), ratios, steps, strict=True):
        size = x.shape[axis]
        at = np.arange(0, size * ratio, step)
        known = np.arange(size) * ratio + (ratio - 1) // 2
        x = np.apply_along_axis(lambda line, a=at, k=known: np.interp(a, k, line), axis, x)
    return x


@pytest.mark.parametrize("ratio", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("one_by_one", [True, False])
def test_against_interpolation(ratio, one_by_one):
    value = np.random.default_rng(ratio).standard_normal((2, 3, 4, 1 + ratio))
    for shape in ((None,) * 4, value.shape):
        x = pt.tensor(dtype="float64", shape=shape)
        out = bilinear_upsampling(
            x, ratio, batch_size=2, num_input_channels=3, use_1D_kernel=one_by_one
        )
        assert out.type.shape[:2] == (2, 3)
        (found,) = evaluate([out], {x: value})
        assert_close(found, interpolated(value, (ratio, ratio)))


@pytest.mark.parametrize(
    ("fraction", "ratios", "steps"),
    [
        ((3, 2), (3, 3), (2, 2)),
        ((6, 4), (3, 3), (2, 2)),
        (((5, 3), (2, 1)), (5, 2), (3, 1)),
        (((2, 3), (7, 4)), (2, 7), (3, 4)),
    ],
)
def test_fractions(fraction, ratios, steps):
    value = np.random.default_rng(9).standard_normal((2, 1, 4, 5))
    x = pt.dtensor4()
    outs = [
        bilinear_upsampling(x, frac_ratio=fraction, use_1D_kernel=False),
        frac_bilinear_upsampling(x, fraction),
    ]
    for found in evaluate(outs, {x: value}):
        assert_close(found, interpolated(value, ratios, steps))


def test_gradients():
    x = np.random.default_rng(3).standard_normal((1, 2, 3, 2))
    differentiate(lambda v: bilinear_upsampling(v, 3), x)
    differentiate(lambda v: frac_bilinear_upsampling(v, (3, 2)), x)


def test_kernels():
    ratio = pt.lscalar()
    outs = [
        bilinear_kernel_1D(3),
        bilinear_kernel_1D(ratio, normalize=False),
        bilinear_kernel_2D((2, 3)),
        bilinear_kernel_2D(ratio, normalize=False),
    ]
    found = evaluate(outs, {ratio: 2})
    np.testing.assert_allclose(found[0], np.array([1, 2, 3, 2, 1]) / 3)
    np.testing.assert_array_equal(found[1], [1, 2, 1])
    np.testing.assert_allclose(found[2], np.outer([0.5, 1, 0.5], np.array([1, 2, 3, 2, 1]) / 3))
    np.testing.assert_array_equal(found[3], [[1, 2, 1], [2, 4, 2], [1, 2, 1]])
    assert all(out.dtype == pytensor.config.floatX for out in found)


def test_reaches_onednn_and_keeps_float32():
    x = pt.ftensor4()
    out = bilinear_upsampling(x, 2)
    assert out.type.dtype == "float32"
    fn = pytensor.function([x], out, mode="ONEDNN")
    ops = [type(node.op).__name__ for node in fn.maker.fgraph.apply_nodes]
    assert ops.count("OneDnnConvGradInputs") == 2
    value = np.random.default_rng(4).standard_normal((2, 3, 5, 4)).astype("float32")
    assert_close(fn(value), interpolated(value.astype("float64"), (2, 2)))


def test_constant_ratio():
    x = pt.dtensor4()
    out = bilinear_upsampling(x, pt.constant(2))
    value = np.ones((1, 1, 2, 2))
    assert pytensor.function([x], out, mode=PERFORM_MODE)(value).shape == (1, 1, 4, 4)


def test_errors():
    x = pt.ftensor4()
    with pytest.raises(DnnValueError, match="give either ratio or frac_ratio, got neither"):
        bilinear_upsampling(x)
    with pytest.raises(DnnValueError, match="give either ratio or frac_ratio, got both"):
        bilinear_upsampling(x, 2, (3, 2))
    with pytest.raises(DnnValueError, match="frac_ratio needs use_1D_kernel=False"):
        bilinear_upsampling(x, frac_ratio=(3, 2))
    with pytest.raises(DnnTypeError, match=r"ratio must consist of ints, got 2\.5"):
        bilinear_upsampling(x, 2.5)
    with pytest.raises(DnnTypeError, match="ratio must consist of ints"):
        bilinear_upsampling(x, pt.lscalar())
    with pytest.raises(DnnValueError, match="ratio must be between 1 and 2147483647, got 0"):
        bilinear_upsampling(x, 0)
    for wrong in ([3, 2], (3, 2, 1), ((3, 2), 2)):
        with pytest.raises(DnnValueError, match="frac_ratio must be a pair of ints or of pairs"):
            frac_bilinear_upsampling(x, wrong)
    with pytest.raises(DnnTypeError, match="input must have 4 dimensions, got 3"):
        bilinear_upsampling(pt.ftensor3(), 2)
