"""The CTC loss on the CPU, in float32 and float64."""

from __future__ import annotations

from dnnops.nnet.ctc_ops import CTC
from dnnops.onednn.base import OneDnnOp

__all__ = ["OneDnnCTC"]


class OneDnnCTC(OneDnnOp, CTC):
    """`CTC` in loops of our own, in oneDNN's threads: oneDNN has none.

    Parameters
    ----------
    with_gradients, with_label_lengths : bool
        As for `CTC`.
    """

    function = "dnnops_onednn_ctc"

    def parameters(self) -> list[int]:
        return [int(self.with_label_lengths), int(self.with_gradients)]
