"""The gradients of softmax and log-softmax: against Jacobians, derivatives, errors."""

from __future__ import annotations

import pickle

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from hypothesis import strategies as st
from pytensor.gradient import DisconnectedType, disconnected_type, verify_grad
from pytensor.tensor.special import log_softmax, softmax

from dnnops import nnet
from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.nnet import LogSoftmaxGrad, SoftmaxGrad
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

OPS = (SoftmaxGrad, LogSoftmaxGrad)


@st.composite
def cases(draw, min_size: int = 1):
    """Return a strategy for (axis, gz, x): an axis for PyTensor's softmax, and two arrays."""
    shape = tuple(draw(st.lists(st.integers(min_size, 4), min_size=1, max_size=4)))
    ndim = len(shape)
    axis = draw(
        st.one_of(
            st.none(),
            st.integers(-ndim, ndim - 1),
            st.sets(st.integers(0, ndim - 1), min_size=1).map(lambda axes: tuple(sorted(axes))),
        )
    )
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return axis, normal(rng, shape, "float64"), normal(rng, shape, "float64")


def forward(op_class: type, x: np.ndarray, axis) -> np.ndarray:
    """Return the second operand."""
    e = np.exp(x)
    sm = e / e.sum(axis=axis, keepdims=True)
    return sm if op_class is SoftmaxGrad else np.log(sm)


def by_jacobian(op_class: type, gz: np.ndarray, x: np.ndarray, axis) -> np.ndarray:
    """Multiply `gz` by the Jacobian, group of elements by group of elements."""
    axes = tuple(range(x.ndim)) if axis is None else np.atleast_1d(axis) % x.ndim
    kept = [i for i in range(x.ndim) if i not in axes]
    out = np.zeros_like(x)
    for place in np.ndindex(*(x.shape[i] for i in kept)):
        group = [slice(None)] * x.ndim
        for i, where in zip(kept, place, strict=True):
            group[i] = where
        group = tuple(group)
        values = x[group].ravel()
        sm = np.exp(values) / sum(np.exp(values))
        if op_class is SoftmaxGrad:
            jacobian = np.diag(sm) - np.outer(sm, sm)
        else:
            jacobian = np.eye(sm.size) - np.outer(np.ones(sm.size), sm)
        out[group] = (jacobian.T @ gz[group].ravel()).reshape(x[group].shape)
    return out


@pytest.mark.parametrize("op_class", OPS)
@fuzz(60, case=cases(), dtype=st.sampled_from(["float64", "float32", "float16"]))
def test_perform_against_the_jacobian(op_class, case, dtype):
    axis, gz, x = case
    output = forward(op_class, x, axis)
    out = run_op(op_class(axis), gz.astype(dtype), output.astype(dtype))
    expected = by_jacobian(op_class, gz, x, axis)
    # A group with one element has the derivative 0, up to rounding errors. In general the terms
    # cancel, so errors are relative to gz, not to the result.
    assert out.dtype == dtype
    tolerance = {"float64": 1e-12, "float32": 1e-5, "float16": 4e-3}[dtype]
    assert np.linalg.norm((out - expected).ravel()) <= tolerance * np.linalg.norm(gz.ravel())


@pytest.mark.parametrize("op_class", OPS)
@pytest.mark.parametrize("axis", [None, 0, -1, (1, 2), (0, 2)], ids=str)
def test_gradients_equal_those_of_pytensors_ops(op_class, axis):
    function = softmax if op_class is SoftmaxGrad else log_softmax
    rng = np.random.default_rng(1)
    x, gz = pt.tensor3("x", dtype="float64"), pt.tensor3("gz", dtype="float64")
    op = function(x, axis=axis).owner.op
    # Its inner graph, because running the Op itself would compile that.
    (y,) = op.build_inner_graph(x)
    expected = pytensor.gradient.grad(None, x, known_grads={y: gz})
    out = op_class(op.axis)(gz, y)
    values = {x: normal(rng, (2, 3, 4), "float64"), gz: normal(rng, (2, 3, 4), "float64")}
    assert_close(*evaluate([out, expected], values))


@pytest.mark.parametrize("op_class", OPS)
@fuzz(15, case=cases())
def test_derivatives(op_class, case):
    axis, gz, x = case
    # The derivatives hold for any second operand, not only for a softmax.
    check_gradient(op_class(axis), [gz, x])
    check_second_derivatives(op_class(axis), [gz, x])


@pytest.mark.parametrize("op_class", OPS)
def test_pushforward_along_one_operand(op_class):
    rng = np.random.default_rng(2)
    a, b = normal(rng, (2, 3), "float64"), normal(rng, (2, 3), "float64")
    check_gradient(lambda gz: op_class(1)(gz, pt.constant(b)), [a])
    check_gradient(lambda output: op_class(1)(pt.constant(a), output), [b])
    node = op_class(1).make_node(a, b)
    assert op_class(1).connection_pattern(node) == [[True], [True]]
    (tangent,) = op_class(1).pushforward(node.inputs, node.outputs, [disconnected_type()] * 2)
    assert isinstance(tangent.type, DisconnectedType)


@pytest.mark.parametrize("op_class", OPS)
def test_verify_grad(op_class):
    rng = np.random.default_rng(3)
    points = [normal(rng, (2, 3, 2), "float64") for _ in range(2)]
    verify_grad(op_class((0, 2)), points, rng=rng, mode=PERFORM_MODE)


@pytest.mark.parametrize("op_class", OPS)
@fuzz(15, case=cases(min_size=0))
def test_empty_arrays_and_shapes(op_class, case):
    axis, gz, x = case
    out = run_op(op_class(axis), gz, x)
    assert out.shape == gz.shape
    check_infer_shape(op_class(axis), gz, x)


@pytest.mark.parametrize("op_class", OPS)
def test_a_scalar(op_class):
    output = np.array(1.0 if op_class is SoftmaxGrad else 0.0)
    assert run_op(op_class(None), np.array(5.0), output) == 0.0


@pytest.mark.parametrize("op_class", OPS)
def test_static_shape_is_that_of_both_operands(op_class):
    gz = pt.tensor("gz", shape=(None, 3), dtype="float32")
    output = pt.tensor("output", shape=(2, None), dtype="float32")
    assert op_class(1)(gz, output).type.shape == (2, 3)


@pytest.mark.parametrize("op_class", OPS)
def test_axis_is_the_ops_identity(op_class):
    assert op_class(1) == op_class((1,)) == op_class([np.int64(1)])
    assert op_class(1) != op_class((0, 1))
    assert op_class(None) != op_class(0)
    assert SoftmaxGrad(1) != LogSoftmaxGrad(1)
    assert pickle.loads(pickle.dumps(op_class(1))) == op_class(1)


@pytest.mark.parametrize("op_class", OPS)
def test_errors(op_class):
    name, second = op_class.__name__, op_class.output_name
    x, op = pt.matrix(dtype="float32"), op_class(1)
    for axis in (1.0, "a", (0, 1.5), True):
        with pytest.raises(DnnTypeError, match=f"{name}: axis must be None, an int or a tuple"):
            op_class(axis)
    for axis in (2, -3, (0, 2), (0, 0), (0, -2)):
        with pytest.raises(DnnValueError, match=rf"{name}: axis .* does not fit 2 dimensions"):
            op_class(axis)(x, x)
    with pytest.raises(DnnTypeError, match=f"{name}: {second} must have 2 dimensions, got 3"):
        op(x, pt.tensor3())
    with pytest.raises(DnnTypeError, match=f"{name}: gz has dtype int64"):
        op(pt.lmatrix(), x)
    with pytest.raises(DnnTypeError, match=f"gz float32, {second} float64"):
        op(x, pt.matrix(dtype="float64"))
    shape = (
        pt.tensor("y", shape=(2, 3), dtype="float32"),
        pt.tensor("z", shape=(1, 3), dtype="float32"),
    )
    with pytest.raises(DnnValueError, match=rf"gz \(2, 3\), {second} \(1, 3\)"):
        op(*shape)
    y = pt.matrix(dtype="float32")
    values = {x: np.ones((2, 3), "float32"), y: np.ones((1, 3), "float32")}
    with pytest.raises(DnnValueError, match=rf"gz \(2, 3\), {second} \(1, 3\)"):
        evaluate(op(x, y), values)


@pytest.mark.parametrize("axis", [None, 0, -1])
def test_softmax_of_a_scalar(axis):
    """As in PyTorch: a scalar is the only entry."""
    x = pt.fscalar()
    outputs = [nnet.softmax(x, axis=axis), nnet.log_softmax(x, axis=axis)]
    assert [y.type.ndim for y in outputs] == [0, 0]
    outputs += [pytensor.grad(y, x) for y in outputs]
    for mode in (PERFORM_MODE, "CVM"):
        f = pytensor.function([x], outputs, mode=mode)
        assert [float(v) for v in f(np.float32(-3))] == [1, 0, 0, 0]
    for wrong in (1, -2, (0, 0)):
        with pytest.raises(DnnValueError, match="softmax: axis"):
            nnet.softmax(x, axis=wrong)
