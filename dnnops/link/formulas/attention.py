"""Attention and its gradient, computed with matrix products, a softmax and masks."""

from __future__ import annotations

from typing import Any

from dnnops.errors import DnnValueError
from dnnops.link.formulas.dropout import kept_elements
from dnnops.link.formulas.shapes import require_same_shape
from dnnops.nnet.validate import show_shape

__all__ = [
    "allowed_keys",
    "attention",
    "attention_gradient",
    "check_shapes",
    "scale_of",
    "statistics",
]


def check_shapes(op: Any, given: dict[str, Any]) -> None:
    """Raise the Op's exception if the shapes don't match, even if they would broadcast."""
    query, key, value = (given[name].shape for name in ("query", "key", "value"))
    batch, heads, rows, depth = query
    require_same_shape(op, (batch, depth), (key[0], key[3]))
    require_same_shape(op, key[:3], value[:3])
    if heads % (key[1] or heads + 1):
        raise DnnValueError(
            f"{op}: the {heads} heads of query are not a multiple of the {key[1]} heads of key"
        )
    for name in ("query_lengths", "key_lengths"):
        if name in given:
            require_same_shape(op, (batch,), given[name].shape)
    if "mask" in given:
        scores = (batch, heads, rows, key[2])
        for size, other in zip(given["mask"].shape, scores, strict=True):
            if size not in (1, other):
                raise DnnValueError(f"{op}: the mask cannot be broadcast to {show_shape(scores)}")
    if "gout" in given:
        out = (batch, heads, rows, value[3])
        require_same_shape(op, out, given["out"].shape, given["gout"].shape)
        require_same_shape(op, out[:3], given["stats"].shape)


def scale_of(op: Any, query: Any) -> float:
    """Return the scale factor of the scores."""
    return max(query.shape[3], 1) ** -0.5 if op.scale is None else op.scale


def allowed_keys(lib: Any, op: Any, given: dict[str, Any]) -> Any:
    """Return whether each query may attend to each key, in a shape that broadcasts to the scores.

    Additive masks are not included. Return None if nothing else excludes any key.
    """
    rows = lib.arange(given["query"].shape[2])[:, None]
    columns = lib.arange(given["key"].shape[2])
    conditions = []
    if "mask" in given and not _is_added(lib, given):
        conditions.append(given["mask"])
    if op.is_causal:
        conditions.append((columns <= rows)[None, None])
    for operand, places in (("query_lengths", rows), ("key_lengths", columns)):
        if operand in given:
            conditions.append(places < given[operand][:, None, None, None])
    allowed = None
    for condition in conditions:
        allowed = condition if allowed is None else allowed & condition
    return allowed


def _is_added(lib: Any, given: dict[str, Any]) -> bool:
    return "mask" in given and given["mask"].dtype == given["query"].dtype


def _scores(lib: Any, op: Any, given: dict[str, Any]) -> Any:
    """Return the scores, which are minus infinity for excluded keys."""
    query, key = given["query"], given["key"]
    products = _folded(query * scale_of(op, query), key) @ key.swapaxes(2, 3)
    scores = _unfolded(products, query)
    if _is_added(lib, given):
        scores = scores + given["mask"]
    allowed = allowed_keys(lib, op, given)
    return scores if allowed is None else lib.where(allowed, scores, -float("inf"))


def _softmax(lib: Any, scores: Any) -> tuple[Any, Any]:
    """Return the softmax of the scores, and the logarithms of the sums of their exponentials.

    The weights of a query without allowed keys are zero.
    """
    largest = _without_infinity(lib, lib.amax(scores, 3))
    weights = lib.exp(scores - largest)
    total = weights.sum(axis=3, keepdims=True)
    safe = lib.where(total > 0, total, 1.0)
    stats = lib.where(total > 0, lib.log(safe) + largest, -float("inf"))
    return weights / safe, stats[:, :, :, 0]


def _kept(lib: Any, op: Any, given: dict[str, Any], x: Any) -> Any:
    """Apply dropout to an array of the scores' shape."""
    if not op.dropout:
        return x
    kept = kept_elements(lib, given["state"], x.shape, op.dropout)
    return lib.where(kept, x * (1 / (1 - op.dropout)), 0.0)


def statistics(lib: Any, op: Any, given: dict[str, Any]) -> Any:
    """Compute the second result of `Attention`: the logarithms of the sums of exponentials."""
    return _softmax(lib, _scores(lib, op, given))[1]


def attention(lib: Any, op: Any, *operands: Any) -> tuple[Any, Any]:
    """Compute the results of `Attention`."""
    given = dict(zip(op.operands, operands, strict=True))
    weights, stats = _softmax(lib, _scores(lib, op, given))
    weights = _kept(lib, op, given, weights)
    value = given["value"]
    return _unfolded(_folded(weights, value) @ value, given["query"]), stats


def attention_gradient(lib: Any, op: Any, *operands: Any) -> tuple[Any, Any, Any]:
    """Compute the results of `AttentionGrad`."""
    given = dict(zip(op.operands, operands, strict=True))
    query, key, value, gout = (given[name] for name in ("query", "key", "value", "gout"))
    # Large statistics are too inaccurate; see AttentionGrad.
    weights, _ = _softmax(lib, _scores(lib, op, given))
    by_weights = _unfolded(_folded(gout, value) @ value.swapaxes(2, 3), gout)
    by_weights = _kept(lib, op, given, by_weights)
    shared = (weights * by_weights).sum(axis=3, keepdims=True)
    by_scores = _folded(weights * (by_weights - shared), key)
    scale = scale_of(op, query)
    dquery = _unfolded(by_scores @ key, query) * scale
    dkey = by_scores.swapaxes(2, 3) @ _folded(query * scale, key)
    weights = _kept(lib, op, given, weights)
    return dquery, dkey, _folded(weights, key).swapaxes(2, 3) @ _folded(gout, key)


def _folded(x: Any, key: Any) -> Any:
    """Concatenate the rows of the heads of `x` that share a head of `key`."""
    batch, heads, rows, columns = x.shape
    shared = key.shape[1]
    return x.reshape((batch, shared, heads // max(shared, 1) * rows, columns))


def _unfolded(x: Any, query: Any) -> Any:
    """Undo `_folded`, given `query` with the original batch, heads and rows."""
    return x.reshape((*query.shape[:3], x.shape[3]))


def _without_infinity(lib: Any, x: Any) -> Any:
    return lib.where(x == -float("inf"), 0.0, x)
