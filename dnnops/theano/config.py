"""``theano.config``: PyTensor's flags under dotted names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from typing import Any

from pytensor.configdefaults import config as pytensor_config

from dnnops.config import flag_value
from dnnops.theano.flags import IGNORED, RENAMED, device_as_given, is_ignored, warn_ignored

__all__ = ["Section", "change_flags", "config"]

#: Values that a program has set for flags that exist only in Theano.
_without_effect: dict[str, Any] = {}


class Section:
    """All flags, or those whose names begin with a prefix.

    Parameters
    ----------
    prefix : str
        Dotted prefix; empty for all flags.
    """

    def __init__(self, prefix: str):
        object.__setattr__(self, "_prefix", prefix)

    def __getattr__(self, name: str) -> Any:
        dotted, key = self._names(name)
        if dotted == "deterministic":
            return "more" if flag_value("dnn__deterministic") else "default"
        if key == "device" and _names_device(device_as_given(), flag_value("device")):
            return device_as_given()
        if key in pytensor_config._config_var_dict:
            return getattr(pytensor_config, key)
        if dotted in _without_effect or dotted in IGNORED or dotted.startswith("warn."):
            return _without_effect.get(dotted, _default(dotted))
        known = [*pytensor_config._config_var_dict, *(flag.replace(".", "__") for flag in IGNORED)]
        if any(flag.startswith(f"{key}__") for flag in known):
            return Section(dotted)
        raise AttributeError(f"PyTensor and dnnops have no flag {dotted}")

    def __setattr__(self, name: str, value: Any) -> None:
        dotted, key = self._names(name)
        if dotted == "deterministic":
            pytensor_config.dnn__deterministic = value == "more"  # type: ignore[attr-defined]
        elif key in pytensor_config._config_var_dict:
            # A flag that can't be changed any more may be set to what it is.
            if value != getattr(pytensor_config, key):
                setattr(pytensor_config, key, value)
        elif is_ignored(dotted):
            if dotted not in _without_effect:
                if value == _default(dotted):
                    return
                warn_ignored([dotted])
            _without_effect[dotted] = value
        else:
            raise AttributeError(f"PyTensor and dnnops have no flag {dotted}")

    def _names(self, name: str) -> tuple[str, str]:
        """Return Theano's current name of a flag, and PyTensor's."""
        dotted = f"{self._prefix}.{name}" if self._prefix else name
        dotted = RENAMED.get(dotted, dotted)
        return dotted, dotted.replace(".", "__")

    def __dir__(self) -> list[str]:
        start = self._prefix.replace(".", "__") + "__" if self._prefix else ""
        names = [*pytensor_config._config_var_dict, *(flag.replace(".", "__") for flag in IGNORED)]
        return sorted(
            {name[len(start) :].split("__")[0] for name in names if name.startswith(start)}
        )

    def __str__(self) -> str:
        return str(pytensor_config)

    def change_flags(self, **flags: Any) -> Any:
        """Change flags temporarily; see :func:`change_flags`."""
        return change_flags(**flags)


def _default(dotted: str) -> Any:
    """Return the default of a flag that exists only in Theano.

    It is False for the ``warn`` flags, since they warn about bugs of Theano.
    """
    return IGNORED.get(dotted, False if dotted.startswith("warn.") else None)


def _names_device(given: str, device: str) -> bool:
    """Return whether a device in Theano's spelling (gpu0) is the flag's device (cuda0)."""
    return bool(given) and given.replace("gpu", "cuda") == device


config = Section("")


@contextmanager
def change_flags(args: Any = (), **flags: Any) -> Iterator[None]:
    """Change flags temporarily, as a context manager or a decorator.

    Parameters
    ----------
    args : dict or sequence of pairs
        Values of flags by dotted name.
    **flags
        Values of flags by name, with two underscores in place of a dot.
    """
    changes = {**dict(args), **{name.replace("__", "."): value for name, value in flags.items()}}
    before = {name: _section_of(name) for name in changes}
    values = {name: getattr(section, last) for name, (section, last) in before.items()}
    try:
        for name, (section, last) in before.items():
            setattr(section, last, changes[name])
        yield
    finally:
        for name, (section, last) in before.items():
            setattr(section, last, values[name])


def _section_of(name: str) -> tuple[Any, str]:
    """Return the section of a flag, and the last part of its name."""
    *sections, last = name.split(".")
    return reduce(getattr, sections, config), last
