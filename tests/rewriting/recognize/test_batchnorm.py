"""Expressions of batch normalization are recognized, and results stay the same."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.graph.fg import FunctionGraph
from pytensor.tensor.basic import Alloc
from pytensor.tensor.special import Softmax

from dnnops.nnet.norm.batchnorm import BatchNormTrain
from dnnops.rewriting.recognize.batchnorm import RecognizeBatchNorm
from tests.linkers import LINKERS
from tests.oracle import assert_close
from tests.rewriting.recognize.batchnorm_forms import (
    GRAD,
    INFERENCE,
    INFERENCE_FORMS,
    PERFORM,
    PLAIN,
    SPATIAL,
    TRAIN,
    TRAINING,
    check,
    divided,
    factor_of_vectors,
    folded,
    images,
    moments,
    multiplied_first,
    normalized_first,
    ops,
    spread,
    tensor,
)

pytestmark = pytest.mark.usefixtures("float32_numbers")


@pytest.mark.parametrize("written", TRAINING)
def test_training_forms_and_their_gradients(written):
    x, top = images(2)
    gamma, beta = tensor(1), tensor(1)
    out = written(x, gamma, beta)
    wrt = [v for v in (x, gamma, beta) if v in set(pytensor.graph.ancestors([out]))]
    grads = pytensor.grad(None, wrt, known_grads={out: top})
    check([x, gamma, beta, top], [out, *grads], {TRAIN: 1, GRAD: 1}, bound=1e-4)


@LINKERS
def test_modes_that_compile(mode):
    x, top = images(2)
    gamma, beta = tensor(1), tensor(1)
    out = normalized_first(x, gamma, beta)
    grads = pytensor.grad(None, [x, gamma, beta], known_grads={out: top})
    check([x, gamma, beta, top], [out, *grads], {TRAIN: 1, GRAD: 1}, bound=1e-4, mode=mode)


@pytest.mark.parametrize(("ndim", "axes"), [(2, 0), (3, (0, 2)), (4, 0), (4, (0, 1, 2, 3)), (1, 0)])
def test_axes(ndim, axes):
    x, top = images(2, ndim)
    mean, var = moments(x, axes)
    out = (x - mean) / pt.sqrt(var + 1e-3)
    function = check(
        [x, top], [out, pytensor.grad((out * top).sum(), x)], {TRAIN: 1, GRAD: 1}, 1e-4
    )
    (node,) = [n for n in function.maker.fgraph.apply_nodes if type(n.op).__name__ == TRAIN]
    assert node.op.axes == (
        tuple(range(ndim)) if axes == (0, 1, 2, 3) else tuple(np.atleast_1d(axes))
    )
    assert float(node.inputs[3].data) == np.float32(1e-3)


def test_axes_none_and_static_sizes():
    x = pt.tensor(dtype="float32", shape=(5, 3, 4, 2))
    out = (x - x.mean()) / pt.sqrt(x.var() + 1e-3)
    count = np.float32(5 * 4 * 2)
    mean = x.sum(axis=SPATIAL, keepdims=True) / count
    other = (x - mean) / pt.sqrt(pt.sqr(x - mean).sum(axis=SPATIAL, keepdims=True) / count + 1e-3)
    function = pytensor.function([x], [out, other], mode=PERFORM)
    assert ops(function) == {TRAIN: 2}
    array = np.random.default_rng(0).standard_normal((5, 3, 4, 2)).astype("float32")
    for result, reference in zip(
        function(array), pytensor.function([x], [out, other], mode=PLAIN)(array), strict=True
    ):
        assert_close(result, reference)


# -- what else is in a graph -----------------------------------------------------------------


def test_statistics_with_other_uses():
    x, top = images(2)
    gamma, beta, averages = tensor(1), tensor(1), [tensor(1), tensor(1)]
    mean, var = moments(x, keepdims=False)
    out = (x - spread(mean)) / pt.sqrt(spread(var) + 1e-4) * spread(gamma) + spread(beta)
    grad = pytensor.grad(None, x, known_grads={out: top})
    new = [0.9 * old + 0.1 * now for old, now in zip(averages, (mean, var), strict=True)]
    inputs = [x, gamma, beta, top, *averages]
    function = check(inputs, [out, grad, *new], {TRAIN: 1, GRAD: 1}, bound=2e-5)
    assert not any(type(n.op).__name__ == "Sum" for n in function.maker.fgraph.apply_nodes)
    check(inputs, [out, new[0]], {TRAIN: 1})
    # Of one element the variance is 0, and nothing is divided by 0.
    one = [np.ones((1, 3, 1, 1), "float32"), *[np.ones(3, "float32")] * 2]
    values_of_one = [*one, one[0], *one[1:]]
    np.testing.assert_allclose(function(*values_of_one)[3], np.full(3, 0.9), rtol=1e-6)


def test_some_of_the_gradients():
    x, top = images(2)
    parameters = [tensor(1), tensor(1)]
    out = normalized_first(x, *parameters)
    for count, wrt in ((1, parameters[:1]), (1, [x]), (1, parameters), (0, parameters[1:])):
        grads = pytensor.grad(None, wrt, known_grads={out: top})
        expected = {TRAIN: 1} | ({GRAD: 1} if count else {})
        check([x, *parameters, top], [out, *grads], expected, bound=1e-4)


def test_gradients_taken_apart_and_for_two_losses():
    x, top = images(2)
    parameters = [tensor(1), tensor(1)]
    out = normalized_first(x, *parameters)
    losses = [(out * top).sum(), (out**3).sum()]
    grads = [pytensor.grad(loss, v) for loss in losses for v in (x, *parameters)]
    check([x, *parameters, top], grads, {TRAIN: 1, GRAD: 2}, bound=1e-4)


def test_a_residual_around_it():
    """The gradient with respect to `x` has other terms before, between and after."""
    x, top = images(2)
    gamma, beta = tensor(1), tensor(1)
    for out in (
        multiplied_first(x, gamma, beta) + x,
        pt.tanh(x) + multiplied_first(x, gamma, beta) * pt.exp(x),
    ):
        grads = pytensor.grad((out * top).sum(), [x, gamma, beta])
        check([x, gamma, beta, top], [out, *grads], {TRAIN: 1, GRAD: 1}, bound=1e-4)


def test_a_chain():
    x, top = images(2)
    gamma, beta = tensor(1), tensor(1)
    y = x
    for i, written in enumerate((multiplied_first, folded, normalized_first)):
        y = pt.maximum(written(y, gamma + i, beta), 0) + 0.1 * y
        y = y * top if i == 0 else y
    grads = pytensor.grad((y * top).sum(), [x, gamma, beta])
    check([x, gamma, beta, top], [y, *grads], {TRAIN: 3, GRAD: 3}, bound=2e-4)


def test_one_input_normalized_twice():
    x, top = images(2)
    gamma, beta = tensor(1), tensor(1)
    mean, var = moments(x)
    normalized = (x - mean) / pt.sqrt(var + 1e-4)
    out = normalized * spread(gamma) * pt.tanh(normalized + spread(beta))
    grads = pytensor.grad((out * top).sum(), [x, gamma, beta])
    check([x, gamma, beta, top], [out, *grads], {TRAIN: 1, GRAD: 1}, bound=1e-4)


def test_parameters_that_depend_on_the_input():
    x, top = images(2)
    gamma, beta = tensor(1), tensor(1)
    pooled = x.mean(axis=SPATIAL)
    out = multiplied_first(x, gamma * pt.tanh(pooled), beta)
    grads = pytensor.grad((out * top).sum(), [x, gamma, beta])
    check([x, gamma, beta, top], [out, *grads], {TRAIN: 1, GRAD: 1}, bound=1e-4)


def test_a_scale_that_is_the_mean_itself():
    """With this term, the Op would need its own result."""
    x = tensor(4)
    mean, var = moments(x)
    function = check([x], (x - mean) / pt.sqrt(var + 1e-4) * mean + var, {TRAIN: 1})
    (node,) = [n for n in function.maker.fgraph.apply_nodes if type(n.op).__name__ == TRAIN]
    assert not isinstance(node.inputs[1], pytensor.graph.Constant)
    assert not {*node.outputs} & {*pytensor.graph.ancestors(node.inputs)}


def test_an_output_that_is_its_own_gradient():
    x = tensor(4)
    gamma, beta = tensor(1), tensor(1)
    out = multiplied_first(x, gamma, beta)
    grads = pytensor.grad(None, [gamma, beta], known_grads={out: out})
    check([x, gamma, beta], grads, {TRAIN: 1, GRAD: 1}, bound=1e-4)


# -- with given statistics -------------------------------------------------------------------


@pytest.mark.parametrize("written", INFERENCE_FORMS)
def test_inference(written):
    x, *parameters = [tensor(4), *(tensor(1) for _ in range(4))]
    out = written(x, *parameters)
    function = check([x, *parameters], pt.maximum(out, 0), {INFERENCE: 1})
    (node,) = [n for n in function.maker.fgraph.apply_nodes if type(n.op).__name__ == INFERENCE]
    assert node.op.axes == SPATIAL


def test_inference_whose_parts_a_gradient_needs():
    x, *parameters = [tensor(4), *(tensor(1) for _ in range(4))]
    out = divided(x, *parameters)
    # Here the normalized values are a part of both.
    grad = pytensor.grad(pt.sqr(out).sum(), parameters[0])
    check([x, *parameters], [out, grad], {INFERENCE: 1}, bound=1e-4)
    out = factor_of_vectors(x, *parameters)
    grad = pytensor.grad(pt.sqr(out).sum(), parameters[0])
    check([x, *parameters], [out, grad], {}, bound=1e-4)
    check([x, *parameters], [out, pytensor.grad(pt.sqr(out).sum(), x)], {INFERENCE: 1}, 1e-4)


def test_excluded():
    x, gamma, beta = tensor(4), tensor(1), tensor(1)
    out = multiplied_first(x, gamma, beta)
    assert not ops(pytensor.function([x, gamma, beta], out, mode=PLAIN))


def test_what_computes_the_data_is_not_simplified_for_its_lengths(monkeypatch):
    """In a deep network, that would take longer than the rest of the compilation."""
    asked = []
    infer = Softmax.infer_shape
    monkeypatch.setattr(
        Softmax, "infer_shape", lambda *args: asked.append(args) or infer(*args), raising=True
    )
    x = pt.special.softmax(tensor(2).type("x"), axis=1)
    mean, var = moments(x, 1)
    out = (x - mean) / pt.sqrt(var + 1e-3)
    graph = FunctionGraph(outputs=[out], clone=False)
    RecognizeBatchNorm().apply(graph)
    assert any(isinstance(node.op, BatchNormTrain) for node in graph.apply_nodes)
    assert any(isinstance(node.op, Alloc) for node in graph.apply_nodes)
    assert not asked
