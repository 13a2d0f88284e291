"""vectorize_graph over recurrent networks: parameters, their gradients, and dropout."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.graph.replace import vectorize_graph

from dnnops import nnet
from tests.nnet.test_vectorize import PERFORM, numpy_loops

R = np.random.default_rng(0)
STEPS, BATCH, INPUT = 3, 2, 3


def network(dropout):
    """Return the variables, the results and gradients, and values of the variables."""
    op = nnet.RNNForward("gru", 2, 2, dropout=dropout)
    arrays = [
        0.5 * R.standard_normal(op.layout.param_size(INPUT)),
        R.standard_normal((STEPS, BATCH, INPUT)),
        R.standard_normal((2, BATCH, 2)),
    ]
    variables = [pt.tensor(dtype="float64", shape=(None,) * a.ndim) for a in arrays]
    gy = pt.dtensor3()
    seed = pt.lscalar()
    y, hy = op.make_node(*variables, *([seed] if dropout else [])).outputs[:2]
    loss = (y * gy).sum() + (hy**2).sum()
    variables += [gy, seed]
    arrays += [R.standard_normal((STEPS, BATCH, 2)), np.array(4)]
    return variables, [y, hy, *pytensor.grad(loss, variables[:3])], arrays


def both(case, places, lead):
    """Return the results with extra axes, the arrays, and a function without."""
    variables, outputs, arrays = case
    replaced = {
        variables[i]: pt.tensor(dtype=v.dtype, shape=(None,) * (len(lead) + v.ndim))
        for i, v in enumerate(arrays)
        if i in places
    }
    values = [
        a * (1 + R.random((*lead, *(1,) * a.ndim))) if i in places else a
        for i, a in enumerate(arrays)
    ]
    if 4 in places:
        values[4] = np.arange(np.prod(lead)).reshape(lead)
    vectorized = vectorize_graph(outputs, replaced)
    assert not numpy_loops(vectorized)
    inputs = [replaced.get(v, v) for v in variables]
    found = pytensor.function(inputs, vectorized, **PERFORM)(*values)
    return found, values, pytensor.function(variables, outputs, **PERFORM)


@pytest.mark.parametrize(
    ("places", "lead", "dropout"),
    [
        ([1], (2, 2), 0.0),
        ([0, 1, 2], (2,), 0.0),
        ([0], (2, 1), 0.0),
        ([3], (2,), 0.0),
        ([4], (3,), 0.5),
        ([3], (3,), 0.5),
    ],
)
def test_a_loop(places, lead, dropout):
    """With dropout, entries that differ in the gradient only share what was dropped."""
    found, values, one = both(network(dropout), places, lead)
    for index in np.ndindex(lead):
        wanted = one(*(v[index] if i in places else v for i, v in enumerate(values)))
        for result, expected in zip(found, wanted, strict=True):
            # The forward pass has no extra axes if only the gradient has.
            entry = result[index] if result.ndim > expected.ndim else result
            np.testing.assert_allclose(entry, expected, atol=1e-12)


@pytest.mark.parametrize(
    ("places", "dropout"), [([1], 0.0), ([0], 0.0), ([3], 0.5), ([1], 0.5), ([4], 0.5)]
)
def test_no_entries(places, dropout):
    found, values, one = both(network(dropout), places, (0,))
    shapes = [
        a.shape
        for a in one(
            *(np.ones(v.shape[1:], v.dtype) if i in places else v for i, v in enumerate(values))
        )
    ]
    assert [a.shape[-len(s) :] for a, s in zip(found, shapes, strict=True)] == shapes
    assert all(0 in a.shape for a in found[2:])


def test_dropout_of_entries():
    """They are one batch, and the gradient with respect to the parameters knows its entry."""
    found, values, one = both(network(0.5), [1], (3,))
    w, xs, hx, gy, seed = values
    x = np.concatenate(list(xs), axis=1)
    states, cotangents = np.tile(hx, (1, 3, 1)), np.tile(gy, (1, 3, 1))
    wanted = one(w, x, states, cotangents, seed)
    for result, expected in zip((*found[:2], *found[3:]), (*wanted[:2], *wanted[3:]), strict=True):
        np.testing.assert_allclose(np.concatenate(list(result), axis=1), expected, atol=1e-12)
    np.testing.assert_allclose(found[2].sum(axis=0), wanted[2], atol=1e-12)
    # Central differences of the first entry's loss.
    step = 1e-6 * R.standard_normal(w.shape)

    def loss(moved):
        y, hy = (a[:, :BATCH] for a in one(moved, x, states, cotangents, seed)[:2])
        return (y * gy).sum() + (hy**2).sum()

    slope = loss(w + step) - loss(w - step)
    np.testing.assert_allclose(2 * (found[2][0] * step).sum(), slope, rtol=1e-4)
    assert len({tuple(np.ravel(y)) for y in found[0]}) == 3


def test_parameters_of_entries_drop_differently():
    found, values, one = both(network(0.5), [0], (3,))
    first = one(values[0][0], *values[1:])
    for result, expected in zip(found, first, strict=True):
        np.testing.assert_allclose(result[0], expected, atol=1e-12)
    second = one(values[0][1], *values[1:])
    assert not np.allclose(found[0][1], second[0])
