"""The description of a plan that all libraries share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["ConvPlan", "conv_flops"]


@dataclass(frozen=True)
class ConvPlan:
    """One way to run one convolution, with any library.

    Attributes
    ----------
    name : str
        Name that the flags ``dnn.conv.algo_*`` accept: an algorithm of cuDNN's legacy API
        (``FFT_TILING``, ``FFT_FMA_MATH``), an engine of its graph API (``engine7_k2=4``), a
        cuBLASLt algorithm (``gemm20_k1=17``) or a dnnops kernel (``depthwise1_k0=8``). It ends in
        ``_channels_last`` or ``_contiguous`` if arrays are first copied to that format, and in
        ``_as_forward`` if a forward convolution with rotated filters computes the gradient. On the
        CPU, it is oneDNN's name of an implementation, or the name of a dnnops implementation.
    direction : {'forward', 'grad_inputs', 'grad_weights'}
        Forward convolution or one of its gradients.
    api : {'legacy', 'graph', 'cublaslt', 'onednn', 'dnnops'}
        API that provides the plan; ``dnnops`` for dnnops kernels.
    number : int or None
        Number of the legacy algorithm, engine, kernel or cuBLASLt algorithm.
    workspace_bytes : int or None
        Memory needed in addition to the operands, or None if unknown. On the CPU, it includes
        copies of operands in other memory layouts.
    deterministic : bool or None
        Whether every run gives the same bits, or None if the library does not say.
    math_type : str
        Arithmetic of the multiplications.
    notes : tuple of str
        Further remarks.
    time_ms : float or None
        Milliseconds per call, or None if not timed.
    reason : str
        Reason why the plan cannot be run; empty if it can.
    energy_mj : float or None
        Millijoules per call, or None if not measured.
    """

    name: str
    direction: str
    api: str
    number: int | None = None
    workspace_bytes: int | None = None
    deterministic: bool | None = None
    math_type: str = ""
    notes: tuple[str, ...] = ()
    time_ms: float | None = None
    reason: str = ""
    energy_mj: float | None = None


def conv_flops(filter_shape: Sequence[int], output_shape: Sequence[int]) -> int:
    """Count the operations of a direct convolution, or of one of its gradients.

    Parameters
    ----------
    filter_shape : sequence of int
        Shape of the filters: (output channels, input channels of a group, spatial sizes).
    output_shape : sequence of int
        Shape of the output: (batch, output channels, spatial sizes).

    Returns
    -------
    int
        Number of multiplications and additions, including those with zeros from padding.
    """
    return 2 * math.prod(output_shape) * math.prod(filter_shape[1:])
