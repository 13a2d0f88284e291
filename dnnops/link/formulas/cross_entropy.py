"""Cross-entropy and its gradient.

A label that is out of bounds, which the Op refuses, makes NaN where nothing can be raised.
"""

from __future__ import annotations

from typing import Any

from dnnops.errors import DnnValueError

__all__ = ["cross_entropy", "cross_entropy_gradient"]


def _chosen(lib: Any, op: Any, x: Any, labels: Any) -> tuple[Any, Any]:
    """Where each row with a cost has its label, and the factor of what is made of the row."""
    count = op.count(x.shape[0], labels.shape[0])
    classes = x.shape[1]
    labels = lib.where(labels < 0, labels + classes, labels)[:, None]
    known = (labels >= 0) & (labels < classes)
    at_label = lib.arange(classes)[None] == labels
    shape = (count, classes)
    return at_label | lib.zeros(shape, at_label), lib.where(known, 1.0, float("nan"))


def cross_entropy(lib: Any, op: Any, x: Any, labels: Any) -> tuple[Any, Any]:
    """What `CrossEntropy` computes: costs and statistics."""
    at_label, factor = _chosen(lib, op, x, labels)
    used = x[: at_label.shape[0]]
    top = lib.amax(used, 1)
    shifted = used - top
    log_sum = lib.log(lib.exp(shifted).sum(axis=1, keepdims=True))
    # A sum, of which all terms but one are zeros, even beside an infinity.
    picked = lib.where(at_label, shifted, 0.0).sum(axis=1, keepdims=True)
    costs = (log_sum - picked) * factor
    return costs[:, 0], lib.concatenate([top, log_sum], 1)


def cross_entropy_gradient(
    lib: Any, op: Any, g: Any, x: Any, labels: Any, statistics: Any
) -> tuple[Any]:
    """What `CrossEntropyGrad` computes."""
    at_label, factor = _chosen(lib, op, x, labels)
    count = at_label.shape[0]
    if g.shape[0] not in (1, count) or tuple(statistics.shape) != (count, 2):
        raise DnnValueError(
            f"{op}: {g.shape[0]} gradients and {statistics.shape[0]} statistics for {count} costs"
        )
    softmax = lib.exp(x[:count] - statistics[:, :1] - statistics[:, 1:])
    gradient = g[:, None] * factor * (softmax - lib.where(at_label, 1.0, 0.0))
    return (lib.concatenate([gradient, lib.zeros((x.shape[0] - count, x.shape[1]), x)], 0),)
