"""Every activation at every magnitude of a dtype, and what it is in extended precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dnnops.nnet.activation.op import ACTIVATION_MODES
from dnnops.nnet.validate import accumulator_dtype
from tests.oracle import assert_digits

COEFFICIENTS = {"elu": (1.0, 1.6732632423543772, -0.5), "swish": (1.0, 1.5, -0.75)}
CASES = [
    (mode, coef)
    for mode in ACTIVATION_MODES
    for coef in COEFFICIENTS.get(mode, (6.0 if mode == "clipped_relu" else 0.0,))
]


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


#: The value and the slope, from an argument and a coefficient in extended precision.
FORMULAS: dict[str, tuple[Callable, Callable]] = {
    "relu": (lambda x, c: np.maximum(x, 0), lambda x, c: x > 0),
    "clipped_relu": (lambda x, c: np.clip(x, 0, c), lambda x, c: (x > 0) & (x < c)),
    "tanh": (lambda x, c: np.tanh(x), lambda x, c: 1 / np.cosh(x) ** 2),
    "sigmoid": (lambda x, c: sigmoid(x), lambda x, c: sigmoid(x) * sigmoid(-x)),
    "elu": (
        lambda x, c: np.where(x > 0, x, c * np.expm1(x)),
        lambda x, c: np.where(x > 0, 1, c * np.exp(x)),
    ),
    "swish": (
        lambda x, c: x * sigmoid(c * x),
        lambda x, c: sigmoid(c * x) * (1 + c * x * sigmoid(-c * x)),
    ),
}


def magnitudes(dtype: str) -> np.ndarray:
    """Return numbers of either sign from the smallest to the largest, and small integers."""
    info = np.finfo(dtype)
    powers = np.exp2(np.arange(info.minexp - 3, info.maxexp, 1 if dtype == "float16" else 7.3))
    near = np.concatenate([np.arange(0, 40, 0.7), np.arange(40, 800, 9.1)])
    positive = np.concatenate([powers, near, [float(info.max), float(info.max) / 1.4]])
    positive = positive[positive <= float(info.max)].astype(dtype)
    return np.concatenate([positive, -positive])


def check(mode: str, coef: float, x: np.ndarray, y: np.ndarray, slope: np.ndarray) -> None:
    """Compare an activation and its slope at `x`. Subnormal results may be 0."""
    wide, factor = x.astype("longdouble"), np.longdouble(accumulator_dtype(x.dtype).type(coef))
    with np.errstate(all="ignore"):
        value, expected = (np.asarray(f(wide, factor), "longdouble") for f in FORMULAS[mode])
    # The exponential of a rounded product has the product's absolute error as its relative one.
    # The slopes of tanh and sigmoid come from their results, and that of swish is a difference.
    growth = 1 + np.abs(wide * factor) if factor != 1 and mode == "swish" else 1.0
    far = np.abs(wide * factor) > 20
    cancelling = {"tanh": 1.0, "sigmoid": 0.25, "swish": np.where(far, 0, 0.25)}.get(mode, 0.0)
    for what, out, exact, scale in (
        ("", y, value, np.abs(value) * growth),
        ("slope of ", slope, expected, np.maximum(np.abs(expected) * growth, cancelling)),
    ):
        tiny = 130 * np.finfo(x.dtype).smallest_normal
        flushed = (np.abs(exact) < tiny) & (np.abs(out) < tiny)
        shown = np.where(flushed, exact, out).astype(x.dtype)
        units = 2 if mode == "elu" else 4
        assert_digits(shown, exact, units, scale, f"{what}{mode}({coef})")
