"""Activations and their gradients at every magnitude of a dtype, against extended precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from dnnops import nnet
from dnnops.modes import OneDnnMode
from dnnops.nnet import Activation, ActivationGrad
from tests.nnet.activation.activation_cases import CASES, check, magnitudes, sigmoid
from tests.oracle import PERFORM_MODE, assert_digits, run_op

SELU = 1.0507009873554805, 1.6732632423543772


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.filterwarnings("ignore:overflow")
def test_reference(dtype):
    x = magnitudes(dtype)
    for mode, coef in CASES:
        y = run_op(Activation(mode, coef), x)
        check(mode, coef, x, y, run_op(ActivationGrad(mode, coef), x, y, np.ones_like(x)))


@pytest.mark.parametrize(
    ("dtype", "mode"),
    [
        ("float16", PERFORM_MODE),
        ("float32", PERFORM_MODE),
        ("float64", PERFORM_MODE),
        ("float32", "CVM"),
        ("float64", "CVM"),
    ],
    ids=lambda value: value if isinstance(value, str) else "py",
)
@pytest.mark.filterwarnings("ignore:overflow")
def test_compiled(dtype, mode):
    x = pt.vector(dtype=dtype)
    outputs = []
    for name, coef in CASES:
        # Written out, as on a GPU, and as the Ops that a library may run.
        y = Activation(name, coef)(x)
        (written_out,) = Activation(name, coef).expressions(x)
        (slope,) = ActivationGrad(name, coef).expressions(x, written_out, pt.ones_like(x))
        outputs += [y, pytensor.grad(y.sum(dtype=dtype), x), written_out, slope]
    values = magnitudes(dtype)
    # Enough for vector code and for the library's loops.
    tiled = np.tile(values, 3)
    results = iter(pytensor.function([x], outputs, mode=mode)(tiled))
    for name, coef in CASES:
        for _ in range(2):
            check(name, coef, tiled, next(results), next(results))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.filterwarnings("ignore:overflow")
def test_selu(dtype):
    x = pt.vector(dtype=dtype)
    y = nnet.selu(x)
    values = magnitudes(dtype)
    slope = pytensor.function([x], pytensor.grad(y.sum(dtype=dtype), x), mode=PERFORM_MODE)(values)
    scale, alpha = (np.longdouble(values.dtype.type(number)) for number in SELU)
    wide = values.astype("longdouble")
    with np.errstate(over="ignore"):
        expected = scale * np.where(wide > 0, 1, alpha * np.exp(wide))
    assert_digits(slope, expected, 2, what="selu'")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.filterwarnings("ignore:overflow")
def test_approximate_gelu(dtype):
    """The tails keep their digits; only those that the rounded argument of the sigmoid lacks."""
    x = pt.vector(dtype=dtype)
    y = nnet.gelu(x, approximate=True)
    values = magnitudes(dtype)
    outputs = [y, pytensor.grad(y.sum(dtype=dtype), x)]
    found, slope = pytensor.function([x], outputs, mode=PERFORM_MODE)(values)
    wide = np.clip(values.astype("longdouble"), -100, 100)
    root, cube = np.sqrt(2 / np.arccos(np.longdouble(-1))), np.longdouble(0.044715)
    twice = 2 * root * (wide + cube * wide**3)
    with np.errstate(over="ignore"):
        weight, other = sigmoid(twice), sigmoid(-twice)
    expected = values.astype("longdouble") * weight
    expected_slope = weight * (1 + wide * other * 2 * root * (1 + 3 * cube * wide**2))
    tiny = 1000 * np.finfo(dtype).smallest_normal
    for out, exact, least in ((found, expected, 0), (slope, expected_slope, 0.1 * (wide > -3))):
        shown = np.where((np.abs(exact) < tiny) & (np.abs(out) < tiny), exact, out).astype(dtype)
        scale = np.maximum(np.abs(exact) * (1 + np.abs(twice)), least)
        assert_digits(shown, exact, 8, scale, "gelu")


def _with_exponentials(x: Any) -> tuple[Any, Any, Any]:
    """Return ``exp(-abs(x))``, softplus and sigmoid without overflow."""
    small = np.exp(-np.abs(x))
    return small, np.maximum(x, 0) + np.log1p(small), np.where(x < 0, small, 1) / (1 + small)


def _normal_distribution(x: Any) -> tuple[Any, Any]:
    """Return the distribution function and the density of the normal distribution."""
    with np.errstate(under="ignore"):
        density = np.exp(-(x**2) / 2) / np.sqrt(2 * np.arccos(np.longdouble(-1)))
    near, far = np.clip(x, -2, 2), np.maximum(np.abs(x), 2)
    series = term = near
    for k in range(3, 80, 2):
        term = term * near**2 / k
        series = series + term
    fraction = far
    for k in range(300, 0, -1):
        fraction = far + k / fraction
    tail = density / fraction
    return np.where(x < -2, tail, np.where(x > 2, 1 - tail, 0.5 + density * series)), density


#: Each function with its value and slope, the number of units in the last place by which these may
#: differ at `x`, and its limits and slopes at plus and minus infinity.
ELEMENTWISE: dict[str, tuple[Any, Any, Any, list[float]]] = {
    "leaky": (
        lambda x: nnet.relu(x, 0.25),
        lambda x: (np.where(x > 0, x, x / 4), np.where(x > 0, 1, 0.25)),
        lambda x: 2,
        [np.inf, -np.inf, 1, 0.25],
    ),
    "softplus": (
        nnet.softplus,
        lambda x: _with_exponentials(x)[1:],
        lambda x: 2,
        [np.inf, 0, 1, 0],
    ),
    "softsign": (
        nnet.softsign,
        lambda x: (x / (1 + abs(x)), 1 / (1 + abs(x)) ** 2),
        lambda x: 2,
        [1, -1, 0, 0],
    ),
    "gelu": (
        nnet.gelu,
        lambda x: (
            x * _normal_distribution(x)[0],
            _normal_distribution(x)[0] + x * _normal_distribution(x)[1],
        ),
        lambda x: 5,
        [np.inf, 0, 1, 0],
    ),
    "ultra fast": (
        nnet.ultra_fast_sigmoid,
        None,
        None,
        [(1 + 0.99505475368673) / 2, (1 - 0.99505475368673) / 2, 0, 0],
    ),
    "hard": (nnet.hard_sigmoid, None, None, [1, 0, 0, 0]),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "mode", [PERFORM_MODE, OneDnnMode(linker="py")], ids=["reference", "oneDNN"]
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_elementwise(mode, dtype):
    x = pt.vector(dtype=dtype)
    outputs = []
    for function, *_ in ELEMENTWISE.values():
        y = function(x)
        outputs += [y, pytensor.grad(y.sum(dtype=dtype), x)]
    values = magnitudes(dtype)
    values = values[np.abs(values) < 1e30 if dtype == "float32" else np.abs(values) < 1e150]
    ends = np.array([np.inf, -np.inf, np.nan], dtype)
    results = iter(pytensor.function([x], outputs, mode=mode)(np.concatenate([values, ends])))
    wide = values.astype("longdouble")
    for name, (_, exact, units, limits) in ELEMENTWISE.items():
        y, slope = next(results), next(results)
        found = [*y[-3:-1], *slope[-3:-1]]
        np.testing.assert_allclose(found, limits, rtol=1e-5, err_msg=name)
        assert np.isnan(y[-1])
        if exact is None:
            continue
        for out, formula in zip((y, slope), exact(wide), strict=True):
            expected = np.asarray(formula, "longdouble")
            # Near a root of the slope, its terms cancel.
            near = (name == "gelu") & (abs(wide) < 2)
            terms = np.where(near, 0.08 * (1 + np.minimum(wide, 0) ** 2), 0)
            scale = np.maximum(abs(expected), terms)
            tiny = 130 * np.finfo(dtype).smallest_normal
            flushed = (abs(expected) < tiny) & (abs(out[:-3]) < tiny)
            shown = np.where(flushed, expected, out[:-3]).astype(dtype)
            assert_digits(shown, expected, 1, scale * units(wide), name)
