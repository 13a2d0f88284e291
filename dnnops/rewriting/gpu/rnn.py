"""Lift recurrent networks to cuDNN."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import Op

from dnnops.gpu.rnn import GpuDnnRNNBackward, GpuDnnRNNBase, GpuDnnRNNForward
from dnnops.nnet.rnn.op import INT_OPERANDS, RNNBackward, RNNForward
from dnnops.rewriting.gpu.mechanism import Build, register
from dnnops.rewriting.inplace import register_gpu_inplace


def _build_rnn(cls: type[GpuDnnRNNBase]) -> Build:
    def build(abstract: Any, inputs: list[Any]) -> Sequence[Variable] | None:
        if inputs[1].type.shape[2] == 0:  # cuDNN does not support empty inputs
            return None
        own = {n: getattr(abstract, n) for n in type(abstract).__props__}
        return cls(**own).make_node(*inputs).outputs

    return build


def _rnn_arrays(node: Apply) -> list[int]:
    names = getattr(node.op, "all_operands", node.op.operands)
    return [i for i, name in enumerate(names) if name not in INT_OPERANDS]


# Register both: another library could not read the reserve that cuDNN writes.
register(RNNForward, _build_rnn(GpuDnnRNNForward), operands=_rnn_arrays, heavy=True)
register(RNNBackward, _build_rnn(GpuDnnRNNBackward), operands=_rnn_arrays, heavy=True)


@register_gpu_inplace(GpuDnnRNNBackward)
def inplace_rnn_backward(fgraph: FunctionGraph, node: Apply) -> Op:
    """Let a gradient overwrite a reserve that no other node needs."""
    names = {n: getattr(node.op, n) for n in node.op.__props__}
    return GpuDnnRNNBackward(**{**names, "inplace": True})
