"""Divisive normalization: each channel by the squares in a spatial window around each element.

After Jarrett, Kavukcuoglu, Ranzato and LeCun, What is the Best Multi-Stage Architecture for Object
Recognition? (2009).  The Ops here say what is computed and run in plain NumPy; rewrites replace
them by Ops that run in compiled code.
"""

from __future__ import annotations

from typing import Any

from pytensor.tensor.variable import TensorVariable

from dnnops.nnet._validate import switch
from dnnops.nnet.lrn_base import WindowNormBase

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

    With ``has_means=True`` its operands are ``(x, means)``.  What it computes is in
    `divisive_normalization`.

    Parameters
    ----------
    n, alpha, beta, k
        As for `WindowNormBase`.
    has_means : bool
        Whether there are means.
    """

    results = ("y",)

    def __init__(self, n: int, alpha: float, beta: float, k: float, has_means: bool = False):
        super().__init__(n, alpha, beta, k, has_means)
        self.operands = ("x", "means") if self.has_means else ("x",)

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        op = DivisiveNormalizationGrad(self.n, self.alpha, self.beta, self.k, self.has_means)
        return list(op.make_node(*inputs, *cotangents).outputs)


class DivisiveNormalizationGrad(_WithinChannels):
    """The gradients of `DivisiveNormalization`: by ``x`` and, where there are means, by those.

    ``DivisiveNormalizationGrad(n, alpha, beta, k)(x, gy)``, or with ``has_means=True``
    ``(x, means, gy)``; `gy` is the gradient by the output.  Parameters as for
    `DivisiveNormalization`.
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
    """Divide each element by a power of the mean of squares around it, in its own channel.

    With windows of `n` along each of ``d`` spatial axes,
    ``y = x / (k + alpha / n**d * sum((x - means)**2))**beta``, the sum being over the element's
    window: from ``(n - 1) // 2`` elements before it to ``n // 2`` elements after it on each axis.
    Elements that are not there count as zeros, and the divisor of `alpha` is ``n**d`` there, too.

    Parameters
    ----------
    x : tensor_like
        Of float16, float32 or float64, and shape (batch, channels, one to three spatial axes).
    n : int
        The windows' length on each axis, 1 to 16.
    alpha : float
        The factor of the mean of squares, not negative.
    beta : float
        The exponent, at least 0.01; 0.5, 0.75 and 1 are the fastest.
    k : float
        What the squares are added to, at least 1e-5.
    means : tensor_like, optional
        What is subtracted from each element before it is squared, of the shape and dtype of `x`;
        nothing if it is not given. What is divided is `x`, as it is: for local contrast
        normalization give a difference from local means as `x`.

    Returns
    -------
    TensorVariable
        Of the shape and dtype of `x`.

    Raises
    ------
    DnnTypeError
        If an operand has another dtype or number of dimensions, `n` is no int, or another parameter
        no number.
    DnnValueError
        If a parameter is out of its bounds or not finite, or `means` has another shape.

    Notes
    -----
    The parameters are those of cuDNN's ``cudnnDivisiveNormalizationForward``, but for the means,
    of which that takes the one at a window's center from all of the window's elements; it is
    `dnnops.dnn.dnn_divisive_normalization`. Without means and
    with ``k=1`` it is Caffe's ``LRN`` with ``norm_region: WITHIN_CHANNEL``. The local contrast
    normalization of Jarrett et al., with equal weights in place of their Gaussian, is::

        means = pool_2d(x, (9, 9), True, (1, 1), (4, 4), mode="average_exc_pad")
        y = divisive_normalization(x - means, n=9, alpha=1, beta=0.5, k=1e-4)

    where they take the larger one of deviation and a constant, not the root of a sum.
    """
    op: Any = DivisiveNormalization(n, alpha, beta, k, means is not None)
    return op(x) if means is None else op(x, means)
