"""What recurrent networks on a GPU are compared with, on the host."""

from __future__ import annotations

import numpy as np
import pytest

from tests.cudnn import rnn_networks
from tests.cudnn.rnn_networks import MOST_BOUNDS, Network
from tests.nnet.rnn_cases import RNNCase
from tests.oracle import RELATIVE_ERROR


@pytest.fixture(autouse=True)
def on_host(monkeypatch):
    monkeypatch.setattr(rnn_networks, "host", np.asarray)
    monkeypatch.setattr(rnn_networks, "last_rnn_algorithm", lambda: "")


@pytest.mark.parametrize(
    ("dtype", "times", "is_right"),
    [
        ("float16", 1.2, True),
        ("float16", 2.1, False),
        ("bfloat16", 1.2, True),
        ("bfloat16", 2.1, False),
        ("float32", 0.9, True),
        ("float32", 1.2, False),
    ],
)
def test_roundings_in_16_bits(dtype, times, is_right):
    """Of five numbers that come of large terms, rounding of the operands moves the gradient."""
    case = RNNCase("gru", 5, 1, False, False, 0, 0.0, False, 5, 1, 5, 3643)
    check_moved(Network(case, dtype), times, is_right)


def test_roundings_of_many_numbers_average_out():
    case = RNNCase("gru", 9, 1, False, False, 0, 0.0, False, 5, 8, 5, 3643)
    check_moved(Network(case, "float16"), 1.1, False)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_wrong_factors_are_found(dtype):
    """Of random networks: gradients that are a little too large, by more than is ever allowed."""
    factor = 1 + 1.05 * MOST_BOUNDS * RELATIVE_ERROR[dtype]
    found = 0
    for seed in range(40):
        mode = ("lstm", "gru", "rnn_tanh", "rnn_relu")[seed % 4]
        network = Network(RNNCase(mode, 3, 1, False, False, 0, 0.0, False, 3, 2, 4, seed), dtype)
        y = network.expected[0]
        gradients = network.expected_gradients(y)
        network.check_backward(gradients, y)
        large = [i for i, g in enumerate(gradients) if np.linalg.norm(g) > 0.3 * g.size**0.5]
        if not large:
            continue
        place = large[0]
        gradients[place] = factor * gradients[place]
        with pytest.raises(AssertionError, match="gradient by"):
            network.check_backward(gradients, y)
        found += 1
    assert found >= 30


def check_moved(network: Network, times: float, is_right: bool) -> None:
    """Whether a gradient by the first state passes that is off by so many times the bound."""
    gradients = network.expected_gradients(network.expected[0])
    place = network.backward.results.index("hx")
    wanted = gradients[place]
    norm = max(np.linalg.norm(wanted), 0.3 * wanted.size**0.5)
    gradients[place] = wanted + times * RELATIVE_ERROR[network.dtype] * norm / wanted.size**0.5
    if is_right:
        network.check_backward(gradients)
    else:
        with pytest.raises(AssertionError, match="gradient by hx"):
            network.check_backward(gradients)


def test_signs_of_relus():
    """Rounding may decide the sign of what is next to zero, but of nothing else."""
    # Its first unit has 0.0009 where terms of some units cancel.
    case = RNNCase("rnn_relu", 8, 1, False, False, 0, 0.0, False, 3, 4, 5, 6)
    network = Network(case, "bfloat16")
    y = network.expected[0]
    network.check_backward(network.expected_gradients(y), y)
    large = tuple(np.argwhere(y > 1)[0])
    for place, is_right in (((0, 0, 0), True), (large, False)):
        assert (y[place] < 1e-3) == is_right
        other = y.copy()
        other[place] = 0
        gradients = network.expected_gradients(other)
        # It shows.
        apart = np.linalg.norm(gradients[0] - network.expected_gradients(y)[0])
        assert apart > 0.02 * np.linalg.norm(gradients[0])
        if is_right:
            network.check_backward(gradients, y)
        else:
            with pytest.raises(AssertionError, match="gradient by w"):
                network.check_backward(gradients, y)
