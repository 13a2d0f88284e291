"""Batch normalization and its gradient on the CPU, in float32 and float64.

The dnnops kernels run in oneDNN's threads.
"""

from __future__ import annotations

from collections.abc import Sequence

from dnnops.cpu.base import OneDnnOp
from dnnops.nnet.norm.batchnorm import BatchNormInference, BatchNormTrain, BatchNormTrainGrad
from dnnops.runtime.op import MAX_NDIM

__all__ = [
    "OneDnnBatchNormInference",
    "OneDnnBatchNormTrain",
    "OneDnnBatchNormTrainGrad",
    "has_neighboring_statistics",
]


def has_neighboring_statistics(axes: Sequence[int], ndim: int) -> bool:
    """Return whether the runtime libraries support the axes of a batch normalization.

    The libraries view an array as (batch, channel, inner), so the axes that keep separate
    statistics must be adjacent.

    Parameters
    ----------
    axes : sequence of int
        Non-negative axes over which mean and variance are computed.
    ndim : int
        Number of dimensions of the array.

    Returns
    -------
    bool
        Whether the axes are supported. False if the array has more dimensions than the runtime
        libraries support.
    """
    left = [axis for axis in range(ndim) if axis not in axes]
    return ndim <= MAX_NDIM and (not left or left[-1] - left[0] == len(left) - 1)


class _OneDnnBatchNormOp(OneDnnOp):
    axes: tuple[int, ...]
    running = False

    def parameters(self) -> list[int]:
        return [sum(1 << axis for axis in self.axes), int(self.running)]


class OneDnnBatchNormTrain(_OneDnnBatchNormOp, BatchNormTrain):
    """`BatchNormTrain` on the CPU, with statistics computed in float64.

    Parameters
    ----------
    axes : tuple of int
        Axes over which mean and variance are computed; the others must be adjacent.
    running : bool
        Whether the Op updates running averages.
    """

    function = "dnnops_onednn_batchnorm_train"


class OneDnnBatchNormTrainGrad(_OneDnnBatchNormOp, BatchNormTrainGrad):
    """`BatchNormTrainGrad` on the CPU, with sums in float64."""

    function = "dnnops_onednn_batchnorm_train_grad"


class OneDnnBatchNormInference(_OneDnnBatchNormOp, BatchNormInference):
    """`BatchNormInference` on the CPU, computed by dnnops kernels."""

    function = "dnnops_onednn_batchnorm_inference"
