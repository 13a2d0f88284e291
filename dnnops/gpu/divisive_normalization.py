"""Divisive normalization and its gradients on cuDNN.

If means are given, cuDNN subtracts the mean at a window's center from all elements of the window.
With windows of size ``n`` along each of ``d`` axes, element ``i`` is divided by
``(k + alpha / n**d * sum((x[j] - means[i])**2))**beta``, where ``j`` runs over the elements of its
window that lie inside the array. The abstract Op subtracts each element's own mean instead:
``x[j] - means[j]``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply

from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.gpu.base import as_gradient, gradient_like
from dnnops.gpu.lrn import GpuWindowNormBase
from dnnops.nnet.norm.divisive_normalization import DivisiveNormalization, DivisiveNormalizationGrad

__all__ = [
    "CenteredDivisiveNormalization",
    "CenteredDivisiveNormalizationGrad",
    "GpuDnnDivisiveNormalization",
    "GpuDnnDivisiveNormalizationGrad",
]


# -- cuDNN's treatment of means, in host Ops -------------------------------------------------------


class _Centered:
    """Mixin for `DivisiveNormalization` as in cuDNN, which uses the mean at a window's center."""

    # Provided by the class that this is mixed into.
    n: int
    alpha: float
    beta: float
    k: float
    window_axes: Any
    _window_sum: Any

    def _compute(self, x: Any, means: Any, gy: Any = None) -> list[Any]:
        # In float64, because the sums cancel if means are large compared to the differences.
        x, means = _as_float64(x), _as_float64(means)
        axes = self.window_axes(x.ndim)
        alpha = self.alpha / self.n ** len(axes)
        count, total = self._window_sum(_ones_like(x), axes), self._window_sum(x, axes)
        distances = total - count * means
        squares = self._window_sum(x * x, axes) - means * (total + distances)
        base = self.k + alpha * _not_negative(squares)
        power = base**-self.beta
        if gy is None:
            return [x * power]
        gy = _as_float64(gy)
        shares = (2 * alpha * self.beta) * gy * x * (power / base)
        backward = (axes, True)
        by_x = gy * power - (
            x * self._window_sum(shares, *backward) - self._window_sum(shares * means, *backward)
        )
        return [by_x, shares * distances]


def _as_float64(x: Any) -> Any:
    return x.astype("float64") if isinstance(x, np.ndarray) else pt.cast(x, "float64")


def _not_negative(x: Any) -> Any:
    return np.maximum(x, 0) if isinstance(x, np.ndarray) else pt.maximum(x, 0)


def _ones_like(x: Any) -> Any:
    return np.ones_like(x) if isinstance(x, np.ndarray) else pt.ones_like(x)


class CenteredDivisiveNormalization(_Centered, DivisiveNormalization):
    """Host equivalent of `GpuDnnDivisiveNormalization` with means, called as ``op(x, means)``.

    It provides the derivatives that cuDNN lacks.
    """

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        op = CenteredDivisiveNormalizationGrad(self.n, self.alpha, self.beta, self.k, True)
        return list(op.make_node(*inputs, *cotangents).outputs)


class CenteredDivisiveNormalizationGrad(_Centered, DivisiveNormalizationGrad):
    """Gradients of `CenteredDivisiveNormalization`, called as ``op(x, means, gy)``."""


# -- on cuDNN --------------------------------------------------------------------------------------


class _GpuDnnDivisive(GpuWindowNormBase):
    function = "dnnops_cudnn_divisive_normalization"
    # cuDNN doesn't support a single spatial axis.
    ndim_bounds = (4, 5)
    has_means: bool

    def make_node(self, *inputs: Any) -> Apply:
        node = super().make_node(*inputs)
        if (dtype := node.inputs[0].type.dtype) not in ("float32", "float64"):
            raise DnnTypeError(
                f"{type(self).__name__}: expected float32 or float64, got {dtype}; "
                "dnn_divisive_normalization converts other dtypes"
            )
        return node

    def parameters(self) -> list[int]:
        return [*super().parameters(), int(self.has_means)]

    @property
    def _arguments(self) -> tuple[Any, ...]:
        return self.n, self.alpha, self.beta, self.k, self.has_means


class GpuDnnDivisiveNormalization(_GpuDnnDivisive, DivisiveNormalization):
    """`DivisiveNormalization` on cuDNN, for two or three spatial axes, in float32 and float64.

    Called as ``GpuDnnDivisiveNormalization(n, alpha, beta, k)(x)``, or with ``has_means=True`` as
    ``op(x, means)``. See `dnnops.nnet.divisive_normalization` for the parameters and
    `dnnops.dnn.dnn_divisive_normalization` for the means.
    """

    is_gradient = False

    def abstract_op(self) -> DivisiveNormalization:
        cls = CenteredDivisiveNormalization if self.has_means else DivisiveNormalization
        return cls(*self._arguments)

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        if self.n % 2 == 0:
            return super().pullback(inputs, outputs, cotangents)
        op = GpuDnnDivisiveNormalizationGrad(*self._arguments)
        found = op.make_node(*inputs, gradient_like(cotangents[0], inputs[0])).outputs
        return [as_gradient(g) for g in found]


class GpuDnnDivisiveNormalizationGrad(_GpuDnnDivisive, DivisiveNormalizationGrad):
    """Gradients of `GpuDnnDivisiveNormalization` with respect to ``x`` and, if given, ``means``.

    Called as ``GpuDnnDivisiveNormalizationGrad(n, alpha, beta, k)(x, gy)``, or with
    ``has_means=True`` as ``op(x, means, gy)``. `gy` is the gradient with respect to the output.

    Raises
    ------
    DnnValueError
        If `n` is even. cuDNN 9.19 then computes a wrong gradient: for each element, it sums over
        the element's own window, instead of over the elements whose windows contain it.
    """

    is_gradient = True

    def __init__(self, n: int, alpha: float, beta: float, k: float, has_means: bool = False):
        super().__init__(n, alpha, beta, k, has_means)
        if self.n % 2 == 0:
            raise DnnValueError(
                f"{type(self).__name__}: n must be odd, got {self.n}: cuDNN's gradient is wrong "
                "for even windows; GpuDnnDivisiveNormalization computes theirs with other Ops"
            )

    def abstract_op(self) -> DivisiveNormalizationGrad:
        cls = CenteredDivisiveNormalizationGrad if self.has_means else DivisiveNormalizationGrad
        return cls(*self._arguments)
