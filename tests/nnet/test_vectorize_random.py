"""vectorize_graph over dropout: entries draw their own numbers, and gradients know which."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.graph.replace import vectorize_graph

from dnnops import nnet
from dnnops.nnet.regularization.dropout import Dropout
from tests.nnet.test_vectorize import PERFORM, numpy_loops
from tests.oracle import PERFORM_MODE, evaluate

R = np.random.default_rng(0)
P = 0.4
STATE = np.array([5, 7])


def run(op, *arrays):
    node = op.make_node(*arrays)
    storage = [[None] for _ in node.outputs]
    op.perform(node, [np.asarray(a) for a in arrays], storage)
    return [value for (value,) in storage]


def vectorized(outputs, replace):
    found = vectorize_graph(outputs, replace)
    assert not numpy_loops(found if isinstance(found, list) else [found])
    return found


def differ(masks):
    flat = [np.ravel(m) for m in masks]
    return all((flat[i] != flat[j]).any() for i in range(len(flat)) for j in range(i))


@pytest.mark.parametrize("lead", [(3,), (2, 3), (1,), (0,), (2, 0)])
@pytest.mark.parametrize("static", [True, False])
def test_dropout_of_entries(lead, static):
    """All entries draw from one state, as one array of all would; so do the next."""
    x, gy = pt.dmatrix(), pt.dmatrix()
    state = pt.lvector()
    y, after = nnet.dropout(x, P, state=state)
    outputs = [y, after, pytensor.grad((y * gy).sum(), x)]
    shape = (*lead, 4, 5)
    xs, gys = (
        pt.tensor(dtype="float64", shape=shape if static else (None,) * len(shape)) for _ in "ab"
    )
    values, cotangents = R.standard_normal(shape), R.standard_normal(shape)
    found = evaluate(
        vectorized(outputs, {x: xs, gy: gys}), {xs: values, gys: cotangents, state: STATE}
    )
    wanted, _, wanted_state = run(Dropout(), values, P, STATE)
    np.testing.assert_array_equal(found[0], wanted)
    np.testing.assert_array_equal(found[1], wanted_state)
    np.testing.assert_array_equal(found[2], np.where(wanted == 0, 0, cotangents / (1 - P)))
    if 0 not in lead:
        assert differ((wanted != 0).reshape(-1, 20))


def test_a_mask_that_entries_share():
    """Only the gradient has extra axes, as in a Jacobian."""
    x = pt.dvector()
    y = nnet.dropout(x, P, state=pt.constant(STATE))[0]
    jacobian = pytensor.gradient.jacobian(y**2, x, vectorize=True)
    assert not numpy_loops([jacobian])
    value = R.standard_normal(9)
    kept = run(Dropout(), value, P, STATE)[0] != 0
    found = evaluate(jacobian, {x: value})
    np.testing.assert_allclose(found, np.diag(np.where(kept, 2 * value / (1 - P) ** 2, 0)))
    # An extra axis that only the gradient has, beside one of both.
    gy, xs, gys = pt.dvector(), pt.tensor(shape=(3, 1, 9)), pt.tensor(shape=(3, 2, 9))
    gradient = vectorized(pytensor.grad((y * gy).sum(), x), {x: xs, gy: gys})
    values, ones = R.standard_normal((3, 1, 9)), np.ones((3, 2, 9))
    kept = run(Dropout(), values, P, STATE)[0] != 0
    found = evaluate(gradient, {xs: values, gys: ones})
    np.testing.assert_allclose(found, np.broadcast_to(kept, (3, 2, 9)) / (1 - P))
    # What was dropped is 0, whatever the gradient.
    found = evaluate(gradient, {xs: values, gys: np.full((3, 2, 9), np.nan)})
    np.testing.assert_array_equal(np.isnan(found), np.broadcast_to(kept, (3, 2, 9)))


@pytest.mark.parametrize("lead", [(3,), (0,)])
def test_states_and_probabilities_of_entries(lead):
    x, p, state = pt.dvector(), pt.dscalar(), pt.lvector()
    y, after = nnet.dropout(x, p, state=state)
    outputs = [y, after, pytensor.grad(y.sum(), x)]
    states, ps = pt.lmatrix(), pt.dvector()
    value, many = R.standard_normal(70), np.array([[1, 2], [3, 4], [2**40, 5]])[: lead[0]]
    found = evaluate(vectorized(outputs, {state: states}), {x: value, p: np.array(P), states: many})
    assert [a.shape for a in found] == [(*lead, 70), (*lead, 2), (*lead, 70)]
    for i, own in enumerate(many):
        wanted, _, following = run(Dropout(), value, P, own)
        np.testing.assert_array_equal(found[0][i], wanted)
        np.testing.assert_array_equal(found[1][i], following)
        np.testing.assert_array_equal(found[2][i], (wanted != 0) / (1 - P))
    several = np.array([0.2, 0.5, 1.0])[: lead[0]]
    found = evaluate(vectorized(outputs, {p: ps}), {x: value, ps: several, state: STATE})
    assert [a.shape for a in found] == [(*lead, 70), (2,), (*lead, 70)]
    np.testing.assert_array_equal(found[1], [5, 7 + 32])
    for result, gradient, own in zip(found[0], found[2], several, strict=True):
        np.testing.assert_allclose(gradient, (result != 0) / (1 - own if own < 1 else 1))
        np.testing.assert_allclose(result, gradient * value)
        assert abs((result == 0).mean() - own) < 0.25
    assert not lead[0] or differ(found[0][:2] != 0)


def attention(dropout=P, **given):
    q, k, v = (pt.dtensor4() for _ in range(3))
    out = nnet.scaled_dot_product_attention(q, k, v, dropout_p=dropout, **given)
    return q, k, v, out


SHAPES = [(2, 2, 3, 4), (2, 2, 5, 4), (2, 2, 5, 3)]


@pytest.mark.parametrize(
    ("lead", "places"), [((3,), [0, 1, 2]), ((2, 1, 2), [2]), ((0,), [0]), ((0,), [2])]
)
def test_attention_of_entries(lead, places):
    """As for a batch of all entries, and gradients for the mask that was added, too."""
    bias, state, gout = pt.dtensor4(), pt.lvector(), pt.dtensor4()
    q, k, v, (out, _) = attention(mask=bias, state=state)
    loss = (out * gout).sum()
    outputs = [out, *pytensor.grad(loss, [q, k, v, bias])]
    arrays = [R.standard_normal((*lead, *s) if i in places else s) for i, s in enumerate(SHAPES)]
    wide = [pt.tensor(dtype="float64", shape=(None,) * a.ndim) for a in arrays]
    added, cotangent = R.standard_normal((2, 1, 3, 5)), R.standard_normal((2, 2, 3, 3))
    replaced = {x: y for x, y in zip((q, k, v), wide, strict=True) if x.type != y.type}
    inputs = [replaced.get(x, x) for x in (q, k, v)]
    found = evaluate(
        vectorized(outputs, replaced),
        dict(zip(inputs, arrays, strict=True)) | {bias: added, gout: cotangent, state: STATE},
    )
    if 0 in lead:
        shapes = [(2, 2, 3, 3), *SHAPES, added.shape]
        assert [a.shape for a in found] == [(*lead, *s) for s in shapes]
        return
    count = int(np.prod(lead))
    merged = [
        np.broadcast_to(a, (*lead, *s)).reshape(-1, *s[1:])
        for a, s in zip(arrays, SHAPES, strict=True)
    ]
    # The gradients of a batch are those of its entries.
    one = pytensor.function([q, k, v, bias, gout, state], outputs, **PERFORM)
    tiled = [np.tile(a, (count, 1, 1, 1)) for a in (added, cotangent)]
    wanted = one(*merged, *tiled, STATE)
    for result, expected in zip(found, wanted, strict=True):
        np.testing.assert_allclose(result, expected.reshape(result.shape), atol=1e-12)
    assert differ(found[0].reshape(count, -1))


def test_attention_whose_forward_pass_entries_share():
    """Jacobians, and gradients with extra axes that the forward pass lacks."""
    bias, state = pt.dtensor4(), pt.lvector()
    gout, gouts = pt.dtensor4(), pt.tensor(shape=(3, 2, 2, 2, 3, 3))
    q, k, v, (out, _) = attention(mask=bias, state=state)
    qs = pt.tensor(dtype="float64", shape=(1, 2, *SHAPES[0]))
    gradients = pytensor.grad((out * gout).sum(), [q, k, v, bias])
    values = [R.standard_normal((1, 2, *SHAPES[0])), *(R.standard_normal(s) for s in SHAPES[1:])]
    added, cotangents = R.standard_normal((2, 1, 3, 5)), R.standard_normal((3, 2, 2, 2, 3, 3))
    rest = dict(zip((k, v, bias, state), (*values[1:], added, STATE), strict=True))
    # Entries of the first axis share what the entries of the second one drop.
    many = vectorized(gradients, {q: qs, gout: gouts})
    found = evaluate(many, {qs: values[0], gouts: cotangents} | rest)
    second = pt.tensor(dtype="float64", shape=(2, *SHAPES[0]))
    single = pt.tensor(shape=(2, 2, 2, 3, 3))
    some = vectorized(gradients, {q: second, gout: single})
    function = pytensor.function([second, single, *rest], some, **PERFORM)
    for i in range(3):
        wanted = function(values[0][0], cotangents[i], *rest.values())
        for result, expected in zip(found, wanted, strict=True):
            np.testing.assert_allclose(result[i], expected, atol=1e-12)
    plain = vectorized(gradients, {gout: single})
    found = evaluate(plain, {q: values[0][0, 0], single: cotangents[0]} | rest)
    function = pytensor.function([q, gout, *rest], gradients, **PERFORM)
    for i in range(2):
        wanted = function(values[0][0, 0], cotangents[0, i], *rest.values())
        for result, expected in zip(found, wanted, strict=True):
            np.testing.assert_allclose(result[i], expected, atol=1e-12)


def test_attention_with_states_of_entries():
    state, states = pt.lvector(), pt.lmatrix()
    q, k, v, (out, _) = attention(state=state)
    outputs = [out, *pytensor.grad(out.sum(), [q, k, v])]
    values = [R.standard_normal(s) for s in SHAPES]
    many = np.array([[1, 2], [3, 4]])
    found = evaluate(
        vectorized(outputs, {state: states}),
        dict(zip((q, k, v), values, strict=True)) | {states: many},
    )
    one = pytensor.function([q, k, v, state], outputs, **PERFORM)
    for i in range(2):
        for result, expected in zip(found, one(*values, many[i]), strict=True):
            np.testing.assert_allclose(result[i], expected, atol=1e-12)


@pytest.mark.parametrize("static", [True, False])
def test_state_after_attention(static):
    """It is that after all entries, as in a batch of them."""
    state = pt.lvector()
    known = SHAPES if static else [(None,) * 4] * 3
    q, k, v = (pt.tensor(dtype="float64", shape=s) for s in known)
    after = nnet.scaled_dot_product_attention(q, k, v, dropout_p=P, state=state)[1]
    assert after.type.ndim == 1
    values = dict(zip((q, k, v), (np.ones(s) for s in SHAPES), strict=True)) | {state: STATE}
    np.testing.assert_array_equal(evaluate(after, values), [5, 7 + 16])
    for count in (5, 0):
        vs = pt.tensor(dtype="float64", shape=(count if static else None, *known[2]))
        found = vectorized(after, {v: vs})
        several = {x: a for x, a in values.items() if x is not v}
        drawn = -(-count * 60 // 64)
        np.testing.assert_array_equal(
            evaluate(found, several | {vs: np.ones((count, *SHAPES[2]))}), [5, 7 + 16 * drawn]
        )


@pytest.mark.parametrize("kind", ["dropout", "attention"])
def test_seeds(kind):
    """Each call draws new numbers, and the gradient knows those of its call."""
    if kind == "dropout":
        x, xs = pt.dmatrix(), pt.dtensor3()
        y, ones = nnet.dropout(x, P, seed=3), np.ones((3, 8, 9))
    else:
        x, xs = pt.dtensor4(), pt.tensor(dtype="float64", shape=(None,) * 5)
        y = nnet.scaled_dot_product_attention(
            np.ones((2, 1, 6, 2)), np.ones((2, 1, 7, 2)), x, dropout_p=P, seed=3
        )
        ones = np.ones((3, 2, 1, 7, 4))
    by_x = pytensor.grad(y.sum(), x)
    outputs = vectorized([y, by_x], {x: xs})
    function = pytensor.function([xs], outputs, mode=PERFORM_MODE)
    first, second = function(ones), function(ones)
    assert differ([*first[0], *second[0]])
    for found, gradient in (first, second):
        np.testing.assert_allclose(found.sum(axis=(-1, -2)), gradient.sum(axis=(-1, -2)))
