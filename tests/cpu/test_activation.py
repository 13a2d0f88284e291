"""Activations on the CPU: oneDNN against NumPy in float64, and activations in graphs."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from hypothesis import strategies as st
from pytensor.scalar.basic import Composite
from pytensor.tensor.elemwise import Elemwise

from dnnops import nnet
from dnnops.cpu.activation import MODES, OneDnnActivation, OneDnnActivationGrad
from dnnops.errors import DnnValueError
from dnnops.nnet import Activation, ActivationGrad
from tests.cpu.conv.test_conv import restrided
from tests.linkers import LINKERS
from tests.oracle import PERFORM_MODE, assert_close, fuzz, run_op

COEFFICIENTS = {"elu": 1.3, "swish": 0.8, "clipped_relu": 1.5}
FORWARD = [(mode, COEFFICIENTS.get(mode, 0.0)) for mode in MODES]
ALL = [(mode, COEFFICIENTS.get(mode, 0.0)) for mode in nnet.activation.op.ACTIVATION_MODES]


def ops_of(fn: Any) -> list[str]:
    return [type(node.op).__name__ for node in fn.maker.fgraph.apply_nodes]


def compile_quietly(inputs: Any, outputs: Any, mode: Any) -> Any:
    """Make PyTensor's warnings about object mode errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        return pytensor.function(inputs, outputs, mode=mode)


def in_double(*arrays: np.ndarray) -> list[np.ndarray]:
    return [a.astype("float64") for a in arrays]


def overwritten(op: Any, index: int, *arrays: np.ndarray) -> np.ndarray:
    """Run an in-place Op on copies with the same strides; check what it overwrote."""
    copies = [np.lib.stride_tricks.as_strided(a, a.shape, a.strides) for a in arrays]
    storage: list[list] = [[None]]
    op.perform(op.make_node(*copies), copies, storage)
    assert storage[0][0] is copies[index]
    return storage[0][0]


shapes = st.lists(st.integers(0, 9), min_size=1, max_size=5).map(tuple)


@pytest.mark.parametrize(("mode", "coef"), FORWARD)
@fuzz(60, shape=shapes, seed=st.integers(0, 2**32 - 1))
def test_forward(mode, coef, shape, seed):
    rng = np.random.default_rng(seed)
    x = (3 * rng.standard_normal(shape)).astype("float32")
    (expected,) = [run_op(Activation(mode, coef), *in_double(x))]
    out = run_op(OneDnnActivation(mode, coef), restrided(rng, x))
    assert out.flags.c_contiguous
    assert_close(out, expected, allow_zero=True)
    view = restrided(rng, x)
    result = overwritten(OneDnnActivation(mode, coef, inplace=True), 0, view)
    np.testing.assert_array_equal(result, out)
    np.testing.assert_array_equal(view, out)


@fuzz(60, shape=shapes, coef=st.floats(-3, 3), seed=st.integers(0, 2**32 - 1))
def test_swish_gradient(shape, coef, seed):
    rng = np.random.default_rng(seed)
    x, y, gy = (rng.standard_normal(shape).astype("float32") for _ in range(3))
    expected = run_op(ActivationGrad("swish", coef), *in_double(x, y, gy))
    operands = [restrided(rng, v) for v in (x, y, gy)]
    out = run_op(OneDnnActivationGrad("swish", coef), *operands)
    assert np.linalg.norm(out - expected) <= 1e-5 * np.linalg.norm(gy)
    result = overwritten(OneDnnActivationGrad("swish", coef, inplace=True), 2, *operands)
    np.testing.assert_array_equal(result, out)
    np.testing.assert_array_equal(operands[2], out)


@pytest.mark.parametrize(("mode", "coef"), FORWARD)
def test_many_elements_small_ones_and_special_ones(mode, coef):
    rng = np.random.default_rng(1)
    x = (5 * rng.standard_normal((7, 123, 57))).astype("float32")
    for scale in (1, 1e-2, 1e-4, 1e-7):
        scaled = x * np.float32(scale)
        expected = run_op(Activation(mode, coef), *in_double(scaled))
        np.testing.assert_allclose(run_op(OneDnnActivation(mode, coef), scaled), expected, 2e-6)
    values = np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, 100, -100, 0, -0.0], "float32")
    values = np.repeat(values, 5)
    with np.errstate(invalid="ignore", over="ignore"):
        expected = run_op(Activation(mode, coef), values)
    np.testing.assert_allclose(run_op(OneDnnActivation(mode, coef), values), expected, 1e-6, 1e-30)


# -- in graphs ---------------------------------------------------------------------------


@LINKERS
def test_graphs_and_gradients(mode):
    """Check the Op and the results of every activation, all in one function."""
    x, bias, gy = pt.ftensor3("x"), pt.fvector("bias"), pt.ftensor3("gy")
    outputs = []
    for name, coef in ALL:
        y: Any = Activation(name, coef)(x + bias)
        outputs += [y, pytensor.grad(None, x, known_grads={y: gy})]
    fn = compile_quietly([x, bias, gy], outputs, mode)
    nodes = list(fn.maker.fgraph.apply_nodes)
    found = [(n.op.mode, type(n.op)) for n in nodes if isinstance(n.op, Activation)]
    assert sorted(found, key=str) == [(m, OneDnnActivation) for m in sorted(MODES)]
    assert ops_of(fn).count("OneDnnActivationGrad") == 1
    assert not {"Activation", "ActivationGrad"} & set(ops_of(fn))
    plain = pytensor.function([x, bias, gy], outputs, mode=PERFORM_MODE)
    rng = np.random.default_rng(2)
    for shape in [(2, 3, 5), (1, 1, 1), (40, 30, 20), (2, 0, 3)]:
        arrays = [rng.standard_normal(s).astype("float32") for s in (shape, shape[-1:], shape)]
        for result, expected in zip(fn(*arrays), plain(*arrays), strict=True):
            np.testing.assert_allclose(result, expected, rtol=1e-5, atol=2e-6)


@LINKERS
def test_cheap_activations_are_fused_with_what_is_around_them(mode):
    x, gy = pt.fmatrix("x"), pt.fmatrix("gy")
    y = nnet.relu(x * 2) + nnet.clipped_relu(x, 3) * nnet.relu(x + 1)
    fn = compile_quietly([x, gy], [y, pytensor.grad(None, x, known_grads={y: gy})], mode)
    (node,) = fn.maker.fgraph.apply_nodes
    assert isinstance(node.op, Elemwise)
    assert isinstance(node.op.scalar_op, Composite)
    values = np.array([[-2, -0.5, 0, 1, 5, np.nan]], "float32")
    out, grad = fn(values, np.ones_like(values))
    np.testing.assert_array_equal(out, [[0, 0, 0, 4, 28, np.nan]])
    np.testing.assert_array_equal(grad[:, :-1], [[0, 0, 0, 2 + 2 + 1, 2 + 3]])


@LINKERS
def test_a_users_tanh_and_sigmoid(mode):
    """Activations are taken out of PyTensor's fused Ops, next to other oneDNN Ops."""
    x, w, b = pt.fmatrix("x"), pt.fmatrix("w"), pt.fvector("b")
    h = pt.dot(nnet.elu(x), w) + b
    y = pt.tanh(h) * 3 + h * pt.sigmoid(h) / (1 + h**2)
    fn = compile_quietly([x, w, b], y, mode)
    nodes = fn.maker.fgraph.apply_nodes
    modes = sorted(n.op.mode for n in nodes if isinstance(n.op, OneDnnActivation))
    assert modes == ["elu", "sigmoid", "tanh"]
    # The rest of the Composite is fused again.
    assert ops_of(fn).count("Elemwise") == 2
    plain = pytensor.function([x, w, b], y, mode=PERFORM_MODE)
    rng = np.random.default_rng(3)
    arrays = [rng.standard_normal(s).astype("float32") for s in ((20, 5), (5, 30), 30)]
    assert_close(fn(*arrays), plain(*arrays))
    alone = pytensor.function([x], pt.tanh(x), mode=mode)
    assert ops_of(alone) == ["Elemwise"]


def test_small_arrays_stay_elementwise():
    x = pt.tensor(dtype="float32", shape=(16, 31))
    large = pt.tensor(dtype="float32", shape=(16, 32))
    fn = pytensor.function([x, large], [nnet.tanh(x), nnet.tanh(large)], mode="CVM")
    assert sorted(ops_of(fn)) == ["Elemwise", "OneDnnActivation"]


def test_mode_dnn():
    x = pt.fmatrix("x")
    fn = pytensor.function([x], nnet.relu(nnet.sigmoid(x) - 0.5), mode="DNN")
    if not any(name.startswith("Gpu") for name in ops_of(fn)):
        assert sorted(ops_of(fn)) == ["CpuElemwise", "OneDnnActivation"]
    values = np.array([[-1, 0, 30]], "float32")
    np.testing.assert_allclose(fn(values), [[0, 0, 0.5]], atol=1e-6)


def test_scalars():
    x = np.array(0.5, "float32")
    for mode, coef in FORWARD:
        expected = run_op(Activation(mode, coef), *in_double(x))
        np.testing.assert_allclose(run_op(OneDnnActivation(mode, coef), x), expected, 1e-6)


def test_elementwise_without_onednn():
    used = pytensor.compile.get_mode("CVM").excluding("onednn")
    for dtype in ("float16", "float32"):
        x = pt.matrix(dtype=dtype)
        outputs = [Activation(m, c)(x) for m, c in ALL]
        outputs += [pytensor.grad(o.sum(dtype="float64"), x) for o in outputs]
        fn = pytensor.function([x], outputs, mode=used)
        assert not any("Activation" in name for name in ops_of(fn))
        values = np.random.default_rng(4).standard_normal((6, 5)).astype(dtype)
        expected = pytensor.function([x], outputs, mode=PERFORM_MODE)(values)
        for result, reference in zip(fn(values), expected, strict=True):
            bound = 4e-3 if dtype == "float16" else None
            assert_close(result, reference.astype(dtype), bound=bound, allow_zero=True)


def test_in_place_where_nobody_needs_the_operand():
    x = pt.fmatrix("x")
    h = x @ x
    y = nnet.tanh(h)
    fn = pytensor.function([x], y, mode="CVM")
    (op,) = [n.op for n in fn.maker.fgraph.apply_nodes if isinstance(n.op, OneDnnActivation)]
    assert op.destroy_map == {0: [0]}
    for outputs in (nnet.tanh(x), [y, h]):
        fn = pytensor.function([x], outputs, mode="CVM")
        (op,) = [n.op for n in fn.maker.fgraph.apply_nodes if isinstance(n.op, OneDnnActivation)]
        assert not op.destroy_map
    values = np.ones((30, 30), "float32")
    fn(values)
    np.testing.assert_array_equal(values, 1)


@LINKERS
def test_operands_that_do_not_fit(mode):
    x, y, gy = (pt.fmatrix() for _ in range(3))
    fn = pytensor.function([x, y, gy], ActivationGrad("swish", 1)(x, y, gy), mode=mode)
    ones = np.ones((2, 3), "float32")
    with pytest.raises(DnnValueError, match="OneDnnActivationGrad: x, y and gy must have the same"):
        fn(ones, ones, ones[:1])
