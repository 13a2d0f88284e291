"""Cross-entropy: against its definition, derivatives, errors."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from hypothesis import strategies as st

from dnnops.errors import DnnIndexError, DnnTypeError, DnnValueError
from dnnops.nnet import CrossEntropy, CrossEntropyGrad, cross_entropy
from tests.oracle import PERFORM_MODE, check_gradient, check_second_derivatives, evaluate, fuzz


@st.composite
def cases(draw, least: int = 0):
    """Return a strategy for (every_row, x, labels), with a valid number of labels."""
    rows, classes = draw(st.integers(least, 5)), draw(st.integers(1, 6))
    every_row = draw(st.booleans())
    count = draw(st.sampled_from([rows, 1] if rows else [0])) if every_row else rows
    if not every_row:
        count = draw(st.integers(least, rows))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    x = 3 * rng.standard_normal((rows, classes))
    return every_row, x, rng.integers(-classes, classes, count)


def run(op, *arrays):
    node = op.make_node(*arrays)
    storage = [[None] for _ in node.outputs]
    op.perform(node, [np.asarray(a) for a in arrays], storage)
    for cell, z in zip(storage, node.outputs, strict=True):
        assert cell[0].dtype == z.type.dtype
        assert cell[0].shape == z.type.shape
    return [cell[0] for cell in storage]


@fuzz(80, case=cases(), dtype=st.sampled_from(["float64", "float32", "float16"]))
def test_against_the_definition(case, dtype):
    every_row, x, labels = case
    x = x.astype(dtype)
    rows = np.arange(len(x) if every_row else len(labels))
    wide = x.astype("float64")
    softmax = np.exp(wide) / np.exp(wide).sum(axis=1, keepdims=True)
    costs, statistics = run(CrossEntropy(every_row, every_row), x, labels)
    bound = {"float64": 1e-12, "float32": 1e-5, "float16": 4e-3}[dtype]
    expected = -np.log(softmax[rows, labels])
    np.testing.assert_allclose(costs, expected, rtol=bound, atol=bound)
    g = np.linspace(-1, 2, len(rows)).astype(dtype)
    (gradient,) = run(CrossEntropyGrad(every_row, every_row), g, x, labels, statistics)
    expected = np.zeros(x.shape)
    for i, label in enumerate(np.broadcast_to(labels, rows.shape)):
        expected[i] = g[i] * softmax[i]
        expected[i, label] -= g[i]
    np.testing.assert_allclose(gradient, expected, rtol=bound, atol=bound)


@fuzz(15, case=cases(least=1))
def test_derivatives(case):
    every_row, x, labels = case

    def costs(x):
        return CrossEntropy(every_row, every_row).make_node(x, pt.constant(labels)).outputs[0]

    check_gradient(costs, [x], allow_zero=True)
    check_second_derivatives(costs, [x], allow_zero=True)


def test_expressions_are_the_ops():
    rng = np.random.default_rng(0)
    x, labels, g = rng.standard_normal((5, 3)), np.array([0, -1, 2]), rng.standard_normal(3)
    for every_row, given in ((False, labels), (True, np.array([1, 2, 0, -3, 1]))):
        cotangent = g if not every_row else rng.standard_normal(5)
        forward, gradient = (
            CrossEntropy(every_row, every_row),
            CrossEntropyGrad(every_row, every_row),
        )
        costs, statistics = run(forward, x, given)
        found = evaluate(forward.expressions(pt.constant(x), pt.constant(given)), {})
        np.testing.assert_allclose(found[0], costs)
        np.testing.assert_allclose(found[1], statistics, atol=1e-12)
        operands = [cotangent, x, given, statistics]
        (found,) = evaluate(gradient.expressions(*map(pt.constant, operands)), {})
        np.testing.assert_allclose(found, run(gradient, *operands)[0], atol=1e-12)


def test_large_scores():
    x = np.array([[1e4, 0.0], [-1e4, -1e4 + 1]])
    costs, _ = run(CrossEntropy(), x, np.array([1, 0]))
    np.testing.assert_allclose(costs, [1e4, np.log1p(np.exp(1.0))])


def test_infinities_and_nan():
    x = np.array([[0, -np.inf], [np.inf, 0], [np.nan, 0], [-np.inf, -np.inf]])
    costs, _ = run(CrossEntropy(), x, np.array([0, 0, 1, 1]))
    np.testing.assert_array_equal(costs, [0, np.nan, np.nan, np.nan])


def test_shapes_are_inferred():
    x, labels = pt.dmatrix(), pt.lvector()
    costs = cross_entropy(x, labels)
    fn = pytensor.function([x, labels], costs.shape, mode="FAST_COMPILE", on_unused_input="ignore")
    assert list(fn(np.zeros((4, 2)), np.zeros(4, "int64"))) == [4]
    assert cross_entropy(pt.tensor(dtype="float64", shape=(7, None)), labels).type.shape == (7,)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint32", "int32"])
def test_labels_of_every_width(dtype):
    x = np.eye(3)
    fn = pytensor.function([], cross_entropy(x, np.array([0, 2, 1], dtype)), mode="FAST_COMPILE")
    expected = np.log(np.exp(x).sum(axis=1)) - x[[0, 1, 2], [0, 2, 1]]
    np.testing.assert_allclose(fn(), expected)


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: cross_entropy(np.zeros(3), [0]), DnnTypeError, "x must"),
        (lambda: cross_entropy(np.zeros((1, 3)), [0.5]), DnnTypeError, "labels must"),
        (lambda: cross_entropy(np.zeros((1, 3)), [[0]]), DnnTypeError, "integer vector"),
        (lambda: cross_entropy(np.zeros((3, 3)), [0, 1]), DnnIndexError, "2 labels for 3 rows"),
        (lambda: run(CrossEntropy(), np.zeros((2, 3)), np.array([0, 3])), IndexError, "label 3 of"),
        (lambda: run(CrossEntropy(), np.zeros((2, 3)), np.array([-4, 0])), IndexError, "label -4"),
        (
            lambda: CrossEntropyGrad()(np.zeros(2), np.zeros((3, 3)), [0, 1, 2], np.zeros((3, 2))),
            DnnValueError,
            "g must have 3 elements",
        ),
        (
            lambda: CrossEntropyGrad()(
                np.zeros(3), np.zeros((3, 3)), [0, 1, 2], np.zeros((3, 2), "float32")
            ),
            DnnTypeError,
            "statistics must be float64",
        ),
    ],
)
def test_errors(make, error, words):
    with pytest.raises(error, match=words):
        make()


def test_one_label_for_all_rows_is_refused():
    """It is allowed in indexing by ``arange``, also if that is recognized; not in the function."""
    x, labels = pt.dmatrix(), pt.lvector()
    fn = pytensor.function([x, labels], cross_entropy(x, labels), mode=PERFORM_MODE)
    with pytest.raises(IndexError, match="1 labels for 4 rows"):
        fn(np.ones((4, 3)), np.array([1]))
    with pytest.raises(IndexError, match="1 labels for 4 rows"):
        cross_entropy(np.ones((4, 3)), np.array([1]))
    assert fn(np.ones((1, 3)), np.array([1])).shape == (1,)
