"""Batch normalization and its gradient on the CPU, in float32 and float64.

The dnnops kernels run in oneDNN's threads.
"""

from __future__ import annotations

from pytensor.graph.basic import Apply

from dnnops.cpu.base import CPU, OneDnnOp
from dnnops.nnet.norm.batchnorm import BatchNormInference, BatchNormTrain, BatchNormTrainGrad
from dnnops.runtime.axes import has_neighboring_statistics
from dnnops.runtime.implementations import implements

__all__ = [
    "OneDnnBatchNormInference",
    "OneDnnBatchNormTrain",
    "OneDnnBatchNormTrainGrad",
]


def _is_supported(node: Apply) -> bool:
    x = node.inputs[0].type
    return x.dtype in ("float32", "float64") and has_neighboring_statistics(node.op.axes, x.ndim)


class _OneDnnBatchNormOp(OneDnnOp):
    axes: tuple[int, ...]
    running = False

    def parameters(self) -> list[int]:
        return [sum(1 << axis for axis in self.axes), int(self.running)]


@implements(BatchNormTrain, on=CPU, when=_is_supported)
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


@implements(BatchNormTrainGrad, on=CPU, when=_is_supported)
class OneDnnBatchNormTrainGrad(_OneDnnBatchNormOp, BatchNormTrainGrad):
    """`BatchNormTrainGrad` on the CPU, with sums in float64."""

    function = "dnnops_onednn_batchnorm_train_grad"


@implements(BatchNormInference, on=CPU, when=_is_supported)
class OneDnnBatchNormInference(_OneDnnBatchNormOp, BatchNormInference):
    """`BatchNormInference` on the CPU, computed by dnnops kernels."""

    function = "dnnops_onednn_batchnorm_inference"
