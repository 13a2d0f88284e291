"""Prepared calls that copy, fill and join arrays."""

from __future__ import annotations

from collections.abc import Sequence
from operator import methodcaller
from typing import Any

from pytensor.graph.basic import Apply
from pytensor.scalar.basic import identity

from dnnops.dtypes import numpy_dtype
from dnnops.errors import DnnValueError
from dnnops.gpuarray.elementwise.step import copy_step, elementwise_step
from dnnops.gpuarray.layout import common_order
from dnnops.gpuarray.prepared.builder import CallBuilder, number_at
from dnnops.gpuarray.prepared.call import PreparedCall, Result

__all__ = ["contiguous_call", "filling_call", "joining_call"]


def contiguous_call(inputs: Sequence[Any], shape: tuple[int, ...]) -> PreparedCall | None:
    """Return a call that copies the first operand to a C-contiguous array of another shape.

    Parameters
    ----------
    inputs : sequence
        Values of the operands.
    shape : tuple of int
        Shape of the result, with as many elements as the operand.

    Returns
    -------
    PreparedCall or None
        None if a kernel cannot access the operand.
    """
    call = CallBuilder(inputs)
    x = inputs[0]
    copy = call.new(x.shape, x.dtype)
    if copy.size:
        step = copy_step(x.dtype.name, call.operand(0), copy)
        if step is None:
            return None
        call.steps.append(step)
    views = () if shape == x.shape else (methodcaller("reshape", shape),)
    return call.call(Result(copy.address.place, views))


def filling_call(
    node: Apply, inputs: Sequence[Any], lengths: tuple[int, ...]
) -> PreparedCall | None:
    """Return a call that fills a new array with its first operand.

    Parameters
    ----------
    node : Apply
    inputs : sequence
        Values of the operands.
    lengths : tuple of int
        Shape of the result, to which the operand is broadcast.

    Returns
    -------
    PreparedCall or None
        None if a kernel cannot access the operand.
    """
    call = CallBuilder(inputs)
    (from_dtype, to_dtype) = node.inputs[0].type.dtype, node.outputs[0].type.dtype
    out = call.new(lengths, numpy_dtype(to_dtype))
    if out.size:
        source: Any = number_at(node, 0, inputs[0])
        if inputs[0].ndim:
            source = call.operand(0).with_axes_before(len(lengths))
        step = elementwise_step(identity, [(from_dtype, source)], [(to_dtype, out)])
        if step is None:
            return None
        call.steps.append(step)
    return call.call(Result(out.address.place))


def joining_call(node: Apply, inputs: Sequence[Any], first: int, axis: int) -> PreparedCall | None:
    """Return a call that joins arrays, in the memory order of the first one.

    Parameters
    ----------
    node : Apply
    inputs : sequence
        Values of the operands.
    first : int
        Index of the first array.
    axis : int

    Returns
    -------
    PreparedCall or None
        None if a kernel cannot access the arrays.

    Raises
    ------
    DnnValueError
        If the shapes do not fit.
    """
    call = CallBuilder(inputs)
    arrays = [call.operand(i) for i in range(first, len(inputs))]
    lengths = [a.shape[axis] for a in arrays]
    if len({(*a.shape[:axis], *a.shape[axis + 1 :]) for a in arrays}) != 1:
        raise DnnValueError(
            f"{node.op}: arrays of shapes {[a.shape for a in arrays]} cannot be joined"
            f" along axis {axis}"
        )
    shape = [*arrays[0].shape]
    shape[axis] = sum(lengths)
    dtype = node.outputs[0].type.dtype
    order = common_order(arrays[:1], arrays[0].shape)
    result, out = call.new_in_order(shape, numpy_dtype(dtype), order)
    place = axis if order is None else order.index(axis)
    start = 0
    for x, array, length in zip(node.inputs[first:], arrays, lengths, strict=True):
        if array.size:
            operand = (x.type.dtype, array.transpose(order))
            step = elementwise_step(identity, [operand], [(dtype, out.part(place, start, length))])
            if step is None:
                return None
            call.steps.append(step)
        start += length
    return call.call(result)
