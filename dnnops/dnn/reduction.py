"""Reductions over axes."""

from __future__ import annotations

from typing import Any

from dnnops.cudnn.reduction import GpuDnnReduction

__all__ = ["dnn_reduction"]


def dnn_reduction(
    x: Any,
    red_op: str,
    axis: Any = None,
    acc_dtype: str | None = None,
    dtype: str | None = None,
    return_indices: bool = False,
) -> Any:
    """Reduce an array over axes on cuDNN.

    Parameters
    ----------
    x : array
        float16, float32 or float64, of at most 8 dimensions.
    red_op : str
        'add', 'mul', 'mean', 'maximum', 'minimum', 'absmax', 'norm1' or 'norm2'; also 'sum',
        'prod', 'avg', 'max', 'min' and 'amax'.
    axis : int, tuple of int, or None
        The axes to reduce; None for all.
    acc_dtype, dtype : str, optional
        As for `GpuDnnReduction`.
    return_indices : bool
        Whether the places of the extrema are given, too.

    Returns
    -------
    GpuArrayVariable, or a pair
        The result, and the int64 indices if they were asked for: counted in C order over the
        reduced axes.

    Raises
    ------
    DnnTypeError, DnnValueError
        If an operand or a parameter is of another kind.
    """
    outputs = GpuDnnReduction(red_op, axis, acc_dtype, dtype, return_indices).make_node(x).outputs
    return tuple(outputs) if return_indices else outputs[0]
