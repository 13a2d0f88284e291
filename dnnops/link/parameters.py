"""Which operands of an Op are numbers, parameters rather than data."""

from __future__ import annotations

from typing import Any

from pytensor.graph.basic import Apply, Constant

from dnnops.nnet import Dropout, DropoutGrad

__all__ = ["constant_numbers"]

_NAMES = ("epsilon", "factor", "seed")


def constant_numbers(node: Apply) -> dict[int, Any]:
    """Return those of a node's operands that are constant numbers.

    As numbers of Python they have all of their digits, whatever dtypes a library is set to.

    Parameters
    ----------
    node : Apply

    Returns
    -------
    dict of int to number
        The numbers by their places among the operands.
    """
    op: Any = node.op
    if isinstance(op, Dropout | DropoutGrad):
        places = [1]
    else:
        names = getattr(op, "operands", ())
        places = [i for i, name in enumerate(names) if name in _NAMES]
    operands: list[Any] = node.inputs
    return {i: operands[i].data.item() for i in places if isinstance(operands[i], Constant)}
