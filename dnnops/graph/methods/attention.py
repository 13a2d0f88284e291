"""Methods that add attention."""

from __future__ import annotations

from typing import Any

from dnnops.errors import DnnNotSupportedError, DnnTypeError, DnnValueError
from dnnops.graph.methods.base import Methods
from dnnops.graph.names import (
    as_member,
    attention_implementation,
    data_type,
    diagonal_alignment,
)
from dnnops.graph.nodes.attention import Sdpa, SdpaBackward
from dnnops.graph.tensors import Tensor

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
        use_alibi_mask: bool = False,
        use_padding_mask: bool = False,
        seq_len_q: Tensor | None = None,
        seq_len_kv: Tensor | None = None,
        use_causal_mask: bool = False,
        use_causal_mask_bottom_right: bool = False,
        sliding_window_length: int | None = None,
        diagonal_alignment: Any = diagonal_alignment.TOP_LEFT,
        diagonal_band_left_bound: int | None = None,
        diagonal_band_right_bound: int | None = None,
        dropout: tuple[float, Tensor, Tensor] | None = None,
        rng_dump: None = None,
        paged_attention_k_table: None = None,
        paged_attention_v_table: None = None,
        paged_attention_max_seq_len_kv: None = None,
        compute_data_type: Any = _NOT_SET,
        name: str = "",
        score_mod: None = None,
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
            The result and the statistics, None if they are not requested. For queries beyond a
            length, the statistics are minus infinity; their results are zero, except that some
            engines do not write them.

        Raises
        ------
        DnnNotSupportedError
            For another band, positional biases (ALiBi), paged memory, a function of the scores, or
            if `k` and `v` are the same tensor.

        Notes
        -----
        The other parameters are those of cuDNN's frontend. Of the bands around the diagonal, only
        that of ``use_causal_mask`` is supported, which ``diagonal_band_right_bound=0`` requests,
        too.
        """
        as_member("sdpa", "implementation", implementation, attention_implementation)
        is_causal = _is_causal(
            use_causal_mask,
            use_causal_mask_bottom_right,
            sliding_window_length,
            diagonal_alignment,
            diagonal_band_left_bound,
            diagonal_band_right_bound,
        )
        _refuse(
            use_alibi_mask=use_alibi_mask,
            rng_dump=rng_dump,
            paged_attention_k_table=paged_attention_k_table,
            paged_attention_v_table=paged_attention_v_table,
            paged_attention_max_seq_len_kv=paged_attention_max_seq_len_kv,
            score_mod=score_mod,
        )
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
                attn_scale=attn_scale,
                causal_mask=is_causal,
                dropout_probability=None if dropout is None else dropout[0],
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
        dBias: None = None,
        use_alibi_mask: bool = False,
        use_padding_mask: bool = False,
        seq_len_q: Tensor | None = None,
        seq_len_kv: Tensor | None = None,
        max_total_seq_len_q: None = None,
        max_total_seq_len_kv: None = None,
        use_causal_mask: bool = False,
        use_causal_mask_bottom_right: bool = False,
        sliding_window_length: int | None = None,
        diagonal_alignment: Any = diagonal_alignment.TOP_LEFT,
        diagonal_band_left_bound: int | None = None,
        diagonal_band_right_bound: int | None = None,
        dropout: tuple[float, Tensor, Tensor] | None = None,
        rng_dump: None = None,
        use_deterministic_algorithm: bool = False,
        compute_data_type: Any = _NOT_SET,
        name: str = "",
    ) -> list[Tensor]:
        """Return the gradients of `sdpa` with respect to queries, keys and values.

        `o` and `stats` are its results, and `dO` is the gradient with respect to `o`. See `sdpa`
        for other parameters. Gradients with respect to the bias, and a choice of deterministic
        algorithms other than by notes, are not supported.
        """
        is_causal = _is_causal(
            use_causal_mask,
            use_causal_mask_bottom_right,
            sliding_window_length,
            diagonal_alignment,
            diagonal_band_left_bound,
            diagonal_band_right_bound,
        )
        _refuse(
            dBias=dBias,
            use_alibi_mask=use_alibi_mask,
            max_total_seq_len_q=max_total_seq_len_q,
            max_total_seq_len_kv=max_total_seq_len_kv,
            rng_dump=rng_dump,
            use_deterministic_algorithm=use_deterministic_algorithm,
        )
        operands = {"Q": q, "K": k, "V": v, "O": o, "DO": dO, "STATS": stats}
        operands = _attention(operands, bias, use_padding_mask, seq_len_q, seq_len_kv, dropout)
        return self.add_operation(
            SdpaBackward,
            operands,
            name,
            compute_data_type,
            attn_scale=attn_scale,
            causal_mask=is_causal,
            dropout_probability=None if dropout is None else dropout[0],
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
            _, seed, offset = dropout
        except (TypeError, ValueError) as error:
            raise DnnTypeError("attention: dropout must be (probability, seed, offset)") from error
        operands |= {"SEED": seed, "OFFSET": offset}
    return operands


def _refuse(**parameters: Any) -> None:
    """Raise DnnNotSupportedError for parameters that are given."""
    for name, value in parameters.items():
        if value is not None and value is not False:
            raise DnnNotSupportedError(f"attention: {name} is not supported")


def _is_causal(
    use_causal_mask: bool,
    bottom_right: bool,
    window: int | None,
    alignment: Any,
    left: int | None,
    right: int | None,
) -> bool:
    """Return whether positions after the query's are hidden, the only band that is supported."""
    as_member("attention", "diagonal_alignment", alignment, diagonal_alignment)
    is_causal = bool(use_causal_mask) or right is not None
    at_bottom = bottom_right or alignment is diagonal_alignment.BOTTOM_RIGHT
    if window is not None or left is not None or right not in (None, 0) or at_bottom:
        raise DnnNotSupportedError(
            "attention: of the bands around the diagonal, only that of use_causal_mask is supported"
        )
    return is_causal
