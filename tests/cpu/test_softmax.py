"""Softmax on oneDNN: recognized in graphs, against NumPy in float64."""

from __future__ import annotations

import warnings

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode
from pytensor.tensor.special import log_softmax, softmax

from dnnops.cpu.softmax import OneDnnLogSoftmaxGrad, OneDnnSoftmax, OneDnnSoftmaxGrad
from dnnops.errors import DnnTypeError
from dnnops.nnet.activation.softmax import LogSoftmaxGrad, SoftmaxGrad
from tests.cpu.conv.test_conv import restrided
from tests.linkers import EVERY_LINKER
from tests.oracle import PERFORM_MODE, assert_close, run_op

AXES = [0, 1, 3, (1, 2), (2, 3), (0, 1, 2, 3), None]


def reference(x: np.ndarray, axis, log: bool) -> np.ndarray:
    x = x.astype("float64")
    axis = tuple(range(x.ndim)) if axis is None else axis
    shifted = x - x.max(axis=axis, keepdims=True)
    logarithm = shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True))
    return logarithm if log else np.exp(logarithm)


def ops_of(fn) -> set[str]:
    return {type(node.op).__name__ for node in fn.maker.fgraph.apply_nodes}


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("axis", AXES)
def test_op(axis, log):
    rng = np.random.default_rng(5)
    normalized = tuple(range(4)) if axis is None else np.atleast_1d(axis)
    op = OneDnnSoftmax(tuple(int(a) for a in normalized), log)
    backward = (OneDnnLogSoftmaxGrad if log else OneDnnSoftmaxGrad)(op.axis)
    abstract = (LogSoftmaxGrad if log else SoftmaxGrad)(op.axis)
    for _ in range(15):
        x = (3 * rng.standard_normal(rng.integers(1, 7, 4))).astype("float32")
        gz = rng.standard_normal(x.shape).astype("float32")
        out = run_op(op, restrided(rng, x))
        expected = reference(x, axis, log)
        assert_close(out, expected, allow_zero=True)
        grad = run_op(backward, restrided(rng, gz), restrided(rng, out))
        oracle = run_op(abstract, gz.astype("float64"), out.astype("float64"))
        # A single class has a gradient of zero, up to the rounding of its terms.
        scale = max(np.linalg.norm(oracle), 0.1 * np.linalg.norm(gz))
        assert np.linalg.norm(grad - oracle) <= 1e-5 * scale


@EVERY_LINKER
@pytest.mark.parametrize("log", [False, True])
def test_graph_and_gradients(mode, log):
    x, t = pt.tensor3("x", dtype="float32"), pt.tensor3("t", dtype="float32")
    out = (log_softmax if log else softmax)(x, axis=1)
    grad = pytensor.grad((out * t).sum(), x)
    second = pytensor.grad((grad**2).sum(), x)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        fn = pytensor.function([x, t], [out, grad, second], mode=mode)
    expected_ops = {"OneDnnSoftmax", "OneDnnLogSoftmaxGrad" if log else "OneDnnSoftmaxGrad"}
    assert expected_ops <= ops_of(fn)
    plain = pytensor.function([x, t], [out, grad, second], mode=PERFORM_MODE)
    rng = np.random.default_rng(1)
    for _ in range(10):
        shape = rng.integers(2, 9, 3)
        arrays = [rng.standard_normal(shape).astype("float32") for _ in range(2)]
        for result, expected in zip(fn(*arrays), plain(*arrays), strict=True):
            assert_close(result, expected, bound=2e-5)


def test_cross_entropy_is_stable():
    """The gradient of log(softmax) must not divide by a softmax that underflows."""
    x, target = pt.matrix("x", dtype="float32"), pt.ivector("target")
    p = softmax(x, axis=1)
    loss = -pt.log(p)[pt.arange(target.shape[0]), target].mean()
    fn = pytensor.function([x, target], [loss, pytensor.grad(loss, x)], mode="CVM")
    assert {"OneDnnCrossEntropy", "OneDnnCrossEntropyGrad"} <= ops_of(fn)
    value, grad = fn(np.array([[1000.0, 0.0], [0.0, 1000.0]], "float32"), np.array([1, 1], "int32"))
    assert value == pytest.approx(500)
    np.testing.assert_allclose(grad, [[0.5, -0.5], [0, 0]], atol=1e-6)


@pytest.mark.parametrize("axis", [1, (0, 2), None])
def test_gradient_of_the_sum(axis):
    """Only the softmax's own product is left, because the incoming gradient is all ones."""
    x = pt.ftensor3("x")
    gradient = pytensor.grad(softmax(x, axis=axis).sum(), x)
    with pytensor.config.change_flags(on_opt_error="raise"):
        fn = pytensor.function([x], gradient, mode="ONEDNN")
    assert "OneDnnSoftmaxGrad" in ops_of(fn)
    value = np.random.default_rng(2).normal(size=(2, 3, 4)).astype("float32")
    np.testing.assert_allclose(fn(value), np.zeros((2, 3, 4)), atol=1e-6)


@pytest.mark.parametrize("dtype", ["bool", "float64"])
def test_gradient_from_above_of_another_dtype(dtype):
    """Conditions and integers are valid factors; float64 factors make the arithmetic float64."""
    x, factor = pt.fmatrix("x"), pt.tensor("factor", dtype=dtype, shape=(None, None))
    sm = softmax(x, axis=1)
    product = factor * sm
    found = product - sm * product.sum(axis=1, keepdims=True)
    with pytensor.config.change_flags(on_opt_error="raise"):
        fn = pytensor.function([x, factor], found, mode="ONEDNN")
    assert ("OneDnnSoftmaxGrad" in ops_of(fn)) == (dtype == "bool")
    rng = np.random.default_rng(3)
    values = rng.normal(size=(3, 4)).astype("float32"), (rng.normal(size=(3, 4)) > 0).astype(dtype)
    weights = reference(values[0], 1, False)
    expected = values[1] * weights
    expected = expected - weights * expected.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(fn(*values), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("log", [False, True])
def test_float16_is_computed_in_float32(log):
    """PyTensor's own softmax cannot be compiled for it."""
    x, t = pt.matrix("x", dtype="float16"), pt.matrix("t", dtype="float16")
    out = (log_softmax if log else softmax)(x, axis=1)
    grad = pytensor.grad((out * t).sum(), x)
    fn = pytensor.function([x, t], [out, grad], mode="ONEDNN")
    assert "OneDnnSoftmax" in ops_of(fn)
    rng = np.random.default_rng(4)
    values = [rng.standard_normal((5, 40)).astype("float16") for _ in range(2)]
    expected = reference(values[0], (1,), log)
    weights = reference(values[0], (1,), False)
    top = values[1].astype("float64")
    gradient = top - weights * top.sum(1, keepdims=True)
    if not log:
        gradient = weights * (top - (weights * top).sum(1, keepdims=True))
    for result, wanted in zip(fn(*values), (expected, gradient), strict=True):
        assert result.dtype == "float16"
        assert_close(result, wanted, bound=2e-3)


def test_float64():
    x = pt.tensor3("x", dtype="float64")
    out = softmax(x, axis=1)
    outputs = [out, pytensor.grad((out**2).sum(), x)]
    fn = pytensor.function([x], outputs, mode="CVM")
    assert {"OneDnnSoftmax", "OneDnnSoftmaxGrad"} <= ops_of(fn)
    values = np.random.default_rng(6).standard_normal((4, 50, 3))
    expected = pytensor.function([x], outputs, mode=PERFORM_MODE)(values)
    for result, reference_ in zip(fn(values), expected, strict=True):
        assert_close(result, reference_)


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("axis", [(0, 2), (3, 1), (0, 1, 3), (-4, -2)], ids=str)
def test_scattered_axes(axis, log):
    x, gz = (pt.tensor(dtype="float32", shape=(None,) * 4) for _ in range(2))
    out = (log_softmax if log else softmax)(x, axis=axis)
    grad = pytensor.grad(None, x, known_grads={out: gz})
    fn = pytensor.function([x, gz], [out, grad], mode=Mode("py", "fast_run"))
    assert "OneDnnSoftmax" in ops_of(fn)
    assert ("OneDnnLogSoftmaxGrad" if log else "OneDnnSoftmaxGrad") in ops_of(fn)
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((3, 4, 5, 6)).astype("float32") for _ in range(2))
    exponentials = np.exp(a.astype("float64"))
    p = exponentials / exponentials.sum(axis=axis, keepdims=True)
    if log:
        expected = [np.log(p), b - b.sum(axis=axis, keepdims=True) * p]
    else:
        expected = [p, b * p - p * (b * p).sum(axis=axis, keepdims=True)]
    for result, reference in zip(fn(a, b), expected, strict=True):
        assert_close(result, reference)


def test_many_dimensions_are_left_to_pytensor():
    x = pt.tensor("x", dtype="float32", shape=(None,) * 9)
    fn = pytensor.function([x], softmax(x, axis=3), mode="CVM")
    out = fn(np.ones((1, 1, 1, 4, 1, 1, 1, 1, 2), "float32"))
    np.testing.assert_allclose(out, np.full_like(out, 0.25))


def test_many_dimensions_are_refused_under_numba():
    # The rewrites leave such a graph alone; an Op applied by hand would overrun the descriptions.
    x = pt.tensor("x", dtype="float32", shape=(None,) * 9)
    out = OneDnnSoftmax((3,))(x)
    with pytest.raises(DnnTypeError, match="more than 8 dimensions"):
        pytensor.function([x], out, mode="NUMBA")


def test_excluded():
    x = pt.matrix("x", dtype="float32")
    mode = pytensor.compile.get_mode("CVM").excluding("onednn")
    out = softmax(x, axis=1)
    fn = pytensor.function([x], [out, pytensor.grad((out**2).sum(), x)], mode=mode)
    assert not any("OneDnn" in name or "SoftmaxGrad" in name for name in ops_of(fn))


def test_empty():
    fn_input = np.zeros((0, 3), "float32")
    assert run_op(OneDnnSoftmax((1,)), fn_input).shape == (0, 3)
