"""Methods that add attention."""

from __future__ import annotations

from typing import Any

from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.graph.methods.base import Methods
from dnnops.graph.names import attention_implementation, data_type
from dnnops.graph.nodes.attention import Sdpa, SdpaBackward
from dnnops.graph.tensor import Tensor

__all__ = ["AttentionMethods"]

_NOT_SET: Any = data_type.NOT_SET


class AttentionMethods(Methods):
    """Attention and its gradient."""

    def sdpa(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        is_inference: bool | None = None,
        attn_scale: float | None = None,
        bias: Tensor | None = None,
        use_padding_mask: bool = False,
        seq_len_q: Tensor | None = None,
        seq_len_kv: Tensor | None = None,
        use_causal_mask: bool = False,
        dropout: tuple[float, Tensor, Tensor] | None = None,
        compute_data_type: Any = _NOT_SET,
        name: str = "",
        generate_stats: bool | None = None,
        implementation: Any = attention_implementation.AUTO,
    ) -> list[Tensor | None]:
        """Return scaled dot-product attention.

        Parameters
        ----------
        q, k, v : Tensor
            Queries, keys and values, of (batch, heads, positions, depth). Several heads of queries
            may share one of keys and values.
        is_inference : bool, optional
            The opposite of `generate_stats`.
        attn_scale : float, optional
            Factor of the scores; by default, the reciprocal of the square root of the depth.
        bias : Tensor, optional
            Addend of the scores.
        use_padding_mask : bool
            Whether to hide positions beyond the lengths of sequences.
        seq_len_q, seq_len_kv : Tensor, optional
            Lengths as int32, of (batch, 1, 1, 1).
        use_causal_mask : bool
            Whether to hide positions after the query's.
        dropout : tuple, optional
            The probability, and seed and offset as tensors of int64, of (1, 1, 1, 1).
        generate_stats : bool, optional
            Whether to return the logarithms of the softmax's denominators, which the gradient
            needs.
        implementation : attention_implementation
            Form of the operations.

        Returns
        -------
        list of Tensor or None
            The result and the statistics, None if they are not requested.
        """
        if generate_stats is None:
            if is_inference is None:
                raise DnnTypeError("sdpa: give generate_stats or is_inference")
            generate_stats = not is_inference
        operands = _attention(
            {"Q": q, "K": k, "V": v}, bias, use_padding_mask, seq_len_q, seq_len_kv, dropout
        )
        results: list[Tensor | None] = [
            *self.add_operation(
                Sdpa,
                operands,
                name,
                compute_data_type,
                attn_scale=None if attn_scale is None else float(attn_scale),
                causal_mask=bool(use_causal_mask),
                dropout_probability=None if dropout is None else float(dropout[0]),
                generate_stats=bool(generate_stats),
            )
        ]
        return results if generate_stats else [*results, None]

    def sdpa_backward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        o: Tensor,
        dO: Tensor,
        stats: Tensor,
        attn_scale: float | None = None,
        bias: Tensor | None = None,
        use_padding_mask: bool = False,
        seq_len_q: Tensor | None = None,
        seq_len_kv: Tensor | None = None,
        use_causal_mask: bool = False,
        dropout: tuple[float, Tensor, Tensor] | None = None,
        compute_data_type: Any = _NOT_SET,
        name: str = "",
    ) -> list[Tensor]:
        """Return the gradients of `sdpa` with respect to queries, keys and values.

        `o` and `stats` are its results, and `dO` is the gradient with respect to `o`. See `sdpa`
        for other parameters.
        """
        operands = {"Q": q, "K": k, "V": v, "O": o, "DO": dO, "STATS": stats}
        operands = _attention(operands, bias, use_padding_mask, seq_len_q, seq_len_kv, dropout)
        return self.add_operation(
            SdpaBackward,
            operands,
            name,
            compute_data_type,
            attn_scale=None if attn_scale is None else float(attn_scale),
            causal_mask=bool(use_causal_mask),
            dropout_probability=None if dropout is None else float(dropout[0]),
        )

    scaled_dot_product_flash_attention = sdpa
    scaled_dot_product_flash_attention_backward = sdpa_backward


def _attention(
    operands: dict[str, Any],
    bias: Tensor | None,
    use_padding_mask: bool,
    seq_len_q: Tensor | None,
    seq_len_kv: Tensor | None,
    dropout: Any,
) -> dict[str, Any]:
    if bool(use_padding_mask) != (seq_len_q is not None and seq_len_kv is not None):
        raise DnnValueError(
            "attention: use_padding_mask needs seq_len_q and seq_len_kv, and they need it"
        )
    operands = {**operands, "BIAS": bias, "SEQ_LEN_Q": seq_len_q, "SEQ_LEN_KV": seq_len_kv}
    if dropout is not None:
        try:
            probability, seed, offset = dropout
        except (TypeError, ValueError) as error:
            raise DnnTypeError("attention: dropout must be (probability, seed, offset)") from error
        if not 0 <= float(probability) < 1:
            raise DnnValueError(f"attention: the probability {probability} is not in [0, 1)")
        operands |= {"SEED": seed, "OFFSET": offset}
    return operands
