"""Losses, with the names of cudnn.torch's criteria."""

from __future__ import annotations

from typing import Any, ClassVar

import pytensor.tensor as pt
from pytensor.raise_op import CheckAndRaise

from dnnops import nnet
from dnnops.arguments import host_array, shown, switch
from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.layers.layer import Layer
from dnnops.nnet.validate import as_tensor, float_tensor, merge_shapes

__all__ = [
    "CrossEntropyCriterion",
    "SpatialCrossEntropyCriterion",
    "VolumetricCrossEntropyCriterion",
]

_SAME_SHAPE = CheckAndRaise(
    DnnValueError, "cross-entropy: scores and labels must have the same batch and spatial sizes"
)


class CrossEntropyCriterion(Layer):
    """Log-softmax and negative log-likelihood of vectors, as ``nn.CrossEntropyCriterion``.

    Parameters
    ----------
    weights : array_like, (classes,), optional
        Weights of the classes, by default 1.
    size_average : bool
        Whether to divide by the sum of the weights of all labels.

    Raises
    ------
    DnnTypeError
        If an argument has the wrong type.
    DnnValueError
        If `weights` is not a vector.

    Notes
    -----
    ``forward(scores, labels)`` takes scores of shape (batch, classes) and integer labels of shape
    (batch,), which count from 0, and returns a scalar.
    """

    #: Number of axes that a label has besides the batch.
    spatial: ClassVar[int] = 0
    convertible = True

    def __init__(self, weights: Any = None, size_average: bool = True):
        super().__init__()
        where = self._name()
        self.size_average = switch(where, "size_average", size_average)
        self.weights = None if weights is None else host_array(where, "weights", weights)
        if self.weights is not None and self.weights.ndim != 1:
            raise DnnValueError(f"{where}: weights must be a vector, got {shown(weights)}")

    def forward(self, scores: Any, labels: Any) -> Any:
        where = self._name()
        scores = float_tensor(where, "scores", scores, self.spatial + 2)
        labels = as_tensor(f"{where}: labels must be a tensor", labels)
        if labels.type.ndim != self.spatial + 1:
            raise DnnTypeError(
                f"{where}: labels must have {self.spatial + 1} dimensions, got {labels.type.ndim}"
            )
        last = scores.dimshuffle(0, *range(2, scores.type.ndim), 1)
        merge_shapes(where, scores=last.type.shape[:-1], labels=labels.type.shape)
        if self.spatial:
            labels = _SAME_SHAPE(
                labels,
                *(pt.eq(last.shape[axis], labels.shape[axis]) for axis in range(labels.type.ndim)),
            )
            scores = last.reshape((-1, last.shape[-1]))
        labels = labels.flatten()
        losses = nnet.cross_entropy(scores, labels)
        if self.weights is None:
            return losses.mean() if self.size_average else losses.sum()
        weights = pt.constant(self.weights.astype(losses.type.dtype))[labels]
        total = (losses * weights).sum()
        return total / weights.sum() if self.size_average else total


class SpatialCrossEntropyCriterion(CrossEntropyCriterion):
    """Cross-entropy of each pixel, as ``cudnn.SpatialCrossEntropyCriterion``.

    Scores have the shape (batch, classes, rows, columns), and labels (batch, rows, columns). See
    `CrossEntropyCriterion`.
    """

    spatial = 2


class VolumetricCrossEntropyCriterion(CrossEntropyCriterion):
    """Cross-entropy of each voxel, as ``cudnn.VolumetricCrossEntropyCriterion``.

    Scores have the shape (batch, classes, time, rows, columns), and labels
    (batch, time, rows, columns). See `CrossEntropyCriterion`.
    """

    spatial = 3
