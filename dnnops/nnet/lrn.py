"""Local response normalization: across channels, after Krizhevsky, Sutskever and Hinton (2012).

The Ops here say what is computed and run in plain NumPy; rewrites replace them by Ops that run in
compiled code.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from pytensor.tensor.variable import TensorVariable

from dnnops.nnet.lrn_base import WindowNormBase

__all__ = ["LRN", "LRNGrad", "local_response_normalization"]


class _AcrossChannels(WindowNormBase):
    ndim_bounds = (2, np.inf)

    def window_axes(self, ndim: int) -> tuple[int, ...]:
        return (1,)


class LRN(_AcrossChannels):
    """Local response normalization: ``LRN(n, alpha, beta, k)(x)``.

    Parameters as for `WindowNormBase`; what it computes is in `local_response_normalization`.
    """

    operands = ("x",)
    results = ("y",)

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        op: Any = LRNGrad(self.n, self.alpha, self.beta, self.k)
        return [op(*inputs, *cotangents)]


class LRNGrad(_AcrossChannels):
    """The gradient of `LRN`: ``LRNGrad(n, alpha, beta, k)(x, gy)``.

    `gy` is the gradient by the output.  Parameters as for `WindowNormBase`.
    """

    operands = ("x", "gy")
    results = ("dx",)


def local_response_normalization(
    x: Any, n: int = 5, alpha: float = 1e-4, beta: float = 0.75, k: float = 2.0
) -> TensorVariable:
    """Normalize each element by the squares of its neighbors in other channels.

    With ``c`` for the channel,
    ``y[:, c] = x[:, c] / (k + alpha / n * sum(x[:, c - (n - 1) // 2 : c + n // 2 + 1]**2))**beta``;
    channels that are not there count as zeros, and the divisor of `alpha` is `n` there, too.

    Parameters
    ----------
    x : tensor_like
        Of float16, float32 or float64, and shape (batch, channels, ...).
    n : int
        How many channels are summed over, 1 to 16. If it is even, there is one more after the
        element's channel than before it.
    alpha : float
        The factor of the mean of squares, not negative.
    beta : float
        The exponent, at least 0.01; 0.5, 0.75 and 1 are the fastest.
    k : float
        What the squares are added to, at least 1e-5.

    Returns
    -------
    TensorVariable
        Of the shape and dtype of `x`.

    Raises
    ------
    DnnTypeError
        If `x` has another dtype or fewer than two dimensions, `n` is no int, or another parameter
        no number.
    DnnValueError
        If a parameter is out of its bounds or not finite.

    Notes
    -----
    This is the meaning that cuDNN gives the parameters, and their defaults are cuDNN's. Of other
    libraries:

    * ``torch.nn.functional.local_response_norm(x, size, alpha, beta, k)`` divides by ``size``, too.
      With an even one it has the channel that is left over before the element's, not after it.
    * Caffe's ``LRN`` and ONNX's divide by the size, too. That of Caffe has to be odd.
    * ``tf.nn.local_response_normalization(x, depth_radius, bias, alpha, beta)``, Lasagne's and
      Pylearn2's cross-channel normalization, and the paper don't divide: give ``alpha * n``, for
      TensorFlow with ``n = 2 * depth_radius + 1``.
    """
    op: Any = LRN(n, alpha, beta, k)
    return op(x)
