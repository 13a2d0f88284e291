"""Activations that use an exponential, computed on the CPU by dnnops kernels."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply

from dnnops.arguments import switch
from dnnops.cpu.base import CPU, OneDnnOp
from dnnops.nnet.activation.op import Activation, ActivationGrad
from dnnops.runtime.implementations import implements
from dnnops.runtime.op import MAX_NDIM

__all__ = ["FASTER", "OneDnnActivation", "OneDnnActivationGrad", "is_faster", "is_worth_a_call"]

#: Modes that the C functions support, in the order of their codes.
MODES = ("tanh", "sigmoid", "swish", "elu")
#: The modes for which oneDNN is faster, according to docs/decisions/cpu.rst: those with an
#: exponential. The others are limited by memory traffic, which fusion avoids.
FASTER: dict[type, tuple[str, ...]] = {
    Activation: ("tanh", "sigmoid", "elu", "swish"),
    ActivationGrad: ("swish",),
}
#: For arrays known to be smaller, calling oneDNN takes longer than compiled code.
MIN_ELEMENTS = 512


def is_worth_a_call(x: Any) -> bool:
    """Return whether an array may be large enough for a call of oneDNN."""
    sizes = x.type.shape
    return len(sizes) <= MAX_NDIM and (None in sizes or prod(sizes) >= MIN_ELEMENTS)


def is_faster(node: Apply) -> bool:
    """Return whether oneDNN computes an activation or its gradient faster than elementwise Ops."""
    (output,) = node.outputs
    return (
        node.op.mode in FASTER[type(node.op)]
        and output.type.dtype in ("float32", "float64")
        and is_worth_a_call(output)
    )


class _OneDnnActivationOp(OneDnnOp):
    __props__ = ("mode", "coef", "inplace")
    #: Index of the operand that the Op overwrites if it is in place.
    overwrites: int

    def __init__(self, mode: str, coef: float = 0.0, inplace: bool = False):
        super().__init__(mode, coef)  # type: ignore[call-arg]
        self.inplace = switch(type(self).__name__, "inplace", inplace)
        if self.inplace:
            self.destroy_map = {0: [self.overwrites]}

    def parameters(self) -> list[int]:
        return [MODES.index(self.mode), int(np.float64(self.coef).view(np.int64))]


@implements(Activation, on=CPU, when=is_faster)
class OneDnnActivation(_OneDnnActivationOp, Activation):
    """`Activation` on the CPU, in float32 or float64.

    Parameters
    ----------
    mode : {'tanh', 'sigmoid', 'elu', 'swish'}
        Activation function.
    coef : float
        Coefficient of the activation; see `Activation`.
    inplace : bool
        Whether the result overwrites `x`.
    """

    overwrites = 0
    function = "dnnops_onednn_activation"


@implements(ActivationGrad, on=CPU, when=is_faster)
class OneDnnActivationGrad(_OneDnnActivationOp, ActivationGrad):
    """Gradient of swish on the CPU, computed from `x`.

    Parameters
    ----------
    mode : {'swish'}
        Activation function.
    coef : float
        Coefficient of the activation; see `Activation`.
    inplace : bool
        Whether the result overwrites `gy`.
    """

    overwrites = 2
    function = "dnnops_onednn_activation_grad"
