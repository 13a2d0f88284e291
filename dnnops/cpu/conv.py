"""Convolution and its gradients on the CPU: oneDNN in float32, BLAS in float64."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from dnnops.config import flag_value, parse_flag
from dnnops.cpu.base import CPU, OneDnnOp
from dnnops.errors import DnnValueError
from dnnops.nnet.conv.base import ConvBase
from dnnops.nnet.conv.op import Conv, ConvGradInputs, ConvGradWeights
from dnnops.runtime.implementations import implements

__all__ = ["OneDnnConv", "OneDnnConvGradInputs", "OneDnnConvGradWeights"]

#: Values of `algo` in the order of ConvAlgorithm in c_code/cpu/conv/conv_params.hpp.
ALGORITHMS = ("auto", "direct")
#: Size of the plan name in ConvParams, in bytes, including the terminating zero.
_NAME_SIZE = 128


class _OneDnnConvOp(OneDnnOp, ConvBase):
    __props__ = (*ConvBase.__props__, "algo")
    function = "dnnops_onednn_conv"
    node_word = -1
    #: Value of ConvDirection in c_code/common/conv_problem.hpp.
    direction: ClassVar[int]

    def __init__(self, *args: Any, algo: str | None = None, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.algo = flag_value("onednn.conv.algo") if algo is None else algo
        try:
            parse_flag("onednn.conv.algo", self.algo)
        except DnnValueError:
            raise DnnValueError(
                f"{self.where}: algo must be one of {', '.join(ALGORITHMS)}, or the name of a plan "
                f"listed by `python -m dnnops algos`, got {algo!r}"
            ) from None

    def parameters(self) -> list[int]:
        # The order is that of ConvParams in c_code/cpu/conv/conv_params.hpp.
        verbose = int(flag_value("dnn.verbose"))
        is_word = self.algo in ALGORITHMS
        algorithm = ALGORITHMS.index(self.algo) if is_word else len(ALGORITHMS)
        name = b"" if is_word else self.algo.encode()
        name_words = np.frombuffer(name.ljust(_NAME_SIZE, b"\0"), "int64").tolist()
        return [self.direction, algorithm, *self.geometry(), verbose, *name_words, 0]


@implements(Conv, on=CPU)
class OneDnnConv(_OneDnnConvOp, Conv):
    """`Conv` on the CPU, by ``dnnl_convolution_forward`` (float32) or matrix products.

    Parameters
    ----------
    *args, **kwargs
        Parameters of `Conv`.
    algo : str, optional
        ``"auto"``, ``"direct"`` or the name of a plan. ``"auto"`` uses Winograd's algorithm for 3x3
        filters, matrix products for 1x1 filters and loops for depthwise convolutions in float32 if
        they are faster; ``"direct"`` never does. The Winograd implementation is part of dnnops and
        tested to a relative error of 1e-5. ``python -m dnnops algos`` lists the names of the plans.
        If the named plan does not support a call, a `DnnValueError` is raised that lists the
        supported plans. The default is the flag ``onednn.conv.algo``.
    """

    direction = 0


@implements(ConvGradInputs, on=CPU)
class OneDnnConvGradInputs(_OneDnnConvOp, ConvGradInputs):
    """`ConvGradInputs` on the CPU, by ``dnnl_convolution_backward_data`` or matrix products.

    See `OneDnnConv` for the parameters.
    """

    direction = 1


@implements(ConvGradWeights, on=CPU)
class OneDnnConvGradWeights(_OneDnnConvOp, ConvGradWeights):
    """`ConvGradWeights` on the CPU, by ``dnnl_convolution_backward_weights`` or matrix products.

    See `OneDnnConv` for the parameters.
    """

    direction = 2
