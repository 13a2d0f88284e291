"""Batch normalization and its gradient in the threads of oneDNN, in float32 and float64."""

from __future__ import annotations

from collections.abc import Sequence

from dnnops.nnet.batchnorm import BatchNormInference, BatchNormTrain, BatchNormTrainGrad
from dnnops.onednn.base import OneDnnOp
from dnnops.runtime.op import MAX_NDIM

__all__ = [
    "OneDnnBatchNormInference",
    "OneDnnBatchNormTrain",
    "OneDnnBatchNormTrainGrad",
    "has_neighboring_statistics",
]


def has_neighboring_statistics(axes: Sequence[int], ndim: int) -> bool:
    """Tell whether a library can take the axes of a batch normalization.

    It sees an array as (batch, channel, inner), so that the axes that are left follow each other.

    Parameters
    ----------
    axes : sequence of int
        The axes over which mean and variance are, none of them negative.
    ndim : int
        The array's number of dimensions.

    Returns
    -------
    bool
        False too if the array has more dimensions than the runtime libraries take.
    """
    left = [axis for axis in range(ndim) if axis not in axes]
    return ndim <= MAX_NDIM and (not left or left[-1] - left[0] == len(left) - 1)


class _OneDnnBatchNormOp(OneDnnOp):
    axes: tuple[int, ...]
    running = False

    def parameters(self) -> list[int]:
        return [sum(1 << axis for axis in self.axes), int(self.running)]


class OneDnnBatchNormTrain(_OneDnnBatchNormOp, BatchNormTrain):
    """`BatchNormTrain` in dnnops loops, with statistics in float64.

    Parameters
    ----------
    axes : tuple of int
        The axes over which mean and variance are; the others are neighbors.
    running : bool
        Whether there are running averages.
    """

    function = "dnnops_onednn_batchnorm_train"


class OneDnnBatchNormTrainGrad(_OneDnnBatchNormOp, BatchNormTrainGrad):
    """`BatchNormTrainGrad` in dnnops loops, with sums in float64."""

    function = "dnnops_onednn_batchnorm_train_grad"


class OneDnnBatchNormInference(_OneDnnBatchNormOp, BatchNormInference):
    """`BatchNormInference` in dnnops loops."""

    function = "dnnops_onednn_batchnorm_inference"
