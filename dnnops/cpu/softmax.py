"""Softmax, log-softmax and their gradients on the CPU, computed by dnnops kernels.

The kernels support float32 and float64.
"""

from __future__ import annotations

from dnnops.cpu.base import OneDnnOp
from dnnops.nnet.activation.softmax import LogSoftmaxGrad, SoftmaxGrad, WholeSoftmax
from dnnops.runtime.op import MAX_NDIM

__all__ = ["OneDnnLogSoftmaxGrad", "OneDnnSoftmax", "OneDnnSoftmaxGrad", "neighboring_axes"]


def neighboring_axes(axis: tuple[int, ...] | None, ndim: int) -> tuple[int, ...] | None:
    """Normalize the axes of a softmax if they are adjacent, as the runtime libraries require.

    Parameters
    ----------
    axis : tuple of int or None
        Axes of PyTensor's Softmax; None means all.
    ndim : int
        Number of dimensions of the array.

    Returns
    -------
    tuple of int or None
        The axes in ascending order, or None if there are no axes, if they are not adjacent, or if
        the array has more dimensions than the runtime libraries support.
    """
    if ndim > MAX_NDIM:
        return None
    axes = tuple(range(ndim)) if axis is None else tuple(sorted(a % ndim for a in axis))
    if not axes or axes != tuple(range(axes[0], axes[0] + len(axes))):
        return None
    return axes


class _OneDnnSoftmaxOp(OneDnnOp):
    log: bool

    def parameters(self) -> list[int]:
        axis: tuple[int, ...] = self.axis  # type: ignore[attr-defined]
        return [axis[0], axis[-1] + 1, int(self.log)]


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


class OneDnnSoftmaxGrad(_OneDnnSoftmaxOp, SoftmaxGrad):
    """`SoftmaxGrad` over adjacent axes."""

    function = "dnnops_onednn_softmax_grad"
    log = False


class OneDnnLogSoftmaxGrad(_OneDnnSoftmaxOp, LogSoftmaxGrad):
    """`LogSoftmaxGrad` over adjacent axes."""

    function = "dnnops_onednn_softmax_grad"
    log = True
