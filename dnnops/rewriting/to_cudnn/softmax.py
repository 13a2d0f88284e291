"""Softmax and its gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytensor.graph.basic import Variable

from dnnops.cudnn.softmax import GpuDnnSoftmax, GpuDnnSoftmaxGrad
from dnnops.nnet.softmax_ops import LogSoftmaxGrad, SoftmaxGrad, WholeSoftmax
from dnnops.rewriting.to_cudnn.mechanism import Build, register


def _build_softmax(cls: type, algo: Callable[[Any], str]) -> Build:
    def build(op: Any, inputs: list[Any]) -> list[Variable] | None:
        ndim = inputs[0].type.ndim
        axes = range(ndim) if op.axis is None else sorted(a % ndim for a in op.axis)
        if not axes or list(axes) != list(range(axes[0], axes[0] + len(axes))):
            return None
        return [cls(algo(op), axis=tuple(axes))(*inputs)]

    return build


register(WholeSoftmax, _build_softmax(GpuDnnSoftmax, lambda op: "log" if op.log else "accurate"))
register(SoftmaxGrad, _build_softmax(GpuDnnSoftmaxGrad, lambda op: "accurate"))
register(LogSoftmaxGrad, _build_softmax(GpuDnnSoftmaxGrad, lambda op: "log"))
