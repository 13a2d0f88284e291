"""The flag ``mode`` with the names of dnnops' modes.

PyTensor reads its flags while it is imported, when it knows only modes of its own, and refuses
others. So it is given ``Mode`` then, and the name afterwards. Like `dnnops.config`, this module
does not import PyTensor before its functions are called.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from configparser import ConfigParser, Error
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dnnops.errors import DnnValueError

__all__ = ["MODE_NAMES", "accept_modes", "mode_kept_back", "wanted_mode"]

MODE_NAMES = ("DNN", "CUDNN", "ONEDNN")
#: PyTensor's variable, and that of dnnops, which PyTensor does not read.
_PYTENSOR, _OWN = "PYTENSOR_FLAGS", "DNNOPS_FLAGS"
_NEUTRAL = "mode=Mode"


def _given(variable: str) -> str:
    """The value that a variable of the environment gives the flag; empty if none."""
    found = ""
    for part in os.environ.get(variable, "").split(","):
        name, _, value = part.partition("=")
        if name.strip() == "mode":
            found = value.strip()
    return found


def _in_files() -> str:
    """The value that the files of PyTensor's configuration give the flag; empty if none."""
    parser = ConfigParser(interpolation=None)
    paths = os.environ.get("PYTENSORRC", "~/.pytensorrc").split(os.pathsep)
    try:
        parser.read(Path(path).expanduser() for path in paths)
    except (Error, OSError, UnicodeDecodeError):
        return ""  # PyTensor says what is wrong
    return parser.get("global", "mode", fallback="")


def wanted_mode() -> str:
    """Give the mode of dnnops that the flag ``mode`` names; empty if it names none.

    Raises
    ------
    DnnValueError
        If the two variables of the environment name different modes.
    """
    theirs, own = _given(_PYTENSOR), _given(_OWN)
    if own and theirs and own != theirs:
        raise DnnValueError(f"{_OWN} gives mode={own}, and {_PYTENSOR} mode={theirs}: give it once")
    if own and own not in MODE_NAMES:
        raise DnnValueError(
            f"{_OWN}: mode must be one of {', '.join(MODE_NAMES)}, got {own!r}; PyTensor's own are "
            f"set in {_PYTENSOR}"
        )
    wanted = own or theirs or _in_files()
    return wanted if wanted in MODE_NAMES else ""


@contextmanager
def mode_kept_back() -> Iterator[None]:
    """Hide a mode of dnnops from PyTensor, which is imported inside."""
    flags = os.environ.get(_PYTENSOR)
    # The flags are read there, early in PyTensor's import, inside of which this may be called.
    if "pytensor.configdefaults" in sys.modules or not wanted_mode():
        yield
        return
    # Of two values, PyTensor takes the last one; and any before that of a file.
    parts = [part for part in (flags or "").split(",") if part.partition("=")[0].strip() != "mode"]
    os.environ[_PYTENSOR] = ",".join([*filter(None, parts), _NEUTRAL])
    try:
        yield
    finally:
        if flags is None:
            del os.environ[_PYTENSOR]
        else:
            os.environ[_PYTENSOR] = flags


def accept_modes() -> None:
    """Let PyTensor's flag ``mode`` take the names, and set it to the one that is wanted.

    A mode that a program has set stays.
    """
    from pytensor.configdefaults import config

    param = config._config_var_dict["mode"]
    theirs = param._apply
    if getattr(theirs, "takes_dnnops", False):
        return

    def apply(value: Any) -> Any:
        if isinstance(value, str) and value in MODE_NAMES:
            return value
        return theirs(value)

    apply.takes_dnnops = True  # type: ignore[attr-defined]
    param._apply = apply
    if (wanted := wanted_mode()) and config.mode == "Mode":
        config.mode = wanted
