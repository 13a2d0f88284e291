"""Local response normalization across channels, from Krizhevsky, Sutskever and Hinton (2012).

The Ops in this module define the computation and run in plain NumPy; rewrites replace them with Ops
that run compiled code.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from pytensor.tensor.variable import TensorVariable

from dnnops.nnet.norm.window_base import WindowNormBase

__all__ = ["LRN", "LRNGrad", "local_response_normalization"]


class _AcrossChannels(WindowNormBase):
    ndim_bounds = (2, np.inf)

    def window_axes(self, ndim: int) -> tuple[int, ...]:
        return (1,)


class LRN(_AcrossChannels):
    """Local response normalization: ``LRN(n, alpha, beta, k)(x)``.

    See `WindowNormBase` for the parameters and `local_response_normalization` for the definition.
    """

    operands = ("x",)
    results = ("y",)

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        op: Any = LRNGrad(self.n, self.alpha, self.beta, self.k)
        return [op(*inputs, *cotangents)]


class LRNGrad(_AcrossChannels):
    """Gradient of `LRN`: ``LRNGrad(n, alpha, beta, k)(x, gy)``.

    `gy` is the gradient with respect to the output. See `WindowNormBase` for the parameters.
    """

    operands = ("x", "gy")
    results = ("dx",)


def local_response_normalization(
    x: Any, n: int = 5, alpha: float = 1e-4, beta: float = 0.75, k: float = 2.0
) -> TensorVariable:
    """Normalize each element by the squares of its neighbors in adjacent channels.

    For channel ``c``,
    ``y[:, c] = x[:, c] / (k + alpha / n * sum(x[:, c - (n - 1) // 2 : c + n // 2 + 1]**2))**beta``.
    Channels outside the array count as zeros, and `alpha` is divided by `n` at the borders, too.

    Parameters
    ----------
    x : tensor_like
        A float16, float32 or float64 tensor of shape (batch, channels, ...).
    n : int
        Number of channels in the sum, from 1 to 16. If it is even, the window has one more channel
        after the element's own channel than before it.
    alpha : float
        Non-negative factor of the mean square.
    beta : float
        Exponent, at least 0.01; 0.5, 0.75 and 1 are the fastest.
    k : float
        Constant added to the scaled mean square, at least 1e-5.

    Returns
    -------
    TensorVariable
        The normalized tensor, with the shape and dtype of `x`.

    Raises
    ------
    DnnTypeError
        If `x` has an unsupported dtype or fewer than two dimensions, if `n` is not an int, or if
        another parameter is not a number.
    DnnValueError
        If a parameter is out of bounds or not finite.

    Notes
    -----
    The parameters have the same meaning and defaults as in cuDNN. Other libraries differ:

    * ``torch.nn.functional.local_response_norm(x, size, alpha, beta, k)`` also divides by ``size``.
      If ``size`` is even, its extra channel comes before the element's own channel, not after it.
    * The ``LRN`` of Caffe and ONNX also divides by the size, which must be odd in Caffe.
    * ``tf.nn.local_response_normalization(x, depth_radius, bias, alpha, beta)``, the cross-channel
      normalizations of Lasagne and Pylearn2, and the paper don't divide: pass ``alpha * n``, for
      TensorFlow with ``n = 2 * depth_radius + 1``.
    """
    op: Any = LRN(n, alpha, beta, k)
    return op(x)
