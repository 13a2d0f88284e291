"""Attention in float32 with tiled dnnops kernels, which never store the scores."""

from __future__ import annotations

from typing import Any

from pytensor.graph.basic import Variable

import dnnops.gpu.kernels  # noqa: F401 - registers what C code calls
from dnnops.arguments import switch_or_flag
from dnnops.gpu.attention.base import GpuAttentionBase, GpuAttentionForward, device_arrays
from dnnops.gpu.library import GPU_TILES
from dnnops.nnet.attention.op import Attention, AttentionGrad
from dnnops.nnet.validate import switch
from dnnops.runtime.implementations import BuildContext, implements

__all__ = ["MOST_NUMBERS", "GpuTiledAttention", "GpuTiledAttentionGrad"]

#: The most numbers of a key and a value together for which rewrites use the kernels. Those of the
#: gradient hold both in registers.
MOST_NUMBERS = 384


class _GpuTiledAttentionBase(GpuAttentionBase):
    """Base class of tiled attention and its gradient; the results have the operands' dtype."""

    function = "dnnops_cudnn_attention_tiles"
    dtypes = ("float32",)
    allow_tf32: bool

    @classmethod
    def build(cls, op: Any, inputs: list[Any], context: BuildContext) -> list[Variable] | None:
        given = dict(zip(op.operands, inputs, strict=True))
        depths = [given[operand].type.shape[3] for operand in ("query", "value")]
        if op.dropout or given["query"].type.dtype not in cls.dtypes:
            return None
        # An unknown depth may be one that only products support.
        if None in depths or sum(-(-depth // 32) * 32 for depth in depths) > MOST_NUMBERS:
            return None
        return cls(op.scale, op.is_causal, op.optional).make_node(*inputs).outputs

    def parameters(self) -> list[int]:
        return [*super().parameters(), int(self.allow_tf32)]

    @property
    def deterministic(self) -> bool:
        """Always True: every sum is added by one block, in the same order."""
        return True


@implements(Attention, on=GPU_TILES, operands=device_arrays)
class GpuTiledAttention(_GpuTiledAttentionBase, GpuAttentionForward):
    """`Attention` in float32, by tiles.

    Called as ``GpuTiledAttention(scale, is_causal, optional)(query, key, value, ...)``. Depths are
    at most 256. The memory for the scores is that of a tile, in registers. A query without allowed
    keys has an output of zeros.

    Parameters
    ----------
    scale : float or None
        Factor by which the scores are multiplied. None means ``depth**-0.5``.
    is_causal : bool
        Whether query ``i`` attends only to the keys 0 to ``i``.
    optional : sequence of str
        The operands after `value`: some of "mask", "query_lengths" and "key_lengths".
    allow_tf32 : bool, optional
        Whether operands of products are rounded to TF32, for speed. If not, each is the sum of two
        TF32 numbers with 21 bits in total. Default: the flag ``dnn.allow_tf32``.
    with_stats : bool
        Whether the Op returns the statistics, which its gradient takes. Compiled functions drop
        them if nothing uses them.

    References
    ----------
    T. Dao, "FlashAttention-2: Faster attention with better parallelism and work partitioning",
    arXiv:2307.08691.
    """

    __props__ = ("scale", "is_causal", "optional", "allow_tf32", "with_stats")

    abstract_class = Attention

    def __init__(
        self,
        scale: float | None = None,
        is_causal: bool = False,
        optional: Any = (),
        allow_tf32: bool | None = None,
        with_stats: bool = True,
    ):
        super().__init__(scale, is_causal, optional)
        name = type(self).__name__
        self.allow_tf32 = switch_or_flag(name, "allow_tf32", allow_tf32, "dnn.allow_tf32")
        self.with_stats = switch(name, "with_stats", with_stats)
        self.results = Attention.results if self.with_stats else Attention.results[:1]

    def gradient_op(self) -> GpuAttentionBase:
        return GpuTiledAttentionGrad(self.scale, self.is_causal, self.optional, self.allow_tf32)


@implements(AttentionGrad, on=GPU_TILES, operands=device_arrays)
class GpuTiledAttentionGrad(_GpuTiledAttentionBase):
    """`AttentionGrad` in float32, by tiles.

    Called as ``GpuTiledAttentionGrad(scale, is_causal, optional)(query, key, value, ..., out,
    stats, gout)``. One kernel computes the gradient with respect to the query, another those with
    respect to keys and values. See `GpuTiledAttention` for the parameters.
    """

    __props__ = ("scale", "is_causal", "optional", "allow_tf32")

    last_operands = AttentionGrad.last_operands
    results = AttentionGrad.results
    is_gradient = True
    abstract_class = AttentionGrad

    def __init__(
        self,
        scale: float | None = None,
        is_causal: bool = False,
        optional: Any = (),
        allow_tf32: bool | None = None,
    ):
        super().__init__(scale, is_causal, optional)
        self.allow_tf32 = switch_or_flag(
            type(self).__name__, "allow_tf32", allow_tf32, "dnn.allow_tf32"
        )
