"""Two-level softmax for large numbers of classes."""

from __future__ import annotations

from typing import Any

import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.nnet.activation.softmax import softmax
from dnnops.nnet.operands import float_operands
from dnnops.nnet.validate import (
    as_tensor,
    is_int,
    merge_shapes,
    show_shape,
    size_argument,
)

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
    """Compute a two-level softmax: over classes, then over the outputs within each class.

    Parameters
    ----------
    x : tensor_like, (batch_size, features)
        Features from which the outputs are predicted.
    batch_size : int or symbolic int
        Number of rows of `x`.
    n_outputs : int
        Number of outputs, at most ``n_classes * n_outputs_per_class``.
    n_classes, n_outputs_per_class : int
        Number of classes, and number of outputs in each. The cost is lowest when both are near the
        square root of `n_outputs`.
    W1 : tensor_like, (features, n_classes)
        Weights of the first level.
    b1 : tensor_like, (n_classes,)
        Bias of the first level.
    W2 : tensor_like, (n_classes, features, n_outputs_per_class)
        Weights of the second level.
    b2 : tensor_like, (n_classes, n_outputs_per_class)
        Bias of the second level.
    target : integer tensor, (batch_size,) or (batch_size, 1), optional
        One output for each row. If given, only the probabilities of these outputs are computed.

    Returns
    -------
    TensorVariable
        Probabilities of shape (batch_size, n_outputs) without `target`, or (batch_size,) with it.
        Output ``i`` has index ``i % n_outputs_per_class`` in class ``i // n_outputs_per_class``.

    Raises
    ------
    DnnTypeError, DnnValueError
        If a rank, dtype, shape or number is invalid.
    """
    where = "h_softmax"
    operands = {"x": x, "W1": W1, "b1": b1, "W2": W2, "b2": b2}
    ranks = {"x": 2, "W1": 2, "b1": 1, "W2": 3, "b2": 2}
    x, weights, bias, inner, inner_bias = float_operands(where, operands, ranks)
    batch_size = _size(where, "batch_size", batch_size)
    n_outputs = _size(where, "n_outputs", n_outputs)
    n_classes = _size(where, "n_classes", n_classes)
    per_class = _size(where, "n_outputs_per_class", n_outputs_per_class)
    shapes = {"x": x, "W1": weights, "b1": bias, "W2": inner, "b2": inner_bias}
    wanted = {
        "x": (batch_size, None),
        "W1": (x.type.shape[1], n_classes),
        "b1": (n_classes,),
        "W2": (n_classes, x.type.shape[1], per_class),
        "b2": (n_classes, per_class),
    }
    for name, sizes in wanted.items():
        found = shapes[name].type.shape
        if any(is_int(a) and is_int(b) and a != b for a, b in zip(found, sizes, strict=True)):
            raise DnnValueError(
                f"{where}: {name} has shape {show_shape(found)}, which does not match x of shape"
                f" {show_shape(x.type.shape)}, batch_size={batch_size}, n_classes={n_classes} and"
                f" n_outputs_per_class={per_class}"
            )
    if all(map(is_int, (n_outputs, n_classes, per_class))) and n_outputs > n_classes * per_class:
        raise DnnValueError(
            f"{where}: n_outputs must be at most n_classes * n_outputs_per_class, got {n_outputs},"
            f" {n_classes} and {per_class}"
        )
    of_class = softmax(pt.dot(x, weights) + bias)
    if target is None:
        scores = pt.tensordot(x, inner, axes=[[1], [1]]) + inner_bias
        joint = of_class[:, :, None] * softmax(scores, axis=2)
        return joint.reshape((batch_size, n_classes * per_class))[:, :n_outputs]
    target = as_tensor(f"{where}: target must be an integer tensor", target)
    if target.type.ndim not in (1, 2) or target.type.dtype not in pt.type.integer_dtypes:
        raise DnnTypeError(
            f"{where}: target must be an integer vector or one-column matrix, got {target.type}"
        )
    if target.type.shape[0] is not None and is_int(batch_size):
        merge_shapes(where, target=target.type.shape[:1], batch_size=(batch_size,))
    target = pt.cast(target.flatten(), "int64")
    chosen, within = target // per_class, target % per_class
    scores = (x[:, None, :] @ inner[chosen])[:, 0, :] + inner_bias[chosen]
    rows = pt.arange(batch_size)
    return of_class[rows, chosen] * softmax(scores)[rows, within]


def _size(where: str, name: str, value: Any) -> Any:
    size = size_argument(where, name, value, 1)
    if size is None:
        raise DnnTypeError(f"{where}: {name} must be an int or a symbolic int, got None")
    return size
