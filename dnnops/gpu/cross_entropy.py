"""Cross-entropy on a GPU with dnnops kernels."""

from __future__ import annotations

from typing import Any, Self

import pytensor.tensor as pt
from pytensor.gradient import disconnected_type
from pytensor.graph.basic import Apply, Variable

import dnnops.gpu.deferred
import dnnops.gpu.kernels  # noqa: F401 - both register what C code calls
from dnnops.arguments import switch
from dnnops.dtypes import HALF_DTYPES
from dnnops.errors import DnnTypeError
from dnnops.gpu.base import as_gradient, device_operands, gradient_like
from dnnops.gpu.derivatives import GpuExpressionOp
from dnnops.gpu.library import GPU_KERNELS
from dnnops.gpuarray.op import infer_device, is_on_device
from dnnops.gpuarray.transfer import as_gpuarray_variable
from dnnops.gpuarray.type import GpuArrayType
from dnnops.nnet.expressions import is_connected
from dnnops.nnet.loss.cross_entropy import (
    CrossEntropy,
    CrossEntropyBase,
    CrossEntropyGrad,
    label_vector,
)
from dnnops.runtime.implementations import implements

__all__ = ["GpuCrossEntropy", "GpuCrossEntropyGrad"]


def _statistics_dtype(x: Any) -> str:
    return "float64" if x.type.dtype == "float64" else "float32"


class _GpuCrossEntropyOp(GpuExpressionOp, CrossEntropyBase):
    __props__: tuple[str, ...] = (*CrossEntropyBase.__props__, "float32_costs")

    function = "dnnops_cudnn_cross_entropy"
    contiguous_only = True
    is_gradient: bool

    def __init__(
        self, every_row: bool = True, one_for_all: bool = False, float32_costs: bool = False
    ):
        CrossEntropyBase.__init__(self, every_row, one_for_all)
        self.float32_costs = switch(type(self).__name__, "float32_costs", float32_costs)

    def parameters(self) -> list[int]:
        return [self.rows, int(self.is_gradient), int(self.float32_costs)]

    def with_float32_costs(self) -> Self:
        """Return the Op whose costs are float32, also for scores of 16 bits."""
        return type(self)(self.every_row, self.one_for_all, float32_costs=True)

    def host_expressions(self, *inputs: Any) -> list[Any]:
        if self.float32_costs:
            inputs = tuple(
                pt.cast(x, "float32") if x.type.dtype in HALF_DTYPES else x for x in inputs
            )
        return list(self.abstract_op().make_node(*inputs).outputs)

    def costs_dtype(self, x: Any) -> str:
        """Return the dtype of the costs, and of the gradient with respect to them."""
        is_wide = self.float32_costs and x.type.dtype in HALF_DTYPES
        return "float32" if is_wide else x.type.dtype

    def _operands(self, labels: Any, **floats: Any) -> list[Any]:
        """Move the operands to one device; return the floating-point ones, then the labels."""
        name = type(self).__name__
        values = [v for v in (*floats.values(), labels) if is_on_device(v)]
        device = infer_device(*values) if values else 0
        moved = {k: as_gpuarray_variable(v, device) for k, v in floats.items()}
        if self.float32_costs:
            found = [device_operands(name, None, **{k: x})[0] for k, x in moved.items()]
        else:
            found = device_operands(name, None, **moved)
        if not is_on_device(labels):
            labels = as_gpuarray_variable(label_vector(name, labels), device)
        if labels.type.ndim != 1 or labels.type.dtype not in ("int32", "int64"):
            raise DnnTypeError(f"{name}: labels must be an int32 or int64 vector, got {labels}")
        for key, x in zip(floats, found, strict=True):
            if x.type.ndim != (2 if key == "x" else 1):
                raise DnnTypeError(f"{name}: {key} cannot have {x.type.ndim} dimensions ({x.type})")
        return [*found, labels]


@implements(CrossEntropy, on=GPU_KERNELS, operands=(0, 1))
class GpuCrossEntropy(_GpuCrossEntropyOp, CrossEntropy):
    """`CrossEntropy` of device arrays, including bfloat16.

    If a label is out of bounds, its cost is NaN, and the next transfer to the host raises an error.

    Parameters
    ----------
    every_row, one_for_all : bool
        See `CrossEntropy`.
    float32_costs : bool
        Whether the costs of 16-bit scores are float32.
    """

    is_gradient = False
    abstract_class = CrossEntropy

    def make_node(self, x: Any, labels: Any) -> Apply:
        x, labels = self._operands(labels, x=x)
        count = self.count(x.type.shape[0], labels.type.shape[0])
        statistics = GpuArrayType(_statistics_dtype(x), (count, 2), x.type.device)
        costs = GpuArrayType(self.costs_dtype(x), (count,), x.type.device)
        return Apply(self, [x, labels], [costs(), statistics()])

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Variable]:
        (x, labels), (g, _) = inputs, cotangents
        if not is_connected(g):
            return [disconnected_type() for _ in inputs]
        op = GpuCrossEntropyGrad(self.every_row, self.one_for_all, self.float32_costs)
        gradient = op(gradient_like(g, outputs[0]), x, labels, outputs[1])
        return [as_gradient(gradient), disconnected_type()]


@implements(CrossEntropyGrad, on=GPU_KERNELS, operands=(0, 1, 2, 3))
class GpuCrossEntropyGrad(_GpuCrossEntropyOp, CrossEntropyGrad):
    """`CrossEntropyGrad` of device arrays, including bfloat16.

    Parameters
    ----------
    every_row, one_for_all : bool
        See `CrossEntropy`.
    float32_costs : bool
        Whether `g` is float32 also if the scores have 16 bits.
    """

    is_gradient = True
    abstract_class = CrossEntropyGrad

    def make_node(self, g: Any, x: Any, labels: Any, statistics: Any) -> Apply:
        g, x, labels = self._operands(labels, g=g, x=x)
        if g.type.dtype != self.costs_dtype(x):
            raise DnnTypeError(
                f"{type(self).__name__}: g must be {self.costs_dtype(x)}, got {g.type.dtype}"
            )
        statistics = as_gpuarray_variable(statistics, x.type.device)
        if statistics.type.ndim != 2 or statistics.type.dtype != _statistics_dtype(x):
            raise DnnTypeError(
                f"{type(self).__name__}: statistics must be a {_statistics_dtype(x)} matrix, got"
                f" {statistics.type}"
            )
        self.count(x.type.shape[0], labels.type.shape[0])
        return Apply(self, [g, x, labels, statistics], [x.type()])
