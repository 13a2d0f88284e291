"""Ops of convolution by algorithm, to be called with a `GpuDnnConvDesc`."""

from __future__ import annotations

from typing import Any

from dnnops.cudnn.conv import GpuDnnConv, GpuDnnConvGradI, GpuDnnConvGradW

__all__ = ["gpu_dnn_conv", "gpu_dnn_conv_gradI", "gpu_dnn_conv_gradW"]


def gpu_dnn_conv(algo: Any = None, inplace: bool = False, num_groups: int = 1) -> GpuDnnConv:
    """Make the Op ``(img, kern, output, desc, alpha=1, beta=0)``.

    Parameters
    ----------
    algo : str or int, optional
        What chooses the plan; by default the flag ``dnn.conv.algo_fwd``.
    inplace : bool
        Whether the result is written into `output`.
    num_groups : int
        The descriptor's.

    Returns
    -------
    GpuDnnConv
    """
    return GpuDnnConv(algo=algo, inplace=inplace, num_groups=num_groups)


def gpu_dnn_conv_gradI(  # noqa: N802
    algo: Any = None, inplace: bool = False, num_groups: int = 1
) -> GpuDnnConvGradI:
    """Make the Op ``(kern, topgrad, output, desc, alpha=1, beta=0)``; as `gpu_dnn_conv`."""
    return GpuDnnConvGradI(algo=algo, inplace=inplace, num_groups=num_groups)


def gpu_dnn_conv_gradW(  # noqa: N802
    algo: Any = None, inplace: bool = False, num_groups: int = 1
) -> GpuDnnConvGradW:
    """Make the Op ``(img, topgrad, output, desc, alpha=1, beta=0)``; as `gpu_dnn_conv`."""
    return GpuDnnConvGradW(algo=algo, inplace=inplace, num_groups=num_groups)
