"""CTC loss on the CPU, in float32 and float64."""

from __future__ import annotations

from dnnops.cpu.base import OneDnnOp
from dnnops.nnet.loss.ctc import CTC

__all__ = ["OneDnnCTC"]


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
