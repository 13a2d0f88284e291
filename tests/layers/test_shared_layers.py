"""States of networks in which a layer occurs several times, and of numbers that do not fit."""

from __future__ import annotations

import numpy as np
import pytest

from dnnops import layers
from dnnops.errors import DnnValueError


def network(dtype="float32"):
    """Return a network whose first layer occurs three times, once within another one."""
    first = layers.Linear(2, 2, dtype=dtype)
    inner = layers.Sequential()
    inner.add(first)
    net = layers.Sequential()
    for layer in (first, layers.Linear(2, 2, dtype=dtype), first, inner):
        net.add(layer)
    return net


def test_states_for_pytorch_have_all_names():
    net = network()
    assert set(net.state_dict()) == {"0.weight", "0.bias", "1.weight", "1.bias"}
    state = layers.to_torch(net)
    names = {f"{i}.{name}" for i in ("0", "1", "2", "3.0") for name in ("weight", "bias")}
    assert set(state) == names
    np.testing.assert_array_equal(state["3.0.weight"], state["0.weight"])


def test_states_of_pytorch_are_read():
    source, net = network(), network()
    net.load_state_dict(layers.to_torch(source))
    for name, value in source.state_dict().items():
        np.testing.assert_array_equal(net.state_dict()[name], value)


def test_a_later_name_is_enough():
    source, net = network(), network()
    state = layers.to_torch(source)
    for name in ("0.weight", "2.weight"):
        del state[name]
    net.load_state_dict(state)
    np.testing.assert_array_equal(net.state_dict()["0.weight"], source.state_dict()["0.weight"])


def test_different_values_of_one_layer_are_refused():
    net = network()
    state, before = layers.to_torch(network()), net.state_dict()
    state["2.bias"] = state["2.bias"] + 1
    with pytest.raises(DnnValueError, match=r"2\.bias is unknown"):
        net.load_state_dict(state)
    for name, value in net.state_dict().items():
        np.testing.assert_array_equal(value, before[name])


@pytest.mark.parametrize("make", [layers.Linear, layers.LSTM])
def test_numbers_that_are_too_large_are_refused(make):
    net = make(2, 2, dtype="float16")
    state, before = net.state_dict(), net.state_dict()
    name = next(iter(state))
    state[name] = state[name].astype("float32")
    state[name].flat[0] = 70_000
    with pytest.raises(DnnValueError, match=f"{name} has numbers that float16 cannot represent"):
        net.load_state_dict(state)
    for key, value in net.state_dict().items():
        np.testing.assert_array_equal(value, before[key])
    state[name].flat[0] = np.inf
    net.load_state_dict(state)
    assert np.isinf(net.state_dict()[name].flat[0])
