"""Compute the gradient of ``x @ w`` with respect to `w` as one product if ``x.ndim > 2``."""

from __future__ import annotations

from functools import reduce
from operator import mul
from typing import Any

from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import copy_stack_trace, node_rewriter
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.math import Sum, dot

from dnnops.rewriting.recognize.views import matrices_of

__all__ = ["local_sum_of_products"]


@node_rewriter([Sum])
def local_sum_of_products(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
    """Replace ``(x.mT @ g).sum(batch axes)`` with one product of matrices.

    The matrices stack the rows of all matrices in `x` and `g`. The graph is left unchanged if `x`
    would have to be transposed in memory.
    """
    (products,) = node.inputs
    (output,) = node.outputs
    matrices = matrices_of(products)
    if matrices is None:
        return None
    left, right = matrices
    batch = left.type.ndim - 2
    sizes = products.type.shape[:batch]
    axes = set(node.op.axis if node.op.axis is not None else range(batch + 2))
    if (
        not axes <= set(range(batch))
        or any(sizes[i] != 1 for i in range(batch) if i not in axes)
        or not _is_transposed(left)
        or left.type.broadcastable[:batch] != right.type.broadcastable[:batch]
        or not output.type.dtype.startswith(("float", "bfloat"))
        or {left.type.dtype, right.type.dtype} != {output.type.dtype}
    ):
        return None
    product: Any = dot(_rows(left.mT).T, _rows(right))
    kept = ["x"] * (batch - len(axes))
    result = product.dimshuffle([*kept, 0, 1]) if kept else product
    if not output.type.is_super(result.type):
        return None
    copy_stack_trace(output, result)
    return [result]


def _is_transposed(x: Any) -> bool:
    """Return whether `x` swaps the last two axes of another array."""
    if x.owner is None or not isinstance(x.owner.op, DimShuffle):
        return False
    *_, row, column = x.owner.op.new_order
    return "x" not in (row, column) and row > column


def _rows(x: Any) -> Any:
    """Stack the rows of all matrices in an array into one matrix."""
    *sizes, columns = x.shape
    # A size of -1 would be ambiguous if another axis has size 0.
    return x.reshape((reduce(mul, sizes), columns))
