"""Activations and their gradients at every magnitude of a dtype, against extended precision."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from dnnops import nnet
from dnnops.nnet import Activation, ActivationGrad
from tests.nnet.activation.activation_cases import CASES, check, magnitudes
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
