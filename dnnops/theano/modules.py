"""Modules with Theano's names, whose attributes are looked up when they are accessed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from dnnops.theano.functions import VERSION
from dnnops.theano.tables import TABLES, advice_for

__all__ = ["TheanoFinder", "TheanoModule"]

_MISSING = object()


class TheanoModule(ModuleType):
    """A module of Theano, defined by an entry of `dnnops.theano.tables.TABLES`.

    Missing attributes are looked up in this order: the ``names`` of the entry, the modules in its
    ``sources``, and the submodules.
    """

    def __getattr__(self, name: str) -> Any:
        if name == "__all__":
            return sorted(self._public_names())
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        value = self._find(name)
        if value is _MISSING:
            raise AttributeError(missing(self.__name__, name))
        # Store it as a plain attribute, which is faster and can be replaced as in any module.
        self.__dict__[name] = value
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        # The import system sets submodules as attributes of their parent. As in Theano,
        # theano.tensor.var, .sort and theano.compile.function stay functions, although there are
        # modules with these names.
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
    """Return the public names of a module: its ``__all__`` if it belongs to dnnops."""
    if module.__name__.split(".")[0] == "dnnops":
        return set(module.__all__)
    return {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    }


def resolve(target: str) -> Any:
    """Import the object that a table refers to.

    Parameters
    ----------
    target : str
        Reference of the form ``"package.module:name"``, or ``"package.module:"`` for the module.

    Returns
    -------
    object
        The object, or a private marker if the installed PyTensor doesn't have it.
    """
    module, _, name = target.partition(":")
    try:
        found = import_module(module)
        return getattr(found, name) if name else found
    except (AttributeError, ModuleNotFoundError):
        return _MISSING


def missing(module: str, name: str) -> str:
    """Return the message for a missing name of Theano, with a replacement if one is known."""
    text = f"{module}.{name} is not available: neither PyTensor nor dnnops provides it"
    advice = advice_for(module, name)
    return f"{text}. {advice}" if advice else text


class TheanoFinder:
    """Finder of the modules in `dnnops.theano.tables.TABLES`; rejects other ``theano`` modules."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module by name; called for finders in ``sys.meta_path``."""
        if fullname.split(".")[0] != "theano":
            return None
        if fullname in TABLES:
            return ModuleSpec(fullname, self, origin="dnnops.theano", is_package=True)  # type: ignore[arg-type]
        # "from theano.tensor import name" gets here if the module doesn't have the name. The
        # message of an ImportError reaches the user; that of an AttributeError would not.
        parent, _, name = fullname.rpartition(".")
        if name.startswith("_"):
            return None
        raise ImportError(missing(parent, name), name=fullname)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Create the module, without any attributes."""
        return TheanoModule(spec.name, f"Theano's {spec.name}, provided by PyTensor and dnnops.")

    def exec_module(self, module: ModuleType) -> None:
        """Set the initial attributes of a module; the others are looked up on access."""
        if module.__name__ == "theano":
            module.__version__ = f"{VERSION}+dnnops"  # type: ignore[attr-defined]
