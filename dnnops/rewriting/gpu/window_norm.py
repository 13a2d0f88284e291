"""Lift normalization over windows to cuDNN or dnnops kernels."""

from __future__ import annotations

from typing import Any

from pytensor.graph.basic import Apply, Variable

from dnnops.gpu.base import cudnn_usable
from dnnops.gpu.lrn import GpuDnnLRN, GpuDnnLRNGrad
from dnnops.gpu.window_sum import GpuWindowSum
from dnnops.nnet.norm.divisive_normalization import DivisiveNormalization, DivisiveNormalizationGrad
from dnnops.nnet.norm.lrn import LRN, LRNGrad
from dnnops.nnet.norm.window_base import WindowNormBase, WindowSum
from dnnops.rewriting.gpu.mechanism import register_kernel
from dnnops.rewriting.move.lifting import (
    LiftContext,
    register_expansion,
    register_lifter,
)


@register_lifter(LRN, LRNGrad, tags=("cudnn",), priority=10)
def lift_lrn(node: Apply, inputs: list[Any], context: LiftContext) -> list[Variable] | None:
    """Lift LRN and its gradient.

    On cuDNN, the gradient also takes the output of LRN, which has usually been computed already.
    """
    op = node.op
    if type(op) not in (LRN, LRNGrad) or not cudnn_usable(context.device)[0]:
        return None
    parameters = (op.n, op.alpha, op.beta, op.k)
    out = context.apply_once(GpuDnnLRN(*parameters), inputs[0])
    if type(op) is LRN:
        return [out]
    x, gy = inputs
    return [GpuDnnLRNGrad(*parameters)(x, out, gy)]


register_kernel(WindowSum, lambda op, x: GpuWindowSum(op.n, op.axes, op.backward)(*x), (0,))


@register_expansion(
    LRN, LRNGrad, DivisiveNormalization, DivisiveNormalizationGrad, elementwise=True
)
def expand_window_norm(node: Apply, inputs: list[Any]) -> list[Variable]:
    """Expand a normalization that cuDNN does not support into elementwise Ops and window sums."""
    op: WindowNormBase = node.op
    return op.expressions(*inputs)
