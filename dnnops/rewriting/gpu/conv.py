"""Lift convolution and its gradients to cuDNN."""

from __future__ import annotations

from typing import Any

from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import Op

from dnnops.gpu.conv import GpuDnnConv, GpuDnnConvBase, GpuDnnConvGradI, GpuDnnConvGradW
from dnnops.nnet.conv.op import Conv, ConvGradInputs, ConvGradWeights
from dnnops.rewriting.gpu.mechanism import Build, register
from dnnops.rewriting.inplace import register_gpu_inplace


def _build_conv(cls: type[GpuDnnConvBase]) -> Build:
    def build(abstract: Any, inputs: list[Any]) -> list[Variable]:
        return [cls.from_abstract(abstract)(*inputs)]

    return build


register(Conv, _build_conv(GpuDnnConv), heavy=True)
register(ConvGradInputs, _build_conv(GpuDnnConvGradI), operands=(0, 1), heavy=True)
register(ConvGradWeights, _build_conv(GpuDnnConvGradW), operands=(0, 1), heavy=True)


@register_gpu_inplace(GpuDnnConv, GpuDnnConvGradI, GpuDnnConvGradW)
def inplace_conv(fgraph: FunctionGraph, node: Apply) -> Op | None:
    """Let a convolution overwrite the operand that it adds to."""
    return node.op.replace(inplace=True) if node.op.accumulate else None
