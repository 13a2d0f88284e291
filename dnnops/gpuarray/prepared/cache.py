"""Keep the prepared calls of nodes, so that shapes that come again are not prepared again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from pytensor.graph.basic import Apply, Constant

from dnnops.errors import DnnNotSupportedError
from dnnops.gpuarray.prepared.call import ALIGNMENT, PreparedCall
from dnnops.gpuarray.type import GpuArrayType

__all__ = ["ARRAY", "CONSTANT", "NUMBER", "VALUE", "is_left_to_compute", "prepared_call", "roles"]

#: Calls that are kept for each node.
_KEPT = 64
ARRAY, VALUE, NUMBER, CONSTANT = "avnc"


def roles(node: Apply) -> str:
    """Return what a node's prepared calls depend on, in a letter for each operand.

    Parameters
    ----------
    node : Apply
        Node of a `GpuOp`.

    Returns
    -------
    str
        ``a`` for an array, of which the layout counts; ``v`` for a host value; ``n`` for a number,
        of which it only counts whether it is on the device; and ``c`` for a constant.
    """
    op: Any = node.op
    numbers = op.number_operands(node)
    found = ""
    for i, x in enumerate(node.inputs):
        if isinstance(x.type, GpuArrayType):
            found += ARRAY
        elif i in numbers:
            found += NUMBER
        else:
            found += CONSTANT if isinstance(x, Constant) else VALUE
    return found


class _Calls:
    """The calls of a node, by what they depend on."""

    def __init__(self, node: Apply):
        self.roles = roles(node)
        self.by_key: OrderedDict[Any, PreparedCall | None] = OrderedDict()
        self.lock = Lock()

    def key(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        found: list[Any] = []
        for role, x in zip(self.roles, inputs, strict=True):
            is_number = role == NUMBER and isinstance(x, np.ndarray | np.generic)
            if role == ARRAY or (role == NUMBER and not is_number):
                found += (x.shape, x.strides, x.data.ptr % ALIGNMENT)
            elif role == VALUE:
                found.append(np.asarray(x).tobytes() if x is not None else None)
            else:
                found.append(role)
        return tuple(found)


# Kept outside of the nodes, since kernels can't be pickled with a function.
_calls: WeakKeyDictionary[Apply, _Calls] = WeakKeyDictionary()


def is_left_to_compute(node: Apply) -> bool:
    """Return whether a node has run, and its Op prepared nothing for any operands so far.

    Parameters
    ----------
    node : Apply
        Node of a `GpuOp`.
    """
    calls = _calls.get(node)
    if calls is None:
        return False
    with calls.lock:
        return bool(calls.by_key) and not any(calls.by_key.values())


def prepared_call(node: Apply, inputs: Sequence[Any]) -> PreparedCall | None:
    """Return the prepared call of a node for values of its operands.

    Parameters
    ----------
    node : Apply
        Node of a `GpuOp`.
    inputs : sequence

    Returns
    -------
    PreparedCall or None
        What the Op's ``prepare`` returns; None if it raises `DnnNotSupportedError`.
    """
    calls = _calls.get(node)
    if calls is None:
        calls = _calls[node] = _Calls(node)
    key = calls.key(inputs)
    with calls.lock:
        if key in calls.by_key:
            calls.by_key.move_to_end(key)
            return calls.by_key[key]
    op: Any = node.op
    try:
        call = op.prepare(node, *inputs)
    except DnnNotSupportedError:
        # A kernel cannot copy an operand, for example. Whether anything else can, `compute` says.
        call = None
    with calls.lock:
        calls.by_key[key] = call
        if len(calls.by_key) > _KEPT:
            calls.by_key.popitem(last=False)
    return call
