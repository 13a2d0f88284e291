"""Walks over a network: the layers within a layer, and their dotted names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, TypeVar

__all__ = ["aliases", "layers_in", "modules"]


class _Parent(Protocol):
    """What has layers within it."""

    def children(self) -> Iterator[tuple[str, Any]]: ...


L = TypeVar("L", bound=_Parent)


def layers_in(kind: type[L], name: str, value: Any) -> Iterator[tuple[str, L]]:
    """Yield the layers of a class in the value of an attribute, with their names.

    Parameters
    ----------
    kind : type
        Class of the layers.
    name : str
        Name of the attribute.
    value : object
        A layer, or a list, tuple or dict of values; anything else has none.

    Returns
    -------
    iterator of (str, layer)
    """
    if isinstance(value, kind):
        yield name, value
    elif isinstance(value, (list, tuple)):
        for number, entry in enumerate(value):
            yield from layers_in(kind, f"{name}.{number}", entry)
    elif isinstance(value, dict):
        for key, entry in value.items():
            yield from layers_in(kind, f"{name}.{key}", entry)


def modules(root: L) -> Iterator[tuple[str, L]]:
    """Yield a layer with an empty name, and all layers within it; each only once.

    Parameters
    ----------
    root : layer

    Returns
    -------
    iterator of (str, layer)
        Depth-first, in the order of the attributes.
    """
    seen: set[int] = set()
    waiting: list[tuple[str, L]] = [("", root)]
    while waiting:
        prefix, layer = waiting.pop(0)
        if id(layer) in seen:
            continue
        seen.add(id(layer))
        yield prefix, layer
        dot = f"{prefix}." if prefix else ""
        waiting[:0] = [(dot + name, child) for name, child in layer.children()]


def aliases(root: _Parent) -> dict[str, str]:
    """Return the first prefix of layers that occur more than once, by each other prefix.

    Parameters
    ----------
    root : layer

    Returns
    -------
    dict of str to str
        Prefixes end with a dot.
    """
    first: dict[int, str] = {}
    found: dict[str, str] = {}

    def visit(prefix: str, layer: _Parent, above: tuple[int, ...]) -> None:
        if id(layer) in above:
            return
        known = first.setdefault(id(layer), prefix)
        if known != prefix:
            found[prefix] = known
        for name, child in layer.children():
            visit(f"{prefix}{name}.", child, (*above, id(layer)))

    visit("", root, ())
    return found
