"""Softmax cross-entropies with the true class of each row, under their Theano names.

The functions are built from `dnnops.nnet.cross_entropy` and `softmax`; results that a compiled
function does not use are not computed.
"""

from __future__ import annotations

from typing import Any

import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from dnnops.errors import DnnTypeError
from dnnops.nnet.activation.softmax import softmax_with_bias
from dnnops.nnet.checks import checked
from dnnops.nnet.loss.cross_entropy import cross_entropy
from dnnops.nnet.operands import float_operands
from dnnops.nnet.validate import check_broadcast, float_tensor, integer_vector, merge_shapes

__all__ = [
    "crossentropy_categorical_1hot_grad",
    "crossentropy_softmax_1hot",
    "crossentropy_softmax_1hot_with_bias",
    "crossentropy_softmax_1hot_with_bias_dx",
    "crossentropy_softmax_argmax_1hot_with_bias",
    "crossentropy_softmax_max_and_argmax_1hot",
    "crossentropy_softmax_max_and_argmax_1hot_with_bias",
]


def crossentropy_softmax_argmax_1hot_with_bias(x: Any, b: Any, y_idx: Any) -> list[TensorVariable]:
    """Compute the cross-entropy of ``softmax(x + b)`` with the true class of each row.

    Parameters
    ----------
    x : tensor_like, (rows, classes)
        Scores.
    b : tensor_like, (classes,)
        Bias added to each row.
    y_idx : integer vector, (rows,)
        True class of each row.

    Returns
    -------
    nll : TensorVariable, (rows,)
        ``-log(softmax(x + b)[arange(rows), y_idx])``, finite for all finite scores.
    sm : TensorVariable, (rows, classes)
        ``softmax(x + b)``.
    am : TensorVariable, (rows,)
        The class with the highest score in each row, with the dtype of `y_idx`.

    Raises
    ------
    DnnTypeError
        If a rank or dtype is invalid.
    DnnValueError
        If shapes do not match or, when the result is computed, if a class is negative.
    DnnIndexError
        If a class is too large, when the result is computed.
    """
    where = "crossentropy_softmax_argmax_1hot_with_bias"
    x, b = float_operands(where, {"x": x, "b": b}, {"x": 2, "b": 1})
    labels = _classes(where, "y_idx", y_idx)
    merge_shapes(where, **{"rows of x": x.type.shape[:1], "y_idx": labels.type.shape})
    check_broadcast(where, x=x, b=b)
    scores = x + b
    am = pt.argmax(scores, axis=1).astype(labels.type.dtype)
    if labels.type.dtype == "uint64":
        labels = pt.cast(labels, "int64")
    return [cross_entropy(scores, labels), softmax_with_bias(x, b), am]


def crossentropy_softmax_1hot_with_bias(x: Any, b: Any, y_idx: Any) -> list[TensorVariable]:
    """Return the results `nll` and `sm` of `crossentropy_softmax_argmax_1hot_with_bias`."""
    return crossentropy_softmax_argmax_1hot_with_bias(x, b, y_idx)[:2]


def crossentropy_softmax_1hot(x: Any, y_idx: Any) -> list[TensorVariable]:
    """Compute `crossentropy_softmax_1hot_with_bias` with no bias."""
    return crossentropy_softmax_1hot_with_bias(x, _no_bias(x), y_idx)


def crossentropy_softmax_max_and_argmax_1hot_with_bias(
    x: Any, b: Any, y_idx: Any
) -> tuple[TensorVariable, ...]:
    """Compute the cross-entropy and the most probable class of each row, with its probability.

    See `crossentropy_softmax_argmax_1hot_with_bias` for the parameters and errors.

    Returns
    -------
    nll, sm : TensorVariable
        See `crossentropy_softmax_argmax_1hot_with_bias`.
    max_pr : TensorVariable, (rows,)
        The maximum of each row of `sm`.
    argmax : TensorVariable, (rows,)
        The class of that maximum, of dtype int64.
    """
    nll, sm = crossentropy_softmax_1hot_with_bias(x, b, y_idx)
    return nll, sm, pt.max(sm, axis=-1), pt.argmax(sm, axis=-1)


def crossentropy_softmax_max_and_argmax_1hot(x: Any, y_idx: Any) -> tuple[TensorVariable, ...]:
    """Compute `crossentropy_softmax_max_and_argmax_1hot_with_bias` with no bias."""
    return crossentropy_softmax_max_and_argmax_1hot_with_bias(x, _no_bias(x), y_idx)


def crossentropy_softmax_1hot_with_bias_dx(dy: Any, sm: Any, y_idx: Any) -> TensorVariable:
    """Compute the gradient of the cross-entropy of a softmax with respect to its scores.

    The cross-entropy is the result `nll` of `crossentropy_softmax_argmax_1hot_with_bias`.

    Parameters
    ----------
    dy : tensor_like, (rows,), (1,) or scalar
        Gradient with respect to `nll`.
    sm : tensor_like, (rows, classes)
        Softmax of the scores.
    y_idx : integer vector, (rows,)
        True class of each row.

    Returns
    -------
    TensorVariable, (rows, classes)
        ``dy * (sm - onehot(y_idx))``.

    Raises
    ------
    DnnTypeError
        If a rank or dtype is invalid.
    """
    where = "crossentropy_softmax_1hot_with_bias_dx"
    dy, sm = float_operands(where, {"dy": dy, "sm": sm}, {"sm": 2})
    if dy.type.ndim > 1:
        raise DnnTypeError(f"{where}: dy must be a scalar or a vector, got {dy.type}")
    labels = _classes(where, "y_idx", y_idx)
    merge_shapes(where, sm=sm.type.shape[:1], y_idx=labels.type.shape)
    if dy.type.shape not in ((), (1,)):
        merge_shapes(where, sm=sm.type.shape[:1], dy=dy.type.shape)
    dy = pt.broadcast_to(dy, (sm.shape[0],))
    # Theano's result has the dtype of sm.
    by_row = pt.cast(dy, sm.type.dtype)
    return pt.inc_subtensor((by_row[:, None] * sm)[_of_rows(sm, labels)], -by_row)


def crossentropy_categorical_1hot_grad(
    g_y: Any, coding_dist: Any, true_one_of_n: Any
) -> TensorVariable:
    """Compute the gradient of `crossentropy_categorical_1hot` with respect to `coding_dist`.

    Parameters
    ----------
    g_y : tensor_like, (rows,)
        Gradient with respect to the cross-entropy.
    coding_dist : tensor_like, (rows, classes)
        Predicted probabilities.
    true_one_of_n : integer vector, (rows,)
        True class of each row.

    Returns
    -------
    TensorVariable, (rows, classes)
        ``-g_y / coding_dist`` at the true class of each row and 0 elsewhere.

    Raises
    ------
    DnnTypeError
        If a rank or dtype is invalid.
    """
    where = "crossentropy_categorical_1hot_grad"
    operands = {"g_y": g_y, "coding_dist": coding_dist}
    g_y, coding = float_operands(where, operands, {"g_y": 1, "coding_dist": 2})
    merge_shapes(where, g_y=g_y.type.shape, coding_dist=coding.type.shape[:1])
    labels = _classes(where, "true_one_of_n", true_one_of_n)
    merge_shapes(where, g_y=g_y.type.shape, true_one_of_n=labels.type.shape)
    place = _of_rows(coding, labels)
    return pt.set_subtensor(pt.zeros_like(coding)[place], -g_y / coding[place])


def _no_bias(x: Any) -> TensorVariable:
    x = float_tensor("crossentropy_softmax_1hot", "x", x, 2)
    return pt.zeros(x.shape[1:], dtype=x.type.dtype)


def _classes(where: str, name: str, value: Any) -> TensorVariable:
    labels = integer_vector(where, name, value)
    # As indices, negative classes would count from the end.
    problem = f"{where}: {name} must not be negative"
    if labels.type.dtype.startswith("int"):
        labels = checked(labels, problem, pt.all(pt.ge(labels, 0)))
    return labels


def _of_rows(x: Any, labels: Any) -> tuple[Any, Any]:
    return pt.arange(x.shape[0]), labels
