"""Local response normalization and its gradient on the CPU, computed by dnnops kernels."""

from __future__ import annotations

from typing import Any

import numpy as np

from dnnops.cpu.base import CPU, OneDnnOp
from dnnops.nnet.norm.lrn import LRN, LRNGrad
from dnnops.nnet.norm.window_base import WindowSum
from dnnops.runtime.implementations import implements

__all__ = ["OneDnnLRN", "OneDnnLRNGrad", "OneDnnWindowSum", "window_norm_parameters"]


def window_norm_parameters(op: Any) -> list[int]:
    """Return the parameters of a window normalization: n, and the bits of alpha, beta and k."""
    return [op.n, *np.array([op.alpha, op.beta, op.k]).view("int64").tolist()]


@implements(LRN, on=CPU)
class OneDnnLRN(OneDnnOp, LRN):
    """`LRN` on the CPU, in float32 or float64."""

    function = "dnnops_onednn_lrn"
    parameters = window_norm_parameters


@implements(LRNGrad, on=CPU)
class OneDnnLRNGrad(OneDnnOp, LRNGrad):
    """`LRNGrad` on the CPU, in float32 or float64."""

    function = "dnnops_onednn_lrn_grad"
    parameters = window_norm_parameters


@implements(WindowSum, on=CPU)
class OneDnnWindowSum(OneDnnOp, WindowSum):
    """`WindowSum` on the CPU, in float32 or float64."""

    function = "dnnops_onednn_window_sum"

    def parameters(self) -> list[int]:
        return [self.n, sum(1 << axis for axis in self.axes), int(self.backward)]
