"""The sum of an array and the gradient of max pooling, computed by the kernel of the gradient.

`dnnops.rewriting.fuse.pool_sum` inserts this Op.
"""

from __future__ import annotations

from math import prod
from typing import Any

from pytensor.graph.basic import Apply

from dnnops.dtypes import item_bytes
from dnnops.gpu.base import TAKES_CHANNELS_LAST, TAKES_CONTIGUOUS, TAKES_PIXELS
from dnnops.gpu.derivatives import GpuExpressionOp
from dnnops.gpu.pool import GpuDnnPoolGrad
from dnnops.nnet.validate import static_vector

__all__ = ["GpuDnnPoolGradSum", "has_kernel"]

# As in c_code/gpu/pool/pool_cells.hpp.
_VECTOR_BYTES = 16
_MOST_CELL_PIXELS, _MOST_PATCH_PIXELS = 16, 27


def has_kernel(node: Apply) -> bool:
    """Return whether a dnnops kernel computes a gradient of pooling, as far as types can tell.

    Parameters
    ----------
    node : Apply
        Node of `GpuDnnPoolGrad`.

    Returns
    -------
    bool
        False if the windows are not constant. True if only an array that is not aligned, or that
        is very large, would make the Op call cuDNN.
    """
    op, x = node.op, node.inputs[0]
    if op.mode != "max" or op.memory_format != "channels_last":
        return False
    channels = x.type.shape[1]
    if channels is not None and channels * item_bytes(x.type.dtype) % _VECTOR_BYTES:
        return False
    ws, stride = (static_vector(v, op.ndim) for v in node.inputs[-3:-1])
    if None in (*ws, *stride):
        return False
    patch = ((w - 1) // s * s + w for w, s in zip(ws, stride, strict=True))
    return prod(stride) <= _MOST_CELL_PIXELS and prod(patch) <= _MOST_PATCH_PIXELS


class GpuDnnPoolGradSum(GpuExpressionOp, GpuDnnPoolGrad):
    """`GpuDnnPoolGrad` plus an array: ``op(x, out, gz, addend, ws, stride, pad)``.

    `addend` has the shape and dtype of `x`. With ``memory_format="channels_last"``, it may be some
    channels of a larger array: its pixels need not be adjacent in memory. The kernel for maxima
    adds before it rounds. Where cuDNN computes the gradient, it adds to a copy of `addend`.

    See `GpuDnnPoolBase` for the parameters.
    """

    operands = ("x", "maxout", "gz", "addend")
    connected = ("x", "gz", "addend")
    adds = True

    def _layouts(self, operand: int) -> int:
        if operand != self.operands.index("addend"):
            return super()._layouts(operand)
        if self.memory_format == "contiguous":
            return TAKES_CONTIGUOUS
        return TAKES_CHANNELS_LAST | TAKES_PIXELS

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        return GpuDnnPoolGrad.connection_pattern(self, node)

    def _expressions(self, *inputs: Any) -> list[Any]:
        x, out, gz, addend, *vectors = inputs
        (gradient,) = GpuDnnPoolGrad.host_expressions(self, x, out, gz, *vectors)
        return [gradient + addend]
