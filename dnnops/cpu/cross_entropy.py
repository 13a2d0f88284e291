"""Cross-entropy on the CPU, in float32 and float64."""

from __future__ import annotations

from dnnops.cpu.base import CPU, OneDnnOp
from dnnops.nnet.loss.cross_entropy import CrossEntropy, CrossEntropyGrad
from dnnops.runtime.implementations import implements

__all__ = ["OneDnnCrossEntropy", "OneDnnCrossEntropyGrad"]


@implements(CrossEntropy, on=CPU)
class OneDnnCrossEntropy(OneDnnOp, CrossEntropy):
    """`CrossEntropy` on the CPU, computed by dnnops kernels because oneDNN does not provide it.

    Parameters
    ----------
    every_row, one_for_all : bool
        See `CrossEntropy`.
    """

    function = "dnnops_onednn_cross_entropy"

    def parameters(self) -> list[int]:
        return [self.rows]


@implements(CrossEntropyGrad, on=CPU)
class OneDnnCrossEntropyGrad(OneDnnOp, CrossEntropyGrad):
    """`CrossEntropyGrad` on the CPU, computed by dnnops kernels.

    Parameters
    ----------
    every_row, one_for_all : bool
        See `CrossEntropy`.
    """

    function = "dnnops_onednn_cross_entropy_grad"

    def parameters(self) -> list[int]:
        return [self.rows]
