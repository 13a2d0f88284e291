"""Dropout on a GPU, in kernels of our own, with the random numbers of the CPU."""

from __future__ import annotations

from typing import Any

import pytensor.tensor as pt
from pytensor.gradient import disconnected_type
from pytensor.graph.basic import Apply, Variable

import dnnops.cudnn.kernels  # noqa: F401 - registers what C code calls
from dnnops.compat import set_default_update
from dnnops.cudnn.base import CudnnOp, as_gradient, device_operands, gradient_like
from dnnops.cudnn.descriptors import GpuDnnDropoutDesc
from dnnops.errors import DnnTypeError
from dnnops.gpuarray.transfer import as_gpuarray_variable
from dnnops.gpuarray.type import GpuArrayType
from dnnops.nnet._validate import switch
from dnnops.nnet.dropout_ops import Dropout, DropoutGrad, is_moving, undefined_by_p
from dnnops.nnet.expressions import is_connected

__all__ = ["GpuDnnDropoutGrad", "GpuDnnDropoutOp"]


class _GpuDropout(CudnnOp):
    __props__ = ("inplace",)
    contiguous_only = True

    def __init__(self, inplace: bool = False):
        self.inplace = switch(type(self).__name__, "inplace", inplace)
        if self.inplace:
            self.destroy_map = {0: [0]}


class GpuDnnDropoutOp(_GpuDropout, Dropout):
    """`Dropout` of a device array: ``GpuDnnDropoutOp()(x, p, state)``.

    The results are those of the CPU, bit for bit. `x` is float16, bfloat16, float32 or float64, and
    is on the device, as `y` and `reserve` are; `p` and the states are the host's. It can't be
    captured in a CUDA graph, which would draw the same numbers each time.

    A `GpuDnnDropoutDesc` may stand for `p`. Without a state, one of the descriptor's seed is made,
    which each call of a compiled function updates.

    Parameters
    ----------
    inplace : bool
        Whether the result overwrites `x`.
    """

    function = "dnnops_cudnn_dropout"

    def make_node(self, x: Any, p: Any, state: Any = None) -> Apply:
        if isinstance(p, GpuDnnDropoutDesc):
            if state is None:
                own = p.state()
                node = self.make_node(x, p.dropout, own)
                set_default_update(own, node.outputs[2])
                return node
            p = p.dropout
        (x,) = device_operands(type(self).__name__, None, x=x)
        # The abstract Op checks the rest; it knows no bfloat16.
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


class GpuDnnDropoutGrad(_GpuDropout, DropoutGrad):
    """`DropoutGrad` of device arrays: ``GpuDnnDropoutGrad()(gy, p, reserve)``.

    Parameters
    ----------
    inplace : bool
        Whether the result overwrites `gy`.
    """

    function = "dnnops_cudnn_dropout_grad"

    def make_node(self, gy: Any, p: Any, reserve: Any) -> Apply:
        name = type(self).__name__
        (gy,) = device_operands(name, None, gy=gy)
        reserve = as_gpuarray_variable(reserve, gy.type.device)
        if reserve.type.ndim != 1 or reserve.type.dtype != "uint8":
            raise DnnTypeError(f"{name}: reserve must be an uint8 vector, got {reserve.type}")
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
