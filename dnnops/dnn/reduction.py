"""Reductions over axes on cuDNN."""

from __future__ import annotations

from typing import Any

from dnnops.gpu.reduction import GpuDnnReduction

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
        Array in float16, float32 or float64, with at most 8 dimensions.
    red_op : str
        Reduction: 'add', 'mul', 'mean', 'maximum', 'minimum', 'absmax', 'norm1' or 'norm2', or one
        of the other names 'sum', 'prod', 'avg', 'max', 'min' and 'amax'.
    axis : int, tuple of int, or None
        Axes to reduce; None reduces all axes.
    acc_dtype, dtype : str, optional
        See `GpuDnnReduction`.
    return_indices : bool
        Whether to return the positions of minima or maxima, too.

    Returns
    -------
    GpuArrayVariable, or a pair
        The result and, if requested, the positions as int64 indices, which count in C order over
        the reduced axes.

    Raises
    ------
    DnnTypeError, DnnValueError
        If an operand or a parameter has the wrong type or value.
    """
    outputs = GpuDnnReduction(red_op, axis, acc_dtype, dtype, return_indices).make_node(x).outputs
    return tuple(outputs) if return_indices else outputs[0]
