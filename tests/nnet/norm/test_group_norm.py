"""Group normalization: by groups, against PyTorch, derivatives, shapes, errors."""

from __future__ import annotations

import pickle

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from hypothesis import strategies as st

from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.nnet import GroupNorm, GroupNormGrad, group_norm
from tests.examples import Example
from tests.nnet.norm.group_norm_cases import (
    Case,
    by_groups,
    cases,
    names_of,
    reference,
    with_gradients,
)
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

EXAMPLE = Example(
    group_norm,
    lambda dtype: {
        "x": pt.tensor("x", dtype=dtype, shape=(None, 8, 5, 5)),
        "num_groups": 4,
        "gamma": pt.tensor("gamma", dtype=dtype, shape=(8,)),
        "beta": pt.tensor("beta", dtype=dtype, shape=(8,)),
    },
    frozenset({"OneDnnGroupNorm", "OneDnnGroupNormGrad"}),
)


@fuzz(60, case=cases())
def test_by_groups(case):
    x, gamma, beta, _ = case.arrays()
    out = run_op(GroupNorm(case.num_groups, case.epsilon), x, gamma, beta)
    expected = by_groups(x, case.num_groups, gamma, beta, case.epsilon)
    assert_close(out, expected, bound=1e-11)


@pytest.mark.needs("torch")
@fuzz(25, case=cases(epsilons=[0.1, 0.5]))
def test_against_torch(case):
    import torch

    arrays = case.arrays()
    *theirs, gy = (torch.tensor(a, requires_grad=True) for a in arrays)
    x, gamma, beta = theirs
    out = torch.nn.functional.group_norm(x, case.num_groups, gamma, beta, case.epsilon)
    out.backward(gy.detach())
    expected = [out.detach().numpy(), *(t.grad.numpy() for t in theirs)]
    for mine, their in zip(reference(case, arrays), expected, strict=True):
        assert_close(mine, their, bound=1e-10)


@fuzz(20, case=cases(least=0), are_known=st.booleans())
def test_rows_of_batch_normalization(case, are_known):
    """What devices without an Op of their own compute."""
    arrays = case.arrays()
    shapes = [a.shape if are_known else (None,) * a.ndim for a in arrays]
    x, gamma, beta, gy = (pt.tensor(dtype="float64", shape=shape) for shape in shapes)
    given = (case.num_groups, case.epsilon)
    outputs = GroupNorm(*given).expressions(x, gamma, beta)
    outputs += GroupNormGrad(*given).expressions(x, gamma, gy)
    found = evaluate(outputs, dict(zip((x, gamma, beta, gy), arrays, strict=True)))
    for result, expected in zip(found, reference(case, arrays), strict=True):
        assert_close(result, expected, bound=1e-10, allow_zero=0 in case.shape)


@pytest.mark.parametrize("given", [(), ("gamma",), ("beta",)])
@pytest.mark.parametrize("shape", [(None, 6, None), (None, None, None)])
def test_default_scale_and_bias(given, shape):
    x = normal(np.random.default_rng(0), (2, 6, 5), "float64")
    vectors = {name: np.arange(1.0, 7) for name in given}
    variable = pt.tensor("x", dtype="float64", shape=shape)
    out = group_norm(variable, 2, **vectors)
    complete = {"gamma": np.ones(6), "beta": np.zeros(6)} | vectors
    expected = by_groups(x, 2, complete["gamma"], complete["beta"], 1e-5)
    assert_close(evaluate(out, {variable: x}), expected)
    (gradient,) = pytensor.grad(out.sum(), [variable])
    assert evaluate(gradient, {variable: x}).shape == x.shape


# -- expressions and derivatives ---------------------------------------------------------


@fuzz(12, case=cases(epsilons=[0.1, 0.5]), is_static=st.booleans())
def test_expressions(case, is_static):
    x, gamma, beta, gy = case.arrays()
    for op, arrays in (
        (GroupNorm(case.num_groups, case.epsilon), (x, gamma, beta)),
        (GroupNormGrad(case.num_groups, case.epsilon), (x, gamma, gy)),
    ):
        shapes = [a.shape if is_static else (None,) * a.ndim for a in arrays]
        inputs = [pt.tensor(dtype="float64", shape=shape) for shape in shapes]
        written, node = op.expressions(*inputs), op.make_node(*inputs)
        assert [z.type.dtype for z in written] == [y.type.dtype for y in node.outputs]
        values = dict(zip(inputs, arrays, strict=True))
        results = evaluate([*written, *node.outputs], values)
        count = len(written)
        for found, expected in zip(results[:count], results[count:], strict=True):
            assert_close(found, expected, bound=1e-11)


def test_expressions_compute_in_the_dtype_of_their_operands():
    x, vector = pt.tensor3(dtype="float32"), pt.vector(dtype="float32")
    written = GroupNorm(2, 1e-5).expressions(x, vector, vector)
    computed = [v for v in pytensor.graph.traversal.ancestors(written) if v.owner]
    assert "float64" not in {v.type.dtype for v in computed}


@fuzz(8, case=cases(most=3, epsilons=[0.5]))
def test_derivatives(case):
    def fun(x, gamma, beta):
        return group_norm(x, case.num_groups, gamma, beta, case.epsilon)

    points = case.arrays()[:3]
    check_gradient(fun, points, bound=1e-7)
    check_second_derivatives(fun, points, bound=1e-6)


def test_derivatives_of_known_sizes():
    """With PyTensor 3.0.7, sizes that are constants or computed with one have tangents."""
    x = pt.tensor("x", dtype="float64", shape=(2, None, 3, 2))
    vector = pt.tensor("gamma", dtype="float64", shape=(None,))
    direction = x.type("direction")
    out = group_norm(x, 2, vector, vector)
    moved = pytensor.gradient.pushforward([out], [x], [direction], use_op_pushforward=True)[0]
    rng = np.random.default_rng(5)
    at, along = normal(rng, (2, 2, 4, 3, 2), "float64")
    scale = normal(rng, (4,), "float64")
    forward = evaluate(moved, {x: at, direction: along, vector: scale})
    steps = [by_groups(at + s * along, 2, scale, scale, 1e-5) for s in (1e-6, -1e-6)]
    assert_close(forward, (steps[0] - steps[1]) / 2e-6, bound=1e-7)


def test_the_gradient_is_one_op():
    _, outputs = with_gradients(2, 1e-5, "float32", 4)
    assert {type(g.owner.op) for g in outputs[1:]} == {GroupNormGrad}
    assert len({g.owner for g in outputs[1:]}) == 1


# -- shapes ------------------------------------------------------------------------------


def test_infer_shape():
    x, vector = np.ones((3, 4, 5)), np.ones(4)
    check_infer_shape(GroupNorm(2), x, vector, vector)
    check_infer_shape(GroupNormGrad(2), x, vector, x)
    inputs, outputs = with_gradients(2, 1e-5, "float64", 3)
    case = Case((3, 4, 5), 2, 1e-5, seed=6)
    shapes = pytensor.function(inputs, [y.shape for y in outputs], on_unused_input="ignore")
    assert not names_of(shapes) & EXAMPLE.cpu_ops
    found = [tuple(shape) for shape in shapes(*case.arrays())]
    assert found == [(3, 4, 5), (3, 4, 5), (4,), (4,)]


def test_static_shapes_are_put_together():
    x = pt.tensor("x", dtype="float32", shape=(None, None, 5))
    vector = pt.tensor("gamma", dtype="float32", shape=(4,))
    assert group_norm(x, 2, vector).type.shape == (None, 4, 5)
    gy = pt.tensor("gy", dtype="float32", shape=(3, None, None))
    node = GroupNormGrad(2).make_node(x, vector, gy)
    assert [y.type.shape for y in node.outputs] == [(3, 4, 5), (4,), (4,)]


@pytest.mark.parametrize("shape", [(0, 4, 3), (2, 4, 0), (2, 0, 3), (0, 0)])
@pytest.mark.parametrize("mode", [PERFORM_MODE, "CVM"], ids=["NumPy", "CVM"])
def test_without_elements(shape, mode):
    inputs, outputs = with_gradients(2, 1e-5, "float32", len(shape))
    compiled = pytensor.function(inputs, outputs, mode=mode)
    y, dx, dgamma, dbeta = compiled(*Case(shape, 2, 1e-5, seed=7).arrays("float32"))
    assert y.shape == dx.shape == shape
    np.testing.assert_array_equal([dgamma, dbeta], np.zeros((2, shape[1])))


def test_groups_of_one_element_are_the_bias():
    gamma, beta = np.ones(3), np.array([1.0, -2.0, 0.5])
    x = np.array([[3.0, 1e9, -4.0]])
    np.testing.assert_array_equal(run_op(GroupNorm(3), x, gamma, beta), [beta])


# -- identity and errors -----------------------------------------------------------------


def test_parameters_are_the_ops_identity():
    assert GroupNorm(2, 1e-5) == GroupNorm(np.int64(2)) != GroupNorm(2, 1e-4)
    assert GroupNorm(2) != GroupNorm(4)
    assert pickle.loads(pickle.dumps(GroupNormGrad(2, 0.1))) == GroupNormGrad(2, 0.1)


def test_errors_of_the_function():
    x = pt.tensor("x", dtype="float32", shape=(None, 6, 5))
    for bad in (2.0, True, None, "2", pt.lscalar()):
        with pytest.raises(DnnTypeError, match=r"group_norm: num_groups must be an int, got"):
            group_norm(x, bad)
    for bad in (0, -2, 2**31):
        with pytest.raises(
            DnnValueError,
            match=rf"group_norm: num_groups must be between 1 and \d+, got {bad}",
        ):
            group_norm(x, bad)
    for bad in (-1e-5, np.nan, np.inf):
        with pytest.raises(DnnValueError, match=r"group_norm: epsilon must be finite and at least"):
            group_norm(x, 2, epsilon=bad)
    with pytest.raises(DnnTypeError, match=r"group_norm: epsilon must be a number, got 'small'"):
        group_norm(x, 2, epsilon="small")
    with pytest.raises(DnnTypeError, match=r"group_norm: x has dtype int64; expected one of"):
        group_norm(pt.ltensor3(), 2)
    for given in (pt.scalar(), pt.vector()):
        with pytest.raises(
            DnnTypeError, match=rf"group_norm: x must have 2 or more .*, got {given.type.ndim}"
        ):
            group_norm(given, 2)
    for name in ("gamma", "beta"):
        with pytest.raises(DnnTypeError, match=rf"group_norm: {name} must have 1 dim.*, got 2"):
            group_norm(x, 2, **{name: pt.fmatrix()})


def test_errors_of_the_op():
    x = pt.tensor("x", dtype="float32", shape=(None, 6, 5))
    vector = pt.tensor(dtype="float32", shape=(6,))
    with pytest.raises(
        DnnValueError,
        match=r"GroupNorm: num_groups must divide the 6 channels of x, got 4 .*\(\?, 6, 5\)",
    ):
        group_norm(x, 4)
    for name in ("gamma", "beta"):
        with pytest.raises(
            DnnValueError,
            match=rf"GroupNorm: {name} must have one element for each of the 6 channels .*, got 3",
        ):
            group_norm(x, 2, **{name: np.ones(3, "float32")})
    with pytest.raises(
        DnnTypeError, match=r"gamma, beta have dtype float64; expected float32, as x has"
    ):
        group_norm(x, 2, np.ones(6), np.ones(6))
    with pytest.raises(DnnTypeError, match=r"gamma, .*float64; expected float16, .*or float32"):
        group_norm(x.astype("float16"), 2, np.ones(6))
    with pytest.raises(DnnTypeError, match=r"must have one dtype, got gamma float64, beta float32"):
        group_norm(x, 2, np.ones(6), vector)
    with pytest.raises(DnnTypeError, match=r"GroupNorm: expected the operands x, gamma, beta, got"):
        GroupNorm(2).make_node(x, vector)
    with pytest.raises(DnnTypeError, match=r"GroupNormGrad: gy must have 3 dimensions, got 2"):
        GroupNormGrad(2).make_node(x, vector, pt.fmatrix())
    with pytest.raises(DnnValueError, match=r"GroupNormGrad: .* one shape, got x .*, gy \(2, 7, 5"):
        GroupNormGrad(2).make_node(x, vector, pt.tensor(dtype="float32", shape=(2, 7, 5)))


@pytest.mark.parametrize("mode", [PERFORM_MODE, "CVM"], ids=["NumPy", "CVM"])
def test_errors_of_sizes_that_are_known_at_the_call(mode):
    inputs, outputs = with_gradients(2, 1e-5, "float32", 3)
    compiled = [pytensor.function(inputs, y, mode=mode, on_unused_input="ignore") for y in outputs]
    for function, op in zip(compiled[:2], ("GroupNorm", "GroupNormGrad"), strict=True):
        odd = Case((2, 5, 3), 2, 1e-5, seed=8).arrays("float32")
        with pytest.raises(
            DnnValueError, match=rf"{op}: num_groups must divide the 5 channels of x, got 2"
        ):
            function(*odd)
        x, gamma, beta, gy = Case((2, 6, 3), 2, 1e-5, seed=8).arrays("float32")
        with pytest.raises(
            DnnValueError, match=rf"{op}: gamma must have one element .* the 6 channels of x, got"
        ):
            function(x, gamma[:4], beta, gy)
    with pytest.raises(DnnValueError, match=r"GroupNorm: beta must have one element .*, got"):
        compiled[0](x, gamma, beta[:4], gy)
    with pytest.raises(DnnValueError, match=r"GroupNormGrad: "):
        compiled[1](x, gamma, beta, gy[:1])


def test_errors_of_the_expressions():
    x, vector = pt.tensor3(dtype="float64"), pt.vector(dtype="float64")
    (out,) = GroupNorm(2).expressions(x, vector, vector)
    compiled = pytensor.function([x, vector], out, mode=PERFORM_MODE)
    match = r"GroupNorm: num_groups, 2, must divide the channels of x, and gamma and beta must have"
    for channels, length in ((5, 5), (6, 4)):
        with pytest.raises(DnnValueError, match=match):
            compiled(np.ones((2, channels, 3)), np.ones(length))
