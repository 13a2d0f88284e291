"""Activations that use an exponential, computed on the CPU by dnnops kernels."""

from __future__ import annotations

import numpy as np

from dnnops.arguments import switch
from dnnops.cpu.base import OneDnnOp
from dnnops.nnet.activation.op import Activation, ActivationGrad

__all__ = ["OneDnnActivation", "OneDnnActivationGrad"]

#: Modes that the C functions support, in the order of their codes.
MODES = ("tanh", "sigmoid", "swish", "elu")


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
