"""Cross-entropies with the true class of each row, and columns put in front, as in Theano."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from dnnops import nnet
from dnnops.errors import DnnError, DnnTypeError, DnnValueError
from tests.oracle import PERFORM_MODE, assert_close

RNG = np.random.default_rng(3)
SCORES, BIAS = RNG.normal(size=(5, 4)), RNG.normal(size=4)
LABELS = np.array([3, 0, 1, 1, 2], "int32")
ROWS = np.arange(5)


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("bias", [False, True])
def test_results(bias):
    x, b, y = pt.dmatrix(), pt.dvector(), pt.ivector()
    given = [x, b, y] if bias else [x, y]
    name = "_with_bias" if bias else ""
    nll, sm, max_pr, argmax = getattr(nnet, f"crossentropy_softmax_max_and_argmax_1hot{name}")(
        *given
    )
    pair = getattr(nnet, f"crossentropy_softmax_1hot{name}")(*given)
    assert len(pair) == 2
    grad = pytensor.grad(nll.sum(), x)
    values = [SCORES, BIAS, LABELS] if bias else [SCORES, LABELS]
    f = pytensor.function(given, [nll, sm, max_pr, argmax, *pair, grad], mode=PERFORM_MODE)
    found = f(*values)
    wanted = softmax(SCORES + BIAS * bias)
    cost = -np.log(wanted[ROWS, LABELS])
    onehot = np.eye(4)[LABELS]
    for have, want in zip(
        found,
        [cost, wanted, wanted.max(1), wanted.argmax(1), cost, wanted, wanted - onehot],
        strict=True,
    ):
        assert_close(have, want, bound=1e-12)


def test_the_class_of_the_highest_score_has_the_labels_dtype():
    results = nnet.crossentropy_softmax_argmax_1hot_with_bias(pt.fmatrix(), pt.fvector(), LABELS)
    assert [z.type.dtype for z in results] == ["float32", "float32", "int32"]
    assert [z.type.ndim for z in results] == [1, 2, 1]


@pytest.mark.parametrize("dtype", ["int8", "uint8", "uint64"])
def test_labels_of_all_dtypes(dtype):
    x, y = pt.dmatrix(), pt.vector(dtype=dtype)
    nll, _, am = nnet.crossentropy_softmax_argmax_1hot_with_bias(x, BIAS, y)
    assert am.type.dtype == dtype
    found = pytensor.function([x, y], nll, mode=PERFORM_MODE)(SCORES, LABELS.astype(dtype))
    assert_close(found, -np.log(softmax(SCORES + BIAS)[ROWS, LABELS]), bound=1e-12)


def test_large_scores_are_exact():
    x = pt.dmatrix()
    nll, _ = nnet.crossentropy_softmax_1hot(x, [1])
    f = pytensor.function([x], [nll, pytensor.grad(nll.sum(), x)], mode=PERFORM_MODE)
    cost, grad = f([[1000.0, 0.0]])
    assert (cost, grad.tolist()) == ([1000.0], [[1.0, -1.0]])


@pytest.mark.parametrize("dy", [np.float64(2), np.array([3.0]), np.arange(5.0)])
def test_gradient_with_respect_to_scores(dy):
    sm = softmax(SCORES)
    found = nnet.crossentropy_softmax_1hot_with_bias_dx(dy, sm, LABELS).eval(mode=PERFORM_MODE)
    wanted = np.broadcast_to(dy, 5)[:, None] * (sm - np.eye(4)[LABELS])
    assert_close(found, wanted, bound=1e-12)


def test_gradient_of_the_cross_entropy_of_probabilities():
    p, y, g = pt.dmatrix(), pt.ivector(), pt.dvector()
    made = nnet.crossentropy_categorical_1hot_grad(g, p, y)
    taken = pytensor.grad(None, p, known_grads={nnet.crossentropy_categorical_1hot(p, y): g})
    f = pytensor.function([g, p, y], [made, taken], mode=PERFORM_MODE)
    own, derived = f(ROWS + 1.0, softmax(SCORES), LABELS)
    assert_close(own, derived, bound=1e-12)
    assert np.count_nonzero(own) == 5


def test_prepended_columns():
    m, v = pt.fmatrix(), pt.dscalar()
    made = [
        nnet.prepend_scalar_to_each_row(v, m),
        nnet.prepend_0_to_each_row(m),
        nnet.prepend_1_to_each_row(m),
        pytensor.grad((nnet.prepend_scalar_to_each_row(v, m) ** 2).sum(), v),
    ]
    matrix = np.arange(6, dtype="float32").reshape(2, 3)
    *found, gradient = pytensor.function([m, v], made, mode=PERFORM_MODE)(matrix, 4.5)
    assert gradient == 2 * 2 * 4.5
    for have, value in zip(found, (4.5, 0, 1), strict=True):
        assert have.dtype == "float32"
        np.testing.assert_array_equal(have, np.insert(matrix, 0, value, axis=1))


def test_softmax_graph():
    found = nnet.softmax_graph(SCORES).eval(mode=PERFORM_MODE)
    assert_close(found, softmax(SCORES), bound=1e-12)


@pytest.mark.parametrize("batched", [False, True])
def test_sparse_block_dot(batched):
    batch, inputs, outputs = 2, 3, 2
    weights, bias = RNG.normal(size=(5, 4, 6, 7)), RNG.normal(size=(4, 7))
    h = RNG.normal(size=(batch, inputs, 6))
    of_input = RNG.integers(0, 5, (batch, inputs))
    of_output = RNG.integers(0, 4, (batch, outputs))
    wanted = np.stack(
        [
            [
                bias[j] + sum(h[n, i] @ weights[of_input[n, i], j] for i in range(inputs))
                for j in of_output[n]
            ]
            for n in range(batch)
        ]
    )
    given = (h, of_input, of_output)
    if not batched:
        given, wanted = tuple(x[0] for x in given), wanted[:1]
    x, i, o = given
    made = nnet.sparse_block_dot(weights, pt.as_tensor(x), i, bias, o)
    assert_close(made.eval(mode=PERFORM_MODE), wanted, bound=1e-12)


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: nnet.crossentropy_softmax_1hot(BIAS, LABELS), DnnTypeError, "x must have 2"),
        (
            lambda: nnet.crossentropy_softmax_1hot(SCORES, SCORES),
            DnnTypeError,
            "y_idx must be an integer vector",
        ),
        (
            lambda: nnet.crossentropy_softmax_1hot_with_bias(SCORES, np.ones(3), LABELS),
            DnnValueError,
            "must broadcast",
        ),
        (
            lambda: nnet.crossentropy_softmax_1hot(SCORES, LABELS[:2]),
            DnnValueError,
            r"rows of x \(5\), y_idx \(2\)",
        ),
        (
            lambda: nnet.crossentropy_softmax_1hot_with_bias_dx(SCORES, SCORES, LABELS),
            DnnTypeError,
            "dy must be a scalar or a vector",
        ),
        (lambda: nnet.prepend_0_to_each_row(BIAS), DnnTypeError, "mat must be a matrix"),
        (
            lambda: nnet.prepend_scalar_to_each_row(BIAS, SCORES),
            DnnTypeError,
            "val must be a scalar",
        ),
        (
            lambda: nnet.sparse_block_dot(np.ones((1, 1, 1, 1)), BIAS, [0], SCORES, [0]),
            DnnTypeError,
            "h must have 2 or 3 dimensions",
        ),
        (
            lambda: nnet.sparse_block_dot(np.ones((1, 1, 1, 1)), SCORES, [[0]], SCORES, [0]),
            DnnTypeError,
            r"inputIdx must be a 1-dimensional integer tensor \(one axis fewer than h\), got ",
        ),
    ],
)
def test_bad_arguments(make, error, words):
    with pytest.raises(error, match=words):
        make()


def test_labels_out_of_bounds():
    x, y = pt.dmatrix(), pt.ivector()
    f = pytensor.function([x, y], nnet.crossentropy_softmax_1hot(x, y)[0], mode=PERFORM_MODE)
    with pytest.raises(DnnError, match="label"):
        f(SCORES, LABELS + 2)
    with pytest.raises(DnnValueError, match="y_idx must not be negative"):
        f(SCORES, LABELS - 1)
    dx = nnet.crossentropy_softmax_1hot_with_bias_dx(1.0, x, y)
    with pytest.raises(DnnValueError, match="y_idx must not be negative"):
        pytensor.function([x, y], dx, mode=PERFORM_MODE)(SCORES, LABELS - 1)
