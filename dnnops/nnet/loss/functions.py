"""Categorical and binary cross-entropies under their Theano names.

The losses are expressions of PyTensor Ops. PyTensor's rewrites prevent overflow, and those of
dnnops fuse the expressions. `dnnops.nnet.cross_entropy` has its own Op.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.nnet.activation.elementwise import softplus
from dnnops.nnet.activation.op import Activation
from dnnops.nnet.operands import real_operands
from dnnops.nnet.validate import (
    as_tensor,
    check_broadcast,
    float_tensor,
    integer_vector,
    merge_shapes,
)

__all__ = [
    "binary_crossentropy",
    "categorical_crossentropy",
    "confusion_matrix",
    "crossentropy_categorical_1hot",
    "sigmoid_binary_crossentropy",
]


def binary_crossentropy(output: Any, target: Any) -> TensorVariable:
    """Compute the elementwise binary cross-entropy of predicted probabilities.

    Parameters
    ----------
    output : tensor_like
        Probabilities, between 0 and 1 exclusive.
    target : tensor_like
        True probabilities, from 0 to 1, which broadcast against `output`. Numbers, lists, integers
        and bools get the dtype of the other operand.

    Returns
    -------
    TensorVariable
        ``-(target * log(output) + (1 - target) * log(1 - output))``. If `output` is a sigmoid, the
        result is computed as `sigmoid_binary_crossentropy` of the sigmoid's operand, which stays
        accurate where the sigmoid rounds to 0 or 1.

    Raises
    ------
    DnnTypeError
        If an operand is not a tensor of real numbers.
    """
    operands = real_operands("binary_crossentropy", output=output, target=target)
    check_broadcast("binary_crossentropy", **operands)
    output, target = operands.values()
    made = output.owner
    # Not left to the rewrites of the logarithm, which some modes leave out.
    if made is not None and isinstance(made.op, Activation) and made.op.mode == "sigmoid":
        return sigmoid_binary_crossentropy(made.inputs[0], target)
    return -(target * pt.log(output) + (1 - target) * pt.log(1 - output))


def sigmoid_binary_crossentropy(output: Any, target: Any) -> TensorVariable:
    """Compute the elementwise binary cross-entropy of predicted logits.

    Parameters
    ----------
    output : tensor_like
        Logits: scores whose sigmoids are the predicted probabilities.
    target : tensor_like
        True probabilities, from 0 to 1, which broadcast against `output`. Numbers, lists, integers
        and bools get the dtype of the other operand.

    Returns
    -------
    TensorVariable
        ``binary_crossentropy(sigmoid(output), target)``, finite for every finite score. The
        gradient with respect to `output` is ``sigmoid(output) - target``.

    Raises
    ------
    DnnTypeError
        If an operand is not a tensor of real numbers.
    """
    operands = real_operands("sigmoid_binary_crossentropy", output=output, target=target)
    check_broadcast("sigmoid_binary_crossentropy", **operands)
    output, target = operands.values()
    return target * softplus(-output) + (1 - target) * softplus(output)


def categorical_crossentropy(coding_dist: Any, true_dist: Any) -> TensorVariable:
    """Compute the cross-entropy of predicted distributions over classes.

    Parameters
    ----------
    coding_dist : tensor_like, (..., classes)
        Predicted probabilities, often a softmax.
    true_dist : tensor_like, (..., classes), or integer vector, (rows,)
        True probabilities or, if `coding_dist` is a matrix, the true class of each row. Numbers,
        lists, integers and bools get the dtype of the other operand.

    Returns
    -------
    TensorVariable, (...)
        ``-sum(true_dist * log(coding_dist))`` over the classes, or
        ``-log(coding_dist[arange(rows), true_dist])``. Rewrites turn the logarithm of a softmax
        into a log-softmax or `cross_entropy`.

    Raises
    ------
    DnnTypeError
        If `true_dist` neither has the rank of `coding_dist` nor is a vector for a matrix
        `coding_dist`, or if a dtype is invalid.
    """
    where = "categorical_crossentropy"
    coding = float_tensor(where, "coding_dist", coding_dist)
    true = as_tensor(f"{where}: true_dist must be a tensor", true_dist)
    if true.type.ndim == coding.type.ndim:
        operands = real_operands(where, coding_dist=coding_dist, true_dist=true_dist)
        check_broadcast(where, **operands)
        coding, true = operands.values()
        return -pt.sum(true * pt.log(coding), axis=-1)
    if (true.type.ndim, coding.type.ndim) == (1, 2):
        return _of_true_classes(where, coding, "true_dist", true)
    raise DnnTypeError(
        f"{where}: true_dist must have as many dimensions as coding_dist, or be a vector if"
        f" coding_dist is a matrix, got {true.type.ndim} and {coding.type.ndim}"
    )


def crossentropy_categorical_1hot(coding_dist: Any, true_one_of_n: Any) -> TensorVariable:
    """Compute the cross-entropy of predicted distributions with the true class of each row.

    Parameters
    ----------
    coding_dist : tensor_like, (rows, classes)
        Predicted probabilities.
    true_one_of_n : integer vector, (rows,)
        True class of each row.

    Returns
    -------
    TensorVariable, (rows,)
        ``-log(coding_dist[arange(rows), true_one_of_n])``.

    Raises
    ------
    DnnTypeError
        If a rank or dtype is invalid.
    """
    where = "crossentropy_categorical_1hot"
    coding = float_tensor(where, "coding_dist", coding_dist, 2)
    return _of_true_classes(where, coding, "true_one_of_n", true_one_of_n)


def _of_true_classes(where: str, coding: Any, name: str, value: Any) -> TensorVariable:
    true = integer_vector(where, name, value)
    merge_shapes(where, **{"rows of coding_dist": coding.type.shape[:1], name: true.type.shape})
    return -pt.log(coding[pt.arange(coding.shape[0]), true])


def confusion_matrix(actual: Any, pred: Any) -> list[TensorVariable]:
    """Count how often each class was predicted for each true class.

    Parameters
    ----------
    actual : vector, (observations,)
        True classes.
    pred : vector, (observations,)
        Predicted classes.

    Returns
    -------
    conf_mat : int64 matrix, (classes, classes)
        Counts, with one row per true class and one column per predicted class.
    order : vector, (classes,)
        Classes of the rows and columns: all classes that occur, in ascending order.

    Raises
    ------
    DnnTypeError
        If an operand does not hold real numbers.
    DnnValueError
        If an operand is not a vector.
    """
    where = "confusion_matrix"
    actual = as_tensor(f"{where}: actual must be a vector", actual)
    pred = as_tensor(f"{where}: pred must be a vector", pred)
    for name, x in (("actual", actual), ("pred", pred)):
        if np.dtype(x.type.dtype).kind not in "biuf":
            raise DnnTypeError(f"{where}: {name} must be real numbers, got {x.type}")
        if x.type.ndim != 1:
            raise DnnValueError(f"{where}: {name} must be a vector, got {x.type.ndim} dimensions")
    merge_shapes(where, actual=actual.type.shape, pred=pred.type.shape)
    order: Any = pt.unique(pt.concatenate([actual, pred]))
    is_actual, is_predicted = (pt.eq(x[:, None], order).astype("int64") for x in (actual, pred))
    return [pt.dot(is_actual.T, is_predicted), order]
