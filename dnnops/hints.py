"""Say what to use in place of a name or an argument that does not exist.

Python calls these functions only after a lookup or a call has failed. Calls that succeed pass
through one more function, which keeps the signature. So the tables of other libraries' names are
imported when they are needed.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from dis import opmap
from functools import wraps
from types import FrameType, FunctionType
from typing import Any, NoReturn

from dnnops.errors import DnnTypeError

__all__ = ["explain_arguments", "explained", "name_hint", "nearest", "no_attribute", "value_hint"]

#: Packages that users may have meant, in this order.
_PACKAGES = ("layers", "nnet", "optim")


def no_attribute(package: str) -> Callable[[str], NoReturn]:
    """Return the ``__getattr__`` of a package, which raises an error with a hint.

    Parameters
    ----------
    package : str
        Full name, such as ``dnnops.nnet``.
    """

    def lookup(name: str) -> NoReturn:
        hint = "" if name.startswith("__") else name_hint(package, name)
        # Python replaces an AttributeError in `from package import name` by an error of its own.
        if hint and _is_import(sys._getframe(1)):
            raise ImportError(f"cannot import name {name!r} from {package!r}{hint}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}{hint}")

    return lookup


def _is_import(frame: FrameType) -> bool:
    """Return whether a frame, or the caller of a ``__getattr__``, runs ``from ... import``."""
    back = frame.f_back
    if frame.f_code.co_name == "__getattr__" and back is not None:
        frame = back
    return frame.f_code.co_code[frame.f_lasti] == opmap["IMPORT_FROM"]


def name_hint(package: str, name: str) -> str:
    """Return what to use in place of a name that a package does not have, after a semicolon.

    Parameters
    ----------
    package : str
        Full name, such as ``dnnops.nnet``.
    name : str
        Name that was looked up.

    Returns
    -------
    str
        Empty if nothing is similar.
    """
    from dnnops.foreign_names import NAMES, PATTERNS

    own = package.rpartition(".")[2]
    for table in dict.fromkeys((own, *_PACKAGES)):
        if name in NAMES.get(table, {}):
            return f"; use {NAMES[table][name]}"
    for pattern, hint in PATTERNS.items():
        if re.fullmatch(pattern, name):
            return f"; use {hint}"
    if name.endswith("_"):  # PyTorch's functions that overwrite an argument
        plain = name.rstrip("_")
        return f"; use {own}.{plain}" if plain in _public(package) else name_hint(package, plain)
    public = {table: _public(f"dnnops.{table}") for table in _PACKAGES}
    for table, names in public.items():
        if table != own and name in names:
            return f"; use {table}.{name}"
    found = nearest(name, _public(package))
    if found:
        return f"; did you mean {found}?"
    for table, names in public.items():
        if table != own and (found := nearest(name, names)):
            return f"; did you mean {table}.{found}?"
    return ""


def _public(package: str) -> list[str]:
    return list(getattr(sys.modules.get(package), "__all__", ()))


def nearest(name: str, names: Iterable[str]) -> str:
    """Return the most similar name, or an empty string if none is similar.

    Case, hyphens and underscores do not count. A name that begins like another one is similar.
    """
    plain = {_plain(known): known for known in names}
    begun = [known for known in plain if known.startswith(_plain(name)) and len(name) > 3]
    found = sorted(begun, key=len)[:1] or get_close_matches(_plain(name), plain, n=1, cutoff=0.8)
    return plain[found[0]] if found else ""


def _plain(name: str) -> str:
    return name.lower().replace("-", "_").replace("_", "")


def value_hint(name: str, value: Any) -> str:
    """Return what another library's value of an argument is called here, in parentheses."""
    from dnnops.foreign_arguments import VALUES

    found = VALUES.get((name, value)) if isinstance(value, str) else None
    return f" (it is called {found} here)" if found else ""


def explain_arguments(package: str) -> None:
    """Let the public functions of a package explain arguments that they do not have.

    The functions are replaced in all modules that have them, so that there is one of each, as
    pickling requires.
    """
    module = sys.modules[package]
    for name in _public(package):
        function = getattr(module, name)
        if isinstance(function, FunctionType) and not hasattr(function, "__wrapped__"):
            new = explained(function)
            for place in [m for key, m in sys.modules.items() if key.startswith("dnnops")]:
                for own, value in list(vars(place).items()):
                    if value is function:
                        setattr(place, own, new)


def explained(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function or method whose errors about unknown arguments say which one is meant."""

    @wraps(function)
    def called(*args: Any, **named: Any) -> Any:
        try:
            return function(*args, **named)
        except TypeError as error:
            trace = error.__traceback__
            if named and trace is not None and trace.tb_next is None:
                known = inspect.signature(function).parameters
                kinds = {parameter.kind for parameter in known.values()}
                unknown = [name for name in named if name not in known]
                if unknown and inspect.Parameter.VAR_KEYWORD not in kinds:
                    is_method = function.__name__ == "__init__"
                    where = type(args[0]).__name__ if is_method else function.__name__
                    names = [name for name in known if name != "self"]
                    raise DnnTypeError(_unexpected(where, unknown, names)) from None
            raise

    return called


def _unexpected(where: str, unknown: list[str], known: list[str]) -> str:
    """Return the message of an error about arguments that a function does not have."""
    words = " and ".join(map(repr, unknown))
    what = "unexpected keyword arguments" if len(unknown) > 1 else "an unexpected keyword argument"
    hints = dict.fromkeys(filter(None, (_argument_hint(name, known) for name in unknown)))
    if not hints:
        hints = {f"it takes {', '.join(known)}" if known else "it takes no arguments": None}
    return f"{where}() got {what} {words}; {'; '.join(hints)}"


def _argument_hint(name: str, known: list[str]) -> str:
    from dnnops.foreign_arguments import ARGUMENTS, REMARKS

    for text in ARGUMENTS.get(name, ()):
        if set(text.split(", ")) <= set(known):
            joined = " and ".join([", ".join(text.split(", ")[:-1]), text.split(", ")[-1]])
            return f"use {joined.removeprefix(' and ')} for {name}"
    if name in REMARKS:
        return f"{name}: {REMARKS[name]}"
    found = nearest(name, known)
    return f"did you mean {found}?" if found else ""
