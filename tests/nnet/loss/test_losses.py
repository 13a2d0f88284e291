"""Losses by Theano's names, softmax among them: against NumPy, gradients, and what they become."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from scipy import special

from dnnops import nnet
from dnnops.errors import DnnTypeError, DnnValueError
from tests.oracle import assert_close, check_gradient, evaluate

RNG = np.random.default_rng(11)
SOFTMAXES = {
    "softmax": special.softmax,
    "log_softmax": special.log_softmax,
    "logsoftmax": special.log_softmax,
}


def ops_of(fn) -> set[str]:
    return {type(node.op).__name__ for node in fn.maker.fgraph.apply_nodes}


@pytest.mark.parametrize("name", SOFTMAXES)
def test_softmax_against_scipy(name):
    function, reference = getattr(nnet, name), SOFTMAXES[name]
    matrix, vector, cube = (3 * RNG.standard_normal(s) for s in ((4, 5), 6, (2, 3, 4)))
    m, v, c = pt.dmatrix(), pt.dvector(), pt.dtensor3()
    axes = (0, 2, -1, (1, 2))
    outs = [function(m), function(v), function(v, axis=0), *(function(c, axis=a) for a in axes)]
    found = evaluate(outs, {m: matrix, v: vector, c: cube})
    expected = [reference(matrix, axis=1), reference(vector[None], axis=1), reference(vector)]
    expected += [reference(cube, axis=a) for a in axes]
    for out, value in zip(found, expected, strict=True):
        assert out.shape == value.shape
        assert_close(out, value)


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax_gradients_and_errors(name):
    function = getattr(nnet, name)
    check_gradient(lambda x: function(x), [RNG.standard_normal((3, 5))])
    check_gradient(lambda x: function(x), [RNG.standard_normal(5)])
    with pytest.raises(DnnValueError, match=f"{name}: axis must be given for an x of 3"):
        function(pt.ftensor3())
    with pytest.raises(DnnValueError, match=f"{name}: axis 2 does not fit 2 dimensions"):
        function(pt.fmatrix(), axis=2)
    with pytest.raises(DnnTypeError, match=f"{name}: axis must be None, an int or a tuple"):
        function(pt.fmatrix(), axis="rows")
    with pytest.raises(DnnTypeError, match=f"{name}: x has dtype int64"):
        function(pt.lmatrix())


def test_softmax_reaches_onednn():
    x, b = pt.fmatrix(), pt.fvector()
    out = [nnet.softmax_with_bias(x, b), nnet.log_softmax(x, axis=0)]
    fn = pytensor.function([x, b], out, mode="ONEDNN")
    assert (
        sum(type(node.op).__name__ == "OneDnnSoftmax" for node in fn.maker.fgraph.apply_nodes) == 2
    )
    value, bias = (RNG.standard_normal(s).astype("float32") for s in ((4, 6), 6))
    found = fn(value, bias)
    assert_close(found[0], special.softmax((value + bias).astype("float64"), axis=1))
    assert_close(found[1], special.log_softmax(value.astype("float64"), axis=0))


def test_binary_crossentropy_against_numpy():
    output, target = RNG.uniform(0.1, 0.9, (4, 5)), RNG.uniform(0, 1, (4, 5))
    o, t = pt.dmatrix(), pt.dmatrix()
    (found,) = evaluate([nnet.binary_crossentropy(o, t)], {o: output, t: target})
    assert_close(found, -(target * np.log(output) + (1 - target) * np.log1p(-output)))
    check_gradient(nnet.binary_crossentropy, [output, target])


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("spelt_out", [False, True])
def test_binary_crossentropy_of_scores(dtype, spelt_out):
    scores = np.array([-700, -50, -2.5, -1e-3, 0, 1e-3, 2.5, 50, 700], dtype)
    scores, target = np.meshgrid(scores, np.array([0, 0.3, 1], dtype))
    x, t = pt.matrix(dtype=dtype), pt.matrix(dtype=dtype)
    if spelt_out:
        out = nnet.binary_crossentropy(nnet.sigmoid(x), t)
    else:
        out = nnet.sigmoid_binary_crossentropy(x, t)
    found, slope = evaluate([out, pytensor.grad(out.sum(), x)], {x: scores, t: target})
    wide, truth = scores.astype("float64"), target.astype("float64")
    expected = truth * np.logaddexp(0, -wide) + (1 - truth) * np.logaddexp(0, wide)
    rtol = 1e-12 if dtype == "float64" else 2e-6
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=0 if dtype == "float64" else 1e-38)
    expected_slope = (1 - truth) * special.expit(wide) - truth * special.expit(-wide)
    np.testing.assert_allclose(slope, expected_slope, rtol=rtol, atol=1e-38)


def test_sigmoid_binary_crossentropy_gradients():
    points = [RNG.standard_normal((3, 4)), RNG.uniform(0, 1, (3, 4))]
    check_gradient(nnet.sigmoid_binary_crossentropy, points)


def test_categorical_crossentropy_against_numpy():
    coding, true = RNG.dirichlet(np.full(5, 40), (2, 3)), RNG.dirichlet(np.ones(5), (2, 3))
    labels = RNG.integers(0, 5, 3)
    c, t = pt.dtensor3(), pt.dtensor3()
    m, lab = pt.dmatrix(), pt.lvector()
    outs = [
        nnet.categorical_crossentropy(c, t),
        nnet.categorical_crossentropy(m, lab),
        nnet.crossentropy_categorical_1hot(m, lab),
    ]
    found = evaluate(outs, {c: coding, t: true, m: coding[0], lab: labels})
    assert_close(found[0], -(true * np.log(coding)).sum(axis=2))
    for out in found[1:]:
        assert_close(out, np.array([-np.log(coding[0, i, k]) for i, k in enumerate(labels)]))
    check_gradient(nnet.categorical_crossentropy, [coding, true])
    check_gradient(lambda x: nnet.categorical_crossentropy(x, pt.constant(labels)), [coding[0]])
    with pytest.raises(DnnTypeError, match="as many dimensions as coding_dist, or be a vector"):
        nnet.categorical_crossentropy(c, lab)
    with pytest.raises(DnnTypeError, match="true_dist must be an integer vector"):
        nnet.categorical_crossentropy(m, pt.dvector())


def test_categorical_crossentropy_of_a_softmax_becomes_one_op():
    x, labels = pt.fmatrix(), pt.lvector()
    cost = nnet.categorical_crossentropy(nnet.softmax(x), labels).mean()
    fn = pytensor.function([x, labels], [cost, pytensor.grad(cost, x)], mode="ONEDNN")
    assert {"OneDnnCrossEntropy", "OneDnnCrossEntropyGrad"} <= ops_of(fn)
    value, _ = fn(np.array([[1000, 0]], "float32"), [1])
    assert value == 1000


def test_categorical_crossentropy_with_distributions_does_not_overflow():
    x, true = pt.fmatrix(), pt.fmatrix()
    cost = nnet.categorical_crossentropy(nnet.softmax(x), true).sum()
    fn = pytensor.function([x, true], [cost, pytensor.grad(cost, x)], mode="ONEDNN")
    cost, grad = fn(np.array([[1000, 0]], "float32"), np.array([[0.25, 0.75]], "float32"))
    assert cost == 750
    np.testing.assert_allclose(grad, [[0.75, -0.75]])


def test_confusion_matrix():
    actual, pred = RNG.integers(-2, 4, 40), RNG.integers(0, 6, 40)
    a, p = pt.lvector(), pt.lvector()
    counts, order = evaluate(nnet.confusion_matrix(a, p), {a: actual, p: pred})
    np.testing.assert_array_equal(order, np.unique([actual, pred]))
    expected = np.zeros((len(order), len(order)), "int64")
    for i, j in zip(actual, pred, strict=True):
        expected[list(order).index(i), list(order).index(j)] += 1
    np.testing.assert_array_equal(counts, expected)
    with pytest.raises(DnnValueError, match="confusion_matrix: pred must be a vector, got 2"):
        nnet.confusion_matrix(a, pt.lmatrix())
