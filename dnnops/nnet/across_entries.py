"""Counts that ``vectorize_graph`` adds up over the entries of extra axes."""

from __future__ import annotations

from typing import Any

from pytensor.gradient import DisconnectedGrad
from pytensor.graph.basic import Apply
from pytensor.graph.replace import _vectorize_node

__all__ = ["across_entries"]


class _AcrossEntries(DisconnectedGrad):
    """Return a count as it is; PyTensor's rewrites remove this Op as any view."""


@_vectorize_node.register(_AcrossEntries)
def _add_up(op: _AcrossEntries, node: Apply, count: Any) -> Any:
    lead = count.type.ndim - node.inputs[0].type.ndim
    total = count.sum(axis=tuple(range(lead)), dtype=count.type.dtype) if lead else count
    return op.make_node(total)


def across_entries(count: Any) -> Any:
    """Return a count, in whose place a vectorized graph has the sum of those of all entries.

    Parameters
    ----------
    count : TensorVariable
        Number that depends on the shape of an array, as ``Shape`` Ops give it: PyTensor's
        functions replace static shapes with constants, which know nothing of extra axes.

    Returns
    -------
    TensorVariable
        Number of the same type, without a gradient.
    """
    return _AcrossEntries()(count)
