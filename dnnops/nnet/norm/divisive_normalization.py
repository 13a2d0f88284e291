"""Divisive normalization over spatial windows within each channel.

Based on Jarrett, Kavukcuoglu, Ranzato and LeCun, What is the Best Multi-Stage Architecture for
Object Recognition? (2009). The Ops in this module define the computation and run in plain NumPy;
rewrites replace them with Ops that run compiled code.
"""

from __future__ import annotations

from typing import Any

from pytensor.tensor.variable import TensorVariable

from dnnops.nnet.norm.window_base import WindowNormBase
from dnnops.nnet.validate import switch

__all__ = ["DivisiveNormalization", "DivisiveNormalizationGrad", "divisive_normalization"]


class _WithinChannels(WindowNormBase):
    __props__ = ("n", "alpha", "beta", "k", "has_means")
    ndim_bounds = (3, 5)

    def __init__(self, n: int, alpha: float, beta: float, k: float, has_means: bool = False):
        super().__init__(n, alpha, beta, k)
        self.has_means = switch(type(self).__name__, "has_means", has_means)

    def window_axes(self, ndim: int) -> tuple[int, ...]:
        return tuple(range(2, ndim))


class DivisiveNormalization(_WithinChannels):
    """Divisive normalization: ``DivisiveNormalization(n, alpha, beta, k)(x)``.

    With ``has_means=True``, the operands are ``(x, means)``. See `divisive_normalization` for the
    definition.

    Parameters
    ----------
    n, alpha, beta, k
        See `WindowNormBase`.
    has_means : bool
        Whether the Op takes means as a second operand.
    """

    results = ("y",)

    def __init__(self, n: int, alpha: float, beta: float, k: float, has_means: bool = False):
        super().__init__(n, alpha, beta, k, has_means)
        self.operands = ("x", "means") if self.has_means else ("x",)

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        op = DivisiveNormalizationGrad(self.n, self.alpha, self.beta, self.k, self.has_means)
        return list(op.make_node(*inputs, *cotangents).outputs)


class DivisiveNormalizationGrad(_WithinChannels):
    """Gradients of `DivisiveNormalization` with respect to ``x`` and, if given, ``means``.

    Call it as ``DivisiveNormalizationGrad(n, alpha, beta, k)(x, gy)``; with ``has_means=True``, the
    operands are ``(x, means, gy)``. `gy` is the gradient with respect to the output. See
    `DivisiveNormalization` for the parameters.
    """

    def __init__(self, n: int, alpha: float, beta: float, k: float, has_means: bool = False):
        super().__init__(n, alpha, beta, k, has_means)
        self.operands = ("x", "means", "gy") if self.has_means else ("x", "gy")
        self.results = ("dx", "dmeans") if self.has_means else ("dx",)


def divisive_normalization(
    x: Any,
    n: int = 5,
    alpha: float = 1e-4,
    beta: float = 0.75,
    k: float = 2.0,
    means: Any = None,
) -> TensorVariable:
    """Divide each element by a power of the mean square of its spatial window in the same channel.

    With windows of length `n` along each of ``d`` spatial axes,
    ``y = x / (k + alpha / n**d * sum((x - means)**2))**beta``. The sum runs over the element's
    window, from ``(n - 1) // 2`` elements before it to ``n // 2`` elements after it on each axis.
    Elements outside the array count as zeros, and `alpha` is divided by ``n**d`` at the borders,
    too.

    Parameters
    ----------
    x : tensor_like
        A float16, float32 or float64 tensor of shape (batch, channels, ...) with one to three
        spatial axes.
    n : int
        Window length on each axis, from 1 to 16.
    alpha : float
        Non-negative factor of the mean square.
    beta : float
        Exponent, at least 0.01; 0.5, 0.75 and 1 are the fastest.
    k : float
        Constant added to the scaled mean square, at least 1e-5.
    means : tensor_like, optional
        Values subtracted from the elements before squaring, with the shape and dtype of `x`. By
        default nothing is subtracted. The numerator is always `x` itself: for local contrast
        normalization, pass the difference from local means as `x`.

    Returns
    -------
    TensorVariable
        The normalized tensor, with the shape and dtype of `x`.

    Raises
    ------
    DnnTypeError
        If an operand has an unsupported dtype or number of dimensions, if `n` is not an int, or if
        another parameter is not a number.
    DnnValueError
        If a parameter is out of bounds or not finite, or if the shapes of `means` and `x` differ.

    Notes
    -----
    The parameters are those of cuDNN's ``cudnnDivisiveNormalizationForward``, but the means are
    used differently: cuDNN subtracts the mean at a window's center from every element of the
    window, as `dnnops.dnn.dnn_divisive_normalization` does. Without means and with ``k=1``, this is
    Caffe's ``LRN`` with ``norm_region: WITHIN_CHANNEL``. The local contrast normalization of
    Jarrett et al., with equal weights in place of their Gaussian, is::

        means = pool_2d(x, (9, 9), True, (1, 1), (4, 4), mode="average_exc_pad")
        y = divisive_normalization(x - means, n=9, alpha=1, beta=0.5, k=1e-4)

    except that they divide by the maximum of the deviation and a constant, not by the root of a
    sum.
    """
    op: Any = DivisiveNormalization(n, alpha, beta, k, means is not None)
    return op(x) if means is None else op(x, means)
