"""The function that users call for attention."""

from __future__ import annotations

from typing import Any

import pytensor
import pytensor.tensor as pt
from pytensor.tensor.shape import Shape

from dnnops.arguments import probability
from dnnops.errors import DnnValueError
from dnnops.nnet.across_entries import across_entries
from dnnops.nnet.attention.op import Attention
from dnnops.nnet.regularization.dropout import initial_state, state_after
from dnnops.nnet.streams import advance
from dnnops.nnet.validate import switch

__all__ = ["scaled_dot_product_attention"]


def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    mask: Any = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    query_lengths: Any = None,
    key_lengths: Any = None,
    dropout_p: float = 0.0,
    seed: int | None = None,
    state: Any = None,
) -> Any:
    """Compute scaled dot-product attention.

    For each batch entry and head, the result is
    ``softmax(query @ key.swapaxes(2, 3) * scale + mask) @ value``. It is zero for queries that
    may not attend to any key.

    Parameters
    ----------
    query : tensor_like, (batch, heads, queries, depth)
        Queries in float16, float32 or float64.
    key : tensor_like, (batch, heads, keys, depth)
        Keys, with the dtype of `query`.
    value : tensor_like, (batch, heads, keys, value depth)
        Values, with the dtype of `query`.
    mask : tensor_like, optional
        Mask of shape (batch, heads, queries, keys), where any size may be 1. A bool mask is True
        where a query may attend to a key. A mask with the dtype of `query` is added to the scores.
    is_causal : bool
        Whether query ``i`` may attend only to the keys 0 to ``i``. This applies in addition to
        `mask`.
    scale : float, optional
        Factor by which the scores are multiplied; ``depth**-0.5`` by default.
    enable_gqa : bool
        Whether `key` and `value` may have fewer heads than `query`, so that consecutive heads of
        `query` share a head of `key` and `value`. If False, different numbers of heads raise an
        error if they are known when the graph is built.
    query_lengths, key_lengths : int vector, optional
        Number of valid queries and keys in each batch entry; 0 is allowed. The output is zero for
        later queries. Lengths out of range raise an error on the CPU. On a GPU they are not checked
        but clipped to the valid range.
    dropout_p : float, optional
        Probability of dropping a weight, at least 0 and less than 1.
    seed : int, optional
        Seed for dropout, as for `dnnops.nnet.dropout`. Each call of the compiled function draws new
        random numbers.
    state : int64 vector, optional
        State for dropout, as for `dnnops.nnet.dropout`, in place of a seed. The next state is then
        returned as well.

    Returns
    -------
    out : TensorVariable, (batch, heads, queries, value depth)
        Weighted means of the values.
    next_state : TensorVariable
        The state for the next call. Only returned if `state` was given.

    Raises
    ------
    DnnTypeError
        If an operand has an invalid dtype or rank, or if a parameter has an invalid type.
    DnnValueError
        If the shapes don't match, a length is out of range, `scale` is not finite, or `dropout_p`
        is out of bounds. Also if dropout is used without exactly one of `seed` and `state`, or if
        either is given without dropout.

    Notes
    -----
    This function computes the same as ``torch.nn.functional.scaled_dot_product_attention``, and
    also supports lengths. The random numbers differ from those of PyTorch. On a GPU, cuDNN
    generates them; they are also reproducible, but differ from those on the CPU.
    """
    where = "scaled_dot_product_attention"
    switch(where, "enable_gqa", enable_gqa)
    given = {"mask": mask, "query_lengths": query_lengths, "key_lengths": key_lengths}
    given = {name: operand for name, operand in given.items() if operand is not None}
    op = Attention(scale, is_causal, tuple(given), probability(where, "dropout_p", dropout_p))
    if (seed is not None) + (state is not None) != bool(op.dropout):
        wanted = "either a seed or a state" if op.dropout else "no seed or state without dropout"
        raise DnnValueError(f"{where}: give {wanted}; dropout_p is {dropout_p}")
    own = None
    if seed is not None:
        own = pytensor.shared(initial_state(where, seed), shape=(2,))
    if op.dropout:
        given["state"] = state if own is None else own
    node: Any = op.make_node(query, key, value, *given.values())
    heads = [x.type.shape[1] for x in node.inputs[:2]]
    if not enable_gqa and None not in heads and heads[0] != heads[1]:
        raise DnnValueError(
            f"{where}: query has {heads[0]} heads, but key and value have {heads[1]}; pass "
            "enable_gqa=True if several heads of query are to share a head of key and value"
        )
    out = node.outputs[0]
    if not op.dropout:
        return out
    drawn = node.inputs[3 + op.optional.index("state")]
    shape: Any = Shape()(out)
    scores = pt.stack([*(shape[i] for i in range(3)), node.inputs[1].shape[2]])
    next_state = state_after(drawn, [across_entries(pt.prod(scores, dtype="int64"))])
    if own is None:
        return out, next_state
    advance(own, next_state)
    return out
