"""Filters and biases of convolutions with batch normalization of inference folded into them.

`dnnops.rewriting.fuse.fold_batchnorm` inserts this Op.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply

from dnnops.arguments import one_of
from dnnops.compat import shape_inference
from dnnops.dtypes import DTYPE_CODES, FLOAT_DTYPES, compute_dtype, host_dtype
from dnnops.errors import DnnTypeError
from dnnops.gpu.base import device_operand
from dnnops.gpu.derivatives import GpuExpressionOp
from dnnops.gpuarray.layout import MEMORY_FORMATS
from dnnops.gpuarray.op import infer_device
from dnnops.gpuarray.type import GpuArrayType
from dnnops.nnet.validate import merge_shapes

__all__ = ["GpuFoldBatchNorm"]

_OPERANDS = ("filters", "gamma", "beta", "mean", "var")
#: For each operand, whether the scaled filters and the bias depend on it.
_USED = ((True, False), (True, True), (False, True), (False, True), (True, True))


class GpuFoldBatchNorm(GpuExpressionOp):
    """Fold batch normalization into the filters and biases of convolutions, in one kernel.

    Called as ``op(filters, gamma, beta, mean, var, ...)`` with five operands for each convolution,
    it returns ``filters * scale`` and ``beta - mean * scale`` for each, where ``scale = gamma /
    sqrt(var + epsilon)``. Filters have the shape ``(outputs, channels, *sizes)``. The other
    operands and the bias have the shape ``(1, outputs, 1...)``. All filters have one dtype, and so
    have all others.

    Parameters
    ----------
    epsilon : float
        Number that is added to each variance.
    dtype : str
        Dtype of the results.
    count : int
        Number of convolutions.
    memory_format : {'contiguous', 'channels_last'}
        Memory format of the scaled filters.

    Raises
    ------
    DnnTypeError, DnnValueError
        If a parameter is invalid, or an operand has the wrong rank, dtype or static shape.
    """

    __props__: ClassVar[tuple[str, ...]] = ("epsilon", "dtype", "count", "memory_format")
    function = "dnnops_cudnn_fold_batchnorm"
    contiguous_only = True
    calls_library = False

    def __init__(
        self, epsilon: float, dtype: str, count: int = 1, memory_format: str = "contiguous"
    ):
        name = type(self).__name__
        self.epsilon = float(epsilon)
        self.dtype = one_of(name, "dtype", dtype, sorted(FLOAT_DTYPES))
        self.count = int(count)
        self.memory_format = one_of(name, "memory_format", memory_format, MEMORY_FORMATS)

    def parameters(self) -> list[int]:
        epsilon = int(np.float64(self.epsilon).view(np.int64))
        last = int(self.memory_format == "channels_last")
        return [self.count, DTYPE_CODES[self.dtype], epsilon, last]

    def output_format(self, index: int, inputs: list[Any]) -> str:
        return "contiguous" if index % 2 else self.memory_format

    def c_output_format(self, index: int) -> str:
        return f"DNNOPS_{self.output_format(index, []).upper()}"

    def make_node(self, *inputs: Any) -> Apply:
        name = type(self).__name__
        if not inputs or len(inputs) != len(_OPERANDS) * self.count:
            raise DnnTypeError(
                f"{name}: expected the operands {', '.join(_OPERANDS)} for each of {self.count}"
                f" convolutions; the number of operands given is {len(inputs)}"
            )
        device = infer_device(*inputs)
        operands, outputs = [], []
        for item in range(self.count):
            start = item * len(_OPERANDS)
            given = inputs[start : start + len(_OPERANDS)]
            arrays = [
                device_operand(name, part, x, device)
                for part, x in zip(_OPERANDS, given, strict=True)
            ]
            filters, *vectors = (x.type for x in arrays)
            if filters.ndim < 3 or any(v.ndim != filters.ndim for v in vectors):
                raise DnnTypeError(
                    f"{name}: filters need at least 3 dimensions, and all operands the same"
                    f" number, got {', '.join(str(x.type) for x in arrays)}"
                )
            column = (1, filters.shape[0], *(1,) * (filters.ndim - 2))
            shapes = {part: v.shape for part, v in zip(_OPERANDS[1:], vectors, strict=True)}
            shape = merge_shapes(name, **{"number of filters": column}, **shapes)
            operands += arrays
            outputs += [GpuArrayType(self.dtype, s, device)() for s in (filters.shape, shape)]
        for part, kinds in (("filters", operands[::5]), ("statistics", operands)):
            dtypes = {x.type.dtype for i, x in enumerate(kinds) if part == "filters" or i % 5}
            if len(dtypes) > 1 or not dtypes <= set(FLOAT_DTYPES):
                raise DnnTypeError(
                    f"{name}: {part} must have one floating-point dtype, got"
                    f" {', '.join(sorted(dtypes))}"
                )
        return Apply(self, operands, outputs)

    @shape_inference
    def infer_shape(self, node: Apply, shapes: Any) -> list[Any]:
        return [s for i in range(0, len(shapes), len(_OPERANDS)) for s in shapes[i : i + 2]]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        results = range(len(node.outputs))
        return [
            [z // 2 == i // len(_OPERANDS) and _USED[i % len(_OPERANDS)][z % 2] for z in results]
            for i in range(len(node.inputs))
        ]

    def _expressions(self, *inputs: Any) -> list[Any]:
        results = []
        for start in range(0, len(inputs), len(_OPERANDS)):
            filters, *vectors = map(pt.as_tensor_variable, inputs[start : start + len(_OPERANDS)])
            wide = compute_dtype(vectors[0].type.dtype)
            axes = [i for i in range(filters.type.ndim) if i != 1]
            gamma, beta, mean, var = (
                pt.specify_broadcastable(pt.cast(v, wide), *axes) for v in vectors
            )
            scale = gamma / pt.sqrt(var + np.asarray(self.epsilon, wide))
            of_filters = scale.dimshuffle(1, 0, *range(2, filters.type.ndim))
            dtype = host_dtype(self.dtype)
            results += [pt.cast(filters * of_filters, dtype), pt.cast(beta - mean * scale, dtype)]
        return results
