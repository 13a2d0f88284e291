"""Compute graphs of device Ops on the host, with the corresponding abstract Ops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply, Constant
from pytensor.graph.op import Op
from pytensor.graph.traversal import toposort

from dnnops.dtypes import HALF_DTYPES, host_dtype, numpy_dtype
from dnnops.gpuarray.basic import GpuAllocEmpty
from dnnops.gpuarray.op import DeviceOp, is_on_device
from dnnops.gpuarray.transfer import GpuCast

__all__ = ["on_host"]


class Rounded(Op):
    """Round float32 numbers to a 16-bit dtype."""

    __props__ = ("dtype",)

    def __init__(self, dtype: str):
        self.dtype = dtype

    def make_node(self, x: Any) -> Apply:
        return Apply(self, [x], [x.type()])

    def perform(self, node: Apply, inputs: list[Any], output_storage: list[list[Any]]) -> None:
        rounded = np.asarray(inputs[0]).astype(numpy_dtype(self.dtype))
        output_storage[0][0] = rounded.astype("float32")


def _lowered(node: Apply, inputs: list[Any]) -> list[Any]:
    op: Any = node.op
    if isinstance(op, GpuAllocEmpty):  # what reads it must not use the values
        return [pt.full(inputs, np.asarray(np.nan, host_dtype(op.dtype)))]
    if isinstance(op, DeviceOp):
        return op.host_expressions(*inputs)
    return node.clone_with_new_inputs(inputs, strict=False).outputs


def _stored(x: Any, old: Any, rounding: bool) -> Any:
    """Return a result in the dtype of a device array, or rounded to it."""
    if not is_on_device(old):
        return x
    dtype = old.type.dtype
    if dtype not in HALF_DTYPES:
        return pt.cast(x, dtype)
    return Rounded(dtype)(pt.cast(x, "float32")) if rounding else x


def on_host(outputs: list[Any], rounding: bool = False) -> list[Any]:
    """Return host variables with the values of `outputs`, which depend only on host inputs.

    Shared variables become constants, so that each evaluation uses the same random numbers.

    With `rounding`, 16-bit arrays are computed in float32, and rounded where they are stored.
    """
    new: dict[Any, Any] = {}

    def value(x: Any) -> Any:
        if x not in new and isinstance(x, SharedVariable):
            return pt.constant(x.get_value())
        if x not in new and isinstance(x, Constant) and is_on_device(x):
            data, name = x.host_data, x.host_data.dtype.name
            return pt.constant(data.astype("float32") if name in HALF_DTYPES else data)
        return new.get(x, x)

    for node in toposort(outputs):
        given = [value(x) for x in node.inputs]
        is_cast = rounding and isinstance(node.op, GpuCast)
        found = given if is_cast else _lowered(node, given)
        found = [_stored(x, z, rounding) for x, z in zip(found, node.outputs, strict=True)]
        new.update(zip(node.outputs, found, strict=True))
    return [value(z) for z in outputs]
