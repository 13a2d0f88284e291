"""Activations and their gradients on cuDNN."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from pytensor.gradient import DisconnectedType, disconnected_type
from pytensor.graph.basic import Apply, Variable

from dnnops.arguments import switch
from dnnops.errors import DnnTypeError
from dnnops.gpu.base import CudnnOp, as_gradient, device_operands, gradient_like
from dnnops.gpu.derivatives import GpuAbstractOp
from dnnops.nnet.activation.op import Activation, ActivationBase, ActivationGrad
from dnnops.nnet.validate import merge_shapes, named_operands

__all__ = ["GpuDnnActivation", "GpuDnnActivationGrad"]

#: ``cudnnActivationMode_t``.
MODES = {"sigmoid": 0, "relu": 1, "tanh": 2, "clipped_relu": 3, "elu": 4, "swish": 6}


class GpuDnnActivationBase(CudnnOp, ActivationBase):
    """Base class of activations and their gradients.

    Parameters
    ----------
    mode : {'relu', 'clipped_relu', 'tanh', 'sigmoid', 'elu', 'swish'}
        Name of the activation.
    coef : float
        The ceiling of clipped relu, alpha of elu or beta of swish; 0 for the others.
    inplace : bool
        Whether an activation overwrites `x`, and its gradient overwrites `gy`.

    Raises
    ------
    DnnTypeError, DnnValueError
        If a parameter is invalid.
    """

    __props__ = ("mode", "coef", "inplace")
    function = "dnnops_cudnn_activation"
    contiguous_only = True
    operands: ClassVar[tuple[str, ...]]
    #: The operand that is overwritten.
    overwrites: ClassVar[int]

    def __init__(self, mode: str, coef: float = 0.0, inplace: bool = False):
        super().__init__(mode, coef)
        self.inplace = switch(type(self).__name__, "inplace", inplace)
        if self.inplace:
            self.destroy_map = {0: [self.overwrites]}

    def make_node(self, *inputs: Any) -> Apply:
        name = type(self).__name__
        data = device_operands(name, None, **named_operands(name, self.operands, inputs))
        if len({x.type.ndim for x in data}) > 1:
            raise DnnTypeError(f"{name}: the operands must have the same rank, got {data}")
        shapes = {n: x.type.shape for n, x in zip(self.operands, data, strict=True)}
        shape = merge_shapes(name, **shapes)
        return Apply(self, data, [data[0].type.clone(shape=shape)()])

    def parameters(self) -> list[int]:
        return [
            MODES[self.mode],
            int(np.float64(self.coef).view(np.int64)),
            len(self.operands) > 1,
        ]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        return [[True] for _ in node.inputs]


class GpuDnnActivation(GpuDnnActivationBase):
    """An activation function, called as ``GpuDnnActivation(mode, coef)(x)``.

    All modes propagate NaN, including relu and clipped relu. See `GpuDnnActivationBase` for the
    parameters.
    """

    operands = ("x",)
    overwrites = 0
    abstract_class = Activation

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Variable]:
        (x,) = inputs
        gradient = GpuDnnActivationGrad(self.mode, self.coef)
        return [as_gradient(gradient(x, outputs[0], gradient_like(cotangents[0], x)))]

    def pushforward(self, inputs: Any, outputs: Any, tangents: Any) -> list[Variable]:
        if isinstance(tangents[0].type, DisconnectedType):
            return [disconnected_type()]
        (x,) = inputs  # its Jacobian is diagonal
        gradient = GpuDnnActivationGrad(self.mode, self.coef)
        return [gradient(x, outputs[0], gradient_like(tangents[0], x))]


class GpuDnnActivationGrad(GpuDnnActivationBase, GpuAbstractOp):
    """Gradient of an activation, called as ``GpuDnnActivationGrad(mode, coef)(x, y, gy)``.

    `gy` is the gradient with respect to the output `y`. See `GpuDnnActivationBase` for the
    parameters.

    cuDNN uses a slope of 1 for clipped relu at exactly the ceiling; `dnnops.nnet.clipped_relu`
    doesn't call it and has the slope 0 there on every device. A dnnops kernel computes the
    gradients of elu, whose small slopes have no digits in cuDNN, and of swish, which is NaN there
    for the largest numbers. Its slope of elu at 0 is alpha.
    """

    operands = ("x", "y", "gy")
    overwrites = 2
    abstract_class = ActivationGrad
