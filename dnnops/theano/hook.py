"""Puts modules named ``theano`` in front of Python's own import machinery."""

from __future__ import annotations

import sys
import warnings
from typing import Any

from dnnops.errors import DnnNotSupportedError

__all__ = ["install", "installed", "uninstall"]

#: Warnings of PyTensor about names of Theano, which a script that stays as it is cannot heed.
_QUIET = (
    r"The `broadcastable` keyword is deprecated",
    r"The no_default_updates parameter is deprecated",
    r"Setting default_update is deprecated",
    r"Scan return signature will change",
    r"Rop is deprecated",
    r"Lop is deprecated",
)


def installed() -> bool:
    """Return whether ``import theano`` gives the modules of `dnnops.theano`."""
    return any(_is_ours(finder) for finder in sys.meta_path)


def install() -> None:
    """Make ``import theano`` give PyTensor and dnnops under Theano's names.

    ``THEANO_FLAGS`` and ``.theanorc`` are applied to PyTensor's configuration; a flag that can only
    be set before PyTensor is imported causes a warning. Calling it again does nothing.

    Raises
    ------
    DnnNotSupportedError
        If the real Theano has been imported already.
    DnnValueError
        If a flag in the environment has a value that is not accepted.
    """
    if installed():
        return
    existing = sys.modules.get("theano")
    if existing is not None:
        raise DnnNotSupportedError(
            "Theano has been imported already"
            f" ({getattr(existing, '__file__', None) or 'from an unknown place'}):"
            " call dnnops.theano.install() before anything imports it"
        )
    from dnnops.theano.flags import apply_to_config
    from dnnops.theano.modules import TheanoFinder

    apply_to_config()
    for message in _QUIET:
        for category in (DeprecationWarning, FutureWarning):
            warnings.filterwarnings("ignore", message, category)
    sys.meta_path.insert(0, TheanoFinder())


def uninstall() -> None:
    """Undo :func:`install`: take the modules named ``theano`` away.

    What a program has imported from them keeps working. Flags keep the values they have.
    """
    if not installed():
        return
    sys.meta_path[:] = [finder for finder in sys.meta_path if not _is_ours(finder)]
    for name in [name for name in sys.modules if name.split(".")[0] == "theano"]:
        del sys.modules[name]
    # A filter is (action, message's pattern, category, module's pattern, line).
    warnings.filters[:] = [  # type: ignore[index]
        entry for entry in warnings.filters if getattr(entry[1], "pattern", None) not in _QUIET
    ]


def _is_ours(finder: Any) -> bool:
    # Not isinstance: importing the class imports PyTensor's modules with it.
    return type(finder).__module__ == "dnnops.theano.modules"
