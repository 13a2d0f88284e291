"""Scaled sums and copies to another memory format on cuDNN."""

from __future__ import annotations

from typing import Any

import pytensor.tensor as pt
from pytensor.graph.basic import Apply

from dnnops.arguments import one_of, switch
from dnnops.compat import shape_inference
from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.gpu.base import device_operands
from dnnops.gpu.derivatives import GpuExpressionOp
from dnnops.gpuarray.layout import MEMORY_FORMATS
from dnnops.nnet.validate import float64_scalar, show_shape

__all__ = ["GpuDnnAddTensor", "GpuDnnTransform"]


def _refuse_bfloat16(where: str, x: Any) -> None:
    if x.type.dtype == "bfloat16":
        raise DnnTypeError(f"{where}: bfloat16 is not supported; cast to float32 first")


class GpuDnnAddTensor(GpuExpressionOp):
    """Compute ``alpha * a + beta * c``, called as ``GpuDnnAddTensor()(a, c, alpha, beta)``.

    Operands are float16, float32 or float64 and have the same rank. Each axis of `a` has the same
    length as in `c`, or length 1 to be broadcast. cuDNN supports up to five dimensions; adjacent
    axes count as one dimension if `a` is broadcast along all of them or along none.

    Parameters
    ----------
    inplace : bool
        Whether the sum overwrites `c`; otherwise `c` is copied.
    """

    __props__ = ("inplace",)
    function = "dnnops_cudnn_add_tensor"
    contiguous_only = True

    def __init__(self, inplace: bool = False):
        self.inplace = switch(type(self).__name__, "inplace", inplace)
        if self.inplace:
            self.destroy_map = {0: [1]}

    def make_node(self, a: Any, c: Any, alpha: Any = 1.0, beta: Any = 1.0) -> Apply:
        name = type(self).__name__
        a, c = device_operands(name, None, a=a, c=c)
        _refuse_bfloat16(name, c)
        if a.type.ndim != c.type.ndim:
            raise DnnTypeError(f"{name}: a and c must have equal rank, got {a.type} and {c.type}")
        pairs = zip(a.type.shape, c.type.shape, strict=True)
        if any(m not in (1, None, n) and n is not None for m, n in pairs):
            raise DnnValueError(
                f"{name}: a of shape {show_shape(a.type.shape)} cannot be broadcast to the shape"
                f" {show_shape(c.type.shape)} of c"
            )
        factors = [float64_scalar(name, n, x) for n, x in (("alpha", alpha), ("beta", beta))]
        return Apply(self, [a, c, *factors], [c.type()])

    @shape_inference
    def infer_shape(self, node: Apply, shapes: Any) -> list[Any]:
        return [shapes[1]]

    def _expressions(self, a: Any, c: Any, alpha: Any, beta: Any) -> list[Any]:
        dtype = c.type.dtype
        return [pt.cast(alpha, dtype) * a + pt.cast(beta, dtype) * c]


class GpuDnnTransform(GpuExpressionOp):
    """Scale an array and copy it to a memory format.

    Called as ``GpuDnnTransform(memory_format)(x, alpha)``. `x` has the shape (batch, channels,
    spatial...), with one to three spatial axes, and the dtype float16, float32 or float64. The
    result has the same shape and dtype.

    Parameters
    ----------
    memory_format : {'contiguous', 'channels_last'}
        Memory format of the result. `x` can have either format.

    Raises
    ------
    DnnValueError
        If the format is invalid.
    """

    __props__ = ("memory_format",)
    function = "dnnops_cudnn_transform"

    def __init__(self, memory_format: str = "contiguous"):
        self.memory_format = one_of(
            type(self).__name__, "memory_format", memory_format, MEMORY_FORMATS
        )

    def make_node(self, x: Any, alpha: Any = 1.0) -> Apply:
        name = type(self).__name__
        (x,) = device_operands(name, None, x=x)
        _refuse_bfloat16(name, x)
        if not 3 <= x.type.ndim <= 5:
            raise DnnTypeError(f"{name}: x must have 3 to 5 dimensions, got {x.type}")
        return Apply(self, [x, float64_scalar(name, "alpha", alpha)], [x.type()])

    @shape_inference
    def infer_shape(self, node: Apply, shapes: Any) -> list[Any]:
        return [shapes[0]]

    def _expressions(self, x: Any, alpha: Any) -> list[Any]:
        return [pt.cast(alpha, x.type.dtype) * x]
