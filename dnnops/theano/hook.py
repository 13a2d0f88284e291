"""Install and remove the import hook for modules named ``theano``."""

from __future__ import annotations

import sys
import warnings
from typing import Any

from dnnops.errors import DnnNotSupportedError

__all__ = ["install", "installed", "uninstall"]

#: PyTensor's warnings about Theano's names, which an unmodified script can't avoid.
_QUIET = (
    r"The `broadcastable` keyword is deprecated",
    r"The no_default_updates parameter is deprecated",
    r"Setting default_update is deprecated",
    r"Scan return signature will change",
    r"Rop is deprecated",
    r"Lop is deprecated",
    r"[lr]op_overrides is deprecated",
)


def installed() -> bool:
    """Return whether ``import theano`` imports the modules of `dnnops.theano`."""
    return any(_is_ours(finder) for finder in sys.meta_path)


def install() -> None:
    """Make ``import theano`` import PyTensor and dnnops under Theano's names.

    Until :func:`uninstall`, PyTensor's variables are true, as those of Theano were.

    ``THEANO_FLAGS`` and ``.theanorc`` are applied to PyTensor's configuration. A flag that can only
    be set before PyTensor is imported causes a warning. Calling this function again has no effect.

    Raises
    ------
    DnnNotSupportedError
        If the real Theano has already been imported.
    DnnValueError
        If a flag in the environment has an invalid value.
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
    from dnnops.theano.methods import adopt_methods
    from dnnops.theano.modules import TheanoFinder

    apply_to_config()
    adopt_methods()
    for message in _QUIET:
        for category in (DeprecationWarning, FutureWarning):
            warnings.filterwarnings("ignore", message, category)
    sys.meta_path.insert(0, TheanoFinder())


def uninstall() -> None:
    """Undo :func:`install` by removing the modules named ``theano``.

    Objects that a program has imported from them continue to work. Flags keep their values.
    """
    if not installed():
        return
    from dnnops.theano.methods import restore_methods

    restore_methods()
    sys.meta_path[:] = [finder for finder in sys.meta_path if not _is_ours(finder)]
    for name in [name for name in sys.modules if name.split(".")[0] == "theano"]:
        del sys.modules[name]
    # A filter is a tuple (action, message pattern, category, module pattern, line).
    warnings.filters[:] = [  # type: ignore[index]
        entry for entry in warnings.filters if getattr(entry[1], "pattern", None) not in _QUIET
    ]


def _is_ours(finder: Any) -> bool:
    # isinstance would need the class, whose import also imports PyTensor.
    return type(finder).__module__ == "dnnops.theano.modules"
