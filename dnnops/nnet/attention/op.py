"""Scaled dot-product attention and its gradient.

The Ops in this module define the computation and run in NumPy. Rewrites replace them with Ops that
call a library.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import disconnected_type
from pytensor.graph.basic import Apply, Constant
from pytensor.tensor.variable import TensorVariable

from dnnops.arguments import number, probability, shown
from dnnops.compat import shape_inference
from dnnops.errors import DnnNotSupportedError, DnnTypeError, DnnValueError
from dnnops.nnet.attention.masks import spread_mask, sum_to_mask
from dnnops.nnet.expressions import ExpandableOp, ExpressionOp, is_connected
from dnnops.nnet.regularization.dropout import (
    Dropout,
    random_words,
    state_vector,
)
from dnnops.nnet.validate import (
    accumulator_dtype,
    as_tensor,
    float_tensor,
    merge_shapes,
    named_operands,
    require_same_dtype,
    show_shape,
    switch,
)

__all__ = ["Attention", "AttentionGrad"]

#: The optional operands, in order.
OPTIONAL = ("mask", "query_lengths", "key_lengths", "state")


class AttentionBase(ExpandableOp, ExpressionOp):
    """Base class of `Attention` and `AttentionGrad`.

    Parameters
    ----------
    scale : float or None
        Factor by which the scores are multiplied. None means ``depth**-0.5``.
    is_causal : bool
        Whether query ``i`` attends only to the keys 0 to ``i``.
    optional : sequence of str
        The members of `OPTIONAL` that are operands. ``"state"``, the state of the random numbers,
        is an operand if and only if `dropout` is nonzero, whether or not it is listed.
    dropout : float
        Probability of dropping a weight. The other weights are multiplied by
        ``1 / (1 - dropout)``. The same weights are dropped as by `dnnops.nnet.dropout` on an array
        of all scores.

    Raises
    ------
    DnnTypeError, DnnValueError
        If a parameter is invalid.
    """

    __props__: tuple[str, ...] = ("scale", "is_causal", "optional", "dropout")

    has_pushforwards = False  # PyTensor's batched matrix product lacks one
    #: The operands after the optional ones, and the results.
    last_operands: tuple[str, ...] = ()
    results: tuple[str, ...]

    def __init__(
        self,
        scale: float | None = None,
        is_causal: bool = False,
        optional: Sequence[str] = (),
        dropout: float = 0.0,
    ):
        name = type(self).__name__
        if not set(optional) <= set(OPTIONAL):
            raise DnnValueError(
                f"{name}: optional must be a subset of {OPTIONAL}, got {shown(optional)}"
            )
        self.scale = None if scale is None else number(name, "scale", scale)
        self.is_causal = switch(name, "is_causal", is_causal)
        self.dropout = probability(name, "dropout", dropout)
        given = {*optional} - {"state"} | ({"state"} if self.dropout else set())
        self.optional = tuple(o for o in OPTIONAL if o in given)
        self.operands = ("query", "key", "value", *self.optional, *self.last_operands)

    def make_node(self, *inputs: Any) -> Apply:
        name = type(self).__name__
        given = named_operands(name, self.operands, inputs)
        for operand, value in given.items():
            if operand == "mask":
                given[operand] = _mask(name, value)
            elif operand == "state":
                given[operand] = state_vector(name, value)
            elif operand in OPTIONAL:
                given[operand] = _lengths(name, operand, value)
            else:
                ndim = 3 if operand == "stats" else 4
                given[operand] = float_tensor(name, operand, value, ndim)
        floats = {o: x for o, x in given.items() if o not in (*OPTIONAL, "stats")}
        if "mask" in given and given["mask"].type.dtype != "bool":
            floats["mask"] = given["mask"]
        dtype = require_same_dtype(name, **floats)
        if "stats" in given and given["stats"].type.dtype != self._dtype("stats", dtype):
            raise DnnTypeError(
                f"{name}: stats must have dtype {self._dtype('stats', dtype)} if the other operands"
                f" have dtype {dtype}, got {given['stats'].type.dtype}"
            )
        shapes = self._shapes({o: x.type.shape for o, x in given.items()})
        for operand, of in (("query_lengths", "query"), ("key_lengths", "key")):
            if isinstance(given.get(operand), Constant):
                self._check_lengths(operand, given[operand].data, given[of].type.shape[2])
        results = [
            pt.tensor(dtype=self._dtype(r, dtype), shape=tuple(shapes[r])) for r in self.results
        ]
        return Apply(self, list(given.values()), results)

    @staticmethod
    def _dtype(result: str, dtype: str) -> str:
        """Return the dtype of a result; float16 statistics would make the gradient inaccurate."""
        return accumulator_dtype(dtype).name if result == "stats" else dtype

    @shape_inference
    def infer_shape(self, node: Apply, shapes: Any) -> list[Any]:
        given = dict(zip(self.operands, shapes, strict=True))
        out = (*given["query"][:3], given["value"][3])
        inferred = {"out": out, "stats": out[:3]}
        inferred |= {f"d{operand}": given[operand] for operand in ("query", "key", "value")}
        return [inferred[result] for result in self.results]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        # Derivatives of the gradient flow through the other operands, from which the output and the
        # statistics were computed.
        connected = [
            operand not in ("out", "stats") and x.type.dtype not in ("bool", "int64")
            for operand, x in zip(self.operands, node.inputs, strict=True)
        ]
        return [[is_one] * len(self.results) for is_one in connected]

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        given = dict(zip(self.operands, inputs, strict=True))
        self._shapes({o: x.shape for o, x in given.items()})
        for operand, of in (("query_lengths", "query"), ("key_lengths", "key")):
            if operand in given:
                self._check_lengths(operand, given[operand], given[of].shape[2])
        dtype = accumulator_dtype(inputs[0].dtype)
        arrays = [x.astype(dtype, copy=False) if x.dtype.kind == "f" else x for x in inputs]
        results = self._compute(*arrays)
        for storage, result, variable in zip(output_storage, results, node.outputs, strict=True):
            storage[0] = np.asarray(result, dtype=variable.type.dtype)

    def _expressions(self, *inputs: Any) -> list[Any]:
        dtype = inputs[0].type.dtype
        wide = accumulator_dtype(dtype).name
        results = self._compute(
            *(x if x.type.dtype in ("bool", "int64") else pt.cast(x, wide) for x in inputs)
        )
        return [
            pt.cast(result, self._dtype(name, dtype))
            for name, result in zip(self.results, results, strict=True)
        ]

    # Subclasses compute the results here, from arrays or from variables.
    def _compute(self, *inputs: Any) -> list[Any]:
        raise NotImplementedError

    def _shapes(self, shapes: dict[str, Sequence[Any]]) -> dict[str, Sequence[Any]]:
        """Check the shapes of the operands; return the shapes of the results, as far as known."""
        name = type(self).__name__
        found = ", ".join(f"{o} {show_shape(shape)}" for o, shape in shapes.items())
        query, key, value = (shapes[o] for o in ("query", "key", "value"))

        def same(what: str, *sizes: int | None) -> int | None:
            known = {size for size in sizes if size is not None}
            if len(known) > 1:
                raise DnnValueError(f"{name}: {what} must be the same in all operands, got {found}")
            return known.pop() if known else None

        lengths = [shapes[o][0] for o in ("query_lengths", "key_lengths") if o in shapes]
        batch = same("the batch size", query[0], key[0], value[0], *lengths)
        heads = same("the number of heads of key and value", key[1], value[1])
        keys = same("the number of keys and values", key[2], value[2])
        depth = same("the depth of query and key", query[3], key[3])
        if None not in (query[1], heads) and query[1] % (heads or query[1] + 1):  # type: ignore[operator]
            raise DnnValueError(
                f"{name}: the heads of query must be a multiple of those of key and value, got "
                f"{found}"
            )
        scores = (batch, query[1], query[2], keys)
        for size, other in zip(shapes.get("mask", ()), scores, strict=False):
            if None not in (size, other) and size not in (1, other):
                raise DnnValueError(
                    f"{name}: mask must have shape {show_shape(scores)}, or 1 in place of any size;"
                    f" got {found}"
                )
        out = (batch, query[1], query[2], value[3])
        if "gout" in shapes:
            out = merge_shapes(name, expected=out, out=shapes["out"], gout=shapes["gout"])
            merge_shapes(name, expected=out[:3], stats=shapes["stats"])
        return {
            "out": out,
            "stats": out[:3],
            "dquery": (*out[:3], depth),
            "dkey": (batch, heads, keys, depth),
            "dvalue": (batch, heads, keys, value[3]),
        }

    def _check_lengths(self, operand: str, lengths: np.ndarray, most: int | None) -> None:
        for length in lengths.tolist():
            if length < 0 or (most is not None and length > most):
                bounds = "at least 0" if most is None else f"between 0 and {most}"
                raise DnnValueError(
                    f"{type(self).__name__}: {operand} must be {bounds}, got {length}"
                )

    def _scores(self, given: dict[str, Any]) -> tuple[Any, Any]:
        """Return the scores, minus infinity where masked out, and the scale applied to them."""
        query, key = given["query"], given["key"]
        is_array = isinstance(query, np.ndarray)
        library: Any = np if is_array else pt
        scale: Any = None if self.scale is None else _number(self.scale, query)
        if scale is None:
            depth = query.shape[3]
            # If the depth is 0, all scores are 0 for any finite scale.
            depth = library.maximum(depth, 1)
            scale = float(depth) ** -0.5 if is_array else pt.cast(depth, query.type.dtype) ** -0.5
        scores = _unfolded(_folded(query * scale, key) @ key.swapaxes(2, 3), query)
        rows = library.arange(query.shape[2])[:, None]
        columns = library.arange(key.shape[2])
        allowed = []
        mask = given.get("mask")
        if mask is not None and not is_array:
            mask = spread_mask(mask, [*query.shape[:3], key.shape[2]])
        if mask is not None and str(mask.dtype) == "bool":
            allowed.append(mask)
        elif mask is not None:
            scores = scores + mask
        if self.is_causal:
            allowed.append((columns <= rows)[None, None])
        for operand, places in (("query_lengths", rows), ("key_lengths", columns)):
            if operand in given:
                allowed.append(places < given[operand][:, None, None, None])
        for where in allowed:
            scores = library.where(where, scores, _number(-np.inf, scores))
        return scores, scale

    def _kept(self, given: dict[str, Any], x: Any) -> Any:
        """Apply dropout to `x`, an array or a variable with the shape of the scores."""
        if not self.dropout:
            return x
        if isinstance(x, np.ndarray):
            words = random_words(np.ascontiguousarray(given["state"]), x.size)
            kept = (words >= np.uint32(int(self.dropout * 2**32))).reshape(x.shape)
            return np.where(kept, x * x.dtype.type(1 / (1 - self.dropout)), x.dtype.type(0))
        ones = pt.ones_like(x)
        if "stats" in given:
            # Extra axes of the gradient alone must not change what the forward pass dropped.
            keys = given["key"].sum(axis=(0, 1, 3))
            ones = pt.ones_like(given["stats"])[..., None] * pt.ones_like(keys)
            ones = pt.cast(ones, x.type.dtype)
        factors = Dropout().make_node(ones, self.dropout, given["state"]).outputs[0]
        return x * factors


class Attention(AttentionBase):
    """Compute attention.

    ``Attention(scale, is_causal, optional, dropout)(query, key, value, ...)`` returns the output
    and ``stats``. For each query, ``stats`` holds the logarithm of the sum of the exponentials of
    its scores, or minus infinity if no key is allowed; `AttentionGrad` needs it. See
    `AttentionBase` for the parameters and `scaled_dot_product_attention` for the computation.
    """

    results = ("out", "stats")

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        out, stats = outputs
        gout, gstats = cotangents
        gradients: list[Any] = [disconnected_type() for _ in inputs]
        if is_connected(gstats):
            gradients = super().pullback(inputs, outputs, [disconnected_type(), gstats])
        if is_connected(gout):
            op = AttentionGrad(self.scale, self.is_causal, self.optional, self.dropout)
            terms: list[Any] = list(op.make_node(*inputs, out, stats, gout).outputs)
            if "mask" in self.optional and inputs[3].type.dtype != "bool":
                terms.append(op.mask_gradient(*inputs, out, stats, gout))
            for i, term in enumerate(terms):
                gradients[i] = gradients[i] + term if is_connected(gradients[i]) else term
        return gradients

    def _compute(self, *inputs: Any) -> list[Any]:
        given = dict(zip(self.operands, inputs, strict=True))
        value = given["value"]
        weights, stats = softmax_of_scores(self._scores(given)[0])
        weights = self._kept(given, weights)
        out = _unfolded(_folded(weights, value) @ value, given["query"])
        return [out, stats[:, :, :, 0]]


class AttentionGrad(AttentionBase):
    """Compute the gradients of `Attention` with respect to query, key and value.

    In ``AttentionGrad(scale, is_causal, optional, dropout)(query, ..., out, stats, gout)``, `out`
    and `stats` are the results of `Attention`, and `gout` is the gradient with respect to `out`.
    `out` and `stats` save time in some libraries; the others compute the weights from the scores.
    See `AttentionBase` for the parameters.
    """

    last_operands = ("out", "stats", "gout")
    results = ("dquery", "dkey", "dvalue")

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        if self.dropout:
            # The expressions would use random numbers that differ from those on a GPU.
            raise DnnNotSupportedError(
                f"{type(self).__name__}: attention with dropout has no second derivatives"
            )
        return super().pullback(inputs, outputs, cotangents)

    def mask_gradient(self, *inputs: Any) -> Any:
        """Return the gradient with respect to an additive mask as an expression of all operands."""
        return sum_to_mask(self._weights_and_gradients(inputs)[1], inputs[3])

    def _weights_and_gradients(self, inputs: Any) -> tuple[Any, Any, Any]:
        given = dict(zip(self.operands, inputs, strict=True))
        value, gout = given["value"], given["gout"]
        scores, scale = self._scores(given)
        # Large statistics are too inaccurate: from 1e9 on, float32 numbers are 64 apart, so that
        # exponentials of differences from them would overflow.
        weights, _ = softmax_of_scores(scores)
        by_weights = _unfolded(_folded(gout, value) @ value.swapaxes(2, 3), gout)
        by_weights = self._kept(given, by_weights)
        shared = (weights * by_weights).sum(axis=3, keepdims=True)
        return weights, weights * (by_weights - shared), scale

    def _compute(self, *inputs: Any) -> list[Any]:
        given = dict(zip(self.operands, inputs, strict=True))
        query, key = given["query"], given["key"]
        weights, score_gradient, scale = self._weights_and_gradients(inputs)
        by_scores = _folded(score_gradient, key)
        dquery = _unfolded(by_scores @ key, query) * scale
        dkey = by_scores.swapaxes(2, 3) @ _folded(query * scale, key)
        weights = self._kept(given, weights)
        dvalue = _folded(weights, key).swapaxes(2, 3) @ _folded(given["gout"], key)
        return [dquery, dkey, dvalue]


def softmax_of_scores(scores: Any) -> tuple[Any, Any]:
    """Return the softmax of scores, and the logarithms of the sums of their exponentials.

    Parameters
    ----------
    scores : ndarray or TensorVariable, (batch, heads, queries, keys)
        Scores, minus infinity where they are masked out.

    Returns
    -------
    weights : ndarray or TensorVariable, (batch, heads, queries, keys)
        Zeros for a query that sees no key.
    stats : ndarray or TensorVariable, (batch, heads, queries, 1)
        Minus infinity for such a query.
    """
    library: Any = np if isinstance(scores, np.ndarray) else pt
    largest = _without_infinity(library, _largest_score(scores))
    weights = library.exp(scores - largest)
    total = weights.sum(axis=3, keepdims=True)
    safe = library.where(total > 0, total, _number(1, total))
    stats = library.where(total > 0, library.log(safe) + largest, _number(-np.inf, total))
    return weights / safe, stats


def _folded(x: Any, key: Any) -> Any:
    """Stack the heads of `x` that share a head of `key` along the row axis."""
    if _heads(x) is not None and _heads(x) == _heads(key):
        return x
    batch, heads, rows, columns = x.shape
    shared = key.shape[1]
    # Avoid a division by zero if there are no heads.
    least_one = max(shared, 1) if isinstance(x, np.ndarray) else pt.maximum(shared, 1)
    return x.reshape((batch, shared, heads // least_one * rows, columns))


def _unfolded(x: Any, query: Any) -> Any:
    """Undo `_folded`, restoring the batch, heads and rows of `query`."""
    if _heads(x) is not None and _heads(x) == _heads(query):
        return x
    return x.reshape((*query.shape[:3], x.shape[3]))


def _heads(x: Any) -> int | None:
    """Return the number of heads of `x`, or None if it is not known."""
    return x.shape[1] if isinstance(x, np.ndarray) else x.type.shape[1]


def _largest_score(scores: Any) -> Any:
    """Return the largest score of each query, or minus infinity if there are no keys."""
    if isinstance(scores, np.ndarray):
        return scores.max(axis=3, keepdims=True, initial=-np.inf)
    if not scores.type.shape[3]:  # zero or unknown
        none = pt.full_like(scores[:, :, :, :1].sum(axis=3, keepdims=True), -np.inf)
        scores = pt.concatenate([scores, none], axis=3)
    return scores.max(axis=3, keepdims=True)


def _number(value: float, like: Any) -> np.ndarray:
    """Return a scalar with the dtype of `like`, so that it does not widen expressions."""
    return np.asarray(value, dtype=str(like.dtype))


def _without_infinity(library: Any, x: Any) -> Any:
    """Replace negative infinities with zeros."""
    return (
        library.where(x == -np.inf, _number(0, x), x)
        if library is np
        else pt.switch(pt.eq(x, _number(-np.inf, x)), _number(0, x), x)
    )


def _mask(where: str, value: Any) -> TensorVariable:
    mask = as_tensor(f"{where}: mask must be a tensor", value)
    if mask.type.ndim != 4:
        raise DnnTypeError(
            f"{where}: mask must have 4 dimensions (batch, heads, queries, keys), got "
            f"{mask.type.ndim}"
        )
    return mask if mask.type.dtype == "bool" else float_tensor(where, "mask", mask)


def _lengths(where: str, name: str, value: Any) -> TensorVariable:
    lengths = as_tensor(f"{where}: {name} must be a vector of ints", value)
    if lengths.type.ndim != 1 or lengths.type.dtype not in pt.type.integer_dtypes:
        raise DnnTypeError(f"{where}: {name} must be a vector of ints, got {lengths.type}")
    return lengths if lengths.type.dtype == "int64" else pt.cast(lengths, "int64")
