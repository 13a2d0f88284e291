"""Draws that take a generator and return the following one."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

P = np.array([[0.1, 0.9], [0.8, 0.2]])


def test_draws_follow_each_other(theano: Any):
    raw = theano.tensor.raw_random
    state = raw.random_state_type()
    draws = []
    following = state
    for function, options in (
        (raw.uniform, {"size": (3,), "low": 2.0, "high": 3.0}),
        (raw.normal, {"size": (3,), "avg": 5.0, "dtype": "float32"}),
        (raw.binomial, {"size": (3,), "n": 4}),
        (raw.random_integers, {"size": (50,), "low": 1, "high": 2}),
        (raw.permutation, {"n": 4}),
        (raw.multinomial, {"n": 7, "pvals": P}),
        (raw.choice, {"size": (3,), "a": 2}),
        (raw.poisson, {"size": (3,), "lam": 1.0}),
    ):
        following, draw = function(following, **options)
        draws.append(draw)
    f = theano.function([state], [following, *draws])
    generator, *values = f(np.random.default_rng(3))
    uniform, normal, binomial, integers, permutation, counts, choice, _ = values
    assert ((uniform >= 2) & (uniform < 3)).all()
    assert normal.dtype == np.float32
    assert normal.shape == (3,)
    assert ((binomial >= 0) & (binomial <= 4)).all()
    assert set(integers) == {1, 2}
    assert sorted(permutation) == [0, 1, 2, 3]
    assert counts.sum(1).tolist() == [7, 7]
    assert set(choice) <= {0, 1}
    for mine, again in zip(values, f(np.random.default_rng(3))[1:], strict=True):
        assert np.array_equal(mine, again)
    assert not np.array_equal(values[0], f(generator)[1])


def test_signatures(theano: Any):
    raw = theano.tensor.raw_random
    names = list(inspect.signature(raw.uniform).parameters)
    assert names[:6] == ["random_state", "size", "low", "high", "ndim", "dtype"]
    assert list(inspect.signature(raw.permutation).parameters)[:3] == ["random_state", "size", "n"]
    with pytest.raises(AttributeError, match=r"pytensor\.tensor\.random"):
        raw.choice_helper  # noqa: B018


def test_type_of_a_streams_state(theano: Any):
    streams = theano.tensor.shared_randomstreams
    draw = streams.RandomStreams(1).uniform((2,))
    assert isinstance(draw.rng, streams.RandomStateSharedVariable)
    assert draw.rng.type == theano.tensor.raw_random.random_state_type
