"""Run Ops on a GPU, and compare them with the float64 oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
from pytensor.graph.basic import Apply
from pytensor.graph.traversal import toposort

from dnnops.dtypes import numpy_dtype
from dnnops.gpuarray.type import GpuArrayType
from tests.oracle import RELATIVE_ERROR, assert_close, run_op

DTYPES = ("float16", "bfloat16", "float32", "float64")


def rounded(array: np.ndarray, dtype: str) -> np.ndarray:
    """Return an array's values, rounded to `dtype`, as float64."""
    return array.astype(numpy_dtype(dtype)).astype("float64")


def bits(array: np.ndarray, dtype: str) -> np.ndarray:
    """Return an array in a dtype, as numbers that NumPy supports."""
    typed = array.astype(numpy_dtype(dtype))
    return typed.view("uint16") if dtype == "bfloat16" else typed


def values(array: np.ndarray, dtype: str) -> np.ndarray:
    """Return the float64 values of the numbers from `bits`."""
    return (array.view(numpy_dtype("bfloat16")) if dtype == "bfloat16" else array).astype("float64")


def on_gpu(array: np.ndarray, dtype: str, memory_format: str = "contiguous") -> Any:
    """Copy an array to the device in a dtype and memory format."""
    import cupy

    array = array.astype(numpy_dtype(dtype))
    if memory_format == "channels_last" and array.ndim > 2:
        order = (0, *range(2, array.ndim), 1)
        memory = cupy.asarray(np.ascontiguousarray(array.transpose(order)))
        return memory.transpose([order.index(axis) for axis in range(array.ndim)])
    return cupy.asarray(array)


def restrided(rng: np.random.Generator, array: Any) -> Any:
    """Return a device array with other strides: permuted, sliced, reversed or broadcast."""
    import cupy

    kind = rng.integers(5)
    if kind == 0:
        order = tuple(int(i) for i in rng.permutation(array.ndim))
        back = tuple(int(i) for i in np.argsort(order))
        return cupy.ascontiguousarray(array.transpose(order)).transpose(back)
    if kind == 1:
        wide = cupy.full([2 * n for n in array.shape], np.nan, array.dtype)
        view = wide[tuple(slice(None, None, 2) for _ in array.shape)]
        view[...] = array
        return view
    if kind == 2:
        axis = int(rng.integers(array.ndim))
        return cupy.flip(cupy.flip(array, axis).copy(), axis)
    if kind == 3:  # some channels of a larger array
        wide = cupy.full(
            (array.shape[0], array.shape[1] + 3, *array.shape[2:]), np.nan, array.dtype
        )
        view = wide[:, 1 : 1 + array.shape[1]]
        view[...] = array
        return view
    return array


def poison() -> None:
    """Fill the memory of the next allocations with NaN."""
    import cupy

    for size in (1 << 10, 1 << 14, 1 << 18):
        blocks = [cupy.full(size, np.nan, "float32") for _ in range(4)]
        del blocks


def make_node(op: Any, *operands: Any) -> tuple[Apply, list[Any]]:
    """Apply an Op to device arrays and host values; return its node and the node's input values."""
    import cupy

    variables = [
        GpuArrayType(str(x.dtype), (None,) * x.ndim)() if isinstance(x, cupy.ndarray) else x
        for x in operands
    ]
    node = op.make_node(*variables)
    values = {v: x for v, x in zip(variables, operands, strict=True) if v is not x}
    return node, [values[v] if v in values else np.asarray(v.data) for v in node.inputs]


def apply_op(op: Any, *operands: Any) -> Any:
    """Apply an Op to device arrays and host values, run `perform`, and return the device array.

    Calling an Op may add other Ops around it; convolutions do for asymmetric padding.
    """
    import cupy

    variables = [
        GpuArrayType(str(x.dtype), (None,) * x.ndim)() if isinstance(x, cupy.ndarray) else x
        for x in operands
    ]
    result = op(*variables)
    values = {
        variable: value
        for variable, value in zip(variables, operands, strict=True)
        if isinstance(value, cupy.ndarray)
    }
    for node in toposort([result]):
        storage: list[list[Any]] = [[None] for _ in node.outputs]
        inputs = [values[x] if x in values else np.asarray(x.data) for x in node.inputs]
        node.op.perform(node, inputs, storage)
        values.update(zip(node.outputs, (cell[0] for cell in storage), strict=True))
    out = values[result]
    assert out.dtype == result.type.numpy_dtype
    static = result.type.shape
    assert all(s is None or s == n for s, n in zip(static, out.shape, strict=True))
    return out


def apply_all(op: Any, *operands: Any) -> list[Any]:
    """Apply an Op to device arrays and host values, run `perform`, and return all outputs."""
    node, values = make_node(op, *operands)
    storage: list[list[Any]] = [[None] for _ in node.outputs]
    node.op.perform(node, values, storage)
    results = [cell[0] for cell in storage]
    for out, variable in zip(results, node.outputs, strict=True):
        assert out.dtype == variable.type.numpy_dtype
    return results


def host(array: Any) -> np.ndarray:
    """Return a device array as float64 on the host."""
    return array.get().astype("float64")


def check(out: Any, reference: np.ndarray, dtype: str, bound: float | None = None) -> None:
    """Compare a device array with the oracle's result."""
    bound = RELATIVE_ERROR[dtype] if bound is None else bound
    assert_close(host(out), reference, bound=bound, allow_zero=True)


__all__ = [
    "DTYPES",
    "apply_all",
    "apply_op",
    "check",
    "host",
    "make_node",
    "on_gpu",
    "poison",
    "restrided",
    "rounded",
    "run_op",
]
