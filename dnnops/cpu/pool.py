"""Pooling and its gradients on the CPU, with oneDNN where it supports them, else plain loops."""

from __future__ import annotations

from typing import Any

from dnnops.cpu.base import CPU, OneDnnOp
from dnnops.nnet.pool.geometry import POOL_MODES
from dnnops.nnet.pool.op import AveragePoolGrad, MaxPoolGrad, MaxPoolGradGrad, Pool
from dnnops.runtime.implementations import implements

__all__ = [
    "OneDnnAveragePoolGrad",
    "OneDnnMaxPoolGrad",
    "OneDnnMaxPoolGradGrad",
    "OneDnnPool",
]


class _OneDnnPoolOp(OneDnnOp):
    def parameters(self) -> list[int]:
        op: Any = self
        return [op.ndim, POOL_MODES.index(getattr(op, "computes", "max")), int(op.ignore_border)]


@implements(Pool, on=CPU)
class OneDnnPool(_OneDnnPoolOp, Pool):
    """`Pool` computed by ``dnnl_pooling_forward`` (float32 averages) or plain loops."""

    function = "dnnops_onednn_pool"


@implements(MaxPoolGrad, on=CPU)
class OneDnnMaxPoolGrad(_OneDnnPoolOp, MaxPoolGrad):
    """`MaxPoolGrad` computed by plain loops, which need no workspace from the forward pass."""

    function = "dnnops_onednn_max_pool_grad"


@implements(MaxPoolGradGrad, on=CPU)
class OneDnnMaxPoolGradGrad(_OneDnnPoolOp, MaxPoolGradGrad):
    """`MaxPoolGradGrad` computed by plain loops."""

    function = "dnnops_onednn_max_pool_grad_grad"


@implements(AveragePoolGrad, on=CPU)
class OneDnnAveragePoolGrad(_OneDnnPoolOp, AveragePoolGrad):
    """`AveragePoolGrad` computed by ``dnnl_pooling_backward`` (float32 average) or plain loops."""

    function = "dnnops_onednn_average_pool_grad"
