"""Recurrent networks and their gradient on the CPU, in float32 and float64.

Matrix products use oneDNN in float32 and SciPy's BLAS in float64; dnnops kernels compute the cells.
"""

from __future__ import annotations

from dnnops.cpu.base import CPU, OneDnnOp
from dnnops.nnet.rnn.op import RNNBackward, RNNForward
from dnnops.runtime.implementations import implements

__all__ = ["OneDnnRNNBackward", "OneDnnRNNForward"]


@implements(RNNForward, on=CPU)
class OneDnnRNNForward(OneDnnOp, RNNForward):
    """`RNNForward` on the CPU.

    It computes one matrix product for the input of all steps, then one per step for the recurrence.
    """

    function = "dnnops_onednn_rnn_forward"

    def parameters(self) -> list[int]:
        return [*self.network_words(), int(self.keeps_reserve)]


@implements(RNNBackward, on=CPU)
class OneDnnRNNBackward(OneDnnOp, RNNBackward):
    """`RNNBackward` on the CPU.

    It computes one matrix product per step, then one for the gradient of each matrix.
    """

    function = "dnnops_onednn_rnn_backward"

    def parameters(self) -> list[int]:
        return [*self.network_words(), int(self.by_x)]
