"""Form of the tables that map Theano's names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Table", "at"]


@dataclass(frozen=True)
class Table:
    """Contents of one Theano module.

    Attributes
    ----------
    sources : tuple of str
        Modules that provide its public names; the first module with a given name is used.
    names : mapping of str to str
        Further names and references to their objects; see `dnnops.theano.modules.resolve`.
    """

    sources: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)


def at(module: str, *names: str, **renamed: str) -> dict[str, str]:
    """Return references to names in a module; keywords map a Theano name to another name there."""
    return {name: f"{module}:{name}" for name in names} | {
        name: f"{module}:{there}" for name, there in renamed.items()
    }
