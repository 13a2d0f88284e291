"""Numbers of compiled nodes, by which C code and Python mean the same one.

What a node has chosen is known to the C code that runs it, which knows nothing of graphs. So the
node is given a number when its C code is instantiated, as one of the Op's parameters. It is no part
of the code: nodes that differ in nothing else share a module.
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
    """The number of a node that C code was instantiated for; 0 if there is none."""
    with _lock:
        return _numbers.get(node, 0)


def number_node(node: Apply) -> int:
    """The number of a node that C code is being instantiated for.

    Parameters
    ----------
    node : Apply
        Inside of `compiling` any node stands for the one that is being compiled.

    Returns
    -------
    int
        Of no other node in this process; not 0.
    """
    if _compiled.number:
        return _compiled.number
    with _lock:
        if node not in _numbers:
            _numbers[node] = next(_unused)
        return _numbers[node]


@contextmanager
def compiling(node: Apply) -> Iterator[None]:
    """Number a node while PyTensor makes its C code, which it makes of a copy of the node."""
    _compiled.number = number_node(node)
    try:
        yield
    finally:
        _compiled.number = 0
