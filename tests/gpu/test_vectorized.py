"""Graphs that PyTensor has vectorized, on a GPU: dropout and recurrent networks."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.graph.replace import vectorize_graph

from dnnops import nnet

BATCH, STEPS, ROWS, SIZE, HIDDEN = 3, 4, 2, 5, 6


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def dropped():
    x, many, p = pt.fmatrix(), pt.ftensor3(), pt.fscalar()
    y = vectorize_graph(nnet.dropout(x, p, seed=3), {x: many})
    return [many, p], [y, pt.grad((y**2).sum(), many)], [normal(BATCH, 7, 8), np.float32(0.5)]


def recurrent(over, *, has_lengths=False, dropout=0.0):
    """Return a vectorized network with its inputs, outputs and values."""
    block = nnet.RNNBlock("float32", HIDDEN, 2, "gru", dropout=dropout)
    w, x, state = pt.fvector("w"), pt.ftensor3("x"), pt.ftensor3("state")
    lengths, seed = pt.lvector("lengths"), pt.lscalar("seed")
    more = {"lengths": lengths} if has_lengths else {}
    more |= {"seed": seed} if dropout else {}
    y = block.apply(w, x, state, **more)[0]
    given = {v.name: v for v in (w, x, state, *more.values())}
    values = {
        "w": 0.3 * normal(block.get_param_size((ROWS, SIZE))),
        "x": normal(STEPS, ROWS, SIZE),
        "state": normal(2, ROWS, HIDDEN),
        "lengths": np.array([4, 2]),
        "seed": np.array(7),
    }
    many = {}
    for name in over:
        shape = (None, *given[name].type.shape)
        many[given[name]] = given[name] = pt.tensor(name, dtype=given[name].type.dtype, shape=shape)
        stack = [values[name] + i for i in range(BATCH)] if name == "seed" else [values[name]] * 3
        values[name] = np.stack(stack).astype(given[name].type.dtype)
    y = vectorize_graph(y, many)
    inputs = list(given.values())
    return inputs, [y, pt.grad((y**2).sum(), given["w"])], [values[v.name] for v in inputs]


CASES = {
    "dropout": dropped,
    "sequences": lambda: recurrent(["x"]),
    "sequences with lengths": lambda: recurrent(["x"], has_lengths=True),
    "lengths": lambda: recurrent(["x", "lengths"], has_lengths=True),
    "parameters": lambda: recurrent(["w"]),
}


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_the_results_are_those_of_the_host(name):
    found = []
    for mode in ("CUDNN", "ONEDNN"):
        # Each with a stream of its own, which every call advances.
        inputs, outputs, values = CASES[name]()
        f = pytensor.function(inputs, outputs, mode=mode)
        found.append([[np.asarray(z) for z in f(*values)] for _ in range(5)])
    for results in zip(*found, strict=True):
        for got, wanted in zip(*results, strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("over", [["x"], ["seed"], ["x", "seed"]], ids="+".join)
def test_each_entry_drops_other_elements(over):
    inputs, outputs, values = recurrent(over, dropout=0.5)
    f = pytensor.function(inputs, outputs, mode="CUDNN")
    first = np.asarray(f(*values)[0])
    assert first.shape[0] == BATCH
    assert not np.allclose(first[0], first[1])
    seed = [v.name for v in inputs].index("seed")
    for i in range(5):
        values[seed] = values[seed] + 1
        found = f(*values)
        assert all(np.isfinite(np.asarray(z)).all() for z in found)
        assert not np.allclose(np.asarray(found[0]), first), i
    values[seed] = values[seed] - 5
    np.testing.assert_allclose(np.asarray(f(*values)[0]), first, rtol=1e-5, atol=1e-6)
