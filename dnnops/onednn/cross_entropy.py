"""Cross-entropy on the CPU, in float32 and float64."""

from __future__ import annotations

from dnnops.nnet.cross_entropy_ops import CrossEntropy, CrossEntropyGrad
from dnnops.onednn.base import OneDnnOp

__all__ = ["OneDnnCrossEntropy", "OneDnnCrossEntropyGrad"]


class OneDnnCrossEntropy(OneDnnOp, CrossEntropy):
    """`CrossEntropy` in loops of our own: oneDNN has none.

    Parameters
    ----------
    every_row, one_for_all : bool
        As for `CrossEntropy`.
    """

    function = "dnnops_onednn_cross_entropy"

    def parameters(self) -> list[int]:
        return [self.rows]


class OneDnnCrossEntropyGrad(OneDnnOp, CrossEntropyGrad):
    """`CrossEntropyGrad` in loops of our own.

    Parameters
    ----------
    every_row, one_for_all : bool
        As for `CrossEntropy`.
    """

    function = "dnnops_onednn_cross_entropy_grad"

    def parameters(self) -> list[int]:
        return [self.rows]
