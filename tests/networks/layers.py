"""What layers of random networks share: their parameters, their shapes and how they are listed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

__all__ = ["LAYERS", "Graph", "Layer", "Rng", "layer"]

Rng = np.random.Generator


class Graph(Protocol):
    """The graph of a network while it is built."""

    dtype: str

    def shape(self, x: Any) -> tuple[int, ...]:
        """Return the shape that a variable has, which its static type may not state."""

    def parameter(self, *shape: int, scale: float = 1.0, value: float = 0.0) -> Any:
        """Return a new parameter around `value` with standard deviation `scale`."""

    def constant(self, value: Any) -> Any:
        """Return a number in the network's dtype."""

    def indices(self, bound: int, *shape: int) -> Any:
        """Return an input of integers below `bound`."""

    def normal(self, like: Any) -> Any:
        """Return normally distributed random numbers with the shape of a variable."""

    def also(self, *outputs: Any) -> None:
        """Add results to those of the network."""

    def say(self, text: str) -> None:
        """Add parameters of the layer to its description."""


class Layer(NamedTuple):
    """A layer that random networks contain.

    Attributes
    ----------
    make : callable
        Takes a graph, a generator of random numbers that its parameters are drawn from, and
        variables; returns a variable, or None if it cannot take these.
    ranks : tuple of int
        Possible ranks of the first operand.
    operands : int
        Number of operands; those after the first have any rank.
    weight : float
        How often it occurs.
    """

    make: Callable[..., Any]
    ranks: tuple[int, ...]
    operands: int
    weight: float


#: All layers by name.
LAYERS: dict[str, Layer] = {}


def layer(*ranks: int, operands: int = 1, weight: float = 1.0) -> Callable[..., Any]:
    """Declare a function as a layer; the other parameters are those of `Layer`."""

    def declare(make: Callable[..., Any]) -> Callable[..., Any]:
        LAYERS[make.__name__] = Layer(make, ranks, operands, weight)
        return make

    return declare
