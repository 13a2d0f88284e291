"""Test the references for recurrent networks on a GPU, on the host."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.gpu.rnn import rnn_networks
from tests.gpu.rnn.rnn_networks import Network, with_numbers
from tests.nnet.rnn.rnn_cases import RNNCase


@pytest.mark.needs("ml_dtypes")
def test_signs_of_relus(monkeypatch):
    """Rounding may decide the sign of outputs near zero, but of nothing else."""
    monkeypatch.setattr(rnn_networks, "host", np.asarray)
    monkeypatch.setattr(rnn_networks, "last_rnn_algorithm", lambda: "")
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
            with pytest.raises(AssertionError, match="gradient with respect to w"):
                network.check_backward(gradients, y)


def test_networks_of_16_bits_that_are_compared():
    """Use networks with enough numbers, and whose operands determine the results."""
    case = RNNCase("rnn_tanh", 1, 2, False, False, 0, 0.0, False, 6, 5, 1, seed=1)
    assert with_numbers(case, 32) is None
    assert with_numbers(case, 7).batch == 10
    assert with_numbers(case, 5) == case
    assert Network(case, "float16").is_determined()
    # The terms of a gradient cancel.
    assert not Network(replace(case, seed=6), "float16").is_determined()
