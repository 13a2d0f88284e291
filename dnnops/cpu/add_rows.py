"""Addition to selected rows, the gradient of an embedding."""

from __future__ import annotations

from typing import Any

import pytensor.tensor as pt
from pytensor.gradient import disconnected_type
from pytensor.graph.basic import Apply

from dnnops.arguments import switch
from dnnops.compat import shape_inference
from dnnops.cpu.base import OneDnnOp
from dnnops.errors import DnnTypeError

__all__ = ["DTYPES", "CpuAddRows"]

DTYPES = ("float32", "float64")


class CpuAddRows(OneDnnOp):
    """``x[indices] += rows``, which adds up rows of equal indices.

    Called as ``CpuAddRows()(x, rows, indices)``. `x` and `rows` are float32 or float64 and have the
    same number of axes. `rows` has one row for each of the `indices`, which are int64. An index
    that is out of bounds raises `DnnIndexError`, and nothing is changed. The Op replaces PyTensor's
    ``AdvancedIncSubtensor1``.

    Parameters
    ----------
    inplace : bool
        Whether the result overwrites `x`.
    """

    __props__ = ("inplace",)
    function = "dnnops_onednn_add_rows"
    calls_library = False

    def __init__(self, inplace: bool = False):
        self.inplace = switch(type(self).__name__, "inplace", inplace)
        if self.inplace:
            self.destroy_map = {0: [0]}

    def make_node(self, x: Any, rows: Any, indices: Any) -> Apply:
        x, rows, indices = map(pt.as_tensor_variable, (x, rows, indices))
        if x.type.dtype not in DTYPES or rows.type.dtype != x.type.dtype:
            raise DnnTypeError(
                f"CpuAddRows: expected arrays of equal dtype, {' or '.join(DTYPES)}, got {x.type}"
                f" and {rows.type}"
            )
        if x.type.ndim < 1 or rows.type.ndim != x.type.ndim or indices.type.ndim != 1:
            raise DnnTypeError(
                "CpuAddRows: expected two arrays of equal rank and a vector of indices, got"
                f" {x.type}, {rows.type} and {indices.type}"
            )
        if indices.type.dtype not in pt.type.integer_dtypes:
            raise DnnTypeError(f"CpuAddRows: expected integer indices, got {indices.type}")
        return Apply(self, [x, rows, pt.cast(indices, "int64")], [x.type()])

    @shape_inference
    def infer_shape(self, node: Apply, shapes: list[Any]) -> list[Any]:
        return [shapes[0]]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        return [[True], [True], [False]]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        (g,), indices = cotangents, inputs[2]
        return [g, g[indices], disconnected_type()]
