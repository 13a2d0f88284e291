"""Checks of a stored state against the network that loads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from dnnops.arguments import host_array, shown, switch
from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.layers.streams import Streams, split_name

__all__ = ["Entry", "fitted"]


class Entry(NamedTuple):
    """The shape and the dtype of a parameter or buffer."""

    shape: tuple[int, ...]
    dtype: str


def fitted(
    where: str,
    state: Any,
    strict: Any,
    entries: Mapping[str, Entry],
    streams: Mapping[str, Streams],
    aliases: Mapping[str, str],
) -> tuple[dict[str, np.ndarray], dict[str, dict[int, np.ndarray]]]:
    """Return the values of a state that fits a network.

    Parameters
    ----------
    where : str
        Start of error messages.
    state : mapping of str to array_like
        Values by dotted name.
    strict : bool
        Whether missing and unknown names are errors.
    entries : mapping
        Parameters and buffers of the network by dotted name.
    streams : mapping
        Random streams of the network by the prefix of their layer.
    aliases : mapping
        First prefix of layers that occur more than once, by each other prefix.

    Returns
    -------
    arrays : dict of str to numpy.ndarray
        Values of parameters and buffers by dotted name.
    drawn : dict of str to dict of int to numpy.ndarray
        States of random streams by the prefix of their layer, and by number.

    Raises
    ------
    DnnTypeError
        If `state` is not a mapping, or a value is not an array of numbers.
    DnnValueError
        If anything does not fit; the message lists all of it.
    """
    if not isinstance(state, Mapping):
        raise DnnTypeError(f"{where}: state must be a mapping, got {shown(state)}")
    arrays = {name: host_array(where, name, value) for name, value in state.items()}
    arrays = _without_aliases(arrays, aliases)
    drawn: dict[str, dict[int, np.ndarray]] = {}
    wrong = []
    for name in list(arrays):
        prefix, number = split_name(name)
        if number is not None and prefix in streams:
            drawn.setdefault(prefix, {})[number] = arrays.pop(name)
            if problem := streams[prefix].problem(number, drawn[prefix][number]):
                wrong.append(f"{name} {problem}")
    wrong += [
        f"{name} has shape {arrays[name].shape}, expected {entry.shape}"
        for name, entry in entries.items()
        if name in arrays and arrays[name].shape != entry.shape
    ]
    wrong += [
        f"{name} has numbers that {entry.dtype} cannot represent"
        for name, entry in entries.items()
        if name in arrays and _overflows(arrays[name], entry.dtype)
    ]
    if switch(where, "strict", strict):
        wrong += [f"{name} is missing" for name in entries if name not in arrays]
        wrong += [f"{name} is unknown" for name in arrays if name not in entries]
    if wrong:
        raise DnnValueError("\n  ".join([f"{where}: the state does not fit:", *wrong]))
    return arrays, drawn


def _without_aliases(
    arrays: dict[str, np.ndarray], aliases: Mapping[str, str]
) -> dict[str, np.ndarray]:
    """Return the state with first names in the place of others with the same values."""
    kept = dict(arrays)
    for name, value in arrays.items():
        for alias, prefix in aliases.items():
            if not name.startswith(alias):
                continue
            own = prefix + name.removeprefix(alias)
            if own not in kept:
                kept[own] = kept.pop(name)
            elif own != name and np.array_equal(kept[own], value, equal_nan=True):
                kept.pop(name, None)
    return kept


def _overflows(value: np.ndarray, dtype: str) -> bool:
    """Return whether a cast to a floating-point dtype makes finite numbers infinite."""
    if np.dtype(dtype).kind != "f" or value.dtype.kind not in "iuf":
        return False
    largest = np.finfo(dtype).max
    return bool((np.isfinite(value) & (np.abs(value) > largest)).any())
