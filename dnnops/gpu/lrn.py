"""Local response normalization and its gradient on cuDNN."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from pytensor.graph.basic import Apply
from pytensor.tensor import as_tensor_variable

from dnnops.errors import DnnTypeError
from dnnops.gpu.base import CudnnOp, as_gradient, device_operands, gradient_like
from dnnops.nnet.expressions import is_connected
from dnnops.nnet.norm.lrn import LRN, LRNGrad
from dnnops.nnet.norm.window_base import WindowNormBase
from dnnops.nnet.validate import merge_shapes, named_operands

__all__ = ["GpuDnnLRN", "GpuDnnLRNGrad", "GpuWindowNormBase"]


class GpuWindowNormBase(CudnnOp, WindowNormBase):
    """Base class of local response and divisive normalization on cuDNN, and their gradients."""

    contiguous_only = True
    is_gradient: ClassVar[bool]
    #: Operands of :meth:`make_node` that the abstract Op doesn't take.
    extra_operands: ClassVar[tuple[str, ...]] = ()

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

    def abstract(self) -> Any:
        """Return the equivalent abstract Op."""
        raise NotImplementedError

    # Second and directional derivatives are those of the abstract Op, built from host variables;
    # rewrites move them to the device.

    def _host(self, inputs: Any) -> tuple[list[int], list[Any], list[Any]]:
        kept = [i for i, o in enumerate(self.operands) if o not in self.extra_operands]
        host = [as_tensor_variable(inputs[i]) for i in kept]
        return kept, host, list(self.abstract().make_node(*host).outputs)

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        kept, host, results = self._host(inputs)
        moved = [as_tensor_variable(g) if is_connected(g) else g for g in cotangents]
        found = dict(zip(kept, self.abstract().pullback(host, results, moved), strict=True))
        return [
            as_gradient(gradient_like(found[i], x))
            if i in found and is_connected(found[i])
            else as_gradient(gradient_like(x.zeros_like(), x))
            for i, x in enumerate(inputs)
        ]

    def pushforward(self, inputs: Any, outputs: Any, tangents: Any) -> list[Any]:
        kept, host, results = self._host(inputs)
        along = [as_tensor_variable(tangents[i]) if is_connected(tangents[i]) else tangents[i]
                 for i in kept]  # fmt: skip
        return [
            gradient_like(t, z) if is_connected(t) else t
            for t, z in zip(self.abstract().pushforward(host, results, along), outputs, strict=True)
        ]


class GpuDnnLRN(GpuWindowNormBase, LRN):
    """`LRN` on cuDNN, called as ``GpuDnnLRN(n, alpha, beta, k)(x)``.

    Supports float16, float32 and float64. See `dnnops.nnet.local_response_normalization` for the
    parameters.
    """

    function = "dnnops_cudnn_lrn"
    is_gradient = False

    def abstract(self) -> LRN:
        return LRN(self.n, self.alpha, self.beta, self.k)

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        op: Any = GpuDnnLRNGrad(self.n, self.alpha, self.beta, self.k)
        (x,) = inputs
        return [as_gradient(op(x, outputs[0], gradient_like(cotangents[0], x)))]


class GpuDnnLRNGrad(GpuWindowNormBase, LRNGrad):
    """Gradient of `GpuDnnLRN`, called as ``GpuDnnLRNGrad(n, alpha, beta, k)(x, y, gy)``.

    `y` is the output, and `gy` is the gradient with respect to it.
    """

    function = "dnnops_cudnn_lrn"
    operands = ("x", "y", "gy")
    #: ``y`` is a function of ``x``, so derivatives are with respect to ``x`` alone.
    extra_operands = ("y",)
    is_gradient = True

    def abstract(self) -> LRNGrad:
        return LRNGrad(self.n, self.alpha, self.beta, self.k)
