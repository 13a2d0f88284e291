"""Softmax, log-softmax and their gradients on oneDNN, in float32."""

from __future__ import annotations

from typing import Any

from pytensor.gradient import DisconnectedType, disconnected_type
from pytensor.graph.basic import Apply
from pytensor.tensor.basic import as_tensor_variable

from dnnops.nnet.softmax import LogSoftmaxGrad, SoftmaxGrad
from dnnops.onednn.base import OneDnnOp

__all__ = ["OneDnnLogSoftmaxGrad", "OneDnnSoftmax", "OneDnnSoftmaxGrad", "neighboring_axes"]


def neighboring_axes(axis: tuple[int, ...] | None, ndim: int) -> tuple[int, ...] | None:
    """Normalize the axes of a softmax if they follow each other.

    Parameters
    ----------
    axis : tuple of int or None
        The axes as PyTensor's Softmax has them; None means all.
    ndim : int
        The array's number of dimensions.

    Returns
    -------
    tuple of int or None
        The axes in ascending order; None if there are none or others lie between them.
    """
    axes = tuple(range(ndim)) if axis is None else tuple(sorted(a % ndim for a in axis))
    if not axes or axes != tuple(range(axes[0], axes[0] + len(axes))):
        return None
    return axes


class _OneDnnSoftmaxOp(OneDnnOp):
    log: bool

    def parameters(self) -> list[int]:
        axis: tuple[int, ...] = self.axis  # type: ignore[attr-defined]
        return [axis[0], axis[-1] + 1, int(self.log)]


class OneDnnSoftmax(_OneDnnSoftmaxOp):
    """Softmax or its logarithm by ``dnnl_softmax_forward``.

    Parameters
    ----------
    axis : tuple of int
        Neighboring axes in ascending order, over which the output's exponentials sum to one.
    log : bool
        Whether to give the logarithm.
    """

    __props__ = ("axis", "log")
    function = "dnnops_onednn_softmax"

    def __init__(self, axis: tuple[int, ...], log: bool = False):
        self.axis = tuple(axis)
        self.log = bool(log)

    def make_node(self, x: Any) -> Apply:
        x = as_tensor_variable(x)
        return Apply(self, [x], [x.type()])

    def infer_shape(self, fgraph: Any, node: Apply, shapes: list[Any]) -> list[Any]:
        return shapes

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        grad = (LogSoftmaxGrad if self.log else SoftmaxGrad)(self.axis)
        return [grad(cotangents[0], outputs[0])]

    def pushforward(self, inputs: Any, outputs: Any, tangents: Any) -> list[Any]:
        if isinstance(tangents[0].type, DisconnectedType):
            return [disconnected_type()]
        if not self.log:  # its Jacobian is symmetric
            return self.pullback(inputs, outputs, tangents)
        weighted = type(self)(self.axis)(inputs[0]) * tangents[0]
        return [tangents[0] - weighted.sum(axis=self.axis, keepdims=True)]


class OneDnnSoftmaxGrad(_OneDnnSoftmaxOp, SoftmaxGrad):
    """`SoftmaxGrad` by ``dnnl_softmax_backward``."""

    function = "dnnops_onednn_softmax_grad"
    log = False


class OneDnnLogSoftmaxGrad(_OneDnnSoftmaxOp, LogSoftmaxGrad):
    """`LogSoftmaxGrad` by ``dnnl_softmax_backward`` of the logarithm."""

    function = "dnnops_onednn_softmax_grad"
    log = True
