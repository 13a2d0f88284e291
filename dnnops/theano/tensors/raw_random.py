"""``theano.tensor.raw_random``: draws that take a generator and also return the following one."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

from pytensor.tensor.random.type import RandomGeneratorType

from dnnops.theano.random import RandomStreams

__all__ = [
    "RandomStateType",
    "binomial",
    "choice",
    "multinomial",
    "normal",
    "permutation",
    "poisson",
    "random_integers",
    "random_state_type",
    "uniform",
]

RandomStateType = RandomGeneratorType
#: Type of the generators; calling it creates a variable.
random_state_type = RandomStateType()


class _Given(RandomStreams):
    """Streams whose only draw uses a given generator."""

    def __init__(self, state: Any):
        self.state = state
        self.following: Any = None

    def gen(self, op: Any, *args: Any, **kwargs: Any) -> Any:
        """Draw from the generator with one of PyTensor's random Ops."""
        self.following, draw = op(*args, rng=self.state, return_next_rng=True, **kwargs)
        return draw


def _from_state(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that draws as a method of `RandomStreams`, from a generator."""

    @wraps(method)
    def draw(random_state: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        given = _Given(random_state)
        result = method(given, *args, **kwargs)
        return given.following, result

    own, *others = inspect.signature(method).parameters.values()
    parameters = [own.replace(name="random_state"), *others]
    draw.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    draw.__doc__ = (
        f"Return the generator that follows `random_state`, and a draw.\n\n{method.__doc__}"
    )
    return draw


binomial = _from_state(RandomStreams.binomial)
choice = _from_state(RandomStreams.choice)
multinomial = _from_state(RandomStreams.multinomial)
normal = _from_state(RandomStreams.normal)
permutation = _from_state(RandomStreams.permutation)
poisson = _from_state(RandomStreams.poisson)
random_integers = _from_state(RandomStreams.random_integers)
uniform = _from_state(RandomStreams.uniform)
