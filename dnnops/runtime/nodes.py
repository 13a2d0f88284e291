"""Number compiled nodes, so that C code and Python can refer to the same node.

The C code that runs a node knows what it selected, but nothing about the graph. The node is
therefore numbered when its C code is instantiated, and the number is passed as one of the Op's
parameters. The number isn't part of the code, so nodes that differ only in their number share a
module.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

from pytensor.graph.basic import Apply

__all__ = ["compiling", "node_number", "number_node"]

_unused = itertools.count(1)
_numbers: WeakKeyDictionary[Apply, int] = WeakKeyDictionary()
_lock = threading.Lock()


class _Compiled(threading.local):
    number: int = 0


_compiled = _Compiled()


def node_number(node: Apply) -> int:
    """Return the number of a node, or 0 if no C code was instantiated for it."""
    with _lock:
        return _numbers.get(node, 0)


def number_node(node: Apply) -> int:
    """Return the number of a node for which C code is instantiated; assign one if necessary.

    Parameters
    ----------
    node : Apply
        Node to number. Within `compiling` it is ignored, and the number of the node that is being
        compiled is returned.

    Returns
    -------
    int
        Nonzero number that is unique in this process.
    """
    if _compiled.number:
        return _compiled.number
    with _lock:
        if node not in _numbers:
            _numbers[node] = next(_unused)
        return _numbers[node]


@contextmanager
def compiling(node: Apply) -> Iterator[None]:
    """Use a node's number while PyTensor generates its C code, from a copy of the node."""
    _compiled.number = number_node(node)
    try:
        yield
    finally:
        _compiled.number = 0
