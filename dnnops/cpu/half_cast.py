"""Casts between float16 and float32 on the CPU."""

from __future__ import annotations

from typing import Any

import pytensor.tensor as pt
from pytensor.gradient import DisconnectedType, disconnected_type
from pytensor.graph.basic import Apply

from dnnops.compat import shape_inference
from dnnops.cpu.base import OneDnnOp
from dnnops.errors import DnnTypeError

__all__ = ["OneDnnHalfCast"]

#: Dtype that each dtype is cast to.
OTHER = {"float16": "float32", "float32": "float16"}


class OneDnnHalfCast(OneDnnOp):
    """Cast from float16 to float32, or from float32 to float16: ``OneDnnHalfCast()(x)``."""

    __props__ = ()
    function = "dnnops_onednn_half_cast"

    def parameters(self) -> list[int]:
        return []

    def make_node(self, x: Any) -> Apply:
        x = pt.as_tensor_variable(x)
        if x.type.dtype not in OTHER:
            raise DnnTypeError(f"OneDnnHalfCast: expected float16 or float32, got {x.type}")
        return Apply(self, [x], [pt.tensor(dtype=OTHER[x.type.dtype], shape=x.type.shape)])

    @shape_inference
    def infer_shape(self, node: Apply, shapes: list[Any]) -> list[Any]:
        return [shapes[0]]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        return [pt.cast(cotangents[0], inputs[0].type.dtype)]

    def pushforward(self, inputs: Any, outputs: Any, tangents: Any) -> list[Any]:
        if isinstance(tangents[0].type, DisconnectedType):
            return [disconnected_type()]
        return [pt.cast(tangents[0], outputs[0].type.dtype)]
