"""Take factors that may change out of the calls of cuDNN.

cuDNN reads the factors of a sum on the host. A captured function could only repeat the call with
the values that it was captured with, and would be captured again for each learning rate. An
elementwise Op reads them in device memory, and is fused with what follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytensor.tensor as pt
from pytensor.graph.basic import Apply
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import GraphRewriter, copy_stack_trace

from dnnops.dtypes import compute_dtype
from dnnops.gpu.conv import GpuDnnConvBase
from dnnops.gpu.transform import GpuDnnAddTensor, GpuDnnTransform
from dnnops.gpuarray.op import depends_on_values
from dnnops.gpuarray.transfer import cast, host_from_gpu, to_device

__all__ = ["SeparateFactors"]


class SeparateFactors(GraphRewriter):
    """Apply the factors of cuDNN's sums with elementwise Ops, unless they are constants."""

    def apply(self, fgraph: FunctionGraph) -> None:
        """Rewrite `fgraph`."""
        replacements = []
        for node in fgraph.toposort():
            terms = _terms(node)
            if terms and depends_on_values([factor for factor, _ in terms]):
                result = _sum(node, terms)
                copy_stack_trace(node.outputs, result)
                replacements.append((node.outputs[0], result))
        fgraph.replace_all_validate(replacements, reason="separate_factors")


def _terms(node: Apply) -> list[tuple[Any, Any]]:
    """Return the factors and the arrays of the sum that a node computes."""
    op, inputs = node.op, node.inputs
    if isinstance(op, GpuDnnAddTensor):
        a, c, alpha, beta = inputs
        return [(alpha, a), (beta, c)]
    if isinstance(op, GpuDnnTransform):
        x, alpha = inputs
        return [(alpha, op(x))]
    if type(op).__base__ is not GpuDnnConvBase:
        return []
    operands, (alpha, *addend) = inputs[: op.leading], inputs[op.leading :]
    product = op.replace(accumulate=False, inplace=False)(*operands)
    return [(alpha, product), *([(addend[0], addend[1])] if addend else [])]


def _sum(node: Apply, terms: Sequence[tuple[Any, Any]]) -> Any:
    (out,) = node.outputs
    wide = compute_dtype(out.type.dtype)
    scaled = [pt.cast(factor, wide) * pt.cast(host_from_gpu(x), wide) for factor, x in terms]
    if len(scaled) == 2 and isinstance(node.op, GpuDnnConvBase):
        # cuDNN does not read what is multiplied by zero.
        scaled[1] = pt.switch(pt.eq(terms[1][0], 0), pt.constant(0, dtype=wide), scaled[1])
    total = scaled[0] if len(scaled) == 1 else scaled[0] + scaled[1]
    result = cast(to_device(total, out.type.device), out.type.dtype)
    return out.type.filter_variable(result)
