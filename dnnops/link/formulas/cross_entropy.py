"""Cross-entropy and its gradient.

The Op rejects labels that are out of bounds. Where an exception can't be raised, the results for
such labels are NaN.
"""

from __future__ import annotations

from typing import Any

from dnnops.errors import DnnValueError

__all__ = ["cross_entropy", "cross_entropy_gradient"]


def _chosen(lib: Any, op: Any, x: Any, labels: Any) -> tuple[Any, Any]:
    """Return a mask of each row's label, and a factor that is NaN for labels out of bounds."""
    count = op.count(x.shape[0], labels.shape[0])
    classes = x.shape[1]
    labels = lib.where(labels < 0, labels + classes, labels)[:, None]
    known = (labels >= 0) & (labels < classes)
    at_label = lib.arange(classes)[None] == labels
    shape = (count, classes)
    return at_label | lib.zeros(shape, at_label), lib.where(known, 1.0, float("nan"))


def cross_entropy(lib: Any, op: Any, x: Any, labels: Any) -> tuple[Any, Any]:
    """Compute the results of `CrossEntropy`: costs and statistics."""
    at_label, factor = _chosen(lib, op, x, labels)
    used = x[: at_label.shape[0]]
    top = lib.amax(used, 1)
    shifted = used - top
    log_sum = lib.log(lib.exp(shifted).sum(axis=1, keepdims=True))
    # All terms of this sum but one are zero. A product with a one-hot mask would turn infinities
    # into NaN.
    picked = lib.where(at_label, shifted, 0.0).sum(axis=1, keepdims=True)
    costs = (log_sum - picked) * factor
    statistics = lib.concatenate([top, log_sum], 1)
    if x.shape[0] == 1:  # the only row may be read at several labels
        statistics = statistics + lib.zeros((at_label.shape[0], 2), x)
    return costs[:, 0], statistics


def cross_entropy_gradient(
    lib: Any, op: Any, g: Any, x: Any, labels: Any, statistics: Any
) -> tuple[Any]:
    """Compute the results of `CrossEntropyGrad`."""
    at_label, factor = _chosen(lib, op, x, labels)
    count = at_label.shape[0]
    if g.shape[0] not in (1, count) or tuple(statistics.shape) != (count, 2):
        raise DnnValueError(
            f"{op}: {g.shape[0]} gradients and {statistics.shape[0]} statistics don't match {count}"
            " costs"
        )
    softmax = lib.exp(x[:count] - statistics[:, :1] - statistics[:, 1:])
    gradient = g[:, None] * factor * (softmax - lib.where(at_label, 1.0, 0.0))
    if x.shape[0] == 1:
        return (gradient.sum(axis=0, keepdims=True),)
    return (lib.concatenate([gradient, lib.zeros((x.shape[0] - count, x.shape[1]), x)], 0),)
