"""Call a graph several times, as a compiled function with updates would be called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.networks.network import Network
from tests.networks.reference import Program
from tests.networks.train import State

__all__ = ["CALLS", "Stepping", "results_of", "variables_of"]

#: Calls of a function; the last ones replay a CUDA graph.
CALLS = 4


def results_of(network: Network, changing: Sequence[State]) -> list[Any]:
    """Return the results of a function: also the gradients, unless they update parameters."""
    updated = {state.old for state in changing}
    trains = any(p in updated for p in network.parameters)
    return [*network.outputs, *([] if trains else network.gradients)]


def variables_of(network: Network, changing: Sequence[State]) -> tuple[list[Any], list[Any]]:
    """Return everything that a network and its updates read, and the values."""
    found = dict(zip(network.inputs, network.values, strict=True))
    found |= dict(zip(network.parameters, network.parameter_values, strict=True))
    found |= {state.old: state.value for state in changing}
    return list(found), list(found.values())


class Stepping:
    """A network whose updates are made in Python.

    Parameters
    ----------
    network : Network
    changing : sequence of State
        What calls change.
    outputs : sequence of Variable, optional
        Equivalent of the results and of the updates, in a graph with equivalent inputs.
    inputs : sequence of Variable, optional
        These inputs.
    """

    def __init__(
        self,
        network: Network,
        changing: Sequence[State],
        outputs: Sequence[Any] | None = None,
        inputs: Sequence[Any] | None = None,
    ):
        found, self._values = variables_of(network, changing)
        self._positions = [found.index(state.old) for state in changing]
        results = results_of(network, changing)
        self._count = len(results)
        noisy = None
        if outputs is None:
            noisy = [*results, *network.gradients]
            outputs = [*results, *(state.new for state in changing)]
        self._program = Program(found if inputs is None else inputs, outputs, noisy)

    def __call__(
        self, calls: int, noise: float = 0.0, least: float = 0.0, seed: int = 0
    ) -> list[Any]:
        """Return the results of all calls, and what the updated variables are in the end.

        Parameters
        ----------
        calls : int
            Number of calls.
        noise, least, seed
            See `Program`. Nodes of the optimizer compute in float32 or better in all precisions.
        """
        values, found = [*self._values], []
        for call in range(calls):
            got = self._program(values, noise, 1000 * seed + call, least)
            found += got[: self._count]
            for position, value in zip(self._positions, got[self._count :], strict=True):
                values[position] = value
        return found + [values[position] for position in self._positions]
