"""Lift attention and its gradients to cuDNN."""

from __future__ import annotations

from typing import Any

from pytensor.graph.basic import Apply, Variable

from dnnops.gpu.attention import MAX_DEPTH, GpuDnnAttention, GpuDnnAttentionGrad
from dnnops.gpu.base import version_to_rewrite_for
from dnnops.gpuarray.transfer import GpuCast, cast
from dnnops.nnet.attention.op import OPTIONAL, Attention, AttentionGrad
from dnnops.rewriting.gpu.mechanism import Build, register

# Since cuDNN 9.6, gradients do not require cleared buffers. They are wrong in 9.10.0 and 9.10.1.
_FIRST_ATTENTION = 90600
_WRONG_ATTENTION = (91000, 91001)


def _narrow(x: Any) -> Any:
    """Return the bfloat16 array that was widened to float32 because the host has no bfloat16."""
    node = x.owner
    is_wide = node is not None and isinstance(node.op, GpuCast) and node.op.dtype == "float32"
    return node.inputs[0] if is_wide else x


def _build_attention(cls: type) -> Build:
    def build(op: Any, inputs: list[Any]) -> list[Variable] | None:
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
            if any(x.type.dtype != "bfloat16" for x in arrays):
                return None
            for operand, x in given.items():
                is_mask = operand == "mask" and x.type.dtype != "bool"
                if is_mask or operand not in (*OPTIONAL, "stats"):
                    given[operand] = cast(_narrow(x), "bfloat16")
        elif dtype != "float16":
            return None
        made = cls(op.scale, op.is_causal, op.optional, op.dropout).make_node(*given.values())
        if dtype == "float16":
            return made.outputs
        return [cast(out, "float32") for out in made.outputs]

    return build


def _attention_arrays(node: Apply) -> list[int]:
    return [i for i, operand in enumerate(node.op.operands) if operand != "state"]


def _is_narrow(node: Apply) -> bool:
    return node.inputs[0].type.dtype == "float16"


register(Attention, _build_attention(GpuDnnAttention), _attention_arrays, heavy=_is_narrow)
register(AttentionGrad, _build_attention(GpuDnnAttentionGrad), _attention_arrays, heavy=_is_narrow)
