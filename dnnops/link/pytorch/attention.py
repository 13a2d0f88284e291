"""Convert attention to ``torch.nn.functional.scaled_dot_product_attention``."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from dnnops.link.formulas import attention as formulas
from dnnops.link.pytorch import library
from dnnops.link.pytorch.register import converts
from dnnops.nnet import Attention, AttentionGrad


@converts(AttentionGrad)
def attention_gradient(op: AttentionGrad, *operands: Any) -> tuple[Any, Any, Any]:
    """Compute the gradients of attention."""
    formulas.check_shapes(op, dict(zip(op.operands, operands, strict=True)))
    return formulas.attention_gradient(library, op, *operands)


@converts(Attention)
def attention(op: Attention, *operands: Any) -> tuple[Any, Any]:
    """Compute attention.

    With dropout, the formula is used instead of PyTorch's function, since dropout has to use the
    random numbers of dnnops.
    """
    given = dict(zip(op.operands, operands, strict=True))
    formulas.check_shapes(op, given)
    query, key, value = (given[name] for name in ("query", "key", "value"))
    if op.dropout or 0 in (*query.shape, *key.shape, *value.shape):
        return formulas.attention(library, op, *operands)
    allowed = formulas.allowed_keys(library, op, given)
    mask = allowed
    if "mask" in given and given["mask"].dtype == query.dtype:
        mask = given["mask"] if allowed is None else torch.where(allowed, given["mask"], -torch.inf)
        allowed = mask > -torch.inf
    is_causal = op.optional == () and op.is_causal
    scale = formulas.scale_of(op, query)
    if scale < 0:
        # With a causal mask, PyTorch returns NaN.
        query, scale = -query, -scale
    out = functional.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=None if is_causal or mask is None else _broadcast_mask(mask, query, key),
        is_causal=is_causal,
        scale=scale,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    if allowed is not None:
        # The output of a query without allowed keys is zero.
        out = torch.where(allowed.any(dim=3, keepdim=True), out, 0.0)
    # PyTorch's compiler removes the statistics if they are unused.
    return out, formulas.statistics(library, op, given)


def _broadcast_mask(mask: Any, query: Any, key: Any) -> Any:
    return mask.expand(*query.shape[:3], key.shape[2])
