"""Read and change stored graphs."""

from __future__ import annotations

import copy
import json
from typing import Any

from dnnops import graph as cudnn

__all__ = ["changed", "read", "without"]


def read(data: Any) -> Any:
    """Return the graph of a declaration."""
    graph = cudnn.pygraph()
    graph.deserialize(json.dumps(data).encode())
    return graph


def changed(data: Any, path: tuple[Any, ...], value: Any) -> Any:
    """Return a copy of a declaration, with a value in a place that keys and positions name."""
    if not path:
        return value
    new = copy.deepcopy(data)
    _inside(new, path)[path[-1]] = value
    return new


def without(data: Any, path: tuple[Any, ...]) -> Any:
    """Return a copy of a declaration without one of its places."""
    new = copy.deepcopy(data)
    del _inside(new, path)[path[-1]]
    return new


def _inside(data: Any, path: tuple[Any, ...]) -> Any:
    for key in path[:-1]:
        data = data[key]
    return data
