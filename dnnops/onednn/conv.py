"""Convolution and its gradients on oneDNN in float32, on BLAS in float64."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from dnnops.config import flag_value, parse_flag
from dnnops.errors import DnnValueError
from dnnops.nnet.conv import Conv, ConvGradInputs, ConvGradWeights
from dnnops.nnet.conv_base import ConvBase
from dnnops.onednn.base import OneDnnOp

__all__ = ["OneDnnConv", "OneDnnConvGradInputs", "OneDnnConvGradWeights"]

#: In the order of ConvAlgorithm in c_code/runtime/onednn/conv_params.hpp.
ALGORITHMS = ("auto", "direct")
#: Of a plan's name in ConvParams, in bytes, with the zero at its end.
_NAME_SIZE = 128


class _OneDnnConvOp(OneDnnOp, ConvBase):
    __props__ = (*ConvBase.__props__, "algo")
    function = "dnnops_onednn_conv"
    node_word = -1
    #: In the order of ConvDirection in c_code/runtime/common/conv_problem.hpp.
    direction: ClassVar[int]

    def __init__(self, *args: Any, algo: str | None = None, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.algo = flag_value("onednn.conv.algo") if algo is None else algo
        try:
            parse_flag("onednn.conv.algo", self.algo)
        except DnnValueError:
            raise DnnValueError(
                f"{self.where}: algo must be one of {', '.join(ALGORITHMS)}, or the name of a plan "
                f"as `python -m dnnops algos` lists them, got {algo!r}"
            ) from None

    def parameters(self) -> list[int]:
        # In the order of ConvParams in c_code/runtime/onednn/conv_params.hpp.
        verbose = int(flag_value("dnn.verbose"))
        is_word = self.algo in ALGORITHMS
        algorithm = ALGORITHMS.index(self.algo) if is_word else len(ALGORITHMS)
        name = b"" if is_word else self.algo.encode()
        name_words = np.frombuffer(name.ljust(_NAME_SIZE, b"\0"), "int64").tolist()
        return [self.direction, algorithm, *self.geometry(), verbose, *name_words, 0]


class OneDnnConv(_OneDnnConvOp, Conv):
    """`Conv` by ``dnnl_convolution_forward`` (float32) or matrix products (float64).

    Parameters
    ----------
    *args, **kwargs
        Those of `Conv`.
    algo : str, optional
        ``"auto"`` or ``"direct"``: whether Winograd's algorithm may be used for 3x3 filters in
        float32, where it is faster. It is an implementation of dnnops, tested to a relative error
        of 1e-5. Or the name of a plan, as ``python -m dnnops algos`` lists them; a call for which
        there is no such plan raises `DnnValueError`, which lists those that there are. Default: the
        flag ``onednn.conv.algo``.
    """

    direction = 0


class OneDnnConvGradInputs(_OneDnnConvOp, ConvGradInputs):
    """`ConvGradInputs` by ``dnnl_convolution_backward_data`` or matrix products.

    Parameters as for `OneDnnConv`.
    """

    direction = 1


class OneDnnConvGradWeights(_OneDnnConvOp, ConvGradWeights):
    """`ConvGradWeights` by ``dnnl_convolution_backward_weights`` or matrix products.

    Parameters as for `OneDnnConv`.
    """

    direction = 2
