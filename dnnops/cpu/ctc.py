"""CTC loss on the CPU, in float32 and float64."""

from __future__ import annotations

from dnnops.cpu.base import CPU, OneDnnOp
from dnnops.nnet.loss.ctc import CTC
from dnnops.runtime.implementations import implements

__all__ = ["OneDnnCTC"]


@implements(CTC, on=CPU)
class OneDnnCTC(OneDnnOp, CTC):
    """`CTC` on the CPU, computed by dnnops kernels because oneDNN does not provide it.

    The kernels run in oneDNN's threads.

    Parameters
    ----------
    with_gradients, with_label_lengths : bool
        See `CTC`.
    """

    function = "dnnops_onednn_ctc"

    def parameters(self) -> list[int]:
        return [int(self.with_label_lengths), int(self.with_gradients)]
