"""Suggest the nearest flag for a name that is none, in the environment and in ``change_flags``."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable
from typing import Any

from pytensor.configparser import PyTensorConfigParser, parse_config_string

from dnnops.errors import DnnUnknownFlagError, DnnWarning
from dnnops.hints import nearest

__all__ = ["flag_hint", "suggest_flags", "warn_of_unknown_flags"]

_VARIABLE = "PYTENSOR_FLAGS"


class _Flags(dict[str, Any]):
    """PyTensor's table of flags, in which a lookup that fails names the nearest flag."""

    def __missing__(self, key: str) -> Any:
        raise DnnUnknownFlagError(f"there is no flag {key}{flag_hint(key, self)}")


def flag_hint(name: str, names: Iterable[str]) -> str:
    """Return the flag that is meant by a name, after a semicolon, in the spelling of the name."""
    found = nearest(name.replace(".", "__"), names)
    if not found:
        return ""
    return f"; did you mean {found.replace('__', '.') if '.' in name else found}?"


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
