"""Scaled dot-product attention and its gradients on the CPU, in float32 and float64."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from dnnops.cpu.base import CPU, OneDnnOp
from dnnops.nnet.attention.op import OPTIONAL, Attention, AttentionGrad
from dnnops.runtime.implementations import implements

__all__ = ["OneDnnAttention", "OneDnnAttentionGrad"]


class _OneDnnAttentionOp(OneDnnOp):
    scale: float | None
    is_causal: bool
    optional: tuple[str, ...]
    dropout: float
    #: Number of results whose heads are stored as those of the operand with the same index are.
    #: Heads that come from the columns of a matrix go back there without a copy.
    matched_results: ClassVar[int]

    def output_format(self, index: int, inputs: list[Any]) -> str:
        if index >= self.matched_results:
            return "contiguous"
        _, heads, steps, _ = inputs[index].shape
        _, by_head, by_step, _ = inputs[index].strides
        return "bshd" if heads > 1 and steps > 1 and by_head < by_step else "contiguous"

    def c_output_format(self, index: int) -> str:
        matched = index < self.matched_results
        return f"dnnops_format_of_heads(&in[{index}])" if matched else "DNNOPS_CONTIGUOUS"

    def parameters(self) -> list[int]:
        scale, dropout = np.array([self.scale or 0.0, self.dropout]).view("int64").tolist()
        given = sum(1 << OPTIONAL.index(name) for name in self.optional)
        return [scale, int(self.scale is not None), int(self.is_causal), given, dropout]


@implements(Attention, on=CPU)
class OneDnnAttention(_OneDnnAttentionOp, Attention):
    """`Attention` on the CPU, computed by matrix products in blocks of 128 queries."""

    function = "dnnops_onednn_attention"
    matched_results = 1


@implements(AttentionGrad, on=CPU)
class OneDnnAttentionGrad(_OneDnnAttentionOp, AttentionGrad):
    """`AttentionGrad` on the CPU, which recomputes the scores."""

    function = "dnnops_onednn_attention_grad"
    matched_results = 3
