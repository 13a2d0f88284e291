"""Compute the CTC loss with scans over the steps of all sequences at once."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from dnnops.link.jax.register import converts
from dnnops.nnet import CTC


def _compact(labels: Any, label_lengths: Any) -> tuple[Any, Any, Any]:
    """Return labels without gaps, their lengths, and whether each sequence of labels is invalid."""
    if label_lengths is not None:
        columns = jnp.arange(labels.shape[1])
        given = columns < label_lengths[:, None]
        wrong = (label_lengths < 0) | (label_lengths > labels.shape[1])
        return labels, label_lengths, wrong | (given & (labels < 1)).any(axis=1)
    order = jnp.argsort(labels < 0, axis=1, stable=True)
    lengths = (labels >= 0).sum(axis=1)
    return jnp.take_along_axis(labels, order, 1), lengths, (labels == 0).any(axis=1)


def _moved(x: Any, by: int) -> Any:
    """Shift probabilities to later positions, or to earlier ones if `by` is negative."""
    gap = jnp.full((x.shape[0], abs(by)), -jnp.inf, x.dtype)
    parts = [gap, x[:, :-by]] if by > 0 else [x[:, -by:], gap]
    return jnp.concatenate(parts, axis=1)[:, : x.shape[1]]


def _passes(log_probabilities: Any, extended: Any, lengths: Any, ends: Any, both: bool) -> Any:
    """Return the forward and backward log-probabilities of each position at each step.

    A path begins at one of the first two positions. In each step it stays, moves on by one
    position, or skips a blank between different symbols.
    """
    skips = jnp.zeros(extended.shape, bool)
    skips = skips.at[:, 2:].set((extended[:, 2:] != 0) & (extended[:, 2:] != extended[:, :-2]))
    emitted = jnp.take_along_axis(log_probabilities, extended[None], 2, mode="fill")
    begins = jnp.where(jnp.arange(extended.shape[1]) < 2, 0.0, -jnp.inf)
    ends = jnp.where(ends, 0.0, -jnp.inf)
    impossible = jnp.full(extended.shape, -jnp.inf, log_probabilities.dtype)

    def forward(before: Any, given: tuple[Any, Any]) -> tuple[Any, Any]:
        t, emitted_now = given
        skipped = jnp.where(skips, _moved(before, 2), -jnp.inf)
        arrived = jnp.logaddexp(jnp.logaddexp(before, _moved(before, 1)), skipped)
        arrived = jnp.where(t == 0, begins, arrived) + emitted_now
        now = jnp.where((t < lengths)[:, None], arrived, before)
        return now, now if both else None

    def backward(after: Any, given: tuple[Any, Any]) -> tuple[Any, Any]:
        t, emitted_now = given
        skipped = _moved(jnp.where(skips, after, -jnp.inf), -2)
        left = jnp.logaddexp(jnp.logaddexp(after, _moved(after, -1)), skipped)
        left = jnp.where((t == lengths - 1)[:, None], ends, left) + emitted_now
        now = jnp.where((t < lengths)[:, None], left, -jnp.inf)
        return now, now

    steps = (jnp.arange(len(emitted)), emitted)
    last, begun = lax.scan(forward, impossible, steps)
    until = lax.scan(backward, impossible, steps, reverse=True)[1] if both else None
    return last, begun, until, emitted


@converts(CTC)
def ctc(op: CTC, activations: Any, labels: Any, input_lengths: Any, *others: Any) -> tuple:
    """Compute costs and gradients.

    Costs and gradients are NaN for operands that the Op rejects, since a compiled graph can't raise
    exceptions: labels outside the alphabet or longer than their sequences, and lengths out of
    bounds.
    """
    steps, batch, classes = activations.shape
    labels, label_lengths, wrong = _compact(labels, others[0] if others else None)
    places = jnp.arange(labels.shape[1])
    in_label = places < label_lengths[:, None]
    wrong |= (in_label & (labels >= classes)).any(axis=1)
    wrong |= (input_lengths < 0) | (input_lengths > steps)
    labels = jnp.where(in_label, labels, 0)
    repeats = (in_label[:, 1:] & (labels[:, 1:] == labels[:, :-1])).sum(axis=1)
    wrong |= input_lengths < label_lengths + repeats
    used = (jnp.arange(steps)[:, None] < input_lengths)[..., None]
    log_probabilities = jax.nn.log_softmax(jnp.where(used, activations, 0.0), axis=2)
    extended = jnp.zeros((batch, 2 * labels.shape[1] + 1), labels.dtype).at[:, 1::2].set(labels)
    distance = 2 * label_lengths[:, None] - jnp.arange(extended.shape[1])
    ends = (distance == 0) | (distance == 1)
    last, begun, until, emitted = _passes(
        log_probabilities, extended, input_lengths, ends, op.with_gradients
    )
    costs = -jax.nn.logsumexp(jnp.where(ends, last, -jnp.inf), axis=1)
    costs = jnp.where(input_lengths == 0, 0.0, costs)
    costs = jnp.where(wrong | jnp.isnan(log_probabilities).any(axis=(0, 2)), jnp.nan, costs)
    if not op.with_gradients:
        return (costs,)
    # Both passes include the probability of the step itself.
    possible = emitted > -jnp.inf
    paths = jnp.exp(begun + until - jnp.where(possible, emitted, 0.0) + costs[:, None])
    is_symbol = extended[..., None] == jnp.arange(classes)
    posterior = jnp.where(possible, paths, 0.0)
    share = jnp.einsum("tbs,bsc->tbc", posterior, is_symbol.astype(posterior.dtype))
    gradients = jnp.exp(log_probabilities) - share
    gradients = jnp.where(jnp.isfinite(costs)[:, None], gradients, jnp.nan)
    return costs, jnp.where(used, gradients, 0.0)
