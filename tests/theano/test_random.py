"""Random streams with Theano's methods."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from dnnops.errors import DnnTypeError, DnnValueError

N = 20_000


def test_distributions(theano: Any):
    from theano.sandbox.rng_mrg import MRG_RandomStreams
    from theano.tensor.shared_randomstreams import RandomStreams

    mrg, plain = MRG_RandomStreams(3), RandomStreams(4)
    pvals = np.array([[0.1, 0.2, 0.7], [0.5, 0.5, 0.0]], "float32")
    draws = {
        "uniform": mrg.uniform((N,), -1.0, 3.0),
        "float32": mrg.uniform(size=(N,), dtype="float32"),
        "normal": mrg.normal((N,), 2.0, 0.5),
        "truncated": mrg.normal((N,), 1.0, 2.0, truncate=True),
        "binomial": mrg.binomial((N,), p=0.3, dtype="float32"),
        "trials": plain.binomial((N,), 5, prob=0.5),
        "poisson": plain.poisson((N,), 4.0),
        "integers": plain.random_integers((N,), 2, 5),
        "choice": plain.choice((N,), 4, p=[0.0, 0.5, 0.0, 0.5]),
        "picked": plain.choice((N,), np.array([1.5, 2.5])),
        "multinomial": mrg.multinomial(n=1, pvals=np.repeat(pvals, N // 2, 0), dtype="float32"),
        "without": mrg.multinomial_wo_replacement(n=2, pvals=np.repeat(pvals[1:], 50, 0)),
        "permutation": plain.permutation(n=6),
        "permutations": plain.permutation((3,), 6),
        "shuffled": plain.shuffle_row_elements(np.arange(12.0).reshape(2, 6)),
        "size": mrg.uniform(size=theano.tensor.zeros((2, 3)).shape),
        "one number": mrg.uniform(4),
    }
    values = dict(zip(draws, theano.function([], list(draws.values()))(), strict=True))
    assert all(value.dtype == draws[name].dtype for name, value in values.items())

    def assert_moments(name: str, mean: float, deviation: float) -> None:
        assert abs(values[name].mean() - mean) < 4 * deviation / N**0.5, name
        assert_allclose(values[name].std(), deviation, rtol=0.03, err_msg=name)

    assert_moments("uniform", 1.0, 4 / 12**0.5)
    assert (values["uniform"].min() >= -1) & (values["uniform"].max() < 3)
    assert values["float32"].dtype == np.float32
    assert_moments("normal", 2.0, 0.5)
    assert_moments("truncated", 1.0, 2 * 0.8796)
    assert np.abs(values["truncated"] - 1).max() <= 4
    assert_moments("binomial", 0.3, 0.21**0.5)
    assert_moments("trials", 2.5, 1.25**0.5)
    assert_moments("poisson", 4.0, 2.0)
    assert_moments("integers", 3.5, 1.25**0.5)
    assert set(values["integers"]) == {2, 3, 4, 5}
    assert set(values["choice"]) == {1, 3}
    assert set(values["picked"]) == {1.5, 2.5}
    assert_array_equal(values["multinomial"].sum(1), 1)
    assert_allclose(values["multinomial"][: N // 2].mean(0), pvals[0], atol=0.02)
    assert_array_equal(np.sort(values["without"], 1), [[0, 1]] * 50)
    assert_array_equal(np.sort(values["permutation"]), np.arange(6))
    assert_array_equal(np.sort(values["permutations"], 1), [np.arange(6)] * 3)
    assert_array_equal(np.sort(values["shuffled"], 1), np.arange(12.0).reshape(2, 6))
    assert values["size"].shape == (2, 3)
    assert values["one number"].shape == (4,)


def test_draws_follow_floatx_and_parameters(theano: Any):
    from theano.sandbox.rng_mrg import MRG_RandomStreams

    stream = MRG_RandomStreams(1)
    with theano.config.change_flags(floatX="float32"):
        assert stream.uniform((2,)).dtype == "float32"
        assert stream.normal((2,), avg=theano.tensor.dscalar()).dtype == "float64"
    assert stream.uniform((2,)).dtype == "float64"
    assert stream.binomial((2,)).dtype == "int64"


def test_calls_differ_and_seeds_repeat(theano: Any):
    from theano.tensor.shared_randomstreams import RandomStreams

    stream = RandomStreams(seed=234)
    draw = stream.uniform((5,))
    f = theano.function([], draw)
    fixed = theano.function([], draw, no_default_updates=True)
    first, second = f(), f()
    assert not np.allclose(first, second)
    assert_array_equal(fixed(), fixed())
    again = RandomStreams(234)
    assert_array_equal(theano.function([], again.uniform((5,)))(), first)
    stream.seed(234)
    assert_array_equal(f(), first)
    stream.seed()
    assert_array_equal(f(), first)
    stream.seed(235)
    assert not np.allclose(f(), first)
    # As Theano's documentation saves and restores a state.
    state = draw.rng.get_value(borrow=False)
    third = f()
    draw.rng.set_value(state, borrow=True)
    assert_array_equal(f(), third)
    assert [old for old, _ in stream.updates()] == [draw.rng]
    assert_array_equal(
        theano.function([], RandomStreams([1, 2]).uniform((2,)))(),
        theano.function([], RandomStreams(np.array([1, 2])).uniform((2,)))(),
    )


def test_bad_arguments(theano: Any):
    from theano.sandbox.rng_mrg import MRG_RandomStreams

    stream = MRG_RandomStreams()
    with pytest.raises(DnnValueError, match="give pvals and no size"):
        stream.multinomial_wo_replacement((2,), pvals=np.ones((2, 2)))
    with pytest.raises(DnnTypeError, match="n must be a Python int"):
        stream.permutation((2,), theano.tensor.iscalar())


def test_draws_in_a_loop(theano: Any):
    """A stream used inside of scan differs from step to step and from call to call."""
    from theano.sandbox.rng_mrg import MRG_RandomStreams

    stream = MRG_RandomStreams(7)
    outputs, updates = theano.scan(lambda: stream.uniform((2,)), n_steps=3)
    f = theano.function([], outputs, updates=updates)
    values = np.concatenate([f(), f()])
    assert values.shape == (6, 2)
    assert len(np.unique(values)) == 12


def test_choice_of_categories_for_each_row(theano: Any):
    """The example of Theano's docstring, and its kind."""
    stream = theano.sandbox.rng_mrg.MRG_RandomStreams(5)
    p = [[0.98, 0.01, 0.01], [0.01, 0.49, 0.50]]
    pvals, size = theano.tensor.matrix(), theano.tensor.iscalar()
    f = theano.function(
        [pvals, size],
        [
            stream.choice(size=2, replace=False, p=pvals),
            stream.choice(size, None, False, pvals, dtype="int32"),
            stream.choice(size=200, replace=True, p=pvals),
            stream.choice(size=(7,), p=pvals[0] / pvals[0].sum()),
            stream.choice(a=3),
            stream.choice(p=p),
        ],
    )
    two, few, often, vector, below, once = f(np.repeat(np.array(p), 200, 0), 3)
    assert two.shape == (400, 2)
    assert (two[:, 0] != two[:, 1]).all()
    assert (two[:200, 0] == 0).mean() > 0.9
    assert_allclose((two[200:] == 0).any(1).mean(), 0.03, atol=0.04)
    # The first of two draws without replacement has the probabilities p.
    assert_allclose((two[200:, 0] == 2).mean(), 0.5, atol=0.15)
    assert few.dtype == np.int32
    assert_array_equal(np.sort(few, 1), [[0, 1, 2]] * 400)
    assert often.shape == (400, 200)
    assert_allclose([(often[200:] == k).mean() for k in range(3)], p[1], atol=0.02)
    assert vector.shape == (7,)
    assert below.shape == (1,)
    assert once.shape == (2, 1)
    with pytest.raises(ValueError, match="cannot draw more categories"):
        f(np.array(p), 4)
    with pytest.raises(DnnValueError, match=r"cannot draw more .* there are: 4 of 3"):
        stream.choice(4, None, False, np.array(p))
    with pytest.raises(DnnTypeError, match="give p, the probabilities"):
        stream.choice()
    with pytest.raises(DnnTypeError, match="p must be a matrix"):
        stream.choice(2, 3, False, p)


def test_states_of_streams(theano: Any):
    """The tutorial's ways to seed a stream, and to restore or copy its state."""
    from theano.tensor.shared_randomstreams import RandomStateSharedVariable, RandomStreams

    stream = RandomStreams(seed=234)
    draw, other = stream.uniform((2, 2)), stream.normal((2, 2))
    f = theano.function([], draw)
    value = draw.rng.get_value(borrow=True)
    value.seed(89234)
    draw.rng.set_value(value, borrow=True)
    seeded = f()
    value = draw.rng.get_value(borrow=True)
    value.seed(89234)
    assert_array_equal(f(), seeded)
    state = draw.rng.get_value().get_state()
    following = f()
    value = draw.rng.get_value(borrow=True)
    value.set_state(state)
    draw.rng.set_value(value, borrow=True)
    assert_array_equal(f(), following)
    assert not np.array_equal(f(), following)
    # A copy draws other numbers than the stream without changing them.
    state = draw.rng.get_value().get_state()
    draw.rng.get_value().uniform(size=100)
    assert draw.rng.get_value().get_state() == state
    assert isinstance(other.rng, RandomStateSharedVariable)
    copied = RandomStreams(seed=1)
    again = theano.function([], copied.uniform((2, 2)))
    for (mine, _), (theirs, _) in zip(stream.state_updates, copied.state_updates, strict=False):
        theirs.set_value(mine.get_value())
    assert_array_equal(again(), f())


def test_random_states_of_numpy(theano: Any):
    legacy = np.random.RandomState(3)
    shared = theano.shared(legacy, name="state")
    wanted = np.random.Generator(np.random.MT19937())
    wanted.bit_generator.state = legacy.get_state(legacy=False)
    following, draw = theano.tensor.raw_random.uniform(shared, size=(3,))
    f = theano.function([], draw, updates=[(shared, following)])
    assert_array_equal([f(), f()], [wanted.uniform(size=3), wanted.uniform(size=3)])
    assert shared.name == "state"
    shared.set_value(np.random.RandomState(3))
    assert f().shape == (3,)
    with pytest.raises(DnnTypeError, match="expected a generator or RandomState"):
        shared.set_value(3)
