"""Losses, with the names of cudnn.torch's criteria."""

from __future__ import annotations

from typing import Any, ClassVar

from dnnops import nnet
from dnnops.arguments import switch
from dnnops.errors import DnnTypeError
from dnnops.layers.layer import Layer
from dnnops.nnet.validate import as_tensor

__all__ = [
    "CrossEntropyCriterion",
    "SpatialCrossEntropyCriterion",
    "VolumetricCrossEntropyCriterion",
]


class CrossEntropyCriterion(Layer):
    """Log-softmax and negative log-likelihood of vectors, as ``nn.CrossEntropyCriterion``.

    Parameters
    ----------
    size_average : bool
        Whether to return the mean instead of the sum.

    Raises
    ------
    DnnTypeError
        If `size_average` is not a bool.

    Notes
    -----
    ``forward(scores, labels)`` takes scores of shape (batch, classes) and integer labels of shape
    (batch,), which count from 0, and returns a scalar.
    """

    #: Number of axes that a label has besides the batch.
    spatial: ClassVar[int] = 0
    convertible = True

    def __init__(self, size_average: bool = True):
        super().__init__()
        self.size_average = switch(self._name(), "size_average", size_average)

    def forward(self, scores: Any, labels: Any) -> Any:
        where = self._name()
        scores = as_tensor(f"{where}: the scores must be a tensor", scores)
        labels = as_tensor(f"{where}: the labels must be a tensor", labels)
        for name, x, ndim in (("scores", scores, 2), ("labels", labels, 1)):
            if x.type.ndim != self.spatial + ndim:
                raise DnnTypeError(
                    f"{where}: the {name} must have {self.spatial + ndim} dimensions, "
                    f"got {x.type.ndim}"
                )
        if self.spatial:
            last = scores.dimshuffle(0, *range(2, scores.type.ndim), 1)
            scores = last.reshape((-1, last.shape[-1]))
        losses = nnet.cross_entropy(scores, labels.flatten())
        return losses.mean() if self.size_average else losses.sum()


class SpatialCrossEntropyCriterion(CrossEntropyCriterion):
    """The same for each pixel, as ``cudnn.SpatialCrossEntropyCriterion``.

    Scores have the shape (batch, classes, rows, columns), and labels (batch, rows, columns). See
    `CrossEntropyCriterion`.
    """

    spatial = 2


class VolumetricCrossEntropyCriterion(CrossEntropyCriterion):
    """The same for each voxel, as ``cudnn.VolumetricCrossEntropyCriterion``.

    Scores have the shape (batch, classes, time, rows, columns), and labels have no classes. See
    `CrossEntropyCriterion`.
    """

    spatial = 3
