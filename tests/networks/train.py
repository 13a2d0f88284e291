"""Updates of a network's parameters, as any optimizer writes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt

from tests.networks.network import Network, Sketch, build

__all__ = ["Make", "State", "states", "trained"]

RATE = 0.02


class State(NamedTuple):
    """A variable that a function updates, its value before the first call, and its update."""

    old: Any
    value: Any
    new: Any


#: Builds a network and its updates, from the dtype of all floats, whether types state shapes,
#: functions that make inputs and parameters, and the scale of the loss; see `network.build`.
Make = Callable[
    [str, bool, Callable[..., Any], Callable[..., Any], float], tuple[Network, list[State]]
]


def trained(drawn: Sketch, optimizer: str) -> Make:
    """Return a function that builds a random network and its updates.

    Parameters
    ----------
    drawn : Sketch
        The network.
    optimizer : str
        See `states`.
    """

    def make(
        dtype: str,
        static: bool,
        tensor: Callable[..., Any],
        shared: Callable[..., Any],
        scale: float,
    ) -> tuple[Network, list[State]]:
        network = build(drawn, dtype, static, tensor, shared, scale)
        return network, states(network, optimizer, shared, scale)

    return make


def states(
    network: Network, optimizer: str, shared: Callable[..., Any], scale: float = 1.0
) -> list[State]:
    """Return everything that calls of a network change.

    Parameters
    ----------
    network : Network
    optimizer : {'', 'sgd', 'momentum', 'adam'}
        With an empty string, parameters keep their values.
    shared : callable
        Makes a parameter from a value and a static shape.
    scale : float
        Scale of the loss, which the gradients are divided by.

    Returns
    -------
    list of State
        Generators of random numbers, whose values are copies, and what the optimizer updates.
    """
    found = [State(*generator) for generator in network.generators]
    if not optimizer:
        return found
    for p, value, scaled in zip(
        network.parameters, network.parameter_values, network.gradients, strict=True
    ):
        number = value.dtype.type
        gradient = scaled / number(scale)
        if optimizer == "sgd":
            found.append(State(p, value, p - number(RATE) * gradient))
            continue
        zeros = np.zeros_like(value)
        velocity = shared(zeros, p.type.shape)
        moved = number(0.5) * velocity + gradient
        found.append(State(velocity, zeros, moved))
        if optimizer == "momentum":
            found.append(State(p, value, p - number(RATE) * moved))
            continue
        square = shared(zeros, p.type.shape)
        squares = number(0.9) * square + gradient**2
        found.append(State(square, zeros, squares))
        found.append(State(p, value, p - number(RATE) * moved / (pt.sqrt(squares) + number(1))))
    return found
