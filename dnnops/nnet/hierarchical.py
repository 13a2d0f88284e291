"""Softmax in two levels, for many classes."""

from __future__ import annotations

from typing import Any

import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from dnnops.nnet._validate import float_tensor
from dnnops.nnet.softmax_ops import softmax

__all__ = ["h_softmax"]


def h_softmax(
    x: Any,
    batch_size: Any,
    n_outputs: Any,
    n_classes: Any,
    n_outputs_per_class: Any,
    W1: Any,  # noqa: N803
    b1: Any,
    W2: Any,  # noqa: N803
    b2: Any,
    target: Any = None,
) -> TensorVariable:
    """Compute a hierarchical softmax: of classes, and of the outputs within each class.

    Parameters
    ----------
    x : tensor_like, (batch_size, features)
        What the outputs are predicted from.
    batch_size : int or symbolic int
        The number of rows of `x`.
    n_outputs : int
        The number of outputs, at most ``n_classes * n_outputs_per_class``.
    n_classes, n_outputs_per_class : int
        The cost is least where both are near the square root of `n_outputs`.
    W1 : tensor_like, (features, n_classes)
    b1 : tensor_like, (n_classes,)
        Of the first level.
    W2 : tensor_like, (n_classes, features, n_outputs_per_class)
    b2 : tensor_like, (n_classes, n_outputs_per_class)
        Of the second level.
    target : integer tensor, (batch_size,) or (batch_size, 1), optional
        One output for each row: only their probabilities are computed.

    Returns
    -------
    TensorVariable
        (batch_size, n_outputs) without `target`, (batch_size,) with it. Output `i` is the
        ``i % n_outputs_per_class``-th of class ``i // n_outputs_per_class``.

    Raises
    ------
    DnnTypeError
        If a rank or a dtype is another one.
    """
    where = "h_softmax"
    x = float_tensor(where, "x", x, 2)
    weights, bias = float_tensor(where, "W1", W1, 2), float_tensor(where, "b1", b1, 1)
    inner, inner_bias = float_tensor(where, "W2", W2, 3), float_tensor(where, "b2", b2, 2)
    of_class = softmax(pt.dot(x, weights) + bias)
    if target is None:
        scores = pt.tensordot(x, inner, axes=[[1], [1]]) + inner_bias
        joint = of_class[:, :, None] * softmax(scores, axis=2)
        return joint.reshape((batch_size, n_classes * n_outputs_per_class))[:, :n_outputs]
    target = pt.as_tensor_variable(target).flatten()
    chosen, within = target // n_outputs_per_class, target % n_outputs_per_class
    scores = (x[:, None, :] @ inner[chosen])[:, 0, :] + inner_bias[chosen]
    rows = pt.arange(batch_size)
    return of_class[rows, chosen] * softmax(scores)[rows, within]
