"""Lift the cross-entropy and dropout, and make elementwise Ops in-place."""

from __future__ import annotations

from pytensor.graph.basic import Apply
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import Op

from dnnops.gpu.activation import GpuDnnActivation, GpuDnnActivationGrad
from dnnops.gpu.cross_entropy import GpuCrossEntropy, GpuCrossEntropyGrad
from dnnops.gpu.dropout import GpuDnnDropoutGrad, GpuDnnDropoutOp
from dnnops.gpu.transform import GpuDnnAddTensor
from dnnops.nnet.loss.cross_entropy import CrossEntropy, CrossEntropyGrad
from dnnops.nnet.regularization.dropout import Dropout, DropoutGrad
from dnnops.rewriting.gpu.mechanism import Build, register_own
from dnnops.rewriting.inplace import register_gpu_inplace


def _build_cross_entropy(cls: type) -> Build:
    return lambda op, inputs: cls(op.every_row, op.one_for_all).make_node(*inputs).outputs


register_own(CrossEntropy, _build_cross_entropy(GpuCrossEntropy), operands=(0, 1))
register_own(CrossEntropyGrad, _build_cross_entropy(GpuCrossEntropyGrad), operands=(0, 1, 2, 3))
register_own(Dropout, lambda op, x: GpuDnnDropoutOp().make_node(*x).outputs, operands=(0,))
register_own(DropoutGrad, lambda op, x: [GpuDnnDropoutGrad()(*x)], operands=(0, 2))


@register_gpu_inplace(
    GpuDnnActivation, GpuDnnActivationGrad, GpuDnnAddTensor, GpuDnnDropoutGrad, GpuDnnDropoutOp
)
def inplace_elementwise(fgraph: FunctionGraph, node: Apply) -> Op:
    """Let an elementwise Op overwrite an operand."""
    props = {name: getattr(node.op, name) for name in node.op.__props__}
    return type(node.op)(**props | {"inplace": True})
