"""Modules named as Theano's, whose attributes are found when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from dnnops.theano.functions import VERSION
from dnnops.theano.tables import ADVICE, TABLES

__all__ = ["TheanoFinder", "TheanoModule"]

_MISSING = object()


class TheanoModule(ModuleType):
    """A module of Theano, made of a row of `dnnops.theano.tables.TABLES`.

    Attributes that it has not got yet come from, in this order: the names that its row renames, the
    modules that its row lists, the submodules of its name.
    """

    def __getattr__(self, name: str) -> Any:
        if name == "__all__":
            return sorted(self._public_names())
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        value = self._find(name)
        if value is _MISSING:
            raise AttributeError(missing(self.__name__, name))
        # Found once; a plain attribute is faster, and may be replaced as one of any module.
        self.__dict__[name] = value
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        # The import system binds a submodule to its parent. As in Theano, theano.tensor.var, .sort
        # and theano.compile.function are functions, although there are modules of these names.
        if isinstance(value, TheanoModule) and value.__name__ == f"{self.__name__}.{name}":
            own = self._find_name(name)
            value = value if own is _MISSING else own
        super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*self.__dict__, *self._public_names(), *self._submodules()})

    def _find(self, name: str) -> Any:
        value = self._find_name(name)
        if value is _MISSING and f"{self.__name__}.{name}" in TABLES:
            return import_module(f"{self.__name__}.{name}")
        return value

    def _find_name(self, name: str) -> Any:
        table = TABLES[self.__name__]
        value = resolve(table.names[name]) if name in table.names else _MISSING
        if value is not _MISSING:
            return value
        for source in table.sources:
            module = import_module(source)
            if not name.startswith("_") and name in _exported(module):
                return getattr(module, name)
        return _MISSING

    def _public_names(self) -> Iterator[str]:
        table = TABLES[self.__name__]
        yield from (name for name in table.names if resolve(table.names[name]) is not _MISSING)
        for source in table.sources:
            yield from _exported(import_module(source))

    def _submodules(self) -> Iterator[str]:
        prefix = f"{self.__name__}."
        for name in TABLES:
            if name.startswith(prefix) and "." not in name[len(prefix) :]:
                yield name[len(prefix) :]


def _exported(module: ModuleType) -> set[str]:
    """The public names of a module: for one of dnnops what it declares, else what it has."""
    if module.__name__.split(".")[0] == "dnnops":
        return set(module.__all__)
    return {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    }


def resolve(target: str) -> Any:
    """Find what a table names.

    Parameters
    ----------
    target : str
        ``"package.module:name"``.

    Returns
    -------
    object
        The object, or a private marker if the installed PyTensor does not have it.
    """
    module, _, name = target.partition(":")
    try:
        return getattr(import_module(module), name)
    except (AttributeError, ModuleNotFoundError):
        return _MISSING


def missing(module: str, name: str) -> str:
    """Say that a name of Theano is not there, and what to use instead if that is known."""
    text = f"{module}.{name} is not available: neither PyTensor nor dnnops has it"
    advice = ADVICE.get(f"{module}.{name}") or ADVICE.get(name)
    return f"{text}. {advice}" if advice else text


class TheanoFinder:
    """Finds the modules of `dnnops.theano.tables.TABLES`, and no other module named ``theano``."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module by its name, as ``sys.meta_path`` wants it."""
        if fullname.split(".")[0] != "theano":
            return None
        if fullname in TABLES:
            return ModuleSpec(fullname, self, origin="dnnops.theano", is_package=True)  # type: ignore[arg-type]
        # "from theano.tensor import name" comes here for a name that the module has not got. An
        # ImportError with what to use instead reaches the user; an AttributeError would not.
        parent, _, name = fullname.rpartition(".")
        if name.startswith("_"):
            return None
        raise ImportError(missing(parent, name), name=fullname)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Make the module, without any attribute of its own."""
        return TheanoModule(spec.name, f"Theano's {spec.name}, made of PyTensor and dnnops.")

    def exec_module(self, module: ModuleType) -> None:
        """Give a module its initial attributes; the other ones are found later."""
        if module.__name__ == "theano":
            module.__version__ = f"{VERSION}+dnnops"  # type: ignore[attr-defined]
