"""Activations in loops of dnnops, beside oneDNN: those with an exponential."""

from __future__ import annotations

import numpy as np

from dnnops.arguments import switch
from dnnops.nnet.activation import Activation, ActivationGrad
from dnnops.onednn.base import OneDnnOp

__all__ = ["OneDnnActivation", "OneDnnActivationGrad"]

#: What the C functions take, in their order.
MODES = ("tanh", "sigmoid", "swish", "elu")


class _OneDnnActivationOp(OneDnnOp):
    __props__ = ("mode", "coef", "inplace")
    #: The operand that is overwritten if the Op is in place.
    overwrites: int

    def __init__(self, mode: str, coef: float = 0.0, inplace: bool = False):
        super().__init__(mode, coef)  # type: ignore[call-arg]
        self.inplace = switch(type(self).__name__, "inplace", inplace)
        if self.inplace:
            self.destroy_map = {0: [self.overwrites]}

    def parameters(self) -> list[int]:
        return [MODES.index(self.mode), int(np.float64(self.coef).view(np.int64))]


class OneDnnActivation(_OneDnnActivationOp, Activation):
    """`Activation` in float32 or float64.

    Parameters
    ----------
    mode : {'tanh', 'sigmoid', 'elu', 'swish'}
    coef : float
    inplace : bool
        Whether the result overwrites `x`.
    """

    overwrites = 0
    function = "dnnops_onednn_activation"


class OneDnnActivationGrad(_OneDnnActivationOp, ActivationGrad):
    """The gradient of swish, from `x`.

    Parameters
    ----------
    mode : {'swish'}
    coef : float
    inplace : bool
        Whether the result overwrites `gy`.
    """

    overwrites = 2
    function = "dnnops_onednn_activation_grad"
