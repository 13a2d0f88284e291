"""Sums over windows, computed by a kernel that CuPy compiles.

Divisive normalization, and the second derivatives of both window normalizations, are built from
these sums and elementwise Ops.
"""

from __future__ import annotations

from functools import cache
from math import prod
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply

from dnnops.dtypes import numpy_dtype
from dnnops.gpu.base import as_gradient, device_operands, gradient_like
from dnnops.gpu.library import GPU_CUPY
from dnnops.gpuarray.op import GpuOp
from dnnops.nnet.expressions import is_connected
from dnnops.nnet.norm.window_base import WindowSum, window_sides
from dnnops.nnet.validate import named_operands
from dnnops.runtime.build import c_code_dir
from dnnops.runtime.implementations import implements

__all__ = ["GpuWindowSum"]

_BLOCK = 256
KERNEL_NAMES = ("window_sum_kernel<float>", "window_sum_kernel<double>")


@cache
def kernel_source() -> str:
    """Return the CUDA source of the kernel."""
    return (c_code_dir() / "gpu/norm/window_sum.cuh").read_text(encoding="utf-8")


@implements(
    WindowSum,
    on=GPU_CUPY,
    build=lambda op, x, context: [GpuWindowSum(op.n, op.axes, op.backward)(*x)],
    operands=(0,),
)
class GpuWindowSum(GpuOp, WindowSum):
    """`WindowSum` as a kernel, called as ``GpuWindowSum(n, axes, backward)(x)``.

    See `WindowSum` for the parameters.
    """

    abstract_class = WindowSum

    def make_node(self, x: Any) -> Apply:
        name = type(self).__name__
        (x,) = device_operands(name, None, **named_operands(name, ("x",), (x,)))
        self._check_axes(x.type.ndim)
        return Apply(self, [x], [x.type()])

    def compute(self, node: Apply, x: Any) -> Any:
        import cupy

        # Imported here because only nodes that run need it.
        from dnnops.gpuarray.compiling import compiled_kernel

        dtype = node.outputs[0].type.dtype
        wide = "float64" if dtype == "float64" else "float32"
        x = cupy.ascontiguousarray(x, dtype=wide)
        before, after = window_sides(self.n)[::-1] if self.backward else window_sides(self.n)
        kernel = compiled_kernel(kernel_source(), KERNEL_NAMES[wide == "float64"])
        for axis in self.axes:
            if x.size == 0:
                break
            out = cupy.empty(x.shape, wide)
            sizes = (x.shape[axis], prod(x.shape[axis + 1 :]), before, after, x.size)
            kernel((-(-x.size // _BLOCK),), (_BLOCK,), (x, out, *map(np.int64, sizes)))
            x = out
        return x.astype(numpy_dtype(dtype), copy=not self.axes)

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        transposed: Any = GpuWindowSum(self.n, self.axes, not self.backward)
        return [as_gradient(transposed(gradient_like(cotangents[0], inputs[0])))]

    def pushforward(self, inputs: Any, outputs: Any, tangents: Any) -> list[Any]:
        (tangent,) = tangents
        return [self(gradient_like(tangent, inputs[0])) if is_connected(tangent) else tangent]
