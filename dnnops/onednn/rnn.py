"""Recurrent networks and their gradient on the CPU, in float32 and float64.

Matrix products are oneDNN's, in float64 SciPy's BLAS's; cells run in loops of our own.
"""

from __future__ import annotations

from dnnops.nnet.rnn_ops import RNNBackward, RNNForward
from dnnops.onednn.base import OneDnnOp

__all__ = ["OneDnnRNNBackward", "OneDnnRNNForward"]


class OneDnnRNNForward(OneDnnOp, RNNForward):
    """`RNNForward`: one matrix product for all steps' input, then one a step for the recurrence."""

    function = "dnnops_onednn_rnn_forward"

    def parameters(self) -> list[int]:
        return [*self.network_words(), int(self.keeps_reserve)]


class OneDnnRNNBackward(OneDnnOp, RNNBackward):
    """`RNNBackward`: one matrix product a step, then one for each gradient of a matrix."""

    function = "dnnops_onednn_rnn_backward"

    def parameters(self) -> list[int]:
        return [*self.network_words(), int(self.by_x)]
