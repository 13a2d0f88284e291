"""Divisive normalization and its gradients on the CPU, computed by dnnops kernels."""

from __future__ import annotations

from dnnops.cpu.base import CPU, OneDnnOp
from dnnops.cpu.lrn import window_norm_parameters
from dnnops.nnet.norm.divisive_normalization import DivisiveNormalization, DivisiveNormalizationGrad
from dnnops.runtime.implementations import implements

__all__ = ["OneDnnDivisiveNormalization", "OneDnnDivisiveNormalizationGrad"]


class _OneDnnDivisiveNormalizationOp(OneDnnOp):
    has_means: bool

    def parameters(self) -> list[int]:
        return [*window_norm_parameters(self), int(self.has_means)]


@implements(DivisiveNormalization, on=CPU)
class OneDnnDivisiveNormalization(_OneDnnDivisiveNormalizationOp, DivisiveNormalization):
    """`DivisiveNormalization` on the CPU, in float32 or float64."""

    function = "dnnops_onednn_divisive_normalization"


@implements(DivisiveNormalizationGrad, on=CPU)
class OneDnnDivisiveNormalizationGrad(_OneDnnDivisiveNormalizationOp, DivisiveNormalizationGrad):
    """`DivisiveNormalizationGrad` on the CPU, in float32 or float64."""

    function = "dnnops_onednn_divisive_normalization_grad"
