"""Normalizations of numbers whose squares leave the range of their dtype, in long double."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from dnnops import nnet
from dnnops.modes import OneDnnMode
from tests.oracle import PERFORM_MODE, assert_close

pytestmark = pytest.mark.skipif(
    np.finfo("longdouble").maxexp == np.finfo("float64").maxexp,
    reason="long double has no more range than float64",
)

SHAPE = (3, 4, 18)
BOTH = pytest.mark.parametrize(
    "mode", [PERFORM_MODE, OneDnnMode(linker="py")], ids=["reference", "oneDNN"]
)
#: Magnitudes whose squares, or the sums or inverses of these, leave the range of a dtype.
MAGNITUDES = {
    "float32": [3e37, 1e19, 1e-19, 1e-30],
    "float64": [5e306, 1e160, 1e-160, 1e-290],
}


def batch(x: Any) -> Any:
    ones = pt.ones((1, SHAPE[1], 1), dtype=x.type.dtype)
    return nnet.batch_normalization_train(x, ones, pt.zeros_like(ones), "spatial", epsilon=0.0)[0]


#: Each normalization, with a shape in which its statistics are taken over some axes.
FORMS: dict[str, tuple[Any, tuple[int, ...], tuple[int, ...]]] = {
    "batch": (batch, SHAPE, (0, 2)),
    "group": (lambda x: nnet.group_norm(x, 2, epsilon=0.0), (3, 2, 36), (2,)),
    "layer": (lambda x: nnet.layer_norm(x, epsilon=0.0), SHAPE, (2,)),
    "instance": (lambda x: nnet.group_norm(x, 4, epsilon=0.0), SHAPE, (2,)),
}


def standardized(x: Any, gy: Any, axes: tuple[int, ...]) -> list[np.ndarray]:
    """Return the normalized array and the gradient."""
    centered = x - x.mean(axis=axes, keepdims=True)
    deviation = np.sqrt((centered**2).mean(axis=axes, keepdims=True))
    y = centered / deviation
    mean, slope = (z.mean(axis=axes, keepdims=True) for z in (gy, gy * y))
    return [y, (gy - mean - y * slope) / deviation]


@pytest.mark.parametrize("dtype", MAGNITUDES)
@BOTH
def test_standardized(mode, dtype):
    """One sample or channel is extreme and the others are ordinary, or all are."""
    x, gy = (pt.tensor3(dtype=dtype) for _ in range(2))
    outputs = []
    for function, _, _ in FORMS.values():
        y = function(x)
        outputs += [y, pytensor.grad(None, x, known_grads={y: gy})]
    f = pytensor.function([x, gy], outputs, mode=mode)
    rng = np.random.default_rng(0)
    values, top = (rng.standard_normal(SHAPE).astype(dtype) for _ in range(2))
    for magnitude in MAGNITUDES[dtype]:
        for place in (np.s_[:], np.s_[1], np.s_[:, 2]):
            given = values.copy()
            given[place] *= magnitude
            results = iter(f(given, top))
            for name, (_, shape, axes) in FORMS.items():
                if name == "batch" and place == np.s_[1]:
                    axes_of_samples = [next(results), next(results)]
                    assert np.isfinite(axes_of_samples).all()
                    continue
                wide, g = (a.astype("longdouble").reshape(shape) for a in (given, top))
                for expected in standardized(wide, g, axes):
                    found = next(results).astype("longdouble").reshape(shape)
                    # By channel and sample, because the others would hide the small ones.
                    size = np.abs(expected).max(axis=2, keepdims=True)
                    assert_close(
                        found / size, expected / size, bound=1e-5 if dtype == "float32" else 1e-11
                    )


@pytest.mark.parametrize("dtype", MAGNITUDES)
@BOTH
def test_layer_norm_with_an_epsilon(mode, dtype):
    """It is an Op, or an expression if the axes leave some that are not adjacent."""
    x, gy = (pt.tensor4(dtype=dtype) for _ in range(2))
    outputs, axes = [], [(2, 3), (0, 2)]
    for axis in axes:
        y = nnet.layer_norm(x, axes=axis, epsilon=1e-5)
        outputs += [y, pytensor.grad(None, x, known_grads={y: gy})]
    f = pytensor.function([x, gy], outputs, mode=mode)
    rng = np.random.default_rng(2)
    values, top = (rng.standard_normal((2, 3, 4, 5)).astype(dtype) for _ in range(2))
    for magnitude in MAGNITUDES[dtype][:2]:
        given = (values * values.dtype.type(magnitude)).astype(dtype)
        results = iter(f(given, top))
        for axis in axes:
            for expected in standardized(*(a.astype("longdouble") for a in (given, top)), axis):
                size = np.abs(expected).max()
                found = next(results).astype("longdouble") / size
                assert_close(found, expected / size, bound=1e-5 if dtype == "float32" else 1e-11)


def windowed(x: Any, gy: Any, axis: int) -> list[np.ndarray]:
    """Return the output and the gradient of a normalization by windows of 3 along an axis."""

    def sums(terms: Any) -> Any:
        padded = np.pad(terms, [(1, 1) if i == axis else (0, 0) for i in range(terms.ndim)])
        return np.lib.stride_tricks.sliding_window_view(padded, 3, axis).sum(axis=-1)

    share, beta = np.longdouble(0.5) / 3, np.longdouble(0.75)
    base = 2 + share * sums(x**2)
    power = base**-beta
    return [x * power, gy * power - 2 * share * beta * x * sums(gy * x * power / base)]


WINDOWS = {
    1: lambda x: nnet.local_response_normalization(x, 3, 0.5, 0.75, 2.0),
    2: lambda x: nnet.divisive_normalization(x, n=3, alpha=0.5, beta=0.75, k=2.0),
}


@pytest.mark.parametrize("dtype", MAGNITUDES)
@BOTH
def test_windows(mode, dtype):
    x, gy = (pt.tensor3(dtype=dtype) for _ in range(2))
    outputs = []
    for function in WINDOWS.values():
        y = function(x)
        outputs += [y, pytensor.grad(None, x, known_grads={y: gy})]
    f = pytensor.function([x, gy], outputs, mode=mode)
    rng = np.random.default_rng(1)
    values, top = (rng.standard_normal(SHAPE).astype(dtype) for _ in range(2))
    for magnitude in MAGNITUDES[dtype]:
        given = (values * values.dtype.type(magnitude)).astype(dtype)
        given[2] = values[2]
        results = iter(f(given, top))
        for axis in WINDOWS:
            for expected in windowed(*(a.astype("longdouble") for a in (given, top)), axis):
                found = next(results)
                tiny = np.finfo(dtype).smallest_normal
                bound = 1e-5 if dtype == "float32" else 1e-12
                assert (abs(found - expected) <= bound * abs(expected) + 100 * tiny).all()
