"""CTC losses and their gradients, element by element."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dnnops.cpu.ctc import OneDnnCTC
from tests.cpu.digits.test_digits import DTYPES, WIDE, exact_softmax, pytestmark  # noqa: F401
from tests.cpu.test_batchnorm import run_all
from tests.nnet.loss.ctc_cases import Case
from tests.oracle import assert_digits


def loss_and_gradient(x: np.ndarray, label: list[int]) -> tuple[Any, Any, Any]:
    """Return the loss, its gradient, and the two terms of the gradient: softmax and posterior."""
    shares, logarithms = exact_softmax(x, 1)
    places = [0]
    for symbol in label:
        places += [symbol, 0]
    steps, count = len(x), len(places)
    skips = [k >= 2 and places[k] not in (0, places[k - 2]) for k in range(count)]
    none = WIDE(-np.inf)
    forward, backward = np.full((2, steps, count), none)
    forward[0, :2] = logarithms[0, places[:2]]
    backward[-1, -2:] = 0
    for t in range(1, steps):
        for k in range(count):
            terms = [forward[t - 1, k - j] for j in range(1 + (k > 0) + skips[k])]
            forward[t, k] = np.logaddexp.reduce(terms) + logarithms[t, places[k]]
    for t in range(steps - 2, -1, -1):
        reached = backward[t + 1] + logarithms[t + 1, places]
        for k in range(count):
            terms = [reached[k + j] for j in range(1 + (k + 1 < count))]
            terms += [reached[k + 2]] if k + 2 < count and skips[k + 2] else []
            backward[t, k] = np.logaddexp.reduce(terms)
    total = np.logaddexp.reduce(forward[-1, -2:])
    posterior = np.zeros_like(shares)
    for k in range(count):
        posterior[:, places[k]] += np.exp(forward[:, k] + backward[:, k] - total)
    return -total, shares - posterior, np.maximum(shares, posterior)


@pytest.mark.parametrize("scale", [0.1, 1.0, 20.0])
@pytest.mark.parametrize("dtype", DTYPES)
def test_ctc(dtype, scale):
    """Probabilities are products with one factor per step, each rounded in float64.

    If the probability is near 1, the loss has the error of its terms, or of 1 per step.
    """
    for seed in range(6):
        case = Case(12, 4, 5, 4, seed, scale)
        x, labels, lengths, label_lengths = case.arrays(dtype)
        op = OneDnnCTC(True, True)
        losses, gradient = run_all(op, x, labels, lengths, label_lengths)
        info = np.finfo(dtype)
        for n, steps in enumerate(lengths):
            label = labels[n, : label_lengths[n]].tolist()
            loss, by_x, terms = loss_and_gradient(x[:steps, n], label)
            rounding = 2 * steps * 2.0**-52
            size = np.maximum(np.abs(loss), rounding / info.eps)
            assert_digits(losses[n : n + 1], np.array([loss]), scale=size, what=f"loss {seed}")
            units = 4 + 2 * steps * (np.finfo("float64").eps / info.eps)
            assert_digits(gradient[:steps, n], by_x, units, scale=terms, what=f"gradient {seed}")
            assert not gradient[steps:, n].any()
