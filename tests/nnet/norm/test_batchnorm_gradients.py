"""Derivatives of all Ops of batch normalization with respect to all operands."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.gradient import (
    DisconnectedInputError,
    DisconnectedType,
    disconnected_type,
    verify_grad,
)
from pytensor.graph.traversal import applys_between

from dnnops.nnet import (
    BatchNormInference,
    BatchNormTrain,
    BatchNormTrainGrad,
    batch_normalization_test,
    batch_normalization_train,
)

#: Dtypes of data and parameters.
from tests.nnet.norm.batchnorm_cases import (
    DTYPES,
    Case,
    cases,
)
from tests.oracle import (
    PERFORM_MODE,
    check_gradient,
    check_second_derivatives,
    evaluate,
    fuzz,
    normal,
)

# -- derivatives -------------------------------------------------------------------------


def training_points(case: Case) -> list[Any]:
    x, scale, bias, mean, var = case.arrays()
    # Differences need room on either side of the factor, which is from 0 to 1.
    factor = np.clip(case.factor, 0.01, 0.99)
    return [x, scale, bias, np.array(case.epsilon), factor, mean, var]


def training_function(case: Case, which: Any) -> Any:
    """Compute some of the results for `training_points`, joined."""

    def fun(x, scale, bias, epsilon, factor, mean, var):
        results = batch_normalization_train(x, scale, bias, case.axes, epsilon, factor, mean, var)
        return pt.concatenate([results[k].flatten() for k in which])

    return fun


def joint_and(*single: tuple[int, ...], count: int) -> Any:
    """Differentiate all results at once; the slow tests differentiate each by itself, too."""
    alone = [pytest.param(which, marks=pytest.mark.slow) for which in single]
    return pytest.mark.parametrize("which", [*alone, tuple(range(count))], ids=str)


#: For steps of 1e-5, which the curvature of 1 / sqrt(var + 0.01) asks for.
DIFFERENCES = {"eps": 1e-5, "bound": 1e-5, "allow_zero": True}


@joint_and((0,), (1,), (2,), (3,), (4,), count=5)
@fuzz(10, case=cases(max_ndim=4, max_size=3, min_count=2))
def test_derivatives_of_training(which, case):
    check_gradient(training_function(case, which), training_points(case), **DIFFERENCES)


@joint_and((0,), (2,), count=5)
@fuzz(8, case=cases(max_ndim=3, max_size=3, min_count=3))
def test_second_derivatives_of_training(which, case):
    check_second_derivatives(training_function(case, which), training_points(case), **DIFFERENCES)


@joint_and((0,), (1,), (2,), count=3)
@fuzz(10, case=cases(max_ndim=4, max_size=3))
def test_derivatives_of_the_gradient(which, case):
    # The derivatives hold for any mean and invstd, not only for those of x.
    x, scale, _, mean, invstd = case.arrays()
    gout = normal(np.random.default_rng(case.seed + 1), case.shape, "float64")
    points = [x, gout, *(p.reshape(case.full_shape) for p in (scale, mean, invstd))]

    def fun(*operands):
        results = BatchNormTrainGrad(case.canonical).make_node(*operands).outputs
        return pt.concatenate([results[k].flatten() for k in which])

    check_gradient(fun, points, **DIFFERENCES)
    check_second_derivatives(fun, points, **DIFFERENCES)


@fuzz(15, case=cases(max_ndim=4, max_size=3))
def test_derivatives_of_inference(case):
    def fun(*operands):
        return batch_normalization_test(*operands[:5], case.axes, operands[5])

    points = [*case.arrays(), np.array(case.epsilon)]
    check_gradient(fun, points, **DIFFERENCES)
    check_second_derivatives(fun, points, **DIFFERENCES)


#: Indices of the results that do not depend on an operand of training, by the operand's index.
UNINFLUENCED: dict[int, tuple[int, ...]] = {
    0: (),
    1: (1, 2, 3, 4),
    2: (1, 2, 3, 4),
    3: (1, 3, 4),
    4: (0, 1, 2),
    5: (0, 1, 2, 4),
    6: (0, 1, 2, 3),
}


@pytest.mark.parametrize("place", range(7))
@pytest.mark.parametrize("result", range(5))
def test_verify_grad_of_training_by_each_operand(place, result):
    case = Case((4, 3, 2), (0, -1), False, 0.1, 0.3, seed=2)
    points = training_points(case)

    def fun(point):
        operands = [pt.constant(p) for p in points]
        operands[place] = point
        return training_function(case, (result,))(*operands)

    if result in UNINFLUENCED[place]:
        point = pt.constant(points[place]).type()
        with pytest.raises(DisconnectedInputError):
            pytensor.grad(fun(point).sum(), point)
    else:
        rng = np.random.default_rng(3)
        verify_grad(fun, [points[place]], rng=rng, mode=PERFORM_MODE)


@pytest.mark.parametrize("place", range(6))
def test_verify_grad_of_inference_by_each_operand(place):
    case = Case((4, 3, 2), "spatial", True, 0.1, 0.3, seed=4)
    points = [*case.arrays(), np.array(case.epsilon)]

    def fun(point):
        operands = [pt.constant(p) for p in points]
        operands[place] = point
        return BatchNormInference(case.canonical)(*operands)

    verify_grad(fun, [points[place]], rng=np.random.default_rng(5), mode=PERFORM_MODE)


@pytest.mark.parametrize("place", range(5))
def test_verify_grad_of_the_gradient_for_each_operand(place):
    case = Case((4, 3, 2), "spatial", True, 0.1, 0.3, seed=6)
    x, scale, _, mean, invstd = case.arrays()
    points = [x, x[::-1] + 1, scale, mean, invstd]

    def fun(point):
        operands = [pt.constant(p) for p in points]
        operands[place] = point
        results = BatchNormTrainGrad(case.canonical).make_node(*operands).outputs
        # scale has no influence on the other results, and on the last one only gout has any.
        return pt.concatenate([r.flatten() for r in results])

    verify_grad(fun, [points[place]], rng=np.random.default_rng(7), mode=PERFORM_MODE)


def test_operands_that_depend_on_each_other():
    # The bias is the data's mean, and epsilon comes of the scale.
    def fun(x, scale):
        bias, epsilon = x.mean(axis=0), pt.sqr(scale).sum()
        out, mean, _ = batch_normalization_train(x, scale, bias, epsilon=epsilon)
        return batch_normalization_test(out, scale, bias, mean, pt.sqr(mean), epsilon=epsilon)

    rng = np.random.default_rng(8)
    points = [normal(rng, (4, 3), "float64"), normal(rng, (3,), "float64")]
    check_gradient(fun, points, **DIFFERENCES)
    check_second_derivatives(fun, points, **DIFFERENCES)


def test_the_usual_gradient_is_one_node():
    x, scale, bias = pt.tensor4(dtype="float32"), pt.fvector(), pt.fvector()
    out, *_ = batch_normalization_train(x, scale, bias, "spatial")
    gradients = pytensor.grad(out.sum(), [x, scale, bias])
    nodes = [n for n in applys_between([x, scale, bias], gradients) if n.op != out.owner.op]
    assert sum(isinstance(n.op, BatchNormTrainGrad) for n in nodes) == 1
    assert gradients[0].owner.op == BatchNormTrainGrad((0, 2, 3))
    assert {tuple(g.type.shape) for g in gradients[1:]} == {(None,)}


@pytest.mark.parametrize(("dtype", "parameter_dtype"), DTYPES)
def test_dtypes_of_gradients(dtype, parameter_dtype):
    case = Case((5, 3), (0,), True, 0.1, 0.5, seed=9)
    arrays = case.arrays(dtype, parameter_dtype)
    inputs = [pt.constant(a).type() for a in arrays]
    epsilon, factor = pt.dscalar(), pt.dscalar()
    wrt = [*inputs, epsilon, factor]
    values = dict(zip(wrt, [*arrays, 0.1, 0.5], strict=True))
    x, scale, bias, mean, var = inputs
    results = batch_normalization_train(x, scale, bias, (0,), epsilon, factor, mean, var)
    tested = batch_normalization_test(*inputs, (0,), epsilon)
    cost = sum(pt.cast(pt.sqr(r), "float64").sum() for r in (*results, tested))
    for gradient, variable in zip(pytensor.grad(cost, wrt), wrt, strict=True):
        assert gradient.type.dtype == variable.type.dtype
        value = evaluate(gradient, values)
        assert value.dtype == variable.type.dtype
        assert value.shape == np.shape(values[variable])
        assert np.isfinite(value).all()


@pytest.mark.parametrize(
    ("op", "count"),
    [(BatchNormTrain((0,), True), 7), (BatchNormTrainGrad((0,)), 5), (BatchNormInference((0,)), 6)],
    ids=str,
)
def test_tangents_of_nothing(op, count):
    x, scalar = np.ones((1, 3)), 0.5
    inputs = [scalar if o in op.scalars else x for o in op.operands]
    node = op.make_node(*inputs)
    assert len(node.inputs) == count
    tangents = op.pushforward(node.inputs, node.outputs, [disconnected_type()] * count)
    assert [type(t.type) for t in tangents] == [DisconnectedType] * len(node.outputs)
    pattern = op.connection_pattern(node)
    for place, variable in enumerate(node.inputs):
        along = [disconnected_type()] * count
        along[place] = variable.zeros_like()
        tangents = op.pushforward(node.inputs, node.outputs, along)
        assert [not isinstance(t.type, DisconnectedType) for t in tangents] == pattern[place]
