"""Pooling that cuDNN doesn't support, with kernels that CuPy compiles.

The kernels support windows that extend past the end of the image (``ignore_border=False``) and the
gradient of max pooling's gradient. One thread computes each output element and loops over the
windows or pixels that it depends on, so results are identical in every run. If maxima are equal,
the first in C order gets the gradient, as in `dnnops.nnet.pool.op`.
"""

from __future__ import annotations

from functools import cache
from typing import Any, ClassVar

import numpy as np
from pytensor.gradient import disconnected_type
from pytensor.graph.basic import Apply, Variable

from dnnops.dtypes import DTYPES, FLOAT_DTYPES
from dnnops.gpu.base import GPU_CUPY, as_gradient, device_operands, gradient_like
from dnnops.gpuarray.op import GpuOp, infer_device
from dnnops.gpuarray.type import GpuArrayType
from dnnops.nnet.pool.geometry import MAX_DETERMINISTIC, POOL_MODES
from dnnops.nnet.pool.op import (
    AveragePoolGrad,
    MaxPoolGrad,
    MaxPoolGradGrad,
    ModePoolBase,
    Pool,
)
from dnnops.nnet.validate import int_vector, named_operands, static_vector
from dnnops.runtime.build import c_code_dir
from dnnops.runtime.implementations import implements

__all__ = ["GpuMaxPoolGradGrad", "GpuPool", "GpuPoolGrad", "GpuPoolOperands"]

_BLOCK = 256
#: ``Geometry`` in ``pool_kernels.cuh``.
_GEOMETRY = np.dtype([("words", "int64", 15)])


def kernel_source() -> str:
    """Return the CUDA source of the kernels."""
    return (c_code_dir() / "gpu/pool/pool_kernels.cuh").read_text(encoding="utf-8")


def kernel_names() -> list[str]:
    """Return the kernels' names, as instances of their templates."""
    kernels = ("pool_kernel", "pool_grad_kernel", "max_pool_grad_grad_kernel")
    return [_kernel_name(kernel, dtype) for kernel in kernels for dtype in FLOAT_DTYPES]


def _kernel_name(kernel: str, dtype: str) -> str:
    return f"{kernel}<{DTYPES[dtype].cuda_type}, {DTYPES[dtype].c_type}>"


@cache
def _module() -> Any:
    import cupy

    return cupy.RawModule(
        code=kernel_source(), options=("-std=c++17",), name_expressions=kernel_names()
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


class GpuKernelPool(GpuOp, GpuPoolOperands):
    """Base class of pooling Ops with one kernel; see `dnnops.nnet.pool.op.ModePoolBase`."""

    kernel: ClassVar[str]

    def __init__(self, ndim: int, mode: str, ignore_border: bool):
        super().__init__(ndim, mode, ignore_border)
        # The kernels are deterministic in any mode.
        self.mode = self.computes

    def node_device(self, node: Apply) -> int:
        return infer_device(*node.outputs)

    def _launch(self, node: Apply, img_shape: Any, vectors: Any, mode: tuple, arrays: Any) -> Any:
        import cupy

        dtype = node.outputs[0].type.dtype
        ws, stride, pad = (v.tolist() for v in vectors)
        _, top_shape = self.check_shapes([a.shape for a in arrays], ws, stride, pad)
        out = cupy.empty(
            top_shape if self.pooled_result else img_shape, node.outputs[0].type.numpy_dtype
        )
        if out.size == 0:
            return out
        unused = 3 - self.ndim
        words = [
            [fill] * unused + list(sizes)
            for sizes, fill in (
                (img_shape[2:], 1),
                (top_shape[2:], 1),
                (ws, 1),
                (stride, 1),
                (pad, 0),
            )
        ]
        # CuPy passes a NumPy array of one element by value: here, a struct of 15 words.
        geometry = np.array(words, dtype="int64").reshape(-1).view(_GEOMETRY)
        function = _module().get_function(_kernel_name(self.kernel, dtype))
        arguments = (*mode, *(cupy.ascontiguousarray(a) for a in self._read(arrays)), out)
        blocks = -(-out.size // _BLOCK)
        function((blocks,), (_BLOCK,), (geometry, *arguments, np.int64(out.size)))
        return out

    # The operands whose values the kernel reads.
    def _read(self, arrays: Any) -> Any:
        return arrays

    def _mode(self) -> tuple:
        return (np.int32(POOL_MODES.index(self.mode)),)

    def compute(self, node: Apply, *inputs: Any) -> Any:
        count = len(self.operands)
        return self._launch(node, inputs[0].shape, inputs[count:], self._mode(), inputs[:count])


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
    kernel = "pool_kernel"

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
class GpuPoolGrad(GpuKernelPool):
    """Gradient of `GpuPool`, called as ``op(x, out, gz, ws, stride, pad)``; `out` isn't read."""

    operands = ("x", "maxout", "gz")
    pooled_result = False
    connected = ("x", "gz")
    kernel = "pool_grad_kernel"

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
    kernel = "max_pool_grad_grad_kernel"

    def _mode(self) -> tuple:
        return ()

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
