"""Formulas match expressions in many forms, and no others."""

from __future__ import annotations

import pytensor.tensor as pt
import pytest
from pytensor.graph.basic import equal_computations
from pytensor.scalar.basic import Maximum

from dnnops.rewriting.recognize.matching import Call, Rest, Slot, match, sqr, sqrt
from dnnops.rewriting.recognize.views import View, powers_of, size_of

A, B, C = (pt.tensor(name, dtype="float64", shape=(None, None)) for name in "abc")
V = pt.vector("v", dtype="float64")
X, Y = Slot("x"), Slot("y")

FORMS = {
    "difference": (X - Y, A - B, {"x": A, "y": B}),
    "difference as a sum": (X - Y, -B + A, {"x": A, "y": B}),
    "sum as a slot": (X - Y, (A + B) - C, {"x": A + B, "y": C}),
    "quotient by a root": (X / sqrt(Y), A / pt.sqrt(B), {"x": A, "y": B}),
    "product with a power": (X / sqrt(Y), B**-0.5 * A, {"x": A, "y": B}),
    "square as a product": (sqr(X), A * A, {"x": A}),
    "square of a square": (sqr(X), (A**2) ** 2, {"x": A**2}),
    "same part twice": (X - sqr(X), A - A**2, {"x": A}),
    "extremum": (Call(Maximum, X, 0), pt.maximum(0, A), {"x": A}),
}
OTHERS = {
    "other sign": (X - Y, A + B),
    "more terms": (X - Y, pt.add(A, -B, C)),
    "more factors": (X / sqrt(Y), A / pt.sqrt(B) * C),
    "other exponent": (X / sqrt(Y), A / B),
    "product with a root": (X / sqrt(Y), A * pt.sqrt(B)),
    "other part": (X - sqr(X), A - B**2),
    "other number": (Call(Maximum, X, 0), pt.maximum(A, 1)),
    "sum of negated product": (X + sqr(Y), A - B**2),
}


def same(found, expected) -> bool:
    return equal_computations([found.build()], [expected])


@pytest.mark.parametrize("form", FORMS)
def test_forms(form):
    formula, written, slots = FORMS[form]
    found = match(formula, written)
    assert found is not None
    assert found.keys() == slots.keys()
    assert all(same(found[name], x) for name, x in slots.items())


@pytest.mark.parametrize("form", OTHERS)
def test_other_expressions(form):
    assert match(*OTHERS[form]) is None


def test_rests_take_what_is_left():
    formula = (X - Y) * Rest("scale") + Rest("bias")
    difference = Slot("x", lambda view: view.variable is A) - Y
    found = match(difference * Rest("scale") + Rest("bias"), C - (B - A) / V * 3 - V)
    assert found is not None
    assert (found["x"].variable, found["y"].variable) == (A, B)
    number, scale = found["scale"].split()
    assert (number, scale.parts) == (3.0, [(-1, View(V, ("x", 0)))])
    assert found["bias"] == [(1, View(C, (0, 1))), (-1, View(V, ("x", 0)))]
    assert match(formula, A * B + C) is None


def test_a_rest_that_occurs_twice_is_the_same():
    formula = X * Rest("scale") / sqrt(Y) - Slot("z") * Rest("scale") / sqrt(Y)
    scaled = V / pt.sqrt(C)
    assert match(formula, A * scaled - scaled * B) is not None
    assert match(formula, A * scaled + scaled * B) is None
    assert match(formula, A * scaled - 2 * scaled * B) is None


def test_axes_may_be_moved_anywhere():
    spread = V.dimshuffle(0, "x")
    for written in (A / pt.sqrt(spread), A / pt.sqrt(V).dimshuffle(0, "x")):
        found = match(X / sqrt(Y), written)
        assert found is not None
        assert found["y"] == View(V, (0, "x"))


def test_roots_of_squares_are_not_their_bases():
    assert [e for _, e in powers_of(View.of(pt.sqrt(A**2)))] == [1.0, 0.5]
    assert [e for _, e in powers_of(View.of(pt.sqr(pt.sqrt(A))))] == [1.0, 2.0, 1.0]


def test_sizes():
    assert size_of(pt.cast(A.shape[-1], "float32")) == (A, 1)
    assert size_of(A.shape[V.shape[0]]) is size_of(A.shape.sum()) is None
