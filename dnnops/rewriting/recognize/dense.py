"""Products of matrices in dense layers.

The gradient of ``x @ w`` with respect to `w` is one product, even if ``x.ndim > 2``. It is computed
once, even if an optimizer scales it by several numbers.
"""

from __future__ import annotations

from math import prod
from typing import Any

from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import GraphRewriter, copy_stack_trace, node_rewriter
from pytensor.tensor.blas import Dot22, Dot22Scalar, _dot22
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.math import Sum, dot, mul

from dnnops.rewriting.recognize.views import matrices_of

__all__ = ["SeparateScales", "local_sum_of_products"]


class SeparateScales(GraphRewriter):
    """Take the scales out of products where elementwise Ops can apply them.

    PyTensor replaces each ``scale * (x @ y)`` with `Dot22Scalar`. Adam uses ``0.1 * g`` and
    ``0.001 * g * g``, so each gradient `g` that is a product would be computed twice. A scale costs
    nothing in the elementwise Op that uses it next.
    """

    def apply(self, fgraph: FunctionGraph) -> None:
        """Rewrite `fgraph`."""
        products: dict[tuple[Variable, ...], list[Apply]] = {}
        for node in fgraph.toposort():
            if isinstance(node.op, Dot22 | Dot22Scalar):
                products.setdefault(tuple(node.inputs[:2]), []).append(node)
        replacements = []
        for (x, y), nodes in products.items():
            scaled = [node for node in nodes if isinstance(node.op, Dot22Scalar)]
            if len(nodes) == 1 and not all(_feeds_elementwise(fgraph, node) for node in scaled):
                continue
            plain = next((node.outputs[0] for node in nodes if node not in scaled), None)
            product = _dot22(x, y) if plain is None and scaled else plain
            for node in scaled:
                result: Any = mul(node.inputs[2], product)
                copy_stack_trace(node.outputs, result)
                replacements.append((node.outputs[0], result))
        fgraph.replace_all_validate(replacements, reason="separate_scales")


def _feeds_elementwise(fgraph: FunctionGraph, node: Apply) -> bool:
    return all(isinstance(user.op, Elemwise) for user, _ in fgraph.clients[node.outputs[0]])


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
    return x.reshape((prod(sizes), columns))
