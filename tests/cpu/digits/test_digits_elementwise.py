"""Elementwise functions and losses that are graphs of PyTensor's Ops, and all slopes.

Slopes of tanh, sigmoid and elu are computed from the output. If a slope is a difference, errors are
relative to its terms.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from dnnops import nnet
from tests.cpu.digits.test_digits import (  # noqa: F401
    WIDE,
    exact_softmax,
    pytestmark,
    sigmoid,
    whole_range,
)
from tests.linkers import LINKERS
from tests.oracle import assert_digits

DTYPES = ("float16", "float32", "float64")
#: Numba takes seconds to compile all functions, so only float32 is a quick test.
ALL_MODES = pytest.mark.parametrize(
    ("dtype", "mode"),
    [
        *(pytest.param(dtype, "CVM", id=f"{dtype}-CVM") for dtype in DTYPES),
        pytest.param("float32", None, id="float32-default"),
        *(
            pytest.param(dtype, None, id=f"{dtype}-default", marks=pytest.mark.slow)
            for dtype in ("float16", "float64")
        ),
    ],
)


def softplus(x: Any) -> Any:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def ultra_fast_sigmoid(x: Any, rounded: Any) -> tuple[Any, Any, Any]:
    """The values and slopes of a function, both with the size of their terms."""
    h, sign = x / 2, np.sign(x)
    size = np.abs(h)
    near, step = rounded(1.5), rounded(0.0458812946797165)
    far = sign * (rounded(0.935409070603099) + step * (size - rounded(1.7)))
    pieces = [size < rounded(1.7), size < 3]
    t = np.select(pieces, [near * h / (1 + size), far], sign * rounded(0.99505475368673))
    slope = np.select(pieces, [near / (1 + size) ** 2, step], 0) / 4
    terms = np.select(pieces, [near / (1 + size), step], 0) / 4
    return ((t + 1) / 2, np.maximum(np.abs(t), 1) / 2), slope, terms


def functions(x: np.ndarray, dtype: str) -> dict[str, tuple[Any, Any, Any, Any]]:
    """Return, by name, the function, its values, its slopes and the size of a slope's terms."""

    def rounded(value: float) -> Any:
        return np.asarray(value, "float32" if dtype == "float16" else dtype).astype(WIDE)

    w = x.astype(WIDE)
    alpha, scale = rounded(1.6732632423543772), rounded(1.0507009873554805)
    low = np.exp(np.minimum(w, 0))
    s = sigmoid(w)
    one = np.ones_like(w)
    is_positive = w > 0
    line = rounded(0.2) * w + WIDE(0.5)
    return {
        "relu": (nnet.relu, np.where(is_positive, w, 0), 1.0 * is_positive, None),
        "leaky relu": (
            lambda v: nnet.relu(v, 0.25),
            np.where(is_positive, w, w / 4),
            np.where(is_positive, 1, one / 4),
            None,
        ),
        "clipped relu": (
            lambda v: nnet.clipped_relu(v, 1.5),
            np.clip(w, 0, 1.5),
            1.0 * (is_positive & (w < 1.5)),
            None,
        ),
        "tanh": (nnet.tanh, np.tanh(w), 1 / np.cosh(np.clip(w, -5000, 5000)) ** 2, one),
        "sigmoid": (nnet.sigmoid, s, s * sigmoid(-w), s),
        "elu": (nnet.elu, np.where(is_positive, w, np.expm1(np.minimum(w, 0))), low, one),
        "selu": (
            nnet.selu,
            scale * np.where(is_positive, w, alpha * np.expm1(np.minimum(w, 0))),
            scale * np.where(is_positive, 1, alpha * low),
            scale * alpha * one,
        ),
        "softplus": (nnet.softplus, softplus(w), s, None),
        "softsign": (nnet.softsign, w / (1 + np.abs(w)), 1 / (1 + np.abs(w)) ** 2, None),
        "ultra fast sigmoid": (nnet.ultra_fast_sigmoid, *ultra_fast_sigmoid(w, rounded)),
        "hard sigmoid": (
            nnet.hard_sigmoid,
            (np.clip(line, 0, 1), np.maximum(np.abs(line - WIDE(0.5)), 0.5)),
            rounded(0.2) * ((line > 0) & (line < 1)),
            None,
        ),
    }


@ALL_MODES
def test_functions_and_slopes(dtype, mode):
    """Check finite elements; slopes of PyTensor's Ops may be 0 if they are subnormal."""
    x = pt.vector(dtype=dtype)
    values = whole_range(dtype, 5000)
    values = values[np.isfinite(values)]
    tiny = WIDE(np.finfo(dtype).tiny)
    with np.errstate(all="ignore"):
        cases = functions(values, dtype)
        outputs: list[Any] = []
        for function, *_ in cases.values():
            y = function(x)
            outputs += [y, pytensor.grad(y.sum(dtype="float64"), x)]
        results = iter(pytensor.function([x], outputs, mode=mode)(values))
        for name, (_, expected, slope, size) in cases.items():
            out, found = next(results), next(results)
            expected, terms = expected if isinstance(expected, tuple) else (expected, None)
            keep = values != 0
            if name in ("softplus", "softsign"):
                keep &= slope >= tiny
            if name == "hard sigmoid":  # at its two bends, either slope is right
                keep &= np.abs(np.abs(values.astype(WIDE)) - 2.5) > 1e-2
            assert_digits(out, expected, scale=terms, what=name)
            if name == "ultra fast sigmoid":  # likewise where its pieces meet
                keep &= np.abs(np.abs(values.astype(WIDE)) - WIDE(3.4)) > 1e-2
                keep &= np.abs(np.abs(values.astype(WIDE)) - 6) > 1e-2
            size = None if size is None else size[keep]
            slope = slope.astype(WIDE)[keep]
            assert_digits(found[keep], slope, scale=size, what=f"slope of {name}")


@LINKERS
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_losses_of_probabilities(dtype, mode):
    """Each loss is compared relative to itself."""
    rng = np.random.default_rng(0)
    p = 10.0 ** rng.uniform(-30, 0, 4000)
    p[::2] = rng.random(2000)
    p = np.clip(p, 1e-30, 1 - 1e-6).astype(dtype)
    t = rng.random(4000).astype(dtype)
    t[::3], t[1::3] = 0, 1
    scores = np.clip(whole_range(dtype, 1000), -80, 1e4)
    scores = scores[np.isfinite(scores)][:4000]
    probability, target, score = (pt.vector(dtype=dtype) for _ in range(3))
    losses = [
        nnet.binary_crossentropy(probability, target),
        nnet.sigmoid_binary_crossentropy(score, target),
        nnet.binary_crossentropy(nnet.sigmoid(score), target),
    ]
    rows = pt.matrix(dtype=dtype)
    labels = pt.lvector()
    exact = [
        nnet.categorical_crossentropy(rows, pt.stack([target[:40], 1 - target[:40]], axis=1)),
        nnet.categorical_crossentropy(rows, labels),
        nnet.crossentropy_categorical_1hot(rows, labels),
    ]
    gradients = [pytensor.grad(losses[0].sum(), probability), pytensor.grad(losses[1].sum(), score)]
    fn = pytensor.function(
        [probability, target, score, rows, labels], [*losses, *exact, *gradients], mode=mode
    )
    table = np.stack([p[:40], 1 - p[:40]], axis=1)
    chosen = np.arange(40) % 2
    found = fn(p, t, scores, table, chosen)
    wp, wt, ws, wide = (a.astype(WIDE) for a in (p, t, scores, table))
    rest = 1 - wp
    expected: list[Any] = [-(wt * np.log(wp) + (1 - wt) * np.log1p(-wp))]
    expected += [wt * softplus(-ws) + (1 - wt) * softplus(ws)] * 2
    true = np.stack([t[:40], 1 - t[:40]], axis=1).astype(WIDE)
    expected.append(-(true * np.log(wide)).sum(axis=1))
    expected += [-np.log(wide[np.arange(40), chosen])] * 2
    for i, (out, ref) in enumerate(zip(found, expected, strict=False)):
        assert_digits(out, ref, what=f"loss {i}")
    by_p = (1 - wt) / rest - wt / wp
    assert_digits(found[6], by_p, scale=(1 - wt) / rest + wt / wp, what="gradient of p")
    s = sigmoid(ws)
    terms = wt * (1 - s) + (1 - wt) * s
    assert_digits(found[7], s - wt, scale=np.maximum(terms, np.maximum(s, wt)), what="of scores")


@LINKERS
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gradients_of_categorical_crossentropy(dtype, mode):
    """Gradients with respect to the probabilities, from distributions and from classes."""
    rng = np.random.default_rng(2)
    p = (10.0 ** rng.uniform(-30, 0, (200, 7))).astype(dtype)
    true = rng.random((200, 7)).astype(dtype)
    chosen = rng.integers(0, 7, 200)
    coding, dist = pt.matrix(dtype=dtype), pt.matrix(dtype=dtype)
    labels = pt.lvector()
    losses = [nnet.categorical_crossentropy(coding, target) for target in (dist, labels)]
    outputs = [pytensor.grad(loss.sum(), coding) for loss in losses]
    outputs.append(pytensor.grad(losses[0].sum(), dist))
    fn = pytensor.function([coding, dist, labels], outputs, mode=mode)
    by_dist, by_label, by_true = fn(p, true, chosen)
    wide = p.astype(WIDE)
    assert_digits(by_dist, -true / wide, what="distributions")
    assert_digits(by_label, -np.eye(7)[chosen] / wide, what="classes")
    assert_digits(by_true, -np.log(wide), what="the true distribution")


@LINKERS
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_hierarchical_softmax(dtype, mode):
    """Scores are exact sums of halves, so only the two softmaxes round."""
    rng = np.random.default_rng(3)
    rows, features, classes, within = 60, 4, 3, 5
    shapes = [
        (rows, features),
        (features, classes),
        (classes,),
        (classes, features, within),
        (classes, within),
    ]
    values = [(rng.integers(-8, 9, shape) / 2).astype(dtype) for shape in shapes]
    target = rng.integers(0, 14, rows)
    x, *weights = [pt.tensor(dtype=dtype, shape=shape) for shape in shapes]
    labels = pt.lvector()
    outputs = [
        nnet.h_softmax(x, rows, 14, classes, within, *weights, target=chosen)
        for chosen in (None, labels)
    ]
    fn = pytensor.function([x, *weights, labels], outputs, mode=mode)
    every, chosen = fn(*values, target)
    wx, w1, b1, w2, b2 = (value.astype(WIDE) for value in values)
    inner = np.einsum("nf,cfo->nco", wx, w2) + b2
    joint = exact_softmax(wx @ w1 + b1, 1)[0][:, :, None] * exact_softmax(inner, 2)[0]
    expected = joint.reshape(rows, -1)[:, :14]
    assert_digits(every, expected, 9, what="all outputs")  # 4 of each factor, 1 of their product
    assert_digits(chosen, expected[np.arange(rows), target], 9, what="the targets")
