"""Activations and their gradients on cuDNN."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from pytensor.gradient import DisconnectedType, disconnected_type
from pytensor.graph.basic import Apply, Variable
from pytensor.tensor import as_tensor_variable

from dnnops.arguments import switch
from dnnops.cudnn.base import CudnnOp, as_gradient, device_operands, gradient_like
from dnnops.errors import DnnTypeError
from dnnops.nnet._validate import merge_shapes, named_operands
from dnnops.nnet.activation import ActivationBase, ActivationGrad

__all__ = ["GpuDnnActivation", "GpuDnnActivationGrad"]

#: ``cudnnActivationMode_t``.
MODES = {"sigmoid": 0, "relu": 1, "tanh": 2, "clipped_relu": 3, "elu": 4, "swish": 6}


class GpuDnnActivationBase(CudnnOp, ActivationBase):
    """What an activation and its gradient share.

    Parameters
    ----------
    mode : {'relu', 'clipped_relu', 'tanh', 'sigmoid', 'elu', 'swish'}
    coef : float
        The ceiling of clipped relu, alpha of elu or beta of swish; 0 for the others.
    inplace : bool
        Whether the result overwrites `x`, or of the gradient the gradient by the output.

    Raises
    ------
    DnnTypeError, DnnValueError
        If a parameter is another one.
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
            raise DnnTypeError(f"{name}: the operands must have one rank, got {data}")
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
    """An activation: ``GpuDnnActivation(mode, coef)(x)``.

    Parameters as for `GpuDnnActivationBase`. A NaN stays one in relu and clipped relu, too.
    """

    operands = ("x",)
    overwrites = 0

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


class GpuDnnActivationGrad(GpuDnnActivationBase):
    """The gradient of an activation: ``GpuDnnActivationGrad(mode, coef)(x, y, gy)``.

    `gy` is the gradient by the output `y`. Parameters as for `GpuDnnActivationBase`.

    The slope of clipped relu at exactly the ceiling is 1, and so is that of elu at exactly 0, as
    cuDNN has it. With `dnnops.nnet.clipped_relu` and `elu`, which are computed without cuDNN, it is
    0 and alpha on every device.
    """

    operands = ("x", "y", "gy")
    overwrites = 2

    # Second derivatives are written on the host's types, and moved to the device by the rewrites.

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Variable]:
        host = [as_tensor_variable(x) for x in inputs]
        op = ActivationGrad(self.mode, self.coef)
        gradients = op.pullback(host, [op(*host)], [as_tensor_variable(cotangents[0])])
        return [as_gradient(gradient_like(g, x)) for g, x in zip(gradients, inputs, strict=True)]

    def pushforward(self, inputs: Any, outputs: Any, tangents: Any) -> list[Variable]:
        host = [as_tensor_variable(x) for x in inputs]
        moved = [
            t if isinstance(t.type, DisconnectedType) else as_tensor_variable(t) for t in tangents
        ]
        op = ActivationGrad(self.mode, self.coef)
        (result,) = op.pushforward(host, [op(*host)], moved)
        if isinstance(result.type, DisconnectedType):
            return [result]
        return [gradient_like(result, inputs[0])]
