"""Scaled dot-product attention and its gradient with cuDNN's fused engines."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import disconnected_type
from pytensor.graph.basic import Apply, Variable

from dnnops.arguments import switch_or_flag
from dnnops.config import flag_value
from dnnops.errors import DnnNotSupportedError, DnnTypeError
from dnnops.gpu.base import (
    GPU_CUDNN,
    TAKES_ROWS,
    as_gradient,
    device_operand,
    device_operands,
    gradient_like,
    version_to_rewrite_for,
)
from dnnops.gpu.derivatives import GpuAbstractOp
from dnnops.gpuarray.op import infer_device, is_on_device
from dnnops.gpuarray.transfer import GpuCast, cast
from dnnops.gpuarray.type import GpuArrayType
from dnnops.nnet.attention.op import OPTIONAL, Attention, AttentionBase, AttentionGrad
from dnnops.nnet.expressions import is_connected
from dnnops.nnet.optional_result import OptionalResultOp
from dnnops.nnet.regularization.dropout import state_vector
from dnnops.nnet.validate import named_operands, switch
from dnnops.runtime.implementations import BuildContext, implements

__all__ = ["DTYPES", "MAX_DEPTH", "GpuDnnAttention", "GpuDnnAttentionBase", "GpuDnnAttentionGrad"]

#: Dtypes that cuDNN's fused engines support.
DTYPES = ("float16", "bfloat16")
MAX_DEPTH = 256

_LENGTHS = ("query_lengths", "key_lengths")
# Since cuDNN 9.6, gradients do not require cleared buffers. They are wrong in 9.10.0 and 9.10.1.
_FIRST_ATTENTION = 90600
_WRONG_ATTENTION = (91000, 91001)


def _narrow(x: Any) -> Any:
    """Return the bfloat16 array that was widened to float32 because the host has no bfloat16."""
    node = x.owner
    is_wide = node is not None and isinstance(node.op, GpuCast) and node.op.dtype == "float32"
    return node.inputs[0] if is_wide else x


def _arrays(node: Apply) -> list[int]:
    return [i for i, operand in enumerate(node.op.operands) if operand != "state"]


def _is_half(node: Apply) -> bool:
    dtype = node.inputs[0].type.dtype
    return dtype == "float16" or (dtype == "float32" and _mixed_dtype() is not None)


def _mixed_dtype() -> str | None:
    """Return the dtype in which float32 attention runs, or None if it stays float32."""
    dtype = flag_value("dnn.mixed_precision")
    return None if dtype == "off" else dtype


class GpuDnnAttentionBase(GpuAbstractOp, AttentionBase):
    """Base class of attention and its gradient on cuDNN.

    Operands are float16 or bfloat16. They can have any strides as long as the last axis is dense.
    Depths are at most 256; multiples of 8 are fastest. Dropout uses cuDNN's random number
    generator, so derivatives that `GpuDnnAttentionGrad` doesn't compute, such as second
    derivatives, raise `DnnNotSupportedError`. See `AttentionBase` for the parameters.
    """

    function = "dnnops_cudnn_attention"
    contiguous_only = True
    is_gradient: ClassVar[bool]
    #: Whether attention returns the statistics that its gradient takes.
    with_stats: bool = True
    #: How to compute the gradient: with the dnnops kernel (1), with cuDNN (2), or with the one that
    #: suits the shapes (0). Tests and timings that compare the two set it.
    path: ClassVar[int] = 0
    abstract_class: ClassVar[type[AttentionBase]]

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

    def make_node(self, *inputs: Any) -> Apply:
        name = type(self).__name__
        given = named_operands(name, self.operands, inputs)
        arrays = [o for o in self.operands if o not in (*OPTIONAL, "stats")]
        if "mask" in given and getattr(given["mask"], "dtype", None) != "bool":
            arrays.append("mask")
        devices = [x for x in given.values() if is_on_device(x)]
        device = infer_device(*devices) if devices else 0
        moved = {o: device_operand(name, o, x, device) for o, x in given.items() if o != "state"}
        floats = device_operands(name, 4, **{o: moved[o] for o in arrays})
        moved |= dict(zip(arrays, floats, strict=True))
        dtype = moved["query"].type.dtype
        if dtype not in DTYPES:
            raise DnnTypeError(
                f"{name}: cuDNN's attention supports {' and '.join(DTYPES)}, got {dtype}; the"
                " function scaled_dot_product_attention supports any floating-point dtype"
            )
        expected = {"mask": ("bool", 4), "stats": ("float32", 3)}
        expected |= dict.fromkeys(_LENGTHS, ("int64", 1))
        for operand, (wanted, ndim) in expected.items():
            if operand not in moved or operand in arrays:
                continue
            x = moved[operand]
            if operand in _LENGTHS and x.type.dtype in pt.type.integer_dtypes:
                x = moved[operand] = cast(x, "int64")
            if x.type.dtype != wanted or x.type.ndim != ndim:
                raise DnnTypeError(
                    f"{name}: {operand} must have {ndim} dimensions and dtype {wanted}, got"
                    f" {x.type}"
                )
        shapes = self._shapes({o: x.type.shape for o, x in moved.items()})
        if "state" in given:  # the state stays on the host
            moved["state"] = state_vector(name, given["state"])
        results = [
            GpuArrayType("float32" if r == "stats" else dtype, tuple(shapes[r]), device)()
            for r in self.results
        ]
        return Apply(self, [moved[operand] for operand in self.operands], results)

    def parameters(self) -> list[int]:
        scale, dropout = np.array([self.scale or 0.0, self.dropout]).view("int64").tolist()
        given = sum(1 << OPTIONAL.index(name) for name in self.optional)
        return [
            scale,
            int(self.scale is not None),
            int(self.is_causal),
            given,
            dropout,
            int(self.is_gradient),
            int(self.deterministic),
            int(self.with_stats),
            self.path,
        ]

    @property
    def deterministic(self) -> bool:
        """Whether repeated calls must give identical results."""
        return False

    def _layouts(self, operand: int) -> int:
        rows = self.operands[operand] in ("query", "key", "value", "out", "gout")
        return TAKES_ROWS if rows else super()._layouts(operand)

    def abstract(self) -> AttentionBase:
        """Return the abstract Op that computes the same, without cuDNN's random numbers."""
        if self.dropout:
            raise DnnNotSupportedError(
                f"{type(self).__name__}: with dropout, the output can only be differentiated with"
                " respect to query, key and value, because no other Op draws cuDNN's random numbers"
            )
        return self.abstract_class(self.scale, self.is_causal, self.optional)


@implements(Attention, on=GPU_CUDNN, operands=_arrays, heavy=_is_half)
class GpuDnnAttention(GpuDnnAttentionBase, OptionalResultOp):
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
    """

    __props__ = (*GpuDnnAttentionBase.__props__, "with_stats")

    optional_result = "with_stats"
    is_gradient = False
    abstract_class = Attention

    def __init__(
        self,
        scale: float | None = None,
        is_causal: bool = False,
        optional: Any = (),
        dropout: float = 0.0,
        with_stats: bool = True,
    ):
        super().__init__(scale, is_causal, optional, dropout)
        self.with_stats = switch(type(self).__name__, "with_stats", with_stats)
        self.results = Attention.results if self.with_stats else Attention.results[:1]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Variable]:
        if not self.with_stats:
            # PyTensor's merge can't tell that this node computes the other one's result, too.
            op = self.with_optional_result(True)
            return op.pullback(
                inputs, op.make_node(*inputs).outputs, [*cotangents, disconnected_type()]
            )
        gout, gstats = cotangents
        if is_connected(gstats) or not is_connected(gout) or self._has_mask_gradient(inputs):
            return super().pullback(inputs, outputs, cotangents)
        op = GpuDnnAttentionGrad(self.scale, self.is_causal, self.optional, self.dropout)
        gradients = op.make_node(*inputs, *outputs, gradient_like(gout, inputs[0])).outputs
        rest = [disconnected_type() for _ in inputs[3:]]
        return [*(as_gradient(g) for g in gradients), *rest]

    def _has_mask_gradient(self, inputs: Any) -> bool:
        return "mask" in self.optional and inputs[3].type.dtype != "bool"


@implements(AttentionGrad, on=GPU_CUDNN, operands=_arrays, heavy=_is_half)
class GpuDnnAttentionGrad(GpuDnnAttentionBase):
    """`AttentionGrad` on cuDNN; short sequences without dropout use a dnnops kernel.

    Called as ``GpuDnnAttentionGrad(scale, is_causal, optional)(query, key, value, ..., out, stats,
    gout)``. The dnnops kernel computes in float32, is deterministic and doesn't read ``out``.

    If `is_deterministic` is True, cuDNN engines whose results vary are not used. It defaults to the
    value of the flag ``dnn.deterministic`` when the Op is created. See `AttentionBase` for the
    other parameters.
    """

    __props__ = (*GpuDnnAttentionBase.__props__, "is_deterministic")

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
    ):
        super().__init__(scale, is_causal, optional, dropout)
        self.is_deterministic = switch_or_flag(
            type(self).__name__, "is_deterministic", is_deterministic, "dnn.deterministic"
        )

    @property
    def deterministic(self) -> bool:
        return self.is_deterministic
