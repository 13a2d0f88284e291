"""Numbers that equal operations on equal operands share."""

from __future__ import annotations

import pytensor.tensor as pt
from pytensor.graph.fg import FunctionGraph

from dnnops.rewriting.recognize.value_numbers import ValueNumbers


def test_value_numbers():
    a, b, c = (pt.vector(name) for name in "abc")
    x, y, z = (a + b) + pt.exp(c), pt.exp(c) + (b + a), a + pt.exp(b)
    numbers = ValueNumbers(FunctionGraph([a, b, c], [x, y, z], clone=False))
    assert numbers[x] == numbers[y] != numbers[z]
    assert numbers.terms(numbers[x]).total() == 3
    own = pt.vector()
    assert numbers.of([own + pt.exp(b)], {own: a, b: b})[own] == numbers[a]
    two, other = pt.constant(2.0), pt.constant(3.0)
    assert numbers.of([two, own], {own: a}) == {two: numbers.of([two], {})[two], own: numbers[a]}
    assert numbers.of([two], {})[two] != numbers.of([other], {})[other]
    exp = pt.exp(own)
    terms = numbers.terms(numbers.of([exp], {own: c})[exp]) + numbers.terms(numbers[b])
    found = numbers.sums_with(terms)
    assert {v for v, _ in found} == {x, y}
    assert all(list(rest.elements()) == [numbers[a]] for _, rest in found)


def test_numbers_of_a_graph_that_was_changed():
    a, b = pt.vector("a"), pt.vector("b")
    two = pt.constant(2.0)
    x, y = pt.exp(a) * two, pt.log(b) + two
    graph = FunctionGraph([a, b], [x, y], clone=False)
    before = ValueNumbers(graph)
    graph.replace_all([(x, pt.sqrt(a) * two)])
    after = ValueNumbers(graph, before)
    new = graph.outputs[0]
    assert new not in before.variables.get(before[x], [])
    assert after[y] == before[y]
    assert after[a] == before[a]
    assert after[new] not in {before[v] for v in (a, b, x, y)}
    assert x not in {v for found in after.variables.values() for v in found}
    equal = pt.exp(a) * pt.constant(2.0)
    assert after.of([equal], {a: a})[equal] == before[x]
