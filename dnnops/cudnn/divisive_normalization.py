"""Divisive normalization and its gradients on cuDNN."""

from __future__ import annotations

from typing import Any

from dnnops.cudnn.base import as_gradient, gradient_like
from dnnops.cudnn.lrn import GpuWindowNormBase
from dnnops.nnet.divisive_normalization import DivisiveNormalization, DivisiveNormalizationGrad

__all__ = ["GpuDnnDivisiveNormalization", "GpuDnnDivisiveNormalizationGrad"]


class _GpuDnnDivisive(GpuWindowNormBase):
    function = "dnnops_cudnn_divisive_normalization"
    # cuDNN has no single spatial axis.
    ndim_bounds = (4, 5)
    has_means: bool

    def parameters(self) -> list[int]:
        return [*super().parameters(), int(self.has_means)]


class GpuDnnDivisiveNormalization(_GpuDnnDivisive, DivisiveNormalization):
    """`DivisiveNormalization` by cuDNN, of two or three spatial axes.

    ``GpuDnnDivisiveNormalization(n, alpha, beta, k)(x)``, or with ``has_means=True``
    ``(x, means)``. Parameters as for `dnnops.nnet.divisive_normalization`.
    """

    is_gradient = False

    def abstract(self) -> DivisiveNormalization:
        return DivisiveNormalization(self.n, self.alpha, self.beta, self.k, self.has_means)

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        op = GpuDnnDivisiveNormalizationGrad(self.n, self.alpha, self.beta, self.k, self.has_means)
        found = op.make_node(*inputs, gradient_like(cotangents[0], inputs[0])).outputs
        return [as_gradient(g) for g in found]


class GpuDnnDivisiveNormalizationGrad(_GpuDnnDivisive, DivisiveNormalizationGrad):
    """The gradients of `GpuDnnDivisiveNormalization`: by ``x`` and, where there are any, ``means``.

    ``GpuDnnDivisiveNormalizationGrad(n, alpha, beta, k)(x, gy)``, or with ``has_means=True``
    ``(x, means, gy)``; `gy` is the gradient by the output.
    """

    is_gradient = True

    def abstract(self) -> DivisiveNormalizationGrad:
        return DivisiveNormalizationGrad(self.n, self.alpha, self.beta, self.k, self.has_means)
