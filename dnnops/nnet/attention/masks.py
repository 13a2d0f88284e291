"""Broadcast masks whose sizes of 1 are only known when a function is called.

PyTensor broadcasts an axis only if its type says that its size is 1, and a mask may have the size 1
on any axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytensor.tensor as pt
from pytensor.gradient import disconnected_grad

from dnnops.nnet.expressions import reshaped

__all__ = ["spread_mask", "sum_to_mask"]


def _split(sizes: Sequence[Any], mask: Any) -> tuple[list[Any], list[Any], list[int]]:
    """Split each axis of unknown size of the mask into a broadcast one and the mask's own.

    Returns
    -------
    whole, own : list of int or TensorVariable
        Sizes after the split, and those of the mask, which has 1 on the broadcast axes.
    spread : list of int
        The broadcast axes.
    """
    whole: list[Any] = []
    own: list[Any] = []
    spread: list[int] = []
    for axis, known in enumerate(mask.type.shape):
        if known is None:
            own_size = disconnected_grad(mask.shape[axis])
            size = disconnected_grad(pt.as_tensor_variable(sizes[axis]))
            spread.append(len(whole))
            # Sizes that don't match are left to fail, in `reshape`.
            whole += [pt.switch(pt.eq(own_size, 1), size, 1), own_size]
            own += [1, own_size]
        else:
            whole.append(1 if known == 1 else sizes[axis])
            own.append(known)
    return whole, own, spread


def spread_mask(mask: Any, sizes: Sequence[Any]) -> Any:
    """Broadcast a mask on axes of unknown size.

    Parameters
    ----------
    mask : TensorVariable, (batch, heads, queries, keys)
        Any size may be 1.
    sizes : sequence of int or symbolic int scalar
        Shape of the scores.

    Returns
    -------
    TensorVariable
        Mask that PyTensor broadcasts with the scores.
    """
    whole, own, spread = _split(sizes, mask)
    if not spread:
        return mask
    wanted = [
        known if known is not None else size
        for known, size in zip(mask.type.shape, sizes, strict=True)
    ]
    sizes_of_spread = [whole[i] if i in spread else n for i, n in enumerate(own)]
    return reshaped(pt.alloc(reshaped(mask, own), *sizes_of_spread), wanted)


def sum_to_mask(x: Any, mask: Any) -> Any:
    """Add up an array of the scores' shape along the axes on which the mask is broadcast.

    Parameters
    ----------
    x : TensorVariable, (batch, heads, queries, keys)
        Gradient with respect to the scores.
    mask : TensorVariable
        Any of its sizes may be 1.

    Returns
    -------
    TensorVariable
        Array of the mask's shape and dtype.
    """
    axes = [axis for axis, size in enumerate(mask.type.shape) if size == 1]
    if axes:
        x = x.sum(axis=axes, keepdims=True)
    whole, _, spread = _split(x.shape, mask)
    if spread:
        x = reshaped(x, whole).sum(axis=spread)
    # PyTensor's rewrites of sums of products fail if a sum also changes the dtype.
    return pt.cast(x, mask.type.dtype)
