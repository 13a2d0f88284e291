"""Let the flag ``mode`` accept the names of dnnops modes.

PyTensor reads its flags while it is imported. At that time it knows only its own modes and rejects
others. The flag is therefore ``Mode`` during the import and set to the dnnops mode afterwards. Like
`dnnops.config`, this module does not import PyTensor until its functions are called.
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
#: The environment variables of PyTensor and of dnnops. PyTensor does not read the latter.
_PYTENSOR, _OWN = "PYTENSOR_FLAGS", "DNNOPS_FLAGS"
_NEUTRAL = "mode=Mode"


def _given(variable: str) -> str:
    """Return the flag's value in an environment variable, or an empty string."""
    found = ""
    for part in os.environ.get(variable, "").split(","):
        name, _, value = part.partition("=")
        if name.strip() == "mode":
            found = value.strip()
    return found


def _in_files() -> str:
    """Return the flag's value in PyTensor's configuration files, or an empty string."""
    parser = ConfigParser(interpolation=None)
    paths = os.environ.get("PYTENSORRC", "~/.pytensorrc").split(os.pathsep)
    try:
        parser.read(Path(path).expanduser() for path in paths)
    except (Error, OSError, UnicodeDecodeError):
        return ""  # PyTensor reports the error
    return parser.get("global", "mode", fallback="")


def wanted_mode() -> str:
    """Return the dnnops mode that the flag ``mode`` names, or an empty string.

    Raises
    ------
    DnnValueError
        If the two environment variables name different modes, or if ``DNNOPS_FLAGS`` names a mode
        that does not belong to dnnops.
    """
    theirs, own = _given(_PYTENSOR), _given(_OWN)
    if own and theirs and own != theirs:
        raise DnnValueError(
            f"{_OWN} sets mode={own}, but {_PYTENSOR} sets mode={theirs}; set only one"
        )
    if own and own not in MODE_NAMES:
        raise DnnValueError(
            f"{_OWN}: mode must be one of {', '.join(MODE_NAMES)}, got {own!r}; set PyTensor's "
            f"modes in {_PYTENSOR}"
        )
    wanted = own or theirs or _in_files()
    return wanted if wanted in MODE_NAMES else ""


@contextmanager
def mode_kept_back() -> Iterator[None]:
    """Hide a dnnops mode from PyTensor within a ``with`` block that imports PyTensor."""
    flags = os.environ.get(_PYTENSOR)
    # That module reads the flags early in PyTensor's import, which may already be in progress.
    if "pytensor.configdefaults" in sys.modules or not wanted_mode():
        yield
        return
    # PyTensor takes the last of two values, and prefers the environment to a file.
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
    """Let PyTensor's flag ``mode`` accept dnnops modes, and set it to the requested one.

    A mode that a program has set is kept.
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
