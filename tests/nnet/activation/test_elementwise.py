"""Elementwise functions: against formulas in NumPy, slopes, dtypes, and the Ops they become."""

from __future__ import annotations

from math import erfc, sqrt

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode, get_mode

from dnnops import nnet
from dnnops.errors import DnnTypeError
from tests.oracle import PERFORM_MODE, assert_close, check_gradient, evaluate


def ultra_fast(x: np.ndarray) -> np.ndarray:
    """Evaluate the piecewise table separately for each number."""

    def tanh(h: float) -> float:
        if h < 0:
            return -tanh(-h)
        if h < 1.7:
            return 1.5 * h / (1 + h)
        return 0.935409070603099 + 0.0458812946797165 * (h - 1.7) if h < 3 else 0.99505475368673

    return np.array([(tanh(v / 2) + 1) / 2 for v in x.ravel()]).reshape(x.shape)


def selu(x: np.ndarray) -> np.ndarray:
    return 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(np.minimum(x, 0)))


def gelu(x: np.ndarray) -> np.ndarray:
    return x * np.array([erfc(-v / sqrt(2)) / 2 for v in x.ravel()]).reshape(x.shape)


FORMULAS = {
    "gelu": gelu,
    "softplus": lambda x: np.logaddexp(x, 0),
    "softsign": lambda x: x / (1 + np.abs(x)),
    "selu": selu,
    "hard_sigmoid": lambda x: np.minimum(np.maximum(x / 5 + 0.5, 0), 1),
    "ultra_fast_sigmoid": ultra_fast,
}
#: Points where the formulas have no slope, or two.
BENDS = {"selu": [0], "hard_sigmoid": [-2.5, 2.5], "ultra_fast_sigmoid": [-6, -3.4, 3.4, 6]}
SLOPES_AT_0 = {
    "gelu": 0.5,
    "softplus": 0.5,
    "softsign": 1.0,
    "selu": 1.0507009873554805 * 1.6732632423543772,
    "hard_sigmoid": 0.2,
    "ultra_fast_sigmoid": 0.375,
}


def points(name: str) -> np.ndarray:
    x = 4 * np.random.default_rng(7).standard_normal((5, 3, 8))
    x[0, 0, :4] = [-40, 40, 0, 1e-3]
    near = np.zeros(x.shape, bool)
    for bend in BENDS.get(name, []):
        near |= np.abs(x - bend) < 0.01
    return np.where(near, 0.7, x)


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_against_formulas(name, dtype):
    x = points(name).astype(dtype)
    (out,) = evaluate([getattr(nnet, name)(v := pt.tensor3(dtype=dtype))], {v: x})
    assert out.dtype == dtype
    bound = {"float64": 1e-12, "float32": 1e-5, "float16": 2e-3}[dtype]
    assert_close(out, FORMULAS[name](x.astype("float64")), bound=bound)


@pytest.mark.parametrize("name", FORMULAS)
def test_gradients(name):
    x = points(name)
    check_gradient(getattr(nnet, name), [np.where(x == 0, 1, x)])
    x = pt.dvector()
    (slope,) = evaluate([pytensor.grad(getattr(nnet, name)(x).sum(), x)], {x: np.zeros(1)})
    np.testing.assert_allclose(slope, [SLOPES_AT_0[name]], rtol=1e-12)


@pytest.mark.parametrize("name", [*FORMULAS, "relu", "sigmoid", "tanh", "elu"])
def test_integers_become_floats(name):
    function = getattr(nnet, name)
    for dtype, expected in [
        ("int8", "float32"),
        ("uint16", "float32"),
        ("bool", "float32"),
        ("int32", "float64"),
        ("int64", "float64"),
    ]:
        values = np.array([[0, 1, 1]], dtype)
        (out,) = evaluate([function(v := pt.matrix(dtype=dtype))], {v: values})
        (same,) = evaluate([function(f := pt.matrix(dtype=expected))], {f: values.astype(expected)})
        assert out.dtype == expected
        np.testing.assert_array_equal(out, same)
    with pytest.raises(DnnTypeError, match=f"{name}: x has dtype complex64"):
        function(pt.cvector())


def test_approximate_gelu():
    x = points("gelu")
    (out,) = evaluate([nnet.gelu(v := pt.dtensor3(), approximate=True)], {v: x})
    inner = np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)
    assert_close(out, x * (1 + np.tanh(inner)) / 2)
    assert np.abs(out - gelu(x)).max() < 1e-3
    check_gradient(lambda x: nnet.gelu(x, True), [np.where(x == 0, 1, x)])
    for dtype, large in (("float16", 3e4), ("float32", 1e20)):
        v = pt.vector(dtype=dtype)
        out = nnet.gelu(v, approximate=True)
        values = np.array([large, -large, 300.0, -3.5], dtype)
        found, slope = evaluate([out, pytensor.grad(out.sum(), v)], {v: values})
        np.testing.assert_allclose(found[:3], [values[0], 0, 300], atol=1e-6)
        np.testing.assert_allclose(found[3], -0.000617, rtol=0.02)
        np.testing.assert_allclose(slope[:3], [1, 0, 1], atol=1e-6)


@pytest.mark.parametrize("mode", ["DNN", "NUMBA"])
def test_slopes_of_the_approximate_gelu_at_the_largest_numbers(mode):
    """The tail's factors, whose product overflows, are not multiplied by its slope of 0."""
    provided = get_mode(mode).excluding("numba").provided_optimizer
    for dtype in ("float32", "float64"):
        v = pt.vector(dtype=dtype, shape=(3,))
        out = nnet.gelu(v, approximate=True)
        values = np.array([-1, 1, np.nan], dtype) * np.finfo(dtype).max
        f = pytensor.function([v], [out, pytensor.grad(out.sum(), v)], mode=Mode("py", provided))
        found, slope = f(values)
        np.testing.assert_array_equal(found, [0, values[1], np.nan])
        np.testing.assert_array_equal(slope, [0, 1, np.nan])


@pytest.mark.parametrize("alpha", [0.1, -0.5, 1, np.float32(0.25)])
def test_leaky_relu(alpha):
    x = np.random.default_rng(3).standard_normal((4, 5)).astype("float32")
    v = pt.fmatrix()
    out = nnet.relu(v, alpha)
    assert out.type.dtype == "float32"
    found, slope = evaluate([out, pytensor.grad(out.sum(), v)], {v: x})
    assert_close(found, np.maximum(x, 0) + alpha * np.minimum(x, 0))
    np.testing.assert_allclose(slope, np.where(x > 0, 1, alpha))


def test_leaky_relu_learns_its_slope():
    rng = np.random.default_rng(4)
    x = np.where(np.abs(x := rng.standard_normal((3, 2, 4, 4))) < 0.01, 0.5, x)
    alpha = rng.standard_normal((1, 2, 1, 1))
    check_gradient(nnet.relu, [x, np.broadcast_to(alpha, x.shape)])
    slope = pytensor.shared(alpha, shape=alpha.shape)
    v = pt.dtensor4()
    cost = nnet.relu(v, slope).sum()
    (found,) = evaluate([pytensor.grad(cost, slope)], {v: x})
    np.testing.assert_allclose(found[0, :, 0, 0], np.minimum(x, 0).sum(axis=(0, 2, 3)))


def test_relu_without_slope_stays_one_op():
    for x in (pt.fmatrix(), pt.dvector()):
        for out in (nnet.relu(x), nnet.relu(x, 0), nnet.relu(x, alpha=0.0)):
            assert isinstance(out.owner.op, nnet.Activation)
    with pytest.raises(DnnTypeError, match="relu: alpha must be a tensor or array-like, got 'a'"):
        nnet.relu(pt.fvector(), "a")


def test_reaches_onednn():
    x = pt.fmatrix("x")
    fn = pytensor.function([x], nnet.selu(x), mode="ONEDNN")
    assert "OneDnnActivation" in {type(node.op).__name__ for node in fn.maker.fgraph.apply_nodes}
    value = np.random.default_rng(1).standard_normal((8, 9)).astype("float32")
    assert_close(fn(value), selu(value.astype("float64")))


def test_softplus_does_not_overflow():
    x = pt.fvector()
    out = nnet.softplus(x)
    fn = pytensor.function([x], [out, pytensor.grad(out.sum(), x)], mode=PERFORM_MODE)
    value, slope = fn(np.array([-200, 200], "float32"))
    np.testing.assert_array_equal(value, [0, 200])
    np.testing.assert_array_equal(slope, [0, 1])
