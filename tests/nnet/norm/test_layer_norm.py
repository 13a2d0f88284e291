"""Layer and root-mean-square normalization against NumPy."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.modes import OneDnnMode
from dnnops.nnet import layer_norm, rms_norm
from tests.oracle import PERFORM_MODE, RELATIVE_ERROR, check_gradient

AXES = {"last": -1, "two": (-2, -1), "first": (0,), "mixed": (2, 0)}


def normal(*shape: int, dtype: str = "float64") -> np.ndarray:
    return (2 + np.random.default_rng(len(shape)).standard_normal(shape)).astype(dtype)


def reference(x, axes, epsilon, centered):
    x = x.astype("float64")
    if centered:
        x = x - x.mean(axis=axes, keepdims=True)
    return x / np.sqrt((x**2).mean(axis=axes, keepdims=True) + epsilon)


def run(out, inputs, arrays, mode=PERFORM_MODE):
    return pytensor.function(inputs, out, mode=mode)(*arrays)


@pytest.mark.parametrize("axes", AXES.values(), ids=AXES)
@pytest.mark.parametrize("norm", [layer_norm, rms_norm], ids=["layer", "rms"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_values(norm, axes, dtype):
    x = normal(3, 4, 5, dtype=dtype)
    variable = pt.tensor3(dtype=dtype)
    found = run(norm(variable, axes=axes, epsilon=0.1), [variable], [x])
    wanted = reference(x, axes, 0.1, norm is layer_norm)
    assert found.dtype == dtype
    assert np.linalg.norm(found - wanted) <= RELATIVE_ERROR[dtype] * np.linalg.norm(wanted)


def test_parameters():
    x, gamma, beta = normal(3, 4, 5), normal(5), normal(4, 5)
    inputs = [pt.dtensor3(), pt.dvector(), pt.dmatrix()]
    found = run(layer_norm(*inputs), inputs, [x, gamma, beta])
    np.testing.assert_allclose(found, reference(x, -1, 1e-5, True) * gamma + beta, rtol=1e-9)
    found = run(rms_norm(*inputs[:2]), inputs[:2], [x, gamma])
    np.testing.assert_allclose(found, reference(x, -1, 1e-5, False) * gamma, rtol=1e-9)


def test_gradients():
    arrays = [normal(2, 3, 4), normal(4), normal(4)]
    check_gradient(lambda x, g, b: layer_norm(x, g, b, epsilon=0.1), arrays)
    check_gradient(lambda x, g: rms_norm(x, g, epsilon=0.1), arrays[:2])


@pytest.mark.parametrize("mode", [PERFORM_MODE, "CVM"], ids=["py", "CVM"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.filterwarnings("ignore:overflow", "ignore:divide")
def test_rms_norm_of_every_magnitude(dtype, mode):
    """Squares of float32 beyond 1.8e19 are infinite, and those below 1e-23 are 0."""
    info, rng = np.finfo(dtype), np.random.default_rng(0)
    x, gy = pt.tensor3(dtype=dtype), pt.tensor3(dtype=dtype)
    sizes = 10.0 ** np.linspace(np.log10(float(info.tiny)) + 3, np.log10(float(info.max)) - 0.1, 24)
    values = rng.uniform(0.1, 1, (24, 7, 5)) * rng.choice([-1, 1], (24, 7, 5))
    values[:, :, 0] *= 1e-6  # one row has elements of different magnitudes
    values = (values * sizes[:, None, None]).astype(dtype)
    gradient = rng.standard_normal(values.shape).astype(dtype)
    for epsilon in (1e-5, 0.0):
        y = rms_norm(x, epsilon=epsilon, axes=(1, 2))
        out = [y, pytensor.grad(None, x, known_grads={y: gy})]
        found, slope = pytensor.function([x, gy], out, mode=mode)(values, gradient)
        wide, top = values.astype("longdouble"), gradient.astype("longdouble")
        mean = (wide**2).mean(axis=(1, 2), keepdims=True)
        root = np.sqrt(mean + np.longdouble(np.asarray(epsilon, dtype)))
        wanted = wide / root
        wanted_slope = (top - wanted * (top * wanted).mean(axis=(1, 2), keepdims=True)) / root
        for number, (a, b) in enumerate(zip(found, wanted, strict=True)):
            assert np.abs(a - b).max() <= 4 * info.eps * np.abs(b).max(), sizes[number]
        for number, (a, b) in enumerate(zip(slope, wanted_slope, strict=True)):
            unit = 30 * info.eps * np.abs(b).max() + float(info.tiny)
            assert np.abs(a - b).max() <= unit, sizes[number]


def test_rms_norm_of_special_rows():
    x = pt.fmatrix()
    rows = np.array([[0, 0, 0], [np.inf, 1, 2], [1, np.nan, 2], [1, 2, 2]], "float32")
    found = run(rms_norm(x), [x], [rows])
    np.testing.assert_array_equal(found[:3], [[0, 0, 0], [np.nan, 0, 0], [np.nan] * 3])
    np.testing.assert_allclose(found[3], [3**-0.5, 2 * 3**-0.5, 2 * 3**-0.5], rtol=1e-4)
    assert run(rms_norm(x), [x], [rows[:, :0]]).shape == (4, 0)
    gradient = pytensor.grad(rms_norm(x).sum(dtype="float32"), x)
    for mode in (PERFORM_MODE, OneDnnMode(linker="py")):
        is_nan = np.isnan(run(gradient, [x], [rows], mode))
        np.testing.assert_array_equal(is_nan.any(axis=1), [False, True, True, False])
        assert is_nan[2].all()
    assert run(rms_norm(x), [x], [rows[:0]]).shape == (0, 3)


def test_layer_norm_is_recognized():
    x, gamma, beta = pt.fmatrix(), pt.fvector(), pt.fvector()
    loss = (layer_norm(x, gamma, beta) ** 2).sum()
    f = pytensor.function([x, gamma, beta], pytensor.grad(loss, [x, gamma]), mode="ONEDNN")
    names = [type(node.op).__name__ for node in f.maker.fgraph.apply_nodes]
    assert sum("BatchNorm" in name for name in names) == 2, names


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: layer_norm(x, axes=2), DnnValueError, "axes must be between -2 and 1"),
        (lambda x: layer_norm(x, axes=(0, -2)), DnnValueError, "axes must not repeat"),
        (lambda x: layer_norm(x, axes=()), DnnTypeError, "axes must be an int or a tuple"),
        (lambda x: layer_norm(x, axes="last"), DnnTypeError, "axes must be an int or a tuple"),
        (lambda x: rms_norm(x, epsilon=-1), DnnValueError, "epsilon must be finite and at least"),
        (lambda x: layer_norm(x.astype("int32")), DnnTypeError, "x has dtype int32"),
        (lambda x: rms_norm(x, pt.dtensor3()), DnnTypeError, "gamma has more dimensions than x"),
        (
            lambda x: layer_norm(pt.specify_shape(x, (2, 1)), np.ones(4)),
            DnnValueError,
            "gamma of shape",
        ),
        (
            lambda x: layer_norm(pt.specify_shape(x, (2, 3)), np.ones(4)),
            DnnValueError,
            "gamma",
        ),
    ],
)
def test_errors(call, error, message):
    with pytest.raises(error, match=message):
        call(pt.dmatrix())
