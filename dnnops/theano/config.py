"""``theano.config``: PyTensor's flags under names with dots."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from typing import Any

from pytensor.configdefaults import config as pytensor_config

from dnnops.config import flag_value
from dnnops.theano.flags import IGNORED, device_as_given, is_ignored, warn_ignored

__all__ = ["Section", "change_flags", "config"]

#: What a program has set of the flags that only Theano had.
_without_effect: dict[str, Any] = {}


class Section:
    """Part of the flags: all of them, or those whose names begin with one prefix.

    Parameters
    ----------
    prefix : str
        With dots; empty for all flags.
    """

    def __init__(self, prefix: str):
        object.__setattr__(self, "_prefix", prefix)

    def __getattr__(self, name: str) -> Any:
        dotted = f"{self._prefix}.{name}" if self._prefix else name
        key = dotted.replace(".", "__")
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
        dotted = f"{self._prefix}.{name}" if self._prefix else name
        key = dotted.replace(".", "__")
        if key in pytensor_config._config_var_dict:
            setattr(pytensor_config, key, value)
        elif is_ignored(dotted):
            if dotted not in _without_effect:
                if value == _default(dotted):
                    return
                warn_ignored([dotted])
            _without_effect[dotted] = value
        else:
            raise AttributeError(f"PyTensor and dnnops have no flag {dotted}")

    def __dir__(self) -> list[str]:
        start = self._prefix.replace(".", "__") + "__" if self._prefix else ""
        names = [*pytensor_config._config_var_dict, *(flag.replace(".", "__") for flag in IGNORED)]
        return sorted(
            {name[len(start) :].split("__")[0] for name in names if name.startswith(start)}
        )

    def __str__(self) -> str:
        return str(pytensor_config)

    def change_flags(self, **flags: Any) -> Any:
        """As the function of this name."""
        return change_flags(**flags)


def _default(dotted: str) -> Any:
    """What a flag that only Theano had is if nobody sets it; bugs that it warned of are its own."""
    return IGNORED.get(dotted, False if dotted.startswith("warn.") else None)


def _names_device(given: str, device: str) -> bool:
    """Return whether a device in Theano's spelling (gpu0) is the one of the flag (cuda0)."""
    return bool(given) and given.replace("gpu", "cuda") == device


config = Section("")


@contextmanager
def change_flags(args: Any = (), **flags: Any) -> Iterator[None]:
    """Change flags for a while, as a context manager or a decorator.

    Parameters
    ----------
    args : dict or sequence of pairs
        Flags whose names have dots.
    **flags
        Flags by name; two underscores may stand for a dot.
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
    """The section of a flag, and the last word of its name."""
    *sections, last = name.split(".")
    return reduce(getattr, sections, config), last
