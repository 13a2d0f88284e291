"""Softmax, log-softmax and their gradients on the CPU, computed by dnnops kernels.

The kernels support float32 and float64.
"""

from __future__ import annotations

from typing import Any

from pytensor.graph.basic import Variable

from dnnops.cpu.base import CPU, OneDnnOp
from dnnops.nnet.activation.softmax import LogSoftmaxGrad, SoftmaxGrad, WholeSoftmax
from dnnops.runtime.axes import neighboring_axes
from dnnops.runtime.implementations import BuildContext, implements

__all__ = ["OneDnnLogSoftmaxGrad", "OneDnnSoftmax", "OneDnnSoftmaxGrad"]


class _OneDnnSoftmaxOp(OneDnnOp):
    log: bool

    @classmethod
    def build(cls, op: Any, inputs: list[Any], context: BuildContext) -> list[Variable] | None:
        axis = neighboring_axes(op.axis, inputs[0].type.ndim)
        if axis is None:
            return None
        return cls.from_abstract(op, axis=axis).make_node(*inputs).outputs

    def parameters(self) -> list[int]:
        axis: tuple[int, ...] = self.axis  # type: ignore[attr-defined]
        return [axis[0], axis[-1] + 1, int(self.log)]


@implements(WholeSoftmax, on=CPU)
class OneDnnSoftmax(_OneDnnSoftmaxOp, WholeSoftmax):
    """`WholeSoftmax` over adjacent axes.

    Parameters
    ----------
    axis : tuple of int
        Adjacent axes in ascending order.
    log : bool
        Whether to return the logarithm.
    """

    function = "dnnops_onednn_softmax"


@implements(SoftmaxGrad, on=CPU)
class OneDnnSoftmaxGrad(_OneDnnSoftmaxOp, SoftmaxGrad):
    """`SoftmaxGrad` over adjacent axes."""

    function = "dnnops_onednn_softmax_grad"
    log = False


@implements(LogSoftmaxGrad, on=CPU)
class OneDnnLogSoftmaxGrad(_OneDnnSoftmaxOp, LogSoftmaxGrad):
    """`LogSoftmaxGrad` over adjacent axes."""

    function = "dnnops_onednn_softmax_grad"
    log = True
