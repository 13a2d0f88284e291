"""Logarithms of expressions of probabilities are finite, and so are their derivatives.

The probabilities underflow in float32. In float64 they do not, and the small differences from 1 are
written as they are computed best, so that the graphs as they are written are the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode
from pytensor.graph.basic import equal_computations
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import MergeOptimizer
from pytensor.graph.rewriting.db import RewriteDatabaseQuery
from pytensor.tensor.special import softmax

from dnnops import nnet
from dnnops.modes import OneDnnMode
from dnnops.rewriting.recognize.stable_logarithms import StableLogarithms
from tests.oracle import PERFORM_MODE

#: Only these rewrites, and those of a mode; computed with NumPy.
ALONE = Mode("py", RewriteDatabaseQuery(include=["spell_activations", "stable_logarithms"]))
SCORES = np.array([[0.0, 110.0, 0.0], [3.0, 1.0, 2.0], [-110.0, 0.0, 1.0]])
LABELS = np.array([0, 1, 0])
TANGENT = np.array([[0.3, -0.7, 0.9], [1.1, 0.2, -0.4], [0.5, 0.6, -0.8]])
LOGITS = np.array([-110.0, -110, -17, -17, -1, -1, 0, 1, 1, 17, 17, 110, 110])
TARGETS = np.array([1.0, 0, 1, 0, 1, 0, 1, 1, 0, 1, 0, 1, 0])


def rows(y: Any) -> Any:
    return pt.arange(y.shape[0])


def one_hot(y: Any) -> Any:
    return pt.eye(3)[y]


#: Expressions of a softmax `p` and labels `y`.
OF_SOFTMAX: dict[str, Callable[[Any, Any], Any]] = {
    "labels": lambda p, y: pt.log(p[rows(y), y]),
    "categorical_crossentropy": lambda p, y: nnet.categorical_crossentropy(p, y),
    "picked logarithms": lambda p, y: pt.log(p)[rows(y), y],
    "one-hot sum": lambda p, y: pt.log((p * one_hot(y)).sum(axis=1)),
    "one-hot sum, kept": lambda p, y: pt.log((p * one_hot(y)).sum(axis=1, keepdims=True)),
    "scaled sum": lambda p, y: -pt.log(0.5 * (p * one_hot(y) * 0.9).sum(axis=1)),
    "sum of a slice": lambda p, y: pt.log(p[:, ::2].sum(axis=1)),
    "largest of a slice": lambda p, y: pt.log(p[:, ::2].max(axis=1)),
    "concatenate": lambda p, y: pt.log(pt.concatenate([p[rows(y), y], p[:, 0]])),
    "columns": lambda p, y: pt.log(pt.concatenate([p, p[:, :1] ** 2], axis=1)),
    "stack": lambda p, y: pt.log(pt.stack([p[:, 1], p[rows(y), y]])),
    "product": lambda p, y: pt.log(p[:, 0] * p[:, 2]),
    "quotient": lambda p, y: pt.log(p[:, 0] / p[:, 1]),
    "power": lambda p, y: pt.log(p**3),
    "root": lambda p, y: pt.log(pt.sqrt(p[rows(y), y])),
    "square": lambda p, y: pt.log(p * p),
    "inverse": lambda p, y: pt.log(1 / p[rows(y), y]),
    "transposed": lambda p, y: pt.log(p.T[y, rows(y)]),
    "reshaped": lambda p, y: pt.log(p.reshape((-1,))[y + 3 * rows(y)]),
    "where": lambda p, y: pt.log(pt.where(one_hot(y) > 0, p, 1)),
    "switch": lambda p, y: pt.log(pt.switch(one_hot(y) > 0, p, p**2)),
    "maximum": lambda p, y: pt.log(pt.maximum(p, 0)),
    "clip": lambda p, y: pt.log(pt.clip(p, 0, 1)[rows(y), y]),
    "mixture": lambda p, y: pt.log(0.3 * p[rows(y), y] + 0.7 * p[:, 0]),
    "exponential": lambda p, y: pt.log(pt.exp(pt.log(p))[rows(y), y]),
    "of log_softmax": lambda p, y: pt.log(pt.exp(nnet.log_softmax(p.owner.inputs[0]))[rows(y), y]),
    "binary logarithm": lambda p, y: pt.log2(p[rows(y), y] / 3),
    "beside entropy": lambda p, y: pt.log(p[rows(y), y]) + (p * pt.log(p)).sum(axis=1),
    "focal": lambda p, y: (1 - p[rows(y), y]) ** 2 * pt.log(p[rows(y), y]),
}
#: Those whose second derivatives are tested.
SECOND = ("labels", "categorical_crossentropy", "one-hot sum", "stack", "product", "where")
#: Expressions of a softmax `p`, of `c`, which is ``1 - p``, of labels `y` and one-hot labels `h`.
OF_COMPLEMENT: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    "logarithm": lambda p, c, y, h: pt.log(c),
    "half": lambda p, c, y, h: pt.log2(c / 2),
    "labels": lambda p, c, y, h: pt.log(c[rows(y), y]),
    "column": lambda p, c, y, h: pt.log(c[:, 1]),
    "transposed": lambda p, c, y, h: pt.log(pt.sqrt(c.T)),
    "product": lambda p, c, y, h: pt.log(p[:, 0] * c[:, 1]),
    "quotient": lambda p, c, y, h: pt.log(p / c),
    "switch": lambda p, c, y, h: pt.log(pt.switch(h, p, c)),
    "cross-entropy": lambda p, c, y, h: h * pt.log(p) + (1 - h) * pt.log(c),
    "beside others": lambda p, c, y, h: pt.log(c)[rows(y), y] + pt.log(p[:, 1]) + (p**2).sum(1),
}
#: ``1 - p`` as users write it.
COMPLEMENTS: dict[str, Callable[[Any], Any]] = {
    "1 - p": lambda p: 1 - p,
    "1 + -p": lambda p: 1 + -p,
    "-(p - 1)": lambda p: -(p - 1),
}
#: Expressions of a sigmoid `s`, of `c`, which is ``1 - s``, and targets `y`.
OF_SIGMOID: dict[str, Callable[[Any, Any, Any], Any]] = {
    "switch": lambda s, c, y: pt.log(pt.switch(y, s, c)),
    "where": lambda s, c, y: pt.log(pt.where(pt.eq(y, 1), s, c)),
    "sum": lambda s, c, y: pt.log(s * y + c * (1 - y)),
    "powers": lambda s, c, y: pt.log(s**y * c ** (1 - y)),
    "product": lambda s, c, y: pt.log(s * c),
    "quotient": lambda s, c, y: pt.log(s / c),
    "mixture": lambda s, c, y: pt.log(0.5 * s * s[::-1] + 0.5 * c * c[::-1]),
    "likelihood ratio": lambda s, c, y: pt.log(s / s[::-1]),
    "stack": lambda s, c, y: pt.log(pt.stack([s, c])),
    "classes": lambda s, c, y: pt.log(pt.stack([c, s], axis=1)[rows(y), y.astype("int64")]),
    "cross-entropy": lambda s, c, y: (y * pt.log(s) + (1 - y) * pt.log(c)).mean(),
    "root": lambda s, c, y: pt.log(pt.sqrt(s)),
    "broadcast": lambda s, c, y: pt.log(s[:, None] * c[None, :]),
    "maximum": lambda s, c, y: pt.log(pt.maximum(c, 0)),
}
#: Those whose second derivatives are tested.
SECOND_OF_SIGMOID = ("switch", "where", "sum", "powers", "quotient", "likelihood ratio", "stack")
#: Expressions of ``1 + tanh(x)`` and ``1 - tanh(x)``.
OF_TANH: dict[str, Callable[[Any, Any], Any]] = {
    "1 + tanh": lambda a, b: pt.log(a),
    "1 - tanh": lambda a, b: pt.log(b),
    "half": lambda a, b: pt.log(a / 2) + pt.log(0.5 * b),
    "quotient": lambda a, b: 0.5 * pt.log(a / b),
}


#: Softmaxes of the rows of `x` as users write them, whose exponentials overflow.
EXPONENTIALS: dict[str, Callable[[Any], Any]] = {
    "kept": lambda x: pt.exp(x) / pt.exp(x).sum(axis=1, keepdims=True),
    "moved": lambda x: (e := pt.exp(x)) / e.sum(axis=1)[:, None],
    "transposed": lambda x: ((e := pt.exp(x)).T / e.sum(axis=1)).T,
}
#: Functions of a softmax `p` and labels `y`.
OF_EXPONENTIALS: dict[str, Callable[[Any, Any], Any]] = {
    "all": lambda p, y: p,
    "squares": lambda p, y: p**2,
    "labels": lambda p, y: pt.log(p[rows(y), y]),
    "one-hot": lambda p, y: pt.log((p * one_hot(y)).sum(axis=1)),
}


@pytest.fixture(autouse=True)
def float32() -> Iterator[None]:
    with pytensor.config.change_flags(floatX="float32", on_opt_error="raise"):
        yield


def total(z: Any) -> Any:
    """Return a weighted sum, so that no derivative is zero by symmetry."""
    return (z * (1 + pt.arange(z.size).reshape(z.shape).astype(z.type.dtype) / 4)).sum()


def results(z: Any, x: Any, orders: int) -> list[Any]:
    """Return an expression and its first derivatives."""
    found = [z]
    cost = total(z)
    for _ in range(orders):
        found.append(pytensor.grad(cost, x))
        tangent = TANGENT if x.type.ndim == 2 else np.resize(TANGENT, len(LOGITS))
        cost = (found[-1] * tangent.astype(x.type.dtype)).sum()
    return found


def softmax_graph(dtype: str, orders: int, names: Sequence[str]) -> tuple[list[Any], list[Any]]:
    x, y = pt.tensor("x", dtype=dtype, shape=(None, None)), pt.lvector("y")
    found = [results(OF_SOFTMAX[name](softmax(x, axis=1), y), x, orders) for name in names]
    return [x, y], [z for each in found for z in each]


def sigmoid_graph(
    dtype: str, spelling: Any, orders: int, names: Sequence[str]
) -> tuple[list[Any], list[Any]]:
    """Return the forms in a spelling; without one, as they are computed best."""
    x, y = (pt.tensor(name, dtype=dtype, shape=(None,)) for name in "xy")
    if spelling is None:
        s, c = pt.sigmoid(x), pt.sigmoid(-x)
        a, b = 2 * pt.sigmoid(2 * x), 2 * pt.sigmoid(-2 * x)
    else:
        s, t = spelling.sigmoid(x), spelling.tanh(x)
        c, a, b = 1 - s, 1 + t, 1 - t
    forms = [
        OF_SIGMOID[name](s, c, y) if name in OF_SIGMOID else OF_TANH[name](a, b) for name in names
    ]
    return [x, y], [z for form in forms for z in results(form, x, orders)]


def check(found: Any, wanted: Any, names: list[str]) -> None:
    for name, result, reference in zip(names, found, wanted, strict=True):
        assert result.dtype == "float32"
        np.testing.assert_allclose(result, reference, rtol=2e-5, atol=2e-5, err_msg=name)


def check_softmax(mode: Mode, orders: int, names: Sequence[str] = tuple(OF_SOFTMAX)) -> None:
    f = pytensor.function(*softmax_graph("float32", orders, names), mode=mode)
    oracle = pytensor.function(*softmax_graph("float64", orders, names), mode=PERFORM_MODE)
    each = [f"{name}, derivative {i}" for name in names for i in range(orders + 1)]
    check(f(SCORES.astype("float32"), LABELS), oracle(SCORES, LABELS), each)


def check_sigmoid(
    mode: Mode, spelling: Any, orders: int = 1, names: Sequence[str] = (*OF_SIGMOID, *OF_TANH)
) -> None:
    f = pytensor.function(*sigmoid_graph("float32", spelling, orders, names), mode=mode)
    oracle = pytensor.function(*sigmoid_graph("float64", None, orders, names), mode=PERFORM_MODE)
    each = [f"{name}, derivative {i}" for name in names for i in range(orders + 1)]
    given = [z.astype("float32") for z in (LOGITS, TARGETS)]
    check(f(*given), oracle(LOGITS, TARGETS), each)


def test_softmax():
    check_softmax(ALONE, 1)


def test_numbers_have_all_digits():
    x = pt.dvector("x")
    with pytensor.config.change_flags(floatX="float64"):
        z = pt.log(pt.sigmoid(x) / np.float32(3)) + pt.log(1 / (np.float32(7) * pt.sigmoid(x)))
        f = pytensor.function([x], [z, pytensor.grad(z.sum(), x)], mode=ALONE)
    value, gradient = f([-20.0, 0.5])
    np.testing.assert_allclose(value, -np.log(21), rtol=1e-14)
    np.testing.assert_allclose(gradient, 0, atol=1e-15)


#: Logarithms that are computed as they are written.
AS_WRITTEN: dict[str, Callable[[Any], Any]] = {
    "matrix product": lambda p: pt.log(p @ pt.constant(np.eye(3, dtype="float32"))),
    "prod": lambda p: pt.log(p.prod(axis=1)),
    "clip": lambda p: pt.log(pt.clip(p, np.float32(1e-7), np.float32(1 - 1e-7))),
    "clip below": lambda p: pt.log(pt.maximum(p, np.float32(1e-7))),
    "clip above": lambda p: pt.log(pt.minimum(p, np.float32(0.9))),
    "epsilon": lambda p: pt.log(p + np.float32(1e-7)),
    "epsilon of the complement": lambda p: pt.log(1 - p + np.float32(1e-7)),
}


@pytest.mark.parametrize("name", AS_WRITTEN)
@pytest.mark.parametrize("of", [pt.sigmoid, lambda x: softmax(x, axis=1)], ids=["s", "p"])
def test_limits_keep_their_meaning(name, of):
    x = pt.matrix("x")
    cost = AS_WRITTEN[name](of(x)).sum()
    # The gradient of a product divides by its factors, which may cancel.
    gradients = [] if name == "prod" else [pytensor.grad(cost, x)]
    before = FunctionGraph([x], [cost, *gradients], clone=True)
    after = before.clone()
    StableLogarithms().rewrite(after)
    MergeOptimizer().rewrite(before)
    assert equal_computations(before.outputs, after.outputs, before.inputs, after.inputs)


def complement_graph(dtype: str, makes: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    x, y = pt.tensor("x", dtype=dtype, shape=(None, None)), pt.lvector("y")
    p = softmax(x, axis=1)
    cs = [make(p) for make in makes]
    forms = [form(p, c, y, one_hot(y)) for c in cs for form in OF_COMPLEMENT.values()]
    return [x, y], [z for form in forms for z in results(form, x, 1)]


def test_one_less_a_softmax():
    f = pytensor.function(*complement_graph("float32", list(COMPLEMENTS.values())), mode=ALONE)
    # The sum of the others is exact.
    reference = [lambda p: p @ (1 - pt.eye(3))] * len(COMPLEMENTS)
    oracle = pytensor.function(*complement_graph("float64", reference), mode=PERFORM_MODE)
    names = [f"{name}, {of}, {i}" for name in COMPLEMENTS for of in OF_COMPLEMENT for i in "01"]
    check(f(SCORES.astype("float32"), LABELS), oracle(SCORES, LABELS), names)


def test_second_derivatives_of_softmax():
    check_softmax(ALONE, 2, SECOND)


#: The sigmoid as users write it.
LOGISTIC = SimpleNamespace(sigmoid=lambda x: 1 / (1 + pt.exp(-x)), tanh=pt.tanh)


@pytest.mark.parametrize(
    "spelling", [pt, nnet, LOGISTIC], ids=["PyTensor's", "dnnops'", "logistic"]
)
def test_sigmoid_and_tanh(spelling):
    check_sigmoid(ALONE, spelling)


@pytest.mark.parametrize("spelling", [pt, nnet], ids=["PyTensor's", "dnnops'"])
def test_second_derivatives_of_sigmoid(spelling):
    check_sigmoid(ALONE, spelling, 2, SECOND_OF_SIGMOID)


def exponentials_graph(dtype: str, makes: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    x, y = pt.tensor("x", dtype=dtype, shape=(None, None)), pt.lvector("y")
    forms = [form(make(x), y) for make in makes for form in OF_EXPONENTIALS.values()]
    return [x, y], [z for form in forms for z in results(form, x, 1)]


def test_exponentials_over_their_sum():
    values = np.array([[200.0, 100.0, 199.0], [3.0, 1.0, 2.0], [-200.0, -299.0, -200.0]])
    f = pytensor.function(*exponentials_graph("float32", list(EXPONENTIALS.values())), mode=ALONE)
    reference = [lambda x: softmax(x, axis=1)] * len(EXPONENTIALS)
    oracle = pytensor.function(*exponentials_graph("float64", reference), mode=PERFORM_MODE)
    names = [f"{name}, {of}, {i}" for name in EXPONENTIALS for of in OF_EXPONENTIALS for i in "01"]
    check(f(values.astype("float32"), LABELS), oracle(values, LABELS), names)


@pytest.mark.slow
def test_all_rewrites_of_a_mode():
    mode = OneDnnMode(linker="py").excluding("fusion")
    check_softmax(mode, 1)
    check_softmax(mode, 2, SECOND)
    check_sigmoid(mode, nnet)
