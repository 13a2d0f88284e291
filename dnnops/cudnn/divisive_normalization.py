"""Divisive normalization and its gradients on cuDNN.

Where there are means, cuDNN takes the one of a window's center from all elements of that window:
with windows of ``n`` on each of ``d`` axes, element ``i`` is divided by
``(k + alpha / n**d * sum((x[j] - means[i])**2))**beta``, the sum being over its window's ``j``, as
far as there are any. The abstract Op takes each element's own, ``x[j] - means[j]``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply

from dnnops.cudnn.base import as_gradient, gradient_like
from dnnops.cudnn.lrn import GpuWindowNormBase
from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.nnet.divisive_normalization_ops import DivisiveNormalization, DivisiveNormalizationGrad

__all__ = [
    "CenteredDivisiveNormalization",
    "CenteredDivisiveNormalizationGrad",
    "GpuDnnDivisiveNormalization",
    "GpuDnnDivisiveNormalizationGrad",
]


# -- what cuDNN computes of means, on the host's types ---------------------------------------------


class _Centered:
    """`DivisiveNormalization` as cuDNN has it: with the mean of each window's center."""

    # Of the class that this is mixed into.
    n: int
    alpha: float
    beta: float
    k: float
    window_axes: Any
    _window_sum: Any

    def _compute(self, x: Any, means: Any, gy: Any = None) -> list[Any]:
        # Sums of squares cancel where means are larger than what is left of their subtraction.
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
    """What `GpuDnnDivisiveNormalization` computes of means: ``(x, means)``.

    Its derivatives are taken from this where cuDNN has none.
    """

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        op = CenteredDivisiveNormalizationGrad(self.n, self.alpha, self.beta, self.k, True)
        return list(op.make_node(*inputs, *cotangents).outputs)


class CenteredDivisiveNormalizationGrad(_Centered, DivisiveNormalizationGrad):
    """The gradients of `CenteredDivisiveNormalization`: ``(x, means, gy)``."""


# -- on cuDNN --------------------------------------------------------------------------------------


class _GpuDnnDivisive(GpuWindowNormBase):
    function = "dnnops_cudnn_divisive_normalization"
    # cuDNN has no single spatial axis.
    ndim_bounds = (4, 5)
    has_means: bool

    def make_node(self, *inputs: Any) -> Apply:
        node = super().make_node(*inputs)
        if (dtype := node.inputs[0].type.dtype) not in ("float32", "float64"):
            raise DnnTypeError(
                f"{type(self).__name__}: expected float32 or float64, got {dtype}; "
                "dnn_divisive_normalization converts it"
            )
        return node

    def parameters(self) -> list[int]:
        return [*super().parameters(), int(self.has_means)]

    @property
    def _arguments(self) -> tuple[Any, ...]:
        return self.n, self.alpha, self.beta, self.k, self.has_means


class GpuDnnDivisiveNormalization(_GpuDnnDivisive, DivisiveNormalization):
    """`DivisiveNormalization` by cuDNN, of two or three spatial axes, in float32 and float64.

    ``GpuDnnDivisiveNormalization(n, alpha, beta, k)(x)``, or with ``has_means=True``
    ``(x, means)``. Parameters as for `dnnops.nnet.divisive_normalization`; what means are is in
    `dnnops.dnn.dnn_divisive_normalization`.
    """

    is_gradient = False

    def abstract(self) -> DivisiveNormalization:
        cls = CenteredDivisiveNormalization if self.has_means else DivisiveNormalization
        return cls(*self._arguments)

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        if self.n % 2 == 0:
            return super().pullback(inputs, outputs, cotangents)
        op = GpuDnnDivisiveNormalizationGrad(*self._arguments)
        found = op.make_node(*inputs, gradient_like(cotangents[0], inputs[0])).outputs
        return [as_gradient(g) for g in found]


class GpuDnnDivisiveNormalizationGrad(_GpuDnnDivisive, DivisiveNormalizationGrad):
    """The gradients of `GpuDnnDivisiveNormalization`: by ``x`` and, where there are any, ``means``.

    ``GpuDnnDivisiveNormalizationGrad(n, alpha, beta, k)(x, gy)``, or with ``has_means=True``
    ``(x, means, gy)``; `gy` is the gradient by the output.

    Raises
    ------
    DnnValueError
        If `n` is even. What cuDNN 9.19 then computes is no gradient of what it computes forward:
        it adds up over the window of each element instead of over the elements whose window it is
        in.
    """

    is_gradient = True

    def __init__(self, n: int, alpha: float, beta: float, k: float, has_means: bool = False):
        super().__init__(n, alpha, beta, k, has_means)
        if self.n % 2 == 0:
            raise DnnValueError(
                f"{type(self).__name__}: n must be odd, got {self.n}: cuDNN's gradient is wrong "
                "for even windows; that of GpuDnnDivisiveNormalization is written out for them"
            )

    def abstract(self) -> DivisiveNormalizationGrad:
        cls = CenteredDivisiveNormalizationGrad if self.has_means else DivisiveNormalizationGrad
        return cls(*self._arguments)
