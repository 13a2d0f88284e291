"""Constructors of convolution Ops that are called with a `GpuDnnConvDesc`."""

from __future__ import annotations

from typing import Any

from dnnops.gpu.conv import GpuDnnConv, GpuDnnConvGradI, GpuDnnConvGradW

__all__ = ["gpu_dnn_conv", "gpu_dnn_conv_gradI", "gpu_dnn_conv_gradW"]


def gpu_dnn_conv(algo: Any = None, inplace: bool = False, num_groups: int = 1) -> GpuDnnConv:
    """Return the convolution Op, called as ``op(img, kern, output, desc, alpha=1, beta=0)``.

    Parameters
    ----------
    algo : str or int, optional
        How to select the plan. Default: the flag ``dnn.conv.algo_fwd``.
    inplace : bool
        Whether the result is written into `output`.
    num_groups : int
        Number of groups: 1, or the number in the descriptor.

    Returns
    -------
    GpuDnnConv
    """
    return GpuDnnConv(algo=algo, inplace=inplace, num_groups=num_groups)


def gpu_dnn_conv_gradI(  # noqa: N802
    algo: Any = None, inplace: bool = False, num_groups: int = 1
) -> GpuDnnConvGradI:
    """Return the Op of the gradient with respect to the images.

    It is called as ``op(kern, topgrad, output, desc, alpha=1, beta=0)``. See `gpu_dnn_conv` for the
    parameters.
    """
    return GpuDnnConvGradI(algo=algo, inplace=inplace, num_groups=num_groups)


def gpu_dnn_conv_gradW(  # noqa: N802
    algo: Any = None, inplace: bool = False, num_groups: int = 1
) -> GpuDnnConvGradW:
    """Return the Op of the gradient with respect to the filters.

    It is called as ``op(img, topgrad, output, desc, alpha=1, beta=0)``. See `gpu_dnn_conv` for the
    parameters.
    """
    return GpuDnnConvGradW(algo=algo, inplace=inplace, num_groups=num_groups)
