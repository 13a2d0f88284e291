"""Dropout and its gradient on the CPU, computed by dnnops kernels in float32 and float64."""

from __future__ import annotations

from dnnops.arguments import switch
from dnnops.cpu.base import CPU, OneDnnOp
from dnnops.nnet.regularization.dropout import Dropout, DropoutGrad
from dnnops.runtime.implementations import implements

__all__ = ["OneDnnDropout", "OneDnnDropoutGrad"]


class _OneDnnDropoutOp(OneDnnOp):
    __props__ = ("inplace",)

    def __init__(self, inplace: bool = False):
        self.inplace = switch(type(self).__name__, "inplace", inplace)
        if self.inplace:
            self.destroy_map = {0: [0]}


@implements(Dropout, on=CPU)
class OneDnnDropout(_OneDnnDropoutOp, Dropout):
    """`Dropout` on the CPU, with the same random numbers as the abstract Op.

    Parameters
    ----------
    inplace : bool
        Whether the result overwrites `x`.
    """

    function = "dnnops_onednn_dropout"


@implements(DropoutGrad, on=CPU)
class OneDnnDropoutGrad(_OneDnnDropoutOp, DropoutGrad):
    """`DropoutGrad` on the CPU.

    Parameters
    ----------
    inplace : bool
        Whether the result overwrites `gy`.
    """

    function = "dnnops_onednn_dropout_grad"
