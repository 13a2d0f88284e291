"""Scaled dot-product attention and its gradients on the CPU, in float32 and float64."""

from __future__ import annotations

import numpy as np

from dnnops.cpu.base import CPU, OneDnnOp
from dnnops.nnet.attention.op import OPTIONAL, Attention, AttentionGrad
from dnnops.runtime.implementations import implements
from dnnops.runtime.op import MatchedHeads

__all__ = ["OneDnnAttention", "OneDnnAttentionGrad"]


class _OneDnnAttentionOp(MatchedHeads, OneDnnOp):
    scale: float | None
    is_causal: bool
    optional: tuple[str, ...]
    dropout: float

    def parameters(self) -> list[int]:
        scale, dropout = np.array([self.scale or 0.0, self.dropout]).view("int64").tolist()
        given = sum(1 << OPTIONAL.index(name) for name in self.optional)
        return [scale, int(self.scale is not None), int(self.is_causal), given, dropout]


@implements(Attention, on=CPU)
class OneDnnAttention(_OneDnnAttentionOp, Attention):
    """`Attention` on the CPU, computed by matrix products in blocks of 128 queries."""

    function = "dnnops_onednn_attention"
    is_gradient = False


@implements(AttentionGrad, on=CPU)
class OneDnnAttentionGrad(_OneDnnAttentionOp, AttentionGrad):
    """`AttentionGrad` on the CPU, which recomputes the scores."""

    function = "dnnops_onednn_attention_grad"
    is_gradient = True
