"""Activations and their gradients: against formulas, derivatives, special values, errors."""

from __future__ import annotations

import pickle

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from hypothesis import strategies as st
from pytensor.gradient import DisconnectedType, disconnected_type
from pytensor.graph.replace import vectorize_graph
from pytensor.tensor.blockwise import Blockwise
from scipy.special import expit

from dnnops import nnet
from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.nnet import Activation, ActivationGrad
from tests.oracle import (
    PERFORM_MODE,
    assert_close,
    check_gradient,
    check_infer_shape,
    check_second_derivatives,
    evaluate,
    fuzz,
    normal,
    run_op,
)

OPS = [
    ("relu", 0.0),
    ("clipped_relu", 1.5),
    ("tanh", 0.0),
    ("sigmoid", 0.0),
    ("elu", 1.0),
    ("elu", -0.7),
    ("swish", 1.0),
    ("swish", 1.7),
]
PARAMETERS = pytest.mark.parametrize(("mode", "coef"), OPS)
FORMULAS = {
    "relu": lambda x, _: x * (x > 0),
    "clipped_relu": lambda x, c: np.minimum(x * (x > 0), c),
    "tanh": lambda x, _: (np.exp(2 * x) - 1) / (np.exp(2 * x) + 1),
    "sigmoid": lambda x, _: expit(x),
    "elu": lambda x, a: np.where(x > 0, x, a * (np.exp(x) - 1)),
    "swish": lambda x, b: x * expit(b * x),
}
SLOPES = {
    "relu": lambda x, _: (x > 0) * 1.0,
    "clipped_relu": lambda x, c: ((x > 0) & (x < c)) * 1.0,
    "tanh": lambda x, _: 1 / np.cosh(x) ** 2,
    "sigmoid": lambda x, _: np.exp(-x) / (1 + np.exp(-x)) ** 2,
    "elu": lambda x, a: np.where(x > 0, 1, a * np.exp(x)),
    "swish": lambda x, b: expit(b * x) + x * b * np.exp(-b * x) / (1 + np.exp(-b * x)) ** 2,
}


def away_from_bends(rng: np.random.Generator, shape) -> np.ndarray:
    """Return normally distributed numbers, none of them near 0 or 1.5."""
    x = 2 * rng.standard_normal(shape)
    return np.where(np.abs(x * (x - 1.5)) < 0.05, 0.7, x)


@st.composite
def arrays(draw, min_size: int = 1):
    shape = tuple(draw(st.lists(st.integers(min_size, 4), max_size=4)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return away_from_bends(rng, shape), normal(rng, shape, "float64")


@PARAMETERS
@fuzz(30, case=arrays(), dtype=st.sampled_from(["float64", "float32", "float16"]))
def test_perform_and_expression_against_formulas(mode, coef, case, dtype):
    x, gy = (v.astype(dtype) for v in case)
    exact = x.astype("float64")
    bound = {"float64": 1e-12, "float32": 1e-5, "float16": 4e-3}[dtype]
    y = run_op(Activation(mode, coef), x)
    assert_close(y, FORMULAS[mode](exact, coef), bound=bound, allow_zero=True)
    slope = SLOPES[mode](exact, coef)
    gx = run_op(ActivationGrad(mode, coef), x, y, gy)
    assert np.linalg.norm(gx - slope * gy) <= bound * np.linalg.norm(np.abs(gy) * (1 + slope))
    vx, vy, vg = (pt.constant(v) for v in (x, y, gy))
    written_out = [
        *Activation(mode, coef).expressions(vx),
        *ActivationGrad(mode, coef).expressions(vx, vy, vg),
    ]
    assert [v.type.dtype for v in written_out] == [dtype] * 2
    for result, expected in zip(evaluate(written_out, {}), (y, gx), strict=True):
        np.testing.assert_allclose(result, expected, rtol=bound, atol=bound / 4)


@PARAMETERS
@fuzz(4, case=arrays())
def test_derivatives(mode, coef, case):
    x, gy = case
    op, grad = Activation(mode, coef), ActivationGrad(mode, coef)
    check_gradient(op, [x], allow_zero=True)
    check_second_derivatives(op, [x], allow_zero=True)
    # The gradient's own derivatives hold for any second operand.
    y = np.random.default_rng(0).standard_normal(x.shape)
    check_gradient(grad, [x, y, gy], allow_zero=True)


def test_pushforward_along_nothing():
    x = pt.dvector()
    forward = Activation("tanh").make_node(x)
    grad = ActivationGrad("tanh").make_node(x, x, x)
    for node, count in ((forward, 1), (grad, 3)):
        tangents = [disconnected_type()] * count
        (tangent,) = node.op.pushforward(node.inputs, node.outputs, tangents)
        assert isinstance(tangent.type, DisconnectedType)
    assert grad.op.connection_pattern(grad) == [[True]] * 3


@PARAMETERS
@fuzz(5, case=arrays(min_size=0))
def test_shapes(mode, coef, case):
    x, gy = case
    check_infer_shape(Activation(mode, coef), x)
    check_infer_shape(ActivationGrad(mode, coef), x, x, gy)


def test_derivatives_at_kinks():
    x = np.array([-1.0, -0.0, 0.0, 1.0, 6.0, 7.0])
    ones = np.ones_like(x)
    for mode, coef, y, slope in [
        ("relu", 0, [0, 0, 0, 1, 6, 7], [0, 0, 0, 1, 1, 1]),
        ("clipped_relu", 6, [0, 0, 0, 1, 6, 6], [0, 0, 0, 1, 0, 0]),
        ("elu", 2, [2 * np.expm1(-1), 0, 0, 1, 6, 7], [2 * np.exp(-1), 2, 2, 1, 1, 1]),
    ]:
        out = run_op(Activation(mode, coef), x)
        np.testing.assert_allclose(out, y)
        np.testing.assert_allclose(run_op(ActivationGrad(mode, coef), x, out, ones), slope)


@PARAMETERS
@pytest.mark.filterwarnings("ignore:overflow")
def test_special_values(mode, coef):
    for dtype in ("float64", "float32"):
        x = np.array([np.nan, np.inf, -np.inf, 1e4, -1e4], dtype)
        expected = {
            "relu": [np.nan, np.inf, 0, 1e4, 0],
            "clipped_relu": [np.nan, coef, 0, coef, 0],
            "tanh": [np.nan, 1, -1, 1, -1],
            "sigmoid": [np.nan, 1, 0, 1, 0],
            "elu": [np.nan, np.inf, -coef, 1e4, -coef],
            "swish": [np.nan, np.inf, 0, 1e4, 0],
        }[mode]
        with np.errstate(invalid="ignore"):
            out = run_op(Activation(mode, coef), x)
            np.testing.assert_allclose(out, np.array(expected, dtype))
            (written_out,) = evaluate(Activation(mode, coef).expressions(pt.constant(x)), {})
            np.testing.assert_allclose(written_out, np.array(expected, dtype))
            # NaN is propagated.
            gy = np.array([np.nan], dtype)
            one = np.ones(1, dtype)
            assert np.isnan(run_op(ActivationGrad(mode, coef), one, one, gy)).all()
            assert np.isnan(run_op(ActivationGrad(mode, coef), x[:1], out[:1], gy)).all()


def test_functions():
    x = np.array([[-1.5, 0.5], [8.0, -0.2]])
    cases = [
        (nnet.relu(x), "relu", 0),
        (nnet.clipped_relu(x, 6), "clipped_relu", 6),
        (nnet.tanh(x), "tanh", 0),
        (nnet.sigmoid(x), "sigmoid", 0),
        (nnet.elu(x), "elu", 1),
        (nnet.elu(x, np.float32(0.5)), "elu", 0.5),
        (nnet.swish(x), "swish", 1),
        (nnet.swish(x, beta=2), "swish", 2),
    ]
    for result, mode, coef in cases:
        assert result.owner.op == Activation(mode, coef)
        assert result.type.shape == (2, 2)
        assert_close(evaluate(result, {}), FORMULAS[mode](x, coef))


def test_mode_and_coefficient_are_the_ops_identity():
    assert Activation("elu", 1) == Activation("elu", 1.0) == Activation("elu", np.float32(1))
    assert Activation("elu", 1) != Activation("elu", 2)
    assert Activation("tanh") != Activation("sigmoid")
    assert Activation("tanh") != ActivationGrad("tanh")
    assert pickle.loads(pickle.dumps(Activation("elu", 2))) == Activation("elu", 2)


def test_static_shape_is_that_of_all_operands():
    x, y, gy = (pt.tensor(shape=s, dtype="float32") for s in ((None, 3), (2, None), (None, None)))
    assert ActivationGrad("relu")(x, y, gy).type.shape == (2, 3)


@pytest.mark.parametrize("lead", [((2, 3),), ((2,), (2,), (2,)), ((2, 3), (), (3,))])
def test_vectorized(lead):
    op = Activation("elu", 1.5) if len(lead) == 1 else ActivationGrad("swish", 1.5)
    rng = np.random.default_rng(1)
    data = [rng.standard_normal((*extra, 4)) for extra in lead]
    inner = [pt.dvector() for _ in data]
    outer = [pt.tensor(dtype="float64", shape=v.shape) for v in data]
    out = vectorize_graph(op(*inner), dict(zip(inner, outer, strict=True)))
    fn = pytensor.function(outer, out, mode=PERFORM_MODE)
    assert not any(isinstance(node.op, Blockwise) for node in fn.maker.fgraph.apply_nodes)
    np.testing.assert_allclose(fn(*data), run_op(op, *np.broadcast_arrays(*data)))


def test_errors():
    for cls in (Activation, ActivationGrad):
        name = cls.__name__
        with pytest.raises(DnnValueError, match=f"{name}: mode must be one of relu, .*got 'gelu'"):
            cls("gelu")
        with pytest.raises(DnnValueError, match=f"{name}: mode must be one of relu, .*got "):
            cls(["relu"])
        with pytest.raises(
            DnnValueError, match=f"{name}: relu has no coefficient, so coef must be 0, got 1.0"
        ):
            cls("relu", 1)
        with pytest.raises(DnnTypeError, match=f"{name}: coef must be a number, got '1'"):
            cls("tanh", "1")
    for value in (True, "1", None, pt.dscalar(), [1.0]):
        with pytest.raises(DnnTypeError, match="elu: alpha must be a number, got"):
            nnet.elu(pt.fvector(), value)
    for value in (np.nan, np.inf):
        with pytest.raises(DnnValueError, match="swish: beta must be finite, got"):
            nnet.swish(pt.fvector(), value)
    for value in (0, -1.0):
        with pytest.raises(DnnValueError, match="clipped_relu: ceiling must be positive, got"):
            nnet.clipped_relu(pt.fvector(), value)
    with pytest.raises(DnnTypeError, match="relu: x has dtype complex64; expected one of float16"):
        nnet.relu(pt.cvector())
    grad, x = ActivationGrad("tanh"), pt.fmatrix()
    with pytest.raises(DnnTypeError, match="ActivationGrad: y must have 2 dimensions, got 1"):
        grad(x, pt.fvector(), x)
    with pytest.raises(DnnTypeError, match="one dtype, got x float32, y float64, gy float32"):
        grad(x, pt.dmatrix(), x)
    ones = [np.ones(s) for s in ((2, 3), (2, 3), (1, 3))]
    with pytest.raises(DnnValueError, match=r"x \(2, 3\), y \(2, 3\), gy \(1, 3\)"):
        grad(*ones)
    variables = [pt.dmatrix() for _ in ones]
    with pytest.raises(DnnValueError, match=r"x \(2, 3\), y \(2, 3\), gy \(1, 3\)"):
        evaluate(grad(*variables), dict(zip(variables, ones, strict=True)))
