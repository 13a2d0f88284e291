"""Rows of ``python -m benchmarks.kernels gpu``: dnnops kernels beside those of libraries.

A row is the name of a kernel, a case, and a function that prepares one call per library. dnnops and
cuDNN run through the Ops' ``perform``, so nothing is compiled but kernels. Rows of batch
normalization call cuDNN through PyTorch, and ``PyTorch`` is PyTorch's own kernel.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import numpy as np
from pytensor import scalar
from pytensor.graph.basic import Constant

from benchmarks.kernels_ctypes import CutensorPermutation, load_cutensor
from benchmarks.small_ops import Timer
from dnnops.gpu import batchnorm, pool
from dnnops.gpu.activation import GpuDnnActivation
from dnnops.gpu.base import as_dense
from dnnops.gpu.kernels import kernel_source
from dnnops.gpu.reduction import GpuDnnReduction
from dnnops.gpu.transform import GpuDnnAddTensor, GpuDnnTransform
from dnnops.gpu.window_sum import GpuWindowSum
from dnnops.gpuarray import GpuArrayType
from dnnops.gpuarray.elemwise import GpuElemwise
from dnnops.gpuarray.reduction import reduce_array, reduction_kernel
from dnnops.runtime.build import CUDNN
from dnnops.runtime.op import describe_operands, raise_status

__all__ = ["FLOATS", "ROWS", "Call", "Gpu", "Row", "Ways"]

Call = Callable[[], Any]
#: Calls by library; a number is a time in milliseconds that has been measured already.
Ways = dict[str, Call | float]
Row = tuple[str, str, Callable[["Gpu"], Ways]]

FLOATS = ("float32", "float16")
FORMATS = ("contiguous", "channels_last")
EPSILON = 1e-4


class Gpu:
    """Arrays and calls on the first GPU."""

    def __init__(self) -> None:
        import cupy
        import torch

        self.cupy, self.torch = cupy, torch
        self.aten = torch.ops.aten
        self.timer = Timer()
        self.rng = np.random.default_rng(0)
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cuda.matmul.allow_tf32 = False

    def values(self, shape: tuple[int, ...], dtype: str, layout: str = "contiguous") -> Any:
        """Return random numbers, a block of 2**20 of them repeated."""
        block = self.cupy.asarray(self.rng.standard_normal((1 << 20) + 7).astype(dtype))
        flat = self.cupy.resize(block, prod(shape))
        if layout == "contiguous" or len(shape) < 3:
            return flat.reshape(shape)
        physical = flat.reshape(shape[0], *shape[2:], shape[1])
        return physical.transpose(0, len(shape) - 1, *range(1, len(shape) - 1))

    def tensor(self, array: Any) -> Any:
        """Return a PyTorch tensor on the memory of an array."""
        return self.torch.from_dlpack(array)

    def call(self, op: Any, *values: Any) -> Call:
        """Return a call of an Op on device arrays and host constants."""
        prepared: list[Any] = []

        def run() -> Any:
            if not prepared:
                prepared.extend(self._node(op, values))
            node, operands, storage = prepared
            node.op.perform(node, list(operands), storage)
            results = [s[0] for s in storage]
            return results if len(results) > 1 else results[0]

        return run

    def _node(self, op: Any, values: tuple[Any, ...]) -> tuple[Any, list[Any], list[list[Any]]]:
        given = {}
        inputs = []
        for value in values:
            if isinstance(value, self.cupy.ndarray):
                ones = tuple(1 if n == 1 else None for n in value.shape)
                variable = GpuArrayType(str(value.dtype), ones)()
                given[variable] = value
                inputs.append(variable)
            else:
                inputs.append(value)
        node = op.make_node(*inputs)
        operands = [x.data if isinstance(x, Constant) else given[x] for x in node.inputs]
        return node, operands, [[None] for _ in node.outputs]

    def accelerated(self, names: list[str], call: Call) -> Call:
        """Return a call with these of CuPy's accelerators."""
        core = self.cupy._core

        def run() -> Any:
            core.set_reduction_accelerators(names)
            core.set_routine_accelerators(names)
            return call()

        return run

    def gradient(self, forward: Callable[[], Any], operands: tuple[Any, ...], top: Any) -> Call:
        """Return a call of PyTorch's gradient alone."""
        out = forward()
        return lambda: self.torch.autograd.grad(out, operands, top, retain_graph=True)


# -- copies --------------------------------------------------------------------------------------


def _copy_kernel(g: Gpu, x: Any, memory_format: str) -> Call:
    """Return a call of the kernel that plans of convolutions copy their arrays with."""
    operand = describe_operands([GpuArrayType(str(x.dtype), x.shape)()], [x])
    # CopyRow in copies.cpp: kind, threads, shared memory, and 14 words of parameters.
    row = np.zeros(17, "int64")
    numbers = (1 + FORMATS.index(memory_format), x.shape[1], 0, 0, 0)
    status = CUDNN.library.dnnops_cudnn_copy_row(
        operand, *map(ctypes.c_int64, numbers), None, None, ctypes.c_void_p(row.ctypes.data)
    )
    raise_status(CUDNN, status)
    options = (f"-DWIDTH={x.itemsize}", f"-DFIRST={row[0]}", "-DSECOND=-1")
    module = g.cupy.RawModule(code=kernel_source("transpose"), options=options, backend="nvrtc")
    kernel = module.get_function("copy_arrays")
    blocks, threads, shared = int(row[3:].view("int32")[-1]), int(row[1]), int(row[2])
    # CuPy passes an array of one element by value.
    launch = np.zeros(1, [("words", "int64", 32)])
    launch["words"][0, 0], launch["words"][0, 4:18] = x.data.ptr, row[3:]

    def run() -> Any:
        out = g.cupy.empty(x.size, x.dtype)
        launch["words"][0, 2] = out.data.ptr
        kernel((blocks,), (threads,), (launch,), shared_mem=shared)
        if memory_format == "contiguous":
            return out.reshape(x.shape)
        last = out.reshape(x.shape[0], *x.shape[2:], x.shape[1])
        return last.transpose(0, x.ndim - 1, *range(1, x.ndim - 1))

    return run


def _copies(shape: tuple[int, ...], dtype: str, target: str, g: Gpu) -> Ways:
    x = g.values(shape, dtype, FORMATS[1 - FORMATS.index(target)])
    t = g.tensor(x)
    layout = getattr(g.torch, {"contiguous": "contiguous_format"}.get(target, target))
    ways: Ways = {
        "dnnops": _copy_kernel(g, x, target),
        "cuDNN": g.call(GpuDnnTransform(target), x, 1.0),
        "CuPy": lambda: as_dense(x, target),
        "PyTorch": lambda: t.contiguous(memory_format=layout),
    }
    with contextlib.suppress(OSError):
        load_cutensor()
        ways["cuTENSOR"] = CutensorPermutation(x, as_dense(g.cupy.zeros_like(x), target))
    return ways


# -- elementwise operations and reductions -------------------------------------------------------


def _product(dtype: str, g: Gpu) -> Ways:
    a, b = (g.values((1 << 26,), dtype) for _ in range(2))
    s, t = g.tensor(a), g.tensor(b)
    return {
        "dnnops": g.call(GpuElemwise(scalar.mul), a, b),
        "CuPy": lambda: g.cupy.multiply(a, b),
        "PyTorch": lambda: g.torch.mul(s, t),
    }


def _bias(dtype: str, g: Gpu) -> Ways:
    x, b = g.values((64, 256, 56, 56), dtype), g.values((1, 256, 1, 1), dtype)
    s, t = g.tensor(x), g.tensor(b)
    return {
        "dnnops": g.call(GpuElemwise(scalar.add), x, b),
        "cuDNN": g.call(GpuDnnAddTensor(), b, x, 1.0, 1.0),
        "CuPy": lambda: g.cupy.add(x, b),
        "PyTorch": lambda: g.torch.add(s, t),
    }


def _tanh(dtype: str, g: Gpu) -> Ways:
    x = g.values((64, 64, 56, 56), dtype)
    t = g.tensor(x)
    return {
        "dnnops": g.call(GpuElemwise(scalar.tanh), x),
        "cuDNN": g.call(GpuDnnActivation("tanh", 0.0), x),
        "CuPy": lambda: g.cupy.tanh(x),
        "PyTorch": lambda: g.torch.tanh(t),
    }


def _reduction(
    shape: tuple[int, ...], axes: tuple[int, ...], kind: str, dtype: str, g: Gpu
) -> Ways:
    x = g.values(shape, dtype)
    t = g.tensor(x)
    scalar_op = {"add": scalar.add, "maximum": scalar.maximum}[kind]
    # PyTensor accumulates sums of float32 in float64.
    words = (scalar_op, dtype, "float32" if dtype == "float16" else "float64", dtype, None)
    plain = partial(reduction_kernel(*words), x, axis=axes)
    method = partial(x.sum if kind == "add" else x.max, axis=axes)
    torch = partial(g.torch.sum if kind == "add" else g.torch.amax, t, axes)
    return {
        "dnnops": partial(reduce_array, x, axes, *words),
        "CuPy": g.accelerated([], plain),
        "CUB, same accumulator": g.accelerated(["cub"], plain),
        "CUB": g.accelerated(["cub"], method),
        "cuDNN": g.call(GpuDnnReduction(kind, axes), x),
        "PyTorch": torch,
    }


# -- normalization -------------------------------------------------------------------------------


def _batchnorm(shape: tuple[int, ...], dtype: str, layout: str, gradient: bool, g: Gpu) -> Ways:
    channels = shape[1]
    x, top = (g.values(shape, dtype, layout) for _ in range(2))
    gamma, beta = (g.values((1, channels, *(1,) * (len(shape) - 2)), "float32") for _ in range(2))
    forward = g.call(batchnorm.GpuDnnBatchNorm("spatial"), x, gamma, beta, EPSILON)
    tx, ttop = g.tensor(x), g.tensor(top)
    tg, tb = (g.tensor(v.ravel()) for v in (gamma, beta))
    rm, rv = g.torch.zeros_like(tg), g.torch.ones_like(tg)
    cudnn = partial(g.aten.cudnn_batch_norm, tx, tg, tb, rm, rv, True, 0.1, EPSILON)
    native = partial(g.aten.native_batch_norm, tx, tg, tb, rm, rv, True, 0.1, EPSILON)
    if not gradient:
        return {"dnnops": forward, "cuDNN": cudnn, "PyTorch": native}
    _, mean, invstd = forward()
    _, ca, cb, reserve = cudnn()
    _, na, nb = native()
    return {
        "dnnops": g.call(batchnorm.GpuDnnBatchNormGrad("spatial"), x, top, gamma, mean, invstd),
        "cuDNN": lambda: g.aten.cudnn_batch_norm_backward(
            tx, ttop, tg, rm, rv, ca, cb, EPSILON, reserve
        ),
        "PyTorch": lambda: g.aten.native_batch_norm_backward(
            ttop, tx, tg, rm, rv, na, nb, True, EPSILON, [True] * 3
        ),
    }


def _layer_norm(rows: int, length: int, dtype: str, gradient: bool, g: Gpu) -> Ways:
    x, top = (g.values((rows, length), dtype) for _ in range(2))
    ones, zeros = (f((rows, 1), "float32") for f in (g.cupy.ones, g.cupy.zeros))
    forward = g.call(batchnorm.GpuDnnBatchNorm(axes=(1,)), x, ones, zeros, EPSILON)
    tx, ttop = g.tensor(x), g.tensor(top)
    native = partial(g.aten.native_layer_norm, tx, [length], None, None, EPSILON)
    if not gradient:
        return {"dnnops": forward, "PyTorch": native}
    _, mean, invstd = forward()
    _, ta, tb = native()
    return {
        "dnnops": g.call(batchnorm.GpuDnnBatchNormGrad(axes=(1,)), x, top, ones, mean, invstd),
        "PyTorch": lambda: g.aten.native_layer_norm_backward(
            ttop, tx, [length], ta, tb, None, None, [True, False, False]
        ),
    }


def _window_sum(axes: tuple[int, ...], g: Gpu) -> Ways:
    x = g.values((32, 96, 55, 55), "float32")
    t = g.tensor(x)
    if axes == (1,):
        shape, torch, t = (5, 1, 1), g.torch.nn.functional.avg_pool3d, t[:, None]
        return {
            "dnnops": g.call(GpuWindowSum(5, axes), x),
            "PyTorch": lambda: torch(t, shape, 1, (2, 0, 0), divisor_override=1)[:, 0],
        }
    sizes = ((5, 5), (1, 1), (2, 2))
    return {
        "dnnops": g.call(GpuWindowSum(5, axes), x),
        "cuDNN": g.call(pool.GpuDnnPool("sum", 2), x, *sizes),
        "PyTorch": lambda: g.torch.nn.functional.avg_pool2d(t, 5, 1, 2, divisor_override=1),
    }


def _by(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


COPIED = ((64, 128, 56, 56), (64, 3, 224, 224), (32, 512, 14, 14), (8, 128, 27, 27))
REDUCED = (
    ((1 << 26,), (0,)),
    ((4096, 4096), (1,)),
    ((128, 1000), (1,)),
    ((64, 256, 56, 56), (0, 2, 3)),
    ((4096, 4096), (0,)),
)
NORMALIZED = (((64, 256, 56, 56), FORMATS), ((32, 512, 7, 7), FORMATS), ((4096, 1024), FORMATS[:1]))

ROWS: list[Row] = [
    *(
        (
            "copy_arrays",
            f"{_by(shape)}, {dtype}, to {target.replace('_', ' ')}",
            partial(_copies, shape, dtype, target),
        )
        for shape in COPIED
        for dtype in FLOATS
        for target in reversed(FORMATS)
    ),
    *(
        (
            "batchnorm",
            f"{_by(shape)}, {dtype}, {layout.replace('_', ' ')}, {what}",
            partial(_batchnorm, shape, dtype, layout, what == "gradient"),
        )
        for shape, layouts in NORMALIZED
        for dtype in FLOATS
        for layout in layouts
        for what in ("forward", "gradient")
    ),
    *(
        (
            "batchnorm",
            f"layer norm 16384x1024, {dtype}, {what}",
            partial(_layer_norm, 16384, 1024, dtype, what == "gradient"),
        )
        for dtype in FLOATS
        for what in ("forward", "gradient")
    ),
    *(
        (
            "reduction",
            f"{kind} of {_by(shape)} over {axes}, {dtype}",
            partial(_reduction, shape, axes, kind, dtype),
        )
        for kind, dtype in (("add", "float32"), ("add", "float16"), ("maximum", "float32"))
        for shape, axes in REDUCED
    ),
    *(
        ("dnnops_elementwise_packed", f"{name}, {dtype}", partial(prepare, dtype))
        for name, prepare in (
            ("product of 2**26", _product),
            ("64x256x56x56 plus a bias", _bias),
            ("tanh of 64x64x56x56", _tanh),
        )
        for dtype in FLOATS
    ),
    *(
        ("window_sum_kernel", f"32x96x55x55, windows of 5 over {axes}", partial(_window_sum, axes))
        for axes in ((2, 3), (1,))
    ),
]
