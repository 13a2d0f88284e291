"""Recurrent layers that start from the last states of the call before."""

from __future__ import annotations

import copy

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from dnnops import layers
from dnnops.errors import DnnTypeError, DnnValueError
from tests.oracle import PERFORM_MODE

KINDS = (layers.RNNTanh, layers.GRU, layers.LSTM)


def sequences(batch_first=False):
    x = np.random.default_rng(0).standard_normal((6, 2, 3))
    return x.swapaxes(0, 1) if batch_first else x


def parts(x, batch_first):
    axis = 1 if batch_first else 0
    return np.split(x, 2, axis=axis)


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_calls_continue(kind, training, batch_first):
    net = kind(3, 4, 2, batch_first=batch_first, dtype="float64").train(training)
    v = pt.dtensor3()
    whole = pytensor.function([v], net(v), mode=PERFORM_MODE)(sequences(batch_first))
    net.remember_states(2)
    step = pytensor.function([v], net(v), updates=net.updates(), mode=PERFORM_MODE)
    for _ in range(2):
        found = [step(part) for part in parts(sequences(batch_first), batch_first)]
        np.testing.assert_allclose(np.concatenate(found, 1 if batch_first else 0), whole)
        assert np.abs(step(parts(sequences(batch_first), batch_first)[0]) - found[0]).max() > 0.01
        net.reset_states()


def test_two_calls_in_one_graph_continue():
    net = layers.LSTM(3, 4, dtype="float64").remember_states(2)
    first, second = pt.dtensor3(), pt.dtensor3()
    outputs = [net(first), net(second)]
    step = pytensor.function([first, second], outputs, updates=net.updates(), mode=PERFORM_MODE)
    found = step(*parts(sequences(), False))
    net.remember_states(None)
    v = pt.dtensor3()
    whole = pytensor.function([v], net(v), mode=PERFORM_MODE)(sequences())
    np.testing.assert_allclose(np.concatenate(found), whole)
    assert not net.updates()


def test_states_that_are_given_are_used():
    net = layers.GRU(3, 4, dtype="float64").remember_states(2)
    v = pt.dtensor3()
    net(v, np.zeros((1, 2, 4)))
    assert not net.updates()


@pytest.mark.parametrize("given", ["hx", "cx"])
def test_one_state_that_is_given(given):
    """The other one is zero then, and neither is what was remembered."""
    rng = np.random.default_rng(0)
    net = layers.LSTM(3, 4, dtype="float64").remember_states(2)
    v = pt.dtensor3()
    step = pytensor.function([v], net(v), updates=net.updates(), mode=PERFORM_MODE)
    step(sequences())
    net.train()  # forgets the updates of that call
    state = rng.standard_normal((1, 2, 4))
    states = {"hx": np.zeros_like(state), "cx": np.zeros_like(state), given: state}
    x = sequences()[:, :2]
    found = net(v, **{given: state}).eval({v: x}, mode=PERFORM_MODE)
    assert not net.updates()
    expected = net(v, **states).eval({v: x}, mode=PERFORM_MODE)
    np.testing.assert_allclose(found, expected)
    assert np.abs(found - net(v).eval({v: x}, mode=PERFORM_MODE)).max() > 0.01


def test_states_do_not_belong_to_the_saved_state():
    net = layers.LSTM(3, 4, dtype="float64")
    names = list(net.state_dict())
    net.remember_states(2)
    assert list(net.state_dict()) == names
    assert len(net.parameters()) == 1
    other = copy.deepcopy(net)
    v = pt.dtensor3()
    assert set(other.updates()) == set()
    other(v)
    assert not set(other.updates()) & set(net.updates())


def test_bad_batches():
    net = layers.LSTM(3, 4, dtype="float64")
    with pytest.raises(DnnTypeError, match="batch"):
        net.remember_states("two")
    with pytest.raises(DnnValueError, match="batch"):
        net.remember_states(0)
    net.remember_states(3)
    v = pt.dtensor3()
    step = pytensor.function([v], net(v), updates=net.updates(), mode=PERFORM_MODE)
    with pytest.raises(ValueError, match=r"batch|shape"):
        step(sequences())
    assert not any(state.get_value().any() for state in net.updates())
