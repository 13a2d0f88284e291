"""Scaled dot-product attention and its gradient with cuDNN's fused engines."""

from __future__ import annotations

from typing import Any

from pytensor.graph.basic import Apply, Variable

from dnnops.arguments import switch_or_flag
from dnnops.config import flag_value
from dnnops.errors import DnnNotSupportedError
from dnnops.gpu.attention.base import GpuAttentionBase, GpuAttentionForward, device_arrays
from dnnops.gpu.library import GPU_CUDNN, version_to_rewrite_for
from dnnops.gpuarray.transfer import GpuCast, cast
from dnnops.nnet.attention.op import OPTIONAL, Attention, AttentionBase, AttentionGrad
from dnnops.nnet.validate import switch
from dnnops.runtime.implementations import BuildContext, implements

__all__ = ["DTYPES", "MAX_DEPTH", "GpuDnnAttention", "GpuDnnAttentionBase", "GpuDnnAttentionGrad"]

#: Dtypes that cuDNN's fused engines support.
DTYPES = ("float16", "bfloat16")
MAX_DEPTH = 256

# Since cuDNN 9.6, gradients do not require cleared buffers. They are wrong in 9.10.0 and 9.10.1.
_FIRST_ATTENTION = 90600
_WRONG_ATTENTION = (91000, 91001)


def _narrow(x: Any) -> Any:
    """Return the bfloat16 array that was widened to float32 because the host has no bfloat16."""
    node = x.owner
    is_wide = node is not None and isinstance(node.op, GpuCast) and node.op.dtype == "float32"
    return node.inputs[0] if is_wide else x


def _is_half(node: Apply) -> bool:
    dtype = node.inputs[0].type.dtype
    return dtype == "float16" or (dtype == "float32" and _mixed_dtype() is not None)


def _mixed_dtype() -> str | None:
    """Return the dtype in which float32 attention runs, or None if it stays float32."""
    dtype = flag_value("dnn.mixed_precision")
    return None if dtype == "off" else dtype


class GpuDnnAttentionBase(GpuAttentionBase):
    """Base class of attention and its gradient on cuDNN.

    Operands are float16 or bfloat16. Depths are at most 256; multiples of 8 are fastest. Dropout
    uses cuDNN's random number generator, so derivatives that `GpuDnnAttentionGrad` doesn't compute,
    such as second derivatives, raise `DnnNotSupportedError`. See `AttentionBase` for the
    parameters.
    """

    function = "dnnops_cudnn_attention"
    dtypes = DTYPES

    @classmethod
    def build(cls, op: Any, inputs: list[Any], context: BuildContext) -> list[Variable] | None:
        given = dict(zip(op.operands, inputs, strict=True))
        depths = [given[operand].type.shape[3] for operand in ("query", "value")]
        version = version_to_rewrite_for()
        if any(depth is not None and depth > MAX_DEPTH for depth in depths):
            return None
        if version is not None and (version < _FIRST_ATTENTION or version in _WRONG_ATTENTION):
            return None
        if op.dropout and "mask" in given and given["mask"].type.dtype != "bool":
            return None  # the mask's gradient is an expression, with other random numbers
        dtype = given["query"].type.dtype
        if dtype == "float32":
            # bfloat16 arrays have the dtype float32 in host types.
            arrays = [_narrow(given[operand]) for operand in ("query", "key", "value")]
            is_bfloat16 = all(x.type.dtype == "bfloat16" for x in arrays)
            half = "bfloat16" if is_bfloat16 else _mixed_dtype()
            if half is None:
                return None
            for operand, x in given.items():
                is_mask = operand == "mask" and x.type.dtype != "bool"
                if is_mask or operand not in (*OPTIONAL, "stats"):
                    given[operand] = cast(_narrow(x), half)
        elif dtype != "float16":
            return None
        made = cls.from_abstract(op).make_node(*given.values())
        if dtype == "float16":
            return made.outputs
        return [cast(out, "float32") for out in made.outputs]

    def abstract_op(self) -> AttentionBase:
        """Return the abstract Op that computes the same; there is none with dropout."""
        if self.dropout:
            raise DnnNotSupportedError(
                f"{type(self).__name__}: with dropout, there is no counterpart on the host, and the"
                " output can only be differentiated with respect to query, key and value, because"
                " no other Op draws cuDNN's random numbers"
            )
        return super().abstract_op()


@implements(Attention, on=GPU_CUDNN, operands=device_arrays, heavy=_is_half)
class GpuDnnAttention(GpuDnnAttentionBase, GpuAttentionForward):
    """`Attention` on cuDNN.

    Called as ``GpuDnnAttention(scale, is_causal, optional)(query, key, value, ...)``. The second
    result holds the statistics, in float32.

    Parameters
    ----------
    scale, is_causal, optional, dropout
        See `AttentionBase`.
    with_stats : bool
        Whether the Op returns the statistics. Compiled functions drop them if nothing uses them,
        for example if no gradient is computed.
    from_device : bool
        Whether the state of the random numbers is on the device. Only then can a CUDA graph draw
        other numbers each time; rewrites move it there.
    """

    __props__ = (*GpuDnnAttentionBase.__props__, "with_stats", "from_device")

    abstract_class = Attention

    def __init__(
        self,
        scale: float | None = None,
        is_causal: bool = False,
        optional: Any = (),
        dropout: float = 0.0,
        with_stats: bool = True,
        from_device: bool = False,
    ):
        super().__init__(scale, is_causal, optional, dropout)
        name = type(self).__name__
        self.with_stats = switch(name, "with_stats", with_stats)
        self.from_device = switch(name, "from_device", from_device)
        self.results = Attention.results if self.with_stats else Attention.results[:1]

    def gradient_op(self) -> GpuAttentionBase:
        return GpuDnnAttentionGrad(
            self.scale, self.is_causal, self.optional, self.dropout, from_device=self.from_device
        )


@implements(AttentionGrad, on=GPU_CUDNN, operands=device_arrays, heavy=_is_half)
class GpuDnnAttentionGrad(GpuDnnAttentionBase):
    """`AttentionGrad` on cuDNN; short sequences without dropout use a dnnops kernel.

    Called as ``GpuDnnAttentionGrad(scale, is_causal, optional)(query, key, value, ..., out, stats,
    gout)``. The dnnops kernel computes in float32, is deterministic and doesn't read ``out`` and
    ``stats``.

    If `is_deterministic` is True, cuDNN engines whose results vary are not used. It defaults to the
    value of the flag ``dnn.deterministic`` when the Op is created. See `AttentionBase` and
    `GpuDnnAttention` for the other parameters.
    """

    __props__ = (*GpuDnnAttentionBase.__props__, "is_deterministic", "from_device")

    last_operands = AttentionGrad.last_operands
    results = AttentionGrad.results
    is_gradient = True
    abstract_class = AttentionGrad

    def __init__(
        self,
        scale: float | None = None,
        is_causal: bool = False,
        optional: Any = (),
        dropout: float = 0.0,
        is_deterministic: bool | None = None,
        from_device: bool = False,
    ):
        super().__init__(scale, is_causal, optional, dropout)
        self.from_device = switch(type(self).__name__, "from_device", from_device)
        self.is_deterministic = switch_or_flag(
            type(self).__name__, "is_deterministic", is_deterministic, "dnn.deterministic"
        )

    @property
    def deterministic(self) -> bool:
        return self.is_deterministic
