"""The random streams of a layer, which are saved with its parameters."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from pytensor.tensor.random.variable import RandomGeneratorSharedVariable

from dnnops.errors import DnnValueError
from dnnops.nnet.streams import is_marked

__all__ = ["Streams", "generators_in", "is_stream", "split_name"]

_NAME = re.compile(r"(?:(.*)\.)?random_state\.(0|[1-9][0-9]{0,8})", re.DOTALL)
#: NumPy's bit generators that a saved state may name.
_KINDS = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")
#: What NumPy and JSON raise for states that no generator has.
_MALFORMED = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
#: Largest positions in the state of MT19937, and in the buffer of Philox.
_MOST_POSITION, _MOST_BUFFER_POSITION = 624, 4


def split_name(name: str) -> tuple[str, int | None]:
    """Return the name of a layer and the number of its stream, or `name` and None.

    Parameters
    ----------
    name : str
        Name of an entry of a state.

    Returns
    -------
    layer : str
        Empty for the network itself.
    number : int or None
    """
    match = _NAME.fullmatch(name)
    return (match[1] or "", int(match[2])) if match else (name, None)


def generators_in(attributes: Iterable[Any]) -> Iterator[Any]:
    """Yield generators among attributes, and those of streams such as PyTensor's `RandomStream`.

    Parameters
    ----------
    attributes : iterable
        Values of a layer's attributes.

    Returns
    -------
    iterator of RandomGeneratorSharedVariable
    """
    for value in attributes:
        if isinstance(value, RandomGeneratorSharedVariable):
            yield value
        made = getattr(value, "state_updates", None)
        if isinstance(made, list):
            yield from (generator for generator, _ in made)


def is_stream(variable: Any) -> bool:
    """Return whether a variable is a random stream of PyTensor, or one that dnnops made."""
    return isinstance(variable, RandomGeneratorSharedVariable) or is_marked(variable)


class Streams:
    """Random streams that the calls of a layer made, in order.

    A layer makes them when it is called, but a state may be loaded before. It then waits for the
    call that makes the stream of the same number.
    """

    def __init__(self) -> None:
        self._made: list[Any] = []
        self._waiting: dict[int, np.ndarray] = {}

    def __bool__(self) -> bool:
        return bool(self._made or self._waiting)

    def __contains__(self, stream: Any) -> bool:
        return any(stream is known for known in self._made)

    def __getstate__(self) -> dict[str, Any]:
        # The updates of the shared variables contain the graph.
        return {"_made": [], "_waiting": self.states()}

    def add(self, where: str, streams: Iterable[Any]) -> None:
        """Add new streams, and set those whose states were loaded before.

        Parameters
        ----------
        where : str
            Name of the layer.
        streams : iterable of SharedVariable
            Streams that a call has made or used.

        Raises
        ------
        DnnValueError
            If such a state does not fit; `where` names the layer in the message.
        """
        for stream in streams:
            if stream in self:
                continue
            number = len(self._made)
            self._made.append(stream)
            if number in self._waiting:
                state = self._waiting.pop(number)
                if problem := _problem(stream, state):
                    raise DnnValueError(f"{where}: the loaded random_state.{number} {problem}")
                _set(stream, state)

    def states(self) -> dict[int, np.ndarray]:
        """Return copies of the states by number."""
        return {**self._waiting, **{i: _state(stream) for i, stream in enumerate(self._made)}}

    def named_states(self) -> dict[str, np.ndarray]:
        """Return :meth:`states` by the names that they have in the state of the layer."""
        return {f"random_state.{number}": state for number, state in self.states().items()}

    def problem(self, number: int, state: np.ndarray) -> str:
        """Return why a state does not fit, as the end of a sentence; empty if it does.

        Parameters
        ----------
        number : int
            Number of the stream in its layer.
        state : numpy.ndarray

        Returns
        -------
        str
        """
        if number < len(self._made):
            return _problem(self._made[number], state)
        return "" if state.dtype.kind in "iu" else f"must be integers, got {state.dtype}"

    def set(self, states: Mapping[int, np.ndarray]) -> None:
        """Set streams to states that have been checked; the others keep theirs.

        Parameters
        ----------
        states : mapping of int to numpy.ndarray
        """
        for number, state in states.items():
            if number < len(self._made):
                _set(self._made[number], state)
            else:
                self._waiting[number] = state


def _state(stream: Any) -> np.ndarray:
    """Return the state of a stream: integers, or the bytes of a generator's state in JSON."""
    value = stream.get_value(borrow=True)
    if not isinstance(value, np.random.Generator):
        return np.array(value)
    text = json.dumps(value.bit_generator.state, default=np.ndarray.tolist)
    return np.frombuffer(text.encode(), "uint8")


def _problem(stream: Any, state: np.ndarray) -> str:
    value = stream.get_value(borrow=True)
    if state.dtype.kind not in "iu":
        return f"must be integers, got {state.dtype}"
    if isinstance(value, np.random.Generator):
        try:
            _generator(state)
        except _MALFORMED as error:
            return f"is not the state of one of NumPy's generators: {error}"
        return ""
    if np.shape(value) != state.shape:
        return f"has shape {state.shape}, expected {np.shape(value)}"
    return ""


def _set(stream: Any, state: np.ndarray) -> None:
    if isinstance(stream.get_value(borrow=True), np.random.Generator):
        stream.set_value(_generator(state), borrow=True)
    else:
        stream.set_value(state.astype(stream.type.dtype))


def _generator(state: np.ndarray) -> np.random.Generator:
    found = json.loads(state.astype("uint8").tobytes())
    kind = found["bit_generator"]
    if kind not in _KINDS:
        raise ValueError(f"the bit generator {kind!r}")
    # NumPy does not check them, and would read memory beyond its own.
    positions = found["state"].get("pos", 0), found.get("buffer_pos", 0)
    if not (0 <= positions[0] <= _MOST_POSITION and 0 <= positions[1] <= _MOST_BUFFER_POSITION):
        raise ValueError(f"the positions {positions[0]} and {positions[1]}")
    bits = getattr(np.random, kind)()
    bits.state = found
    return np.random.Generator(bits)
