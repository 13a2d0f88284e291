"""Changes of parts whose lengths change, by one number: elementwise, with a mask.

The shape of a part ``x[:n]`` depends on a value, but that of the whole array does not. If all
elements of the part get the same number, each can tell from its place whether it does.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.scalar.basic import (
    Cast,
    Composite,
    add,
    and_,
    ge,
    get_scalar_type,
    lt,
    sub,
    switch,
)
from pytensor.tensor.basic import ARange
from pytensor.tensor.elemwise import DimShuffle

from dnnops.gpuarray.basic import GpuARange, GpuDimShuffle
from dnnops.gpuarray.elemwise import GpuElemwise
from dnnops.gpuarray.op import is_on_device
from dnnops.gpuarray.windows.op import Window
from dnnops.rewriting.move.lengths import length_of

__all__ = ["masked_change"]


def masked_change(
    x: Any, y: Any, windows: Sequence[Window], operands: Sequence[Any], *, sets: bool
) -> list[Any] | None:
    """Return an array of which a part is set to, or incremented by, one number.

    Parameters
    ----------
    x : GpuArrayVariable
        Whole array.
    y : Variable
        Scalar on the host, or array on the device with one element.
    windows, operands : sequence
        The part; see `dnnops.gpuarray.windows.op.GpuWindow`.
    sets : bool
        Whether `y` replaces the elements, instead of being added to them.

    Returns
    -------
    list of Variable or None
        None if a window is an index, or has a step of more than 1, so that all of `x` would be read
        for few elements.
    """
    if any(abs(window.step) != 1 for window in windows):
        return None
    if is_on_device(y):
        own = y.type.ndim
        order = ["x"] * (x.type.ndim - own) + [*range(own)]
        y = GpuDimShuffle(DimShuffle(input_ndim=own, new_order=order)).make_node(y).outputs[0]
    arrays, bounds = [x, y], iter(operands)
    for window in windows:
        length = length_of(x, window.axis)
        if length is None:
            return None
        numbers = [pt.constant(np.int64(0)), length, pt.constant(np.int64(1))]
        places = GpuARange(ARange("int64"), x.type.device).make_node(*numbers).outputs[0]
        order = ["x"] * window.axis + [0] + ["x"] * (x.type.ndim - window.axis - 1)
        spread = GpuDimShuffle(DimShuffle(input_ndim=1, new_order=order)).make_node(places)
        arrays += [*spread.outputs, next(bounds), next(bounds)]
    steps = tuple(window.step for window in windows)
    return GpuElemwise(_changed(x.type.dtype, y.type.dtype, steps, sets)).make_node(*arrays).outputs


@cache
def _changed(dtype: str, other: str, steps: tuple[int, ...], sets: bool) -> Composite:
    """Return the scalar Op; for each step, it takes a place, and the start and length of a part."""
    own = get_scalar_type(dtype)
    x, y = own(), get_scalar_type(other)()
    operands: list[Any] = [x, y]
    is_in_part: Any = None
    for step in steps:
        place, start, count = (get_scalar_type("int64")() for _ in range(3))
        operands += [place, start, count]
        behind = sub(place, start) if step > 0 else sub(start, place)
        zero = get_scalar_type("int64").make_constant(np.int64(0))
        own_axis = and_(ge(behind, zero), lt(behind, count))
        is_in_part = own_axis if is_in_part is None else and_(is_in_part, own_axis)
    number = y if other == dtype else Cast(own)(y)
    return Composite(operands, [switch(is_in_part, number if sets else add(x, number), x)])
