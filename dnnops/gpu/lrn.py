"""Local response normalization and its gradient on cuDNN."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from pytensor.graph.basic import Apply, Variable

from dnnops.errors import DnnTypeError
from dnnops.gpu.base import as_gradient, device_operands, gradient_like
from dnnops.gpu.derivatives import GpuAbstractOp
from dnnops.gpu.library import GPU_CUDNN
from dnnops.nnet.norm.lrn import LRN, LRNGrad
from dnnops.nnet.norm.window_base import WindowNormBase
from dnnops.nnet.validate import merge_shapes, named_operands
from dnnops.runtime.implementations import BuildContext, implements

__all__ = ["GpuDnnLRN", "GpuDnnLRNGrad", "GpuWindowNormBase"]


class GpuWindowNormBase(GpuAbstractOp, WindowNormBase):
    """Base class of local response and divisive normalization on cuDNN, and their gradients."""

    contiguous_only = True
    is_gradient: ClassVar[bool]

    def make_node(self, *inputs: Any) -> Apply:
        name = type(self).__name__
        given = named_operands(name, self.operands, inputs)
        data = device_operands(name, None, **given)
        x = data[0]
        self.check_rank(name, "x", x.type.ndim)
        if len({d.type.ndim for d in data}) > 1:
            raise DnnTypeError(f"{name}: the operands must have the same rank, got {data}")
        shape = merge_shapes(
            name, **{o: d.type.shape for o, d in zip(self.operands, data, strict=True)}
        )
        return Apply(self, data, [x.type.clone(shape=shape)() for _ in self.results])

    def parameters(self) -> list[int]:
        factors = np.array([self.alpha, self.beta, self.k]).view("int64").tolist()
        return [self.n, *factors, int(self.is_gradient)]


@implements(LRN, on=GPU_CUDNN)
class GpuDnnLRN(GpuWindowNormBase, LRN):
    """`LRN` on cuDNN, called as ``GpuDnnLRN(n, alpha, beta, k)(x)``.

    Supports float16, float32 and float64. See `dnnops.nnet.local_response_normalization` for the
    parameters.
    """

    function = "dnnops_cudnn_lrn"
    is_gradient = False
    abstract_class = LRN

    @classmethod
    def build(cls, op: Any, inputs: list[Any], context: BuildContext) -> list[Variable]:
        return [context.apply_once(cls.from_abstract(op), *inputs)]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        op: Any = GpuDnnLRNGrad(self.n, self.alpha, self.beta, self.k)
        (x,) = inputs
        return [as_gradient(op(x, outputs[0], gradient_like(cotangents[0], x)))]


@implements(LRNGrad, on=GPU_CUDNN)
class GpuDnnLRNGrad(GpuWindowNormBase, LRNGrad):
    """Gradient of `GpuDnnLRN`, called as ``GpuDnnLRNGrad(n, alpha, beta, k)(x, y, gy)``.

    `y` is the output, and `gy` is the gradient with respect to it.
    """

    function = "dnnops_cudnn_lrn"
    operands = ("x", "y", "gy")
    extra_operands = ("y",)
    is_gradient = True
    abstract_class = LRNGrad

    @classmethod
    def build(cls, op: Any, inputs: list[Any], context: BuildContext) -> list[Variable]:
        # The output of LRN has usually been computed already.
        x, gy = inputs
        y = context.apply_once(GpuDnnLRN.from_abstract(op), x)
        return [cls.from_abstract(op)(x, y, gy)]
