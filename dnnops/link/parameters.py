"""Find the operands of an Op that are numeric parameters rather than data."""

from __future__ import annotations

from typing import Any

from pytensor.graph.basic import Apply, Constant

from dnnops.nnet import Dropout, DropoutGrad

__all__ = ["constant_numbers"]

_NAMES = ("epsilon", "factor", "seed")


def constant_numbers(node: Apply) -> dict[int, Any]:
    """Return the operands of a node that are constant numbers.

    They are returned as Python numbers, which keep their full precision even if JAX or PyTorch is
    set to 32-bit dtypes.

    Parameters
    ----------
    node : Apply

    Returns
    -------
    dict of int to number
        Numbers by operand index.
    """
    op: Any = node.op
    if isinstance(op, Dropout | DropoutGrad):
        places = [1]
    else:
        names = getattr(op, "operands", ())
        places = [i for i, name in enumerate(names) if name in _NAMES]
    operands: list[Any] = node.inputs
    return {i: operands[i].data.item() for i in places if isinstance(operands[i], Constant)}
