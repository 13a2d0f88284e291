"""Suggest the nearest flag for a name that is none, in the environment and in ``change_flags``."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

from pytensor.configparser import PyTensorConfigParser, parse_config_string

from dnnops.errors import DnnUnknownFlagError, DnnWarning
from dnnops.hints import nearest

__all__ = ["flag_hint", "suggest_flags", "warn_of_unknown_flags"]

_VARIABLE = "PYTENSOR_FLAGS"
#: Most flags of a section that a message lists.
_MOST = 6


class _Flags(dict[str, Any]):
    """PyTensor's table of flags, in which a lookup that fails names the nearest flag."""

    def __missing__(self, key: str) -> Any:
        raise DnnUnknownFlagError(f"there is no flag {key}{flag_hint(key, self, '__')}")


def flag_hint(name: str, names: Iterable[str], separator: str = ".") -> str:
    """Return the flag that is meant by a name, after a semicolon, in the spelling of the name.

    Parameters
    ----------
    name : str
        What was given, with dots or double underscores between sections.
    names : iterable of str
        Flags, with double underscores.
    separator : {'.', '__'}
        What to write between sections if the name does not show it.

    Returns
    -------
    str
        Empty if no flag is similar.
    """
    names = list(names)
    found = _closest(name, names)
    if not found:
        return ""
    separator = next((shown for shown in (".", "__") if shown in name), separator)
    section = _section(name)
    meant = [found]
    if section != _section(found):
        # Flags of the section that was named may be meant, too.
        meant += [key for key in names if section and _section(key) == section][:_MOST]
    *others, last = [key.replace("__", separator) for key in meant]
    return f"; did you mean {', '.join(others)}{' or ' if others else ''}{last}?"


def _closest(name: str, names: Sequence[str]) -> str:
    """Return the flag from which a name differs least; it may differ in every fifth letter."""
    plain = _plain(name)
    by_distance = [
        (_distance(plain, _plain(key)), _section(name) != _section(key), number)
        for number, key in enumerate(names)
        if abs(len(plain) - len(_plain(key))) <= _differences(plain)
    ]
    if by_distance and min(by_distance)[0] <= _differences(plain):
        return names[min(by_distance)[2]]
    return nearest(name.replace(".", "__"), names)


def _differences(plain: str) -> int:
    return max(1, len(plain) // 5)


def _section(name: str) -> str:
    """Return the first section of a flag's name, or an empty string."""
    parts = name.replace(".", "__").split("__")
    return parts[0] if len(parts) > 1 else ""


def _plain(name: str) -> str:
    return re.sub(r"[._-]", "", name).lower()


def _distance(a: str, b: str) -> int:
    """Count the letters to insert, remove, replace or swap with the next one."""
    before: list[int] = []
    row = list(range(len(b) + 1))
    for i, letter in enumerate(a, start=1):
        new = [i]
        for j, other in enumerate(b, start=1):
            least = min(new[-1] + 1, row[j] + 1, row[j - 1] + (letter != other))
            if i > 1 and j > 1 and letter == b[j - 2] and a[i - 2] == other:
                least = min(least, before[j - 2] + 1)
            new.append(least)
        before, row = row, new
    return row[-1]


def suggest_flags(config: PyTensorConfigParser) -> None:
    """Let ``config.change_flags`` suggest the nearest flag for one that does not exist."""
    table: Any = config._config_var_dict
    if not isinstance(table, _Flags):
        config._config_var_dict = _Flags(table)


def warn_of_unknown_flags(config: PyTensorConfigParser) -> None:
    """Warn of names in ``PYTENSOR_FLAGS`` that resemble a flag, and say which.

    Warns
    -----
    DnnWarning
        For each name that PyTensor does not recognise and that resembles one it does.
    """
    known = list(config._config_var_dict)
    for name in parse_config_string(os.environ.get(_VARIABLE, "")):
        if name.replace(".", "__") in known:
            continue
        if hint := flag_hint(name, known):
            warnings.warn(f"{_VARIABLE}: there is no flag {name}{hint}", DnnWarning, stacklevel=2)
