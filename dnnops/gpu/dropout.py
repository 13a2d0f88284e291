"""Dropout on a GPU with dnnops kernels, which draw the same random numbers as the CPU."""

from __future__ import annotations

from typing import Any

import pytensor.tensor as pt
from pytensor.gradient import disconnected_type
from pytensor.graph.basic import Apply, Variable

import dnnops.gpu.kernels  # noqa: F401 - registers what C code calls
from dnnops.errors import DnnTypeError
from dnnops.gpu.base import GPU_KERNELS, CudnnOp, as_gradient, device_operands, gradient_like
from dnnops.gpu.descriptors import GpuDnnDropoutDesc
from dnnops.gpuarray.transfer import as_gpuarray_variable
from dnnops.gpuarray.type import GpuArrayType
from dnnops.nnet.expressions import is_connected
from dnnops.nnet.regularization.dropout import Dropout, DropoutGrad, is_moving, undefined_by_p
from dnnops.nnet.streams import advance
from dnnops.nnet.validate import switch
from dnnops.runtime.implementations import implements

__all__ = ["GpuDnnDropoutGrad", "GpuDnnDropoutOp"]


class _GpuDropout(CudnnOp):
    __props__ = ("inplace",)
    contiguous_only = True

    def __init__(self, inplace: bool = False):
        self.inplace = switch(type(self).__name__, "inplace", inplace)
        if self.inplace:
            self.destroy_map = {0: [0]}


@implements(Dropout, on=GPU_KERNELS, operands=(0,))
class GpuDnnDropoutOp(_GpuDropout, Dropout):
    """`Dropout` of a device array, called as ``GpuDnnDropoutOp()(x, p, state)``.

    The results are bitwise identical to those on the CPU. `x` is float16, bfloat16, float32 or
    float64. `x`, `y` and `reserve` are on the device; `p` and the states are on the host. The Op
    can't be captured in a CUDA graph, which would draw the same numbers each time.

    A `GpuDnnDropoutDesc` can be given in place of `p`. If no state is given with it, a state is
    created from the descriptor's seed, and each call of a compiled function updates it.

    Parameters
    ----------
    inplace : bool
        Whether the result overwrites `x`.
    """

    function = "dnnops_cudnn_dropout"
    abstract_class = Dropout

    def make_node(self, x: Any, p: Any, state: Any = None) -> Apply:
        if isinstance(p, GpuDnnDropoutDesc):
            if state is None:
                own = p.state()
                node = self.make_node(x, p.dropout, own)
                advance(own, node.outputs[2])
                return node
            p = p.dropout
        (x,) = device_operands(type(self).__name__, None, x=x)
        # The abstract Op checks the rest. It doesn't support bfloat16, so give it a stand-in.
        stand_in = pt.tensor(dtype="float32", shape=x.type.shape)
        _, p, state = Dropout.make_node(self, stand_in, p, state).inputs
        _, reserve, next_state = Dropout.make_node(self, stand_in, p, state).outputs
        on_device = GpuArrayType("uint8", reserve.type.shape, x.type.device)
        return Apply(self, [x, p, state], [x.type(), on_device(), next_state.type()])

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Variable]:
        x, p, _ = inputs
        if not is_connected(cotangents[0]):
            return [disconnected_type() for _ in inputs]
        gradient = GpuDnnDropoutGrad()(gradient_like(cotangents[0], x), p, outputs[1])
        return [as_gradient(gradient), undefined_by_p(self, p), disconnected_type()]

    def pushforward(self, inputs: Any, outputs: Any, tangents: Any) -> list[Variable]:
        x, p, _ = inputs
        tangent: Any = disconnected_type()
        if is_moving(tangents[1]):
            tangent = undefined_by_p(self, p)
        elif is_connected(tangents[0]):
            tangent = GpuDnnDropoutGrad()(gradient_like(tangents[0], x), p, outputs[1])
        return [tangent, disconnected_type(), disconnected_type()]


@implements(DropoutGrad, on=GPU_KERNELS, operands=(0, 2))
class GpuDnnDropoutGrad(_GpuDropout, DropoutGrad):
    """`DropoutGrad` of device arrays, called as ``GpuDnnDropoutGrad()(gy, p, reserve)``.

    Parameters
    ----------
    inplace : bool
        Whether the result overwrites `gy`.
    """

    function = "dnnops_cudnn_dropout_grad"
    abstract_class = DropoutGrad

    def make_node(self, gy: Any, p: Any, reserve: Any) -> Apply:
        name = type(self).__name__
        (gy,) = device_operands(name, None, gy=gy)
        reserve = as_gpuarray_variable(reserve, gy.type.device)
        if reserve.type.ndim != 1 or reserve.type.dtype != "uint8":
            raise DnnTypeError(f"{name}: reserve must be a uint8 vector, got {reserve.type}")
        stand_in = pt.tensor(dtype="float32", shape=gy.type.shape)
        p = DropoutGrad.make_node(self, stand_in, p, pt.vector(dtype="uint8")).inputs[1]
        return Apply(self, [gy, p, reserve], [gy.type()])

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Variable]:
        gy, p, reserve = inputs
        gradient = self(gradient_like(cotangents[0], gy), p, reserve)
        return [as_gradient(gradient), undefined_by_p(self, p), disconnected_type()]

    def pushforward(self, inputs: Any, outputs: Any, tangents: Any) -> list[Variable]:
        gy, p, reserve = inputs
        if is_moving(tangents[1]):
            return [undefined_by_p(self, p)]
        if not is_connected(tangents[0]):
            return [disconnected_type()]
        return [self(gradient_like(tangents[0], gy), p, reserve)]
