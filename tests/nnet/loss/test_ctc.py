"""The CTC loss: against all paths and PyTorch, derivatives, results for bad input."""

from __future__ import annotations

import pickle

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.gradient import (
    DisconnectedInputError,
    DisconnectedType,
    NullTypeGradError,
    disconnected_type,
)
from pytensor.graph.replace import vectorize_graph
from pytensor.tensor.blockwise import Blockwise

from dnnops.compat import inferred_shapes
from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.nnet import CTC, ctc
from tests.nnet.loss.ctc_cases import Case, cases, cost_of_paths, torch_loss
from tests.oracle import PERFORM_MODE, assert_close, check_gradient, evaluate, fuzz

BATCH = Case(steps=7, batch=3, classes=4, columns=3, seed=1)


def run(op, *arrays):
    """Run an Op's `perform`, and check the results' static shapes and dtypes."""
    node = op.make_node(*arrays)
    storage: list[list] = [[None] for _ in node.outputs]
    op.perform(node, [np.asarray(a) for a in arrays], storage)
    for (out,), variable in zip(storage, node.outputs, strict=True):
        assert (out.shape, out.dtype.name) == (variable.type.shape, variable.type.dtype)
    return [out for (out,) in storage]


def labels_of(labels, label_lengths):
    return [row[:n].tolist() for row, n in zip(labels, label_lengths, strict=True)]


# -- values ------------------------------------------------------------------------------


@fuzz(60, case=cases(max_steps=5, max_classes=3, max_columns=4))
def test_against_all_paths(case):
    activations, labels, lengths, label_lengths = case.arrays()
    costs, gradients = run(CTC(), activations, labels, lengths)
    for n, label in enumerate(labels_of(labels, label_lengths)):
        cost, gradient = cost_of_paths(activations[: lengths[n], n], label)
        np.testing.assert_allclose(costs[n], cost, atol=1e-12)
        np.testing.assert_allclose(gradients[: lengths[n], n], gradient, atol=1e-12)
        assert not gradients[lengths[n] :, n].any()


@pytest.mark.needs("torch")
@fuzz(100, case=cases(max_steps=30, max_classes=12, max_columns=10, scales=(0.1, 1.0, 30.0)))
def test_against_torch(case):
    import torch

    arrays = case.arrays()
    costs, gradients = run(CTC(with_label_lengths=True), *arrays)
    their_costs, their_gradients = torch_loss(torch, *arrays)
    np.testing.assert_allclose(costs, their_costs, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(gradients, their_gradients, rtol=1e-9, atol=1e-10)


@fuzz(30, case=cases())
def test_paddings_and_lengths_say_the_same(case):
    activations, labels, lengths, label_lengths = case.arrays()
    expected = run(CTC(), activations, labels, lengths)
    rng = np.random.default_rng(case.seed)
    anywhere = np.full((case.batch, case.columns + 2), -7, "int64")
    for row, label in zip(anywhere, labels_of(labels, label_lengths), strict=True):
        row[np.sort(rng.permutation(case.columns + 2)[: len(label)])] = label
    garbage = np.where(labels < 0, 1000, labels)
    explicit = run(CTC(True, True), activations, garbage, lengths, label_lengths)
    for results in (run(CTC(), activations, anywhere, lengths), explicit):
        for result, reference in zip(results, expected, strict=True):
            np.testing.assert_array_equal(result, reference)
    (costs,) = run(CTC(False), activations, labels, lengths)
    np.testing.assert_array_equal(costs, expected[0])


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_other_dtypes(dtype):
    activations, labels, lengths, _ = BATCH.arrays(dtype, "int64")
    costs, gradients = run(CTC(), activations, labels, lengths)
    assert (costs.dtype, gradients.dtype) == ("float32", dtype)
    expected = run(CTC(), activations.astype("float64"), labels, lengths)
    assert_close(costs, expected[0], "float32")
    assert_close(gradients, expected[1])


@pytest.mark.parametrize("integer", ["int8", "int16", "uint8", "uint16", "uint32"])
def test_small_integers_become_int32(integer):
    activations, labels, lengths, label_lengths = BATCH.arrays()
    labels, lengths, label_lengths = (
        np.maximum(x, 0).astype(integer) for x in (labels, lengths, label_lengths)
    )
    costs = evaluate(ctc(activations, labels, lengths, label_lengths), {})
    assert_close(costs, run(CTC(False, True), *BATCH.arrays())[0])


def test_padding_has_no_influence():
    activations, labels, lengths, _ = BATCH.arrays()
    lengths[:] = [6, 7, 5]
    expected = run(CTC(), activations, labels, lengths)
    for n, length in enumerate(lengths):
        activations[length:, n] = np.nan
    for result, reference in zip(run(CTC(), activations, labels, lengths), expected, strict=True):
        np.testing.assert_array_equal(result, reference)


def test_infinite_activations():
    activations, labels, lengths, _ = Case(5, 4, 3, 0, 2).arrays()
    labels, lengths[:] = np.array([[1, 2]] * 4), 5
    activations[1, 0, 1] = -np.inf  # other steps have the symbol, too
    activations[:, 1, 2] = -np.inf
    activations[2, 2, 0] = np.nan
    activations[2, 3, 0] = np.inf
    costs, gradients = run(CTC(), activations, labels, lengths)
    np.testing.assert_array_equal(np.isfinite(costs), [True, False, False, False])
    assert costs[1] == np.inf
    assert np.isnan(costs[2:]).all()
    assert np.isfinite(gradients[:, 0]).all()
    assert gradients[1, 0, 1] == 0
    assert np.isnan(gradients[:, 1:]).all()


def test_no_steps_and_no_sequences():
    empty = np.zeros((0, 2, 3)), np.zeros((2, 0), "int32"), np.zeros(2, "int32")
    costs, gradients = run(CTC(), *empty)
    np.testing.assert_array_equal(costs, [0, 0])
    assert gradients.shape == (0, 2, 3)
    none = np.zeros((4, 0, 3)), np.zeros((0, 2), "int32"), np.zeros(0, "int32")
    assert [result.shape for result in run(CTC(), *none)] == [(0,), (4, 0, 3)]


# -- derivatives -------------------------------------------------------------------------


@fuzz(15, case=cases(max_steps=6, max_columns=3))
def test_derivatives(case):
    activations, *integers = case.arrays()
    if case.classes == 1:
        return  # of which the cost is constant
    check_gradient(
        lambda x: ctc(x, *integers), [activations], eps=1e-5, bound=1e-6, allow_zero=True
    )


def test_derivative_of_costs_with_weights():
    activations, *integers = BATCH.arrays("float32")
    x, weights = pt.tensor3("x", dtype="float32"), pt.vector("weights", dtype="float32")
    loss = (ctc(x, *integers) * weights).sum()
    values = {x: activations, weights: np.array([2, 0, -1], "float32")}
    result, by_weight = evaluate(pytensor.grad(loss, [x, weights]), values)
    assert result.dtype == "float32"
    costs, gradients = run(CTC(True, True), activations, *integers)
    np.testing.assert_array_equal(result, gradients * values[weights][:, None])
    np.testing.assert_array_equal(by_weight, costs)


def test_float16_gradient_has_the_dtype_of_activations():
    activations, labels, lengths, _ = BATCH.arrays("float16")
    x = pt.tensor3("x", dtype="float16")
    gradient = pytensor.grad(ctc(x, labels, lengths).sum(), x)
    assert evaluate(gradient, {x: activations}).dtype == "float16"


def test_gradient_of_an_op_without_gradients():
    activations, labels, lengths, _ = BATCH.arrays()
    x = pt.tensor3("x", dtype="float64")
    costs = CTC(False).make_node(x, labels, lengths).outputs[0]
    result = evaluate(pytensor.grad(costs.sum(), x), {x: activations})
    np.testing.assert_array_equal(result, run(CTC(), activations, labels, lengths)[1])


def test_connection_pattern():
    activations, labels, lengths, label_lengths = (pt.constant(a).type() for a in BATCH.arrays())
    op = CTC(with_label_lengths=True)
    node = op.make_node(activations, labels, lengths, label_lengths)
    assert op.connection_pattern(node) == [[True, True]] + [[False, False]] * 3
    with pytest.raises(DisconnectedInputError):
        pytensor.grad(node.outputs[0].sum(), lengths)
    nothing = [disconnected_type(), disconnected_type()]
    for found in (
        op.pullback(node.inputs, node.outputs, nothing),
        op.pushforward(node.inputs, node.outputs, [*nothing, *nothing]),
    ):
        assert all(isinstance(v.type, DisconnectedType) for v in found)


def test_there_is_no_second_derivative():
    _, labels, lengths, _ = BATCH.arrays()
    x = pt.tensor3("x", dtype="float64")
    gradient = pytensor.grad(ctc(x, labels, lengths).sum(), x)
    with pytest.raises(NullTypeGradError, match="CTC has no second derivatives"):
        pytensor.grad((gradient**2).sum(), x)


# -- graphs ------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["FAST_COMPILE", "CVM"])
def test_gradients_are_computed_only_if_needed(mode):
    mode = pytensor.compile.get_mode(mode).excluding("onednn")
    activations, *integers = BATCH.arrays()
    x = pt.tensor3("x", dtype="float64")
    costs = ctc(x, *integers)
    gradient = pytensor.grad(costs.sum(), x)
    for outputs, expected in [
        (costs, [CTC(False, True)]),
        (gradient.shape, []),
        ([costs, gradient], [CTC(True, True)]),
    ]:
        fn = pytensor.function([x], outputs, mode=mode)
        assert [n.op for n in fn.maker.fgraph.toposort() if isinstance(n.op, CTC)] == expected
        fn(activations)


def test_shapes():
    activations, *integers = BATCH.arrays()
    op = CTC(with_label_lengths=True)
    node = op.make_node(*(pt.constant(a).type() for a in (activations, *integers)))
    costs, gradients = inferred_shapes(op, node, [x.shape for x in (activations, *integers)])
    assert (costs, gradients) == ((3,), (7, 3, 4))
    # If one operand does not tell the batch size, another one does.
    x = pt.tensor(dtype="float32", shape=(None, None, 4))
    assert ctc(x, pt.imatrix(), np.array([2, 3, 4])).type.shape == (3,)
    assert CTC().make_node(x, pt.imatrix(), pt.ivector()).outputs[1].type.shape == (None, None, 4)


def test_equal_ops_and_pickling():
    assert CTC() == CTC(True, False) != CTC(False)
    assert pickle.loads(pickle.dumps(CTC(False, True))) == CTC(False, True)


@pytest.mark.parametrize("lead", [[(2,), (2,), (2,)], [(2, 1), (3,), ()], [(), (2, 3), (2, 1)]])
@pytest.mark.parametrize("static", [True, False])
def test_vectorize_graph(lead, static):
    rng = np.random.default_rng(3)
    arrays = [
        rng.standard_normal((*lead[0], 8, 4, 5)),
        rng.integers(-1, 5, (*lead[1], 4, 3)).astype("int32"),
        rng.integers(6, 9, (*lead[2], 4)).astype("int32"),
    ]
    arrays[1][arrays[1] == 0] = -1
    inner = [
        pt.tensor(dtype=a.dtype, shape=(None,) * n) for a, n in zip(arrays, (3, 2, 1), strict=True)
    ]
    # Only what is known to be 1 is broadcast.
    outer = [
        pt.tensor(
            dtype=a.dtype, shape=a.shape if static else [n if n == 1 else None for n in a.shape]
        )
        for a in arrays
    ]
    outputs = list(CTC().make_node(*inner).outputs)
    vectorized = vectorize_graph(outputs, dict(zip(inner, outer, strict=True)))
    fn = pytensor.function(outer, vectorized, mode="FAST_COMPILE")
    ops = [node.op for node in fn.maker.fgraph.apply_nodes]
    assert CTC() in ops
    assert not any(isinstance(op, Blockwise) for op in ops)
    batch = np.broadcast_shapes(*lead)
    spread = [
        np.broadcast_to(a, (*batch, *a.shape[-n:])) for a, n in zip(arrays, (3, 2, 1), strict=True)
    ]
    expected = [run(CTC(), *(a[i] for a in spread)) for i in np.ndindex(batch)]
    for k, result in enumerate(fn(*arrays)):
        loops = np.array([e[k] for e in expected])
        np.testing.assert_allclose(result, loops.reshape(*batch, *loops.shape[1:]), atol=1e-12)


def test_vectorize_graph_refuses_other_sizes():
    # 2 times 3 sequences against 3 times 2: as many, but not the same.
    inner = [pt.dtensor3(), pt.imatrix(), pt.ivector()]
    outer = [pt.dtensor4(), pt.itensor3(), pt.imatrix()]
    vectorized = vectorize_graph(ctc(*inner), dict(zip(inner, outer, strict=True)))
    fn = pytensor.function(outer, vectorized, mode="FAST_COMPILE")
    with pytest.raises(ValueError, match=r"reshape|size"):
        fn(np.zeros((2, 4, 3, 5)), np.ones((3, 2, 1), "int32"), np.full((3, 2), 4, "int32"))


# -- what cannot be computed -------------------------------------------------------------

X = np.zeros((4, 2, 3))
LABELS = np.array([[1, 2], [1, -1]])
FOUR = np.array([4, 4])

#: Invalid values, by a part of the message; also used for the backends' Ops.
BAD_VALUES = {
    "too large a symbol": (
        (X, [[1, 2], [1, 3]], FOUR),
        r"labels\[1, 1\] is 3, outside the alphabet: activations have 3 classes",
    ),
    "blank in a label": ((X, [[1, 0], [1, 1]], FOUR), r"labels\[0, 1\] is 0, outside the alphabet"),
    "negative in a label": (
        (X, [[1, 2], [-1, 1]], FOUR, [2, 2]),
        r"labels\[1, 0\] is -1, outside the alphabet",
    ),
    "length too large": (
        (X, LABELS, [4, 5]),
        r"input_lengths\[1\] is 5, expected 0 to 4, the steps that activations have",
    ),
    "negative length": ((X, LABELS, [-1, 4]), r"input_lengths\[0\] is -1, expected 0 to 4"),
    "label length too large": (
        (X, LABELS, FOUR, [2, 3]),
        r"label_lengths\[1\] is 3, expected 0 to 2, the columns that labels have",
    ),
    "negative label length": ((X, LABELS, FOUR, [2, -1]), r"label_lengths\[1\] is -1, expected 0"),
    "too short": (
        (X, LABELS, [1, 4]),
        r"batch entry 0: a label of 2 symbols, 0 of them repeated, takes 2 steps or more, and "
        r"input_lengths\[0\] is 1",
    ),
    "too short for a repeat": (
        (X, [[1, 2], [1, 1]], [2, 2]),
        r"batch entry 1: a label of 2 symbols, 1 of them repeated, takes 3 steps or more",
    ),
    "empty": ((X, LABELS, [0, 1]), r"batch entry 0: .* takes 2 steps or more"),
    "no classes": ((X[:, :, :0], LABELS, FOUR), "no classes, not even the blank"),
}


@pytest.mark.parametrize("name", BAD_VALUES)
def test_values_that_do_not_fit(name):
    arrays, message = BAD_VALUES[name]
    variables = [pt.tensor(dtype=np.asarray(a).dtype, shape=(None,) * np.ndim(a)) for a in arrays]
    fn = pytensor.function(variables, ctc(*variables), mode=PERFORM_MODE)
    with pytest.raises(DnnValueError, match=message):
        fn(*arrays)


def test_batches_that_differ():
    fn = pytensor.function(
        inputs := [pt.dtensor3(), pt.lmatrix(), pt.lvector()], ctc(*inputs), mode=PERFORM_MODE
    )
    message = r"an entry for each of the sequences .*activations \(4, 2, 3\), labels \(1, 2\)"
    with pytest.raises(DnnValueError, match=message):
        fn(X, LABELS[:1], FOUR)
    with pytest.raises(DnnValueError, match=message):
        ctc(X, LABELS[:1], FOUR)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.zeros((4, 3)), LABELS, FOUR), "activations must have 3 dimensions, got 2"),
        ((X.astype("int64"), LABELS, FOUR), "activations has dtype int64"),
        ((X, LABELS[0], FOUR), "labels must be an integer matrix with one of the dtypes int8"),
        ((X, LABELS.astype("float32"), FOUR), "labels must be an integer matrix"),
        ((X, LABELS.astype("uint64"), FOUR), "labels must be an integer matrix"),
        ((X, LABELS, 4), "input_lengths must be an integer vector"),
        ((X, LABELS, FOUR, FOUR > 0), "label_lengths must be an integer vector"),
        ((X, object(), FOUR), "labels must be an integer matrix, got <object"),
    ],
)
def test_types_that_do_not_fit(arguments, message):
    with pytest.raises(DnnTypeError, match=f"ctc: {message}"):
        ctc(*arguments)


def test_number_of_operands():
    with pytest.raises(DnnTypeError, match="expected the operands activations, labels, input_len"):
        CTC(with_label_lengths=True).make_node(X, LABELS, FOUR)
