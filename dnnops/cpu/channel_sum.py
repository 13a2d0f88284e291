"""Sum over all axes except the channel axis, in oneDNN's threads, for the gradient of a bias."""

from __future__ import annotations

from typing import Any

import pytensor.tensor as pt
from pytensor.graph.basic import Apply

from dnnops.compat import shape_inference
from dnnops.cpu.base import OneDnnOp
from dnnops.errors import DnnTypeError

__all__ = ["OneDnnChannelSum"]


class OneDnnChannelSum(OneDnnOp):
    """``x.sum(axis=(0, 2, 3, ...))`` of a float32 array of shape (batch, channel, spatial...).

    Rows are summed in float32, and their sums are added in float64.
    """

    __props__ = ()
    function = "dnnops_onednn_channel_sum"

    def make_node(self, x: Any) -> Apply:
        x = pt.as_tensor_variable(x)
        if x.type.ndim < 3 or x.type.dtype != "float32":
            raise DnnTypeError(
                "OneDnnChannelSum: expected a float32 array (batch, channel, spatial...), "
                f"got {x.type}"
            )
        return Apply(self, [x], [pt.tensor(dtype="float32", shape=(x.type.shape[1],))])

    @shape_inference
    def infer_shape(self, node: Apply, shapes: list[Any]) -> list[Any]:
        return [(shapes[0][1],)]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        (x,), (g,) = inputs, cotangents
        spread = g.dimshuffle("x", 0, *("x",) * (x.type.ndim - 2))
        return [pt.broadcast_to(spread, x.shape)]
