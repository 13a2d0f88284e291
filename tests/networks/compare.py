"""Compare the results of a random network with the same graph in float64."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.networks.backends import RUNS, SCALES
from tests.networks.network import host_tensor, host_variable
from tests.networks.reference import distance
from tests.networks.settings import Settings
from tests.networks.stepping import CALLS, Stepping
from tests.networks.train import Make
from tests.oracle import RELATIVE_ERROR

__all__ = ["Outcome", "check"]

#: Seeds of evaluations with noise, and of further ones if a result is off by more than these
#: suggest. An element at a kink, such as zero before relu, is on the other side in only some.
FEW, MANY = range(1, 4), range(4, 40)
#: How much further a result may be off than the furthest of these evaluations. The norm of the
#: difference depends on a few numbers if most of the network's noise has one source, so that the
#: largest of three samples of it may be small.
MARGIN = 2.0
#: A result is not compared if noise changes it by more than this share of its norm.
UNCERTAIN = 0.5
#: The smallest positive number of a dtype that leaves the range of ordinary gradients.
LEAST = {"float16": 2.0**-24}


@dataclass
class Outcome:
    """What a comparison found.

    Attributes
    ----------
    compared, uncertain : int
        Numbers of results compared, and of those that are not because noise changes them too much.
    worst : float
        Largest distance of a result from the reference, as a share of its bound.
    failures : list of str
        Results that are off by more than their bound.
    notes : list of str
        Nodes that stay on the host, transfers inside the graph, and why it was not captured.
    """

    compared: int = 0
    uncertain: int = 0
    worst: float = 0.0
    failures: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def check(make: Make, device: str, settings: Settings, calls: int = CALLS) -> Outcome:
    """Run a network and compare all results of all calls.

    The reference is the graph as written, in float64, that NumPy evaluates node by node. The bound
    of a result is how far it moves if each element of every array in this graph, which includes the
    gradients, is off by a random share of the error that an Op may have in this precision,
    `tests.oracle.RELATIVE_ERROR`. It is thus wide only where a network amplifies errors.

    Parameters
    ----------
    make : callable
        Builds the network.
    device : {'cpu', 'cuda', 'rewritten'}
        Where it runs.
    settings : Settings
        How it is compiled.
    calls : int
        Number of calls.

    Returns
    -------
    Outcome
    """
    outcome = Outcome()
    got = RUNS[device](make, settings, calls, outcome.notes)
    scale = SCALES.get(settings.precision, 1.0)
    network, changing = make("float64", True, host_tensor, host_variable, scale)
    reference = Stepping(network, changing)
    calls = calls if changing else 1
    expected = reference(calls)
    noise = RELATIVE_ERROR[settings.precision], LEAST.get(settings.precision, 0.0)

    def moved(seeds: Iterable[int]) -> np.ndarray:
        runs = (reference(calls, *noise, seed) for seed in seeds)
        return np.max([_distances(run, expected) for run in runs], axis=0)

    off, norms = _distances(got, expected), _distances([0 * x for x in _arrays(expected)], expected)
    bounds = MARGIN * moved(FEW)
    if np.any(off > bounds):
        bounds = np.maximum(bounds, MARGIN * moved(MANY))
    for number, (error, bound, norm) in enumerate(zip(off, bounds, norms, strict=True)):
        if bound > UNCERTAIN * norm and np.isfinite(error):
            outcome.uncertain += norm > 0
            continue
        outcome.compared += 1
        outcome.worst = max(outcome.worst, error / bound if bound else float(error > 0))
        if not error <= bound:
            outcome.failures.append(
                f"result {number} of {len(off)}, shape {np.shape(_arrays(expected)[number])}: "
                f"off by {error / norm if norm else np.inf:.2g}, bound {bound / norm:.2g}"
            )
    return outcome


def _arrays(values: Iterable[Any]) -> list[Any]:
    return [value for value in values if not isinstance(value, np.random.Generator)]


def _distances(values: Iterable[Any], expected: Iterable[Any]) -> np.ndarray:
    pairs = zip(_arrays(values), _arrays(expected), strict=True)
    return np.array([distance(a, b) for a, b in pairs])
