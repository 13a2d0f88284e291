"""Pooling that cuDNN doesn't support, with kernels that CuPy compiles.

The kernels support windows that extend past the end of the image (``ignore_border=False``) and the
gradient of max pooling's gradient. One thread computes each output element and adds up what it
depends on in C order, so results are identical in every run. If maxima are equal, the first in C
order gets the gradient, as in `dnnops.nnet.pool.op`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import starmap
from math import prod
from typing import Any, ClassVar, NamedTuple

import numpy as np
from pytensor.gradient import disconnected_type
from pytensor.graph.basic import Apply, Variable

from dnnops.dtypes import DTYPE_CODES
from dnnops.gpu.base import as_gradient, device_operands, gradient_like
from dnnops.gpu.kernels import kernel_source
from dnnops.gpu.library import GPU_CUPY
from dnnops.gpuarray.op import GpuOp, infer_device
from dnnops.gpuarray.type import GpuArrayType
from dnnops.nnet.pool.geometry import MAX_DETERMINISTIC
from dnnops.nnet.pool.op import (
    AveragePoolGrad,
    MaxPoolGrad,
    MaxPoolGradGrad,
    ModePoolBase,
    Pool,
)
from dnnops.nnet.validate import int_vector, named_operands, static_vector
from dnnops.runtime.implementations import implements

__all__ = [
    "GpuMaxPoolGradGrad",
    "GpuPool",
    "GpuPoolGrad",
    "GpuPoolGradOperands",
    "GpuPoolOperands",
]

#: As in ``pool_kernels.cuh``: threads of a block, and the largest size and length of a tile.
_THREADS = 256
_WINDOWS = 2048
_LENGTH = 128
_ITEMS = 4096
#: Rows of a tile with at most this length are divided last.
_ROW = 32
#: A GPU is busy with this many blocks.
_BLOCKS = 1024
#: Windows with this length along each axis have kernels of their own.
_UNROLLED = (2, 3)
#: The type of offsets is 32 bits wide if all arrays have fewer elements than this.
_INT_LIMIT = 2**30


class PoolLaunch(NamedTuple):
    """Launch of a kernel on arrays of some shapes."""

    kernel: str
    #: Compiler options.
    options: tuple[str, ...]
    #: ``pool_launch`` without the pointers, as an array of one struct.
    struct: np.ndarray
    blocks: int


def _up(number: int, by: int) -> int:
    return -(-number // by)


def _tile(items: Sequence[int], windows: Callable[[int, int], int]) -> list[int]:
    """Return the lengths of a tile whose windows fit in shared memory.

    If they don't, the tile has at most one item for each thread. ``windows(axis, length)`` is the
    number of windows that a tile needs along an axis.
    """
    budget = min(_ITEMS, max(_THREADS, prod(items) // _BLOCKS))
    # All tiles have about the same length.
    tile = [items[0], *(_up(n, _up(n, _LENGTH)) for n in items[1:])]
    last = len(tile) - 1

    def added(axis: int) -> float:
        """Return by how much the work grows if the tile is halved, since halves share windows."""
        half = _up(tile[axis], 2)
        return windows(axis, half) / half * tile[axis] / windows(axis, tile[axis])

    while (size := prod(tile)) > budget or (
        size > _THREADS and prod(starmap(windows, enumerate(tile))) > _WINDOWS
    ):
        # Short rows would be slow to load.
        axes = [i for i, n in enumerate(tile) if n > (_ROW if i == last else 1)]
        axis = min(axes, key=added)
        tile[axis] = _up(tile[axis], 2)
    return tile


@lru_cache(maxsize=1024)
def pool_launch(
    kernel: str,
    mode: str,
    dtype: str,
    img_shape: tuple[int, ...],
    out_shape: tuple[int, ...],
    ws: tuple[int, ...],
    stride: tuple[int, ...],
    pad: tuple[int, ...],
) -> PoolLaunch:
    """Divide the result of a kernel into tiles, one for each block.

    Parameters
    ----------
    kernel : str
        Name of the kernel.
    mode : str
        Pooling mode.
    dtype : str
        Data type of the arrays.
    img_shape, out_shape : tuple of int
        Shapes of the image and of the pooled image, (batch, channels, spatial...).
    ws, stride, pad : tuple of int
        Window size, stride and padding of each spatial axis.

    Returns
    -------
    PoolLaunch
    """
    channels = prod(img_shape[:2])
    axes = [
        (channels, channels, 1, 1, 0),
        *zip(img_shape[2:], out_shape[2:], ws, stride, pad, strict=True),
    ]
    is_gradient = kernel.endswith("pool_grad")

    def windows(axis: int, length: int) -> int:
        """Return how many windows of an axis may contain pixels of a tile of some length."""
        _, top, w, s, _ = axes[axis]
        return max(1, min(top, (length + w - 2) // s + 1)) if is_gradient else length

    items = [axis[0 if is_gradient else 1] for axis in axes]
    tile = _tile(items, windows)
    overlapping = list(starmap(windows, enumerate(tile)))
    tiles = [_up(n, t) for n, t in zip(items, tile, strict=True)]
    rows = [
        (*axis, t, 2**31 // t + 1, count, n, 2**31 // n + 1)
        for axis, t, count, n in zip(axes, tile, tiles, overlapping, strict=True)
    ]
    counts_pixels = mode == "average_exc_pad" or not any(pad)
    divisor = 1.0 if mode == "sum" else 0.0 if counts_pixels else float(prod(ws))
    head = np.array([0, 0, 0, divisor]).view("int64")
    is_small = max(prod(img_shape), prod(out_shape)) < _INT_LIMIT
    is_unrolled = ws[0] in _UNROLLED and len(set(ws)) == 1
    macros = {
        "DTYPE": DTYPE_CODES[dtype],
        "AXES": len(ws),
        "WINDOW": ws[0] if is_unrolled else 0,
        "OFFSET": "int" if is_small else "long long",
        "CHUNKED": int(prod(overlapping) > _WINDOWS),
    }
    words = np.concatenate([head, np.array(rows, "int64").ravel()])
    return PoolLaunch(
        kernel,
        tuple(f"-D{name}={value}" for name, value in macros.items()),
        words.view([("words", "int64", words.size)]),
        prod(tiles),
    )


class GpuPoolOperands(ModePoolBase):
    """Mixin that builds the nodes of pooling Ops with data operands on a device."""

    def make_node(self, *inputs: Any) -> Apply:
        names = (*self.operands, "ws", "stride", "pad")
        named_operands(self.where, names, inputs)
        count = len(self.operands)
        data = device_operands(
            self.where, self.ndim + 2, **dict(zip(self.operands, inputs[:count], strict=True))
        )
        vectors = [
            int_vector(self.where, name, value, self.ndim)
            for name, value in zip(names[count:], inputs[count:], strict=True)
        ]
        img_shape, out_shape = self.check_shapes(
            [x.type.shape for x in data], *(static_vector(v, self.ndim) for v in vectors)
        )
        shape = out_shape if self.pooled_result else img_shape
        output_type = GpuArrayType(data[0].type.dtype, shape, data[0].type.device)
        return Apply(self, [*data, *vectors], [output_type()])


class GpuPoolGradOperands(GpuPoolOperands):
    """Mixin for the gradient of maxima as well as of averages and sums."""

    deterministic = False

    def host_expressions(self, *inputs: Any) -> list[Any]:
        x, _, gz, *vectors = inputs
        if self.mode == "max":
            return [MaxPoolGrad(self.ndim, self.ignore_border, self.deterministic)(*inputs)]
        return [AveragePoolGrad(self.ndim, self.mode, self.ignore_border)(x, gz, *vectors)]


class GpuKernelPool(GpuOp, GpuPoolOperands):
    """Base class of pooling Ops with one kernel; see `dnnops.nnet.pool.op.ModePoolBase`."""

    #: Name of the kernel, without its prefix ``max_`` or ``average_``.
    kernel: ClassVar[str]

    def __init__(self, ndim: int, mode: str, ignore_border: bool):
        super().__init__(ndim, mode, ignore_border)
        # The kernels are deterministic in any mode.
        self.mode = self.computes

    def node_device(self, node: Apply) -> int:
        return infer_device(*node.outputs)

    def _launch(self, node: Apply, img_shape: Any, vectors: Any, arrays: Any) -> Any:
        import cupy

        # Imported here because only nodes that run need it.
        from dnnops.gpuarray.compiling import compiled_kernel

        dtype = node.outputs[0].type.dtype
        ws, stride, pad = (tuple(v.tolist()) for v in vectors)
        _, top_shape = self.check_shapes([a.shape for a in arrays], ws, stride, pad)
        out = cupy.empty(
            top_shape if self.pooled_result else img_shape, node.outputs[0].type.numpy_dtype
        )
        if out.size == 0:
            return out
        launch = pool_launch(
            self._kernel_name(), self.mode, dtype, img_shape, top_shape, ws, stride, pad
        )
        read = [cupy.ascontiguousarray(a) for a in self._read(arrays)]
        struct = launch.struct.copy()
        struct["words"][0, :3] = read[0].data.ptr, read[-1].data.ptr, out.data.ptr
        function = compiled_kernel(kernel_source("pool"), launch.kernel, launch.options)
        # CuPy passes a NumPy array of one element by value.
        function((launch.blocks,), (_THREADS,), (struct,))
        return out

    def _kernel_name(self) -> str:
        return f"{'max' if self.mode == 'max' else 'average'}_{self.kernel}"

    # The operands whose values the kernel reads.
    def _read(self, arrays: Any) -> Any:
        return arrays

    def compute(self, node: Apply, *inputs: Any) -> Any:
        count = len(self.operands)
        return self._launch(node, inputs[0].shape, inputs[count:], inputs[:count])


@implements(
    Pool,
    on=GPU_CUPY,
    build=lambda op, x, context: [GpuPool(op.ndim, op.mode, op.ignore_border)(*x)],
    operands=(0,),
)
class GpuPool(GpuKernelPool):
    """`Pool` as a kernel, called as ``GpuPool(ndim, mode, ignore_border)(x, ws, stride, pad)``."""

    operands = ("x",)
    pooled_result = True
    connected = ("x",)
    kernel = "pool"
    abstract_class = Pool

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Variable]:
        x, *vectors = inputs
        op = GpuPoolGrad(self.ndim, self.mode, self.ignore_border)
        grad = op(x, outputs[0], gradient_like(cotangents[0], x), *vectors)
        return [as_gradient(grad), *(disconnected_type() for _ in vectors)]

    def pushforward(self, inputs: Any, outputs: Any, tangents: Any) -> list[Variable]:
        if self.mode != "max":
            return super().pushforward(inputs, outputs, tangents)
        x, *vectors = inputs
        op = GpuMaxPoolGradGrad(self.ndim, self.mode, self.ignore_border)
        return [op(x, outputs[0], gradient_like(tangents[0], x), *vectors)]


@implements(
    MaxPoolGrad,
    on=GPU_CUPY,
    build=lambda op, x, context: [GpuPoolGrad(op.ndim, "max", op.ignore_border)(*x)],
    operands=(0, 1, 2),
)
@implements(
    AveragePoolGrad,
    on=GPU_CUPY,
    build=lambda op, x, context: [
        GpuPoolGrad(op.ndim, op.mode, op.ignore_border)(x[0], x[1], *x[1:])
    ],
    operands=(0, 1),
)
class GpuPoolGrad(GpuPoolGradOperands, GpuKernelPool):
    """Gradient of `GpuPool`, called as ``op(x, out, gz, ws, stride, pad)``; `out` isn't read."""

    operands = ("x", "maxout", "gz")
    pooled_result = False
    connected = ("x", "gz")
    kernel = "pool_grad"

    def _read(self, arrays: Any) -> Any:
        return arrays[0], arrays[2]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Variable]:
        x, out, _, *vectors = inputs
        g = gradient_like(cotangents[0], x)
        if self.mode == "max":
            by_gz = GpuMaxPoolGradGrad(self.ndim, "max", self.ignore_border)(x, out, g, *vectors)
        else:
            by_gz = GpuPool(self.ndim, self.mode, self.ignore_border)(g, *vectors)
        return [
            as_gradient(gradient_like(x.zeros_like(), x)),
            disconnected_type(),
            as_gradient(by_gz),
            *(disconnected_type() for _ in vectors),
        ]


@implements(
    MaxPoolGradGrad,
    on=GPU_CUPY,
    build=lambda op, x, context: [GpuMaxPoolGradGrad(op.ndim, "max", op.ignore_border)(*x)],
    operands=(0, 1, 2),
)
class GpuMaxPoolGradGrad(GpuKernelPool):
    """`MaxPoolGradGrad` as a kernel, called as ``op(x, maxout, ggx, ws, stride, pad)``.

    `maxout` isn't read.
    """

    modes = ("max", MAX_DETERMINISTIC)
    operands = ("x", "maxout", "ggx")
    pooled = ("maxout",)
    pooled_result = True
    connected = ("x", "ggx")
    kernel = "pool_grad_grad"

    def abstract_op(self) -> MaxPoolGradGrad:
        return MaxPoolGradGrad(self.ndim, self.ignore_border)

    def _read(self, arrays: Any) -> Any:
        return arrays[0], arrays[2]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Variable]:
        x, out, _, *vectors = inputs
        g = gradient_like(cotangents[0], x)
        by_ggx = GpuPoolGrad(self.ndim, "max", self.ignore_border)(x, out, g, *vectors)
        return [
            as_gradient(gradient_like(x.zeros_like(), x)),
            disconnected_type(),
            as_gradient(by_ggx),
            *(disconnected_type() for _ in vectors),
        ]
