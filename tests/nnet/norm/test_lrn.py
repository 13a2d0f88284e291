"""Local response normalization: by elements, against PyTorch, derivatives, errors."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.gradient import disconnected_type

from dnnops.errors import DnnError, DnnTypeError, DnnValueError
from dnnops.nnet import LRN, LRNGrad, local_response_normalization
from dnnops.nnet.norm.window_base import WindowSum
from tests.examples import Example
from tests.nnet.norm.window_norm_cases import BAD_PARAMETERS, by_elements, cases
from tests.oracle import (
    PERFORM_MODE,
    assert_close,
    check_gradient,
    check_infer_shape,
    check_second_derivatives,
    evaluate,
    fuzz,
    run_op,
    small_integers,
)

EXAMPLE = Example(
    local_response_normalization,
    lambda dtype: {"x": pt.tensor("x", dtype=dtype, shape=(None, 8, 5, 5))},
    frozenset({"OneDnnLRN", "OneDnnLRNGrad"}),
)
DIFFERENCES = {"eps": 1e-5, "bound": 1e-6, "allow_zero": True}


@fuzz(60, case=cases(2, 5))
def test_against_loops_over_elements(case):
    (x,) = case.arrays(1)
    assert_close(run_op(LRN(**case.parameters), x), by_elements(case, (1,), x, x))


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_exact_on_integers(n):
    x = small_integers(np.random.default_rng(0), (3, 12, 7), "float64")
    padded = np.pad(x**2, ((0, 0), ((n - 1) // 2, n // 2), (0, 0)))
    base = 1 + sum(padded[:, i : i + 12] for i in range(n))
    out = run_op(LRN(n, alpha=n, beta=1, k=1), x)
    np.testing.assert_allclose(out, x / base, rtol=3e-16)


@pytest.mark.needs("torch")
@fuzz(25, case=cases(3, 5))
def test_against_torch(case):
    import torch

    x, gy = case.arrays(2)

    def flipped(a):
        # With an even length PyTorch has the channel that is left over on the other side.
        return a if case.n % 2 else np.flip(a, 1).copy()

    theirs = torch.tensor(flipped(x), requires_grad=True)
    size = {"size": case.n, "alpha": case.alpha, "beta": case.beta, "k": case.k}
    out = torch.nn.functional.local_response_norm(theirs, **size)
    out.backward(torch.tensor(flipped(gy)))
    assert_close(run_op(LRN(**case.parameters), x), flipped(out.detach().numpy()))
    dx = run_op(LRNGrad(**case.parameters), x, gy)
    assert_close(dx, flipped(theirs.grad.numpy()), bound=1e-11)


def test_defaults():
    x = np.random.default_rng(1).standard_normal((2, 9, 3, 3))
    variable = pt.dtensor4("x")
    out = evaluate(local_response_normalization(variable), {variable: x})
    explicit = run_op(LRN(n=5, alpha=1e-4, beta=0.75, k=2.0), x)
    np.testing.assert_array_equal(out, explicit)


@fuzz(6, case=cases(2, 4, max_size=4, max_n=4))
def test_derivatives(case):
    def fun(x):
        return local_response_normalization(x, **case.parameters)

    check_gradient(fun, case.arrays(1), **DIFFERENCES)
    check_second_derivatives(fun, case.arrays(1), **DIFFERENCES)


@fuzz(4, case=cases(2, 4, max_size=4, max_n=4))
def test_derivatives_of_the_gradient(case):
    op: Any = LRNGrad(**case.parameters)
    check_gradient(op, case.arrays(2), **DIFFERENCES)
    check_second_derivatives(op, case.arrays(2), **DIFFERENCES)


@pytest.mark.parametrize("backward", [False, True])
def test_window_sum(backward):
    x = small_integers(np.random.default_rng(2), (2, 5, 3, 4), "float64")
    op: Any = WindowSum(4, (1, 3), backward)
    out = run_op(op, x)
    for place in np.ndindex(x.shape):
        window: list[Any] = list(place)
        for axis in (1, 3):
            begin = place[axis] - (2 if backward else 1)
            window[axis] = slice(max(0, begin), begin + 4)
        assert out[place] == x[tuple(window)].sum()
    check_gradient(op, [x])
    check_infer_shape(op, x)
    with pytest.raises(DnnValueError, match=r"WindowSum: axes \(1, 3\) do not fit 3 dimensions"):
        op(x[0])


def test_the_gradient_is_one_op():
    x = pt.tensor4("x")
    grad = pytensor.grad(local_response_normalization(x).sum(), x)
    assert isinstance(grad.owner.op, LRNGrad)


def test_disconnected_tangents():
    x = pt.matrix("x")
    node = LRNGrad(5, 1.0, 0.75, 1.0).make_node(x, x)
    tangents = [disconnected_type(), disconnected_type()]
    (result,) = node.op.pushforward(node.inputs, node.outputs, tangents)
    assert result.type == disconnected_type().type


@fuzz(10, case=cases(2, 5))
def test_infer_shape(case):
    check_infer_shape(LRN(**case.parameters), *case.arrays(1))
    check_infer_shape(LRNGrad(**case.parameters), *case.arrays(2))


def test_static_shape():
    x = pt.tensor(dtype="float32", shape=(None, 3, 4, None))
    gy = pt.tensor(dtype="float32", shape=(2, None, 4, None))
    assert LRN(5, 1, 1, 1)(x).type.shape == (None, 3, 4, None)
    assert LRNGrad(5, 1, 1, 1)(x, gy).type.shape == (2, 3, 4, None)


@fuzz(10, case=cases(2, 4))
def test_float16(case):
    arrays = case.arrays(2, "float16")
    for op, count in ((LRN(**case.parameters), 1), (LRNGrad(**case.parameters), 2)):
        expected = run_op(op, *(a.astype("float64") for a in arrays[:count]))
        assert_close(run_op(op, *arrays[:count]), expected)


def test_empty():
    for shape in [(0, 3, 2), (2, 0, 2), (2, 3, 0)]:
        x = np.zeros(shape, "float32")
        assert run_op(LRN(5, 1, 1, 1), x).shape == shape
        assert run_op(LRNGrad(5, 1, 1, 1), x, x).shape == shape


def test_equality_and_pickling():
    op = LRN(5, 1, 0.75, 2)
    assert op == LRN(np.int64(5), np.float32(1), 0.75, 2.0)
    assert op != LRN(5, 1, 0.75, 1)
    assert pickle.loads(pickle.dumps(op)) == op
    assert hash(pickle.loads(pickle.dumps(op))) == hash(op)


@pytest.mark.parametrize(("parameters", "error", "message"), BAD_PARAMETERS, ids=str)
def test_bad_parameters(parameters, error, message):
    with pytest.raises(error, match=f"LRN: {message}") as raised:
        local_response_normalization(pt.tensor4("x"), **parameters)
    assert isinstance(raised.value, DnnError)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (pt.vector("x"), r"x must have 2 or more dimensions \(batch, channel, spatial...\), got 1"),
        (pt.imatrix("x"), "x has dtype int32; expected one of float16, float32, float64"),
        ("image", "x must be a tensor or array-like, got 'image'"),
    ],
    ids=["vector", "integers", "text"],
)
def test_bad_operands(x, message):
    with pytest.raises(DnnTypeError, match=f"LRN: {message}"):
        local_response_normalization(x)


def test_operands_that_do_not_fit():
    op: Any = LRNGrad(5, 1, 1, 1)
    x, gy = pt.fmatrix("x"), pt.fmatrix("gy")
    with pytest.raises(DnnTypeError, match="gy must have 2 dimensions, got 3"):
        op(x, pt.ftensor3("gy"))
    with pytest.raises(DnnTypeError, match="must have one dtype, got x float32, gy float64"):
        op(x, pt.dmatrix("gy"))
    with pytest.raises(DnnTypeError, match="expected the operands x, gy, got 1 of them"):
        op(x)
    with pytest.raises(DnnValueError, match=r"one shape, got x \(2, 3\), gy \(2, 4\)"):
        op(np.ones((2, 3), "float32"), np.ones((2, 4), "float32"))
    fn = pytensor.function([x, gy], op(x, gy), mode=PERFORM_MODE)
    with pytest.raises(DnnValueError, match=r"one shape, got x \(2, 3\), gy \(2, 4\)"):
        fn(np.ones((2, 3), "float32"), np.ones((2, 4), "float32"))
