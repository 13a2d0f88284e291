"""Attention of several heads, and the layer of a transformer's encoder."""

from __future__ import annotations

from typing import Any

from dnnops import nnet
from dnnops.arguments import one_of, probability, switch
from dnnops.errors import DnnValueError
from dnnops.layers.dense import Dropout, Linear
from dnnops.layers.images import size
from dnnops.layers.initializers import constant, glorot_uniform
from dnnops.layers.layer import Layer
from dnnops.layers.normalization import LayerNorm
from dnnops.nnet.validate import float_tensor

__all__ = ["MultiHeadAttention", "TransformerEncoderLayer"]


class MultiHeadAttention(Layer):
    """Attention of several heads, with projections of queries, keys, values and the result.

    Parameters
    ----------
    features : int
        Number of features of the sequences.
    heads : int
        Number of heads, which must divide `features`.
    dropout : float
        Probability that a weight is set to zero in training.
    bias : bool
        Whether the projections have biases.
    dtype, rng
        See `Layer`.

    Raises
    ------
    DnnTypeError, DnnValueError
        If an argument is invalid.

    Notes
    -----
    Names and shapes of the parameters are those of ``torch.nn.MultiheadAttention``, but sequences
    always have the shape (batch, steps, features).

    Attributes
    ----------
    in_proj_weight : SharedVariable, (3 * features, features)
        The projections of queries, keys and values.
    in_proj_bias : SharedVariable of shape (3 * features,), or None
    out_proj : Linear

    References
    ----------
    Vaswani et al., Attention Is All You Need (2017).
    """

    takes_own_dtype = True
    in_proj_weight: Any
    in_proj_bias: Any

    def __init__(
        self,
        features: int,
        heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        *,
        dtype: str | None = None,
        rng: Any = None,
    ):
        super().__init__(dtype, rng)
        where = self._name()
        self.features = size(where, "features", features)
        self.heads = size(where, "heads", heads)
        if self.features % self.heads:
            raise DnnValueError(
                f"{where}: {self.heads} heads must divide the {self.features} features"
            )
        self.dropout = probability(where, "dropout", dropout)
        self.parameter("in_proj_weight", (3 * self.features, self.features), glorot_uniform())
        self.in_proj_bias = None
        if switch(where, "bias", bias):
            self.parameter("in_proj_bias", (3 * self.features,), constant(0))
        self.out_proj = Linear(self.features, self.features, bias, dtype=self.dtype, rng=self.rng)
        if bias:
            self.out_proj.bias.set_value(self.out_proj.bias.get_value() * 0)

    @property
    def is_random(self) -> bool:
        return self.dropout > 0

    def _projected(self, number: int, x: Any) -> Any:
        """Project a sequence; return its heads, (batch, heads, steps, features of a head)."""
        rows = slice(number * self.features, (number + 1) * self.features)
        x = x @ self.in_proj_weight[rows].T
        if self.in_proj_bias is not None:
            x = x + self.in_proj_bias[rows]
        return self._heads(x)

    def _heads(self, x: Any) -> Any:
        shape = (x.shape[0], x.shape[1], self.heads, self.features // self.heads)
        return x.reshape(shape).transpose(0, 2, 1, 3)

    def forward(
        self,
        query: Any,
        key: Any = None,
        value: Any = None,
        *,
        mask: Any = None,
        is_causal: bool = False,
        key_lengths: Any = None,
    ) -> Any:
        """Attend.

        Parameters
        ----------
        query : tensor_like, (batch, steps, features)
        key, value : tensor_like, (batch, other steps, features), optional
            By default, `query` and `key`.
        mask, is_causal, key_lengths
            See `dnnops.nnet.scaled_dot_product_attention`.

        Returns
        -------
        TensorVariable, (batch, steps, features)

        Raises
        ------
        DnnTypeError, DnnValueError
            As for `dnnops.nnet.scaled_dot_product_attention`.
        """
        where = self._name()
        query = float_tensor(where, "query", query, 3)
        if key is None and value is None:
            # One product for all three.
            x = query @ self.in_proj_weight.T
            if self.in_proj_bias is not None:
                x = x + self.in_proj_bias
            n = self.features
            q, k, v = (self._heads(x[:, :, i * n : (i + 1) * n]) for i in range(3))
        else:
            key = query if key is None else float_tensor(where, "key", key, 3)
            value = key if value is None else float_tensor(where, "value", value, 3)
            q, k, v = (self._projected(i, x) for i, x in enumerate((query, key, value)))
        dropped = self.dropout if self.training else 0.0
        out = nnet.scaled_dot_product_attention(
            q,
            k,
            v,
            mask=mask,
            is_causal=is_causal,
            key_lengths=key_lengths,
            dropout_p=dropped,
            seed=self.draw_seed() if dropped else None,
        )
        joined = out.transpose(0, 2, 1, 3).reshape((query.shape[0], query.shape[1], self.features))
        return self.out_proj(joined)

    def describe(self) -> str:
        return f"({self.features}, {self.heads} heads)"


class TransformerEncoderLayer(Layer):
    """A layer of a transformer's encoder: attention and two dense layers, with normalizations.

    Parameters
    ----------
    features : int
        Number of features of the sequences.
    heads : int
        Number of heads, which must divide `features`.
    hidden : int
        Number of units between the two dense layers.
    dropout : float
        Probability of dropout in training: of attention weights, hidden units and results.
    activation : {'relu', 'gelu'}
        Activation of the hidden units.
    eps : float
        Constant of the normalizations.
    norm_first : bool
        Whether to normalize before attention and dense layers, instead of after them.
    bias : bool
        Whether projections, dense layers and normalizations have biases.
    dtype, rng
        See `Layer`.

    Raises
    ------
    DnnTypeError, DnnValueError
        If an argument is invalid.

    Notes
    -----
    Names and shapes of the parameters are those of ``torch.nn.TransformerEncoderLayer``, but
    sequences always have the shape (batch, steps, features).
    """

    def __init__(
        self,
        features: int,
        heads: int,
        hidden: int = 2048,
        dropout: float = 0.1,
        activation: str = "relu",
        eps: float = 1e-5,
        norm_first: bool = False,
        bias: bool = True,
        *,
        dtype: str | None = None,
        rng: Any = None,
    ):
        super().__init__(dtype, rng)
        where = self._name()
        words = {"relu": nnet.relu, "gelu": nnet.gelu}
        self.activation = one_of(where, "activation", activation, words)
        self._act = words[self.activation]
        self.norm_first = switch(where, "norm_first", norm_first)
        options: dict[str, Any] = {"dtype": self.dtype, "rng": self.rng}
        self.self_attn = MultiHeadAttention(features, heads, dropout, bias, **options)
        self.linear1 = Linear(features, hidden, bias, **options)
        self.linear2 = Linear(hidden, features, bias, **options)
        self.norm1 = LayerNorm(features, eps, bias=bias, dtype=self.dtype)
        self.norm2 = LayerNorm(features, eps, bias=bias, dtype=self.dtype)
        self.dropout, self.dropout1, self.dropout2 = (
            Dropout(dropout, rng=self.rng) for _ in range(3)
        )

    def forward(
        self, x: Any, *, mask: Any = None, is_causal: bool = False, key_lengths: Any = None
    ) -> Any:
        """Encode sequences of shape (batch, steps, features); see `MultiHeadAttention.forward`."""
        masks = {"mask": mask, "is_causal": is_causal, "key_lengths": key_lengths}

        def attended(x: Any) -> Any:
            return self.dropout1(self.self_attn(x, **masks))

        def dense(x: Any) -> Any:
            hidden = self.dropout(self._act(self.linear1(x)))
            return self.dropout2(self.linear2(hidden))

        if self.norm_first:
            x = x + attended(self.norm1(x))
            return x + dense(self.norm2(x))
        x = self.norm1(x + attended(x))
        return self.norm2(x + dense(x))

    def describe(self) -> str:
        attention, dense = self.self_attn, self.linear1
        return f"({attention.features}, {attention.heads} heads, {dense.output_size})"
