"""Recognize dense layers in elementwise loops: the bias, the addend and the activation."""

from __future__ import annotations

from collections.abc import Iterator
from math import isclose, pi, sqrt, tanh
from typing import Any, NamedTuple

from pytensor.graph.basic import Apply
from pytensor.scalar.basic import (
    Add,
    Cast,
    Composite,
    Exp,
    Mul,
    Neg,
    Pow,
    Reciprocal,
    Sqr,
    Sub,
    Tanh,
    TrueDiv,
    gt,
    le,
)
from pytensor.scalar.math import Sigmoid

from dnnops.gpuarray.op import is_on_device
from dnnops.rewriting.fuse.scalar_graphs import Loop, uncast

__all__ = [
    "Form",
    "Terms",
    "expressions",
    "find_form",
    "gelu_terms",
    "relations",
    "replaced_sum",
    "terms_of",
]

#: Operands at which an expression is compared with GELU.
_SAMPLES = (
    -40.0,
    -5.0,
    -3.0,
    -2.2,
    -1.5,
    -1.0,
    -0.5,
    -0.1,
    0.0,
    0.2,
    0.75,
    1.3,
    2.0,
    2.7,
    4.0,
    30.0,
)
#: Values of the terms of a sum other than the product.
_SPLIT = (0.375, -1.25)
#: GELU with the error function differs by up to 5e-4. Constants may have been rounded.
_TOLERANCE = 1e-4
_ANALYTIC = {Add, Sub, Mul, Neg, TrueDiv, Reciprocal, Sqr, Pow, Exp, Tanh, Sigmoid, Cast}

#: Comparisons of relu's operand with zero that have the same result for the result of relu.
_OF_RESULT = {"<=": le, ">": gt}


class Terms(NamedTuple):
    """What a loop adds to a product: variables of the graph, or None."""

    bias: Any
    addend: Any


class Form(NamedTuple):
    """An output of a loop that is a dense layer.

    Attributes
    ----------
    activation : str
        Activation as in `GpuDense`.
    terms : Terms
        What is added to the product.
    """

    activation: str
    terms: Terms


def terms_of(loop: Loop, product: Any, x: Any) -> Terms | None:
    """Return the terms of the sum `x` of a product, a bias and an array, in any order, or None.

    Parameters
    ----------
    loop : Loop
    product : ScalarVariable
        Input of the loop for the product.
    x : ScalarVariable
        Expression in the loop.
    """
    return _as_terms(loop, product, list(_leaves(x)))


def _as_terms(loop: Loop, product: Any, inputs: list[Any]) -> Terms | None:
    """Return the variables of the product's bias and addend if there are no other inputs."""
    if inputs.count(product) != 1:
        return None
    whole = loop.variables[product].type
    bias: Any = None
    addend: Any = None
    for term in inputs:
        variable = loop.variables.get(term)
        if term is product:
            continue
        if variable is None or not is_on_device(variable):
            return None
        ones = variable.type.broadcastable
        if bias is None and all(ones[:-1]) and ones[-1] == whole.broadcastable[-1]:
            bias = variable
        elif addend is None and (variable.type.dtype, ones) == (whole.dtype, whole.broadcastable):
            addend = variable
        else:
            return None
    return Terms(bias, addend)


def _leaves(x: Any) -> Iterator[Any]:
    """Yield the terms of nested sums."""
    x = uncast(x)
    if x.owner is None or not isinstance(x.owner.op, Add):
        yield x
        return
    for term in x.owner.inputs:
        yield from _leaves(term)


def find_form(loop: Loop, product: Any) -> Form | None:
    """Return the form of the output of a loop that is a dense layer, or None."""
    plain = None
    for out in loop.outputs:
        if (of := loop.relu_of(out)) is not None:
            terms = terms_of(loop, product, of)
            if terms is not None:
                return Form("relu", terms)
        terms = terms_of(loop, product, out)
        if terms is not None:
            plain = plain or Form("", terms)
        elif (terms := gelu_terms(loop, product, out)) is not None:
            return Form("gelu", terms)
    return plain if plain is not None and any(x is not None for x in plain.terms) else None


def gelu_terms(loop: Loop, product: Any, out: Any) -> Terms | None:
    """Return the terms of the sum of which `out` is GELU, as cuBLASLt approximates it, or None.

    GELU can be written in many ways, and PyTensor rewrites them, so values are compared.
    """
    if not _is_analytic(out):
        return None
    inputs = _inputs(loop, out)
    terms = _as_terms(loop, product, inputs)
    if terms is None:
        return None
    others = [x for x in inputs if x is not product]
    for value in _SAMPLES:
        values = dict(zip(others, _SPLIT, strict=False))
        values[product] = value - sum(values.values())
        inner = sqrt(2 / pi) * (value + 0.044715 * value**3)
        expected = 0.5 * value * (1 + tanh(inner))
        if not _has_value(loop, out, values, expected):
            return None
    return terms


def replaced_sum(
    loop: Loop, form: Form, product: Any, outputs: list[Any], operand: Any
) -> dict[Any, Any] | None:
    """Return what replaces the terms of a sum so that a loop reads the sum instead, or None.

    A loop may contain the sum in expressions such as ``product + (bias + f(product + bias))``.
    Values show whether the expressions are functions of the sum.

    Parameters
    ----------
    loop : Loop
        Any loop that reads the product.
    form : Form
        The layer.
    product : ScalarVariable
        The loop's input for the product.
    outputs : list of ScalarVariable
        Expressions in the loop.
    operand : GpuArrayVariable
        The sum.

    Returns
    -------
    dict or None
        See `Loop.applied`.
    """
    inputs = {loop.variables[x]: x for x in loop.inputs}
    terms = [inputs[x] for x in form.terms if x is not None and x in inputs]
    for out in outputs:
        if product not in expressions([out]):
            continue
        if not _is_analytic(out):
            return None
        rest = [x for x in _inputs(loop, out) if x is not product and x not in terms]
        # A loop that reads only some of the terms does not compute the sum.
        for value in _SAMPLES:
            values = {x: 0.3 + 0.2 * i for i, x in enumerate(rest)}
            whole = _value(loop, out, {**values, **dict.fromkeys(terms, 0.0), product: value})
            parts = dict(zip(terms, _SPLIT, strict=False))
            parts[product] = value - sum(parts.values())
            if whole is None or not _has_value(loop, out, {**values, **parts}, whole):
                return None
    found: dict[Any, Any] = {product: (operand, lambda x: x)}
    found |= {x: (None, lambda x: x.type.make_constant(0)) for x in terms}
    return found


def _is_analytic(x: Any) -> bool:
    """Return whether an expression has no thresholds, which samples might miss."""
    if x.type.dtype == "bool" or x.owner is None:
        return False
    nodes = [y.owner for y in expressions([x]) if isinstance(y.owner, Apply)]
    return all(_is_analytic_op(node.op) for node in nodes)


def _is_analytic_op(op: Any) -> bool:
    if isinstance(op, Composite):
        return all(_is_analytic_op(node.op) for node in op.fgraph.apply_nodes)
    return type(op) in _ANALYTIC


def _inputs(loop: Loop, x: Any) -> list[Any]:
    """Return the inputs of a loop that an expression reads, without numbers."""
    return [y for y in expressions([x]) if y in loop.variables and loop.number(y) is None]


def _has_value(loop: Loop, x: Any, values: dict[Any, Any], expected: float) -> bool:
    found = _value(loop, x, values)
    return found is not None and isclose(found, expected, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)


def _value(loop: Loop, x: Any, values: dict[Any, Any]) -> float | None:
    try:
        return float(_evaluated(loop, x, dict(values)))
    except (ArithmeticError, ValueError):
        return None


def _evaluated(loop: Loop, x: Any, values: dict[Any, Any]) -> Any:
    """Return the value of an expression for those of the loop's inputs."""
    if x not in values:
        number = loop.number(x)
        if number is None:
            node = x.owner
            found = node.op.impl(*(_evaluated(loop, y, values) for y in node.inputs))
            number = found[node.outputs.index(x)] if len(node.outputs) > 1 else found
        values[x] = number
    return values[x]


def expressions(outputs: list[Any]) -> list[Any]:
    """Return all expressions that `outputs` consist of, outputs first."""
    found: dict[Any, None] = {}
    waiting = list(outputs)
    while waiting:
        x = waiting.pop(0)
        if x not in found:
            found[x] = None
            waiting += x.owner.inputs if x.owner is not None else []
    return list(found)


def relations(loop: Loop, form: Form, product: Any, out: Any) -> dict[Any, Any]:
    """Return what replaces the expressions in a loop that the result of relu determines.

    Parameters
    ----------
    loop : Loop
        Any loop that reads the product.
    form : Form
        The layer, whose activation is relu.
    product : ScalarVariable
        The loop's input for the product.
    out : GpuArrayVariable
        The result of relu.

    Returns
    -------
    dict
        A variable and a function of a scalar for each expression; see `Loop.applied`.
    """

    def is_operand(x: Any) -> bool:
        return terms_of(loop, product, x) == form.terms

    found: dict[Any, Any] = {}
    for x in expressions(loop.outputs):
        how = loop.relation(x, is_operand) if isinstance(x.owner, Apply) else None
        if how in _OF_RESULT:
            found[x] = (out, _compare(how))
        elif (of := loop.relu_of(x)) is not None and is_operand(of):
            found[x] = (out, lambda y: y)
    return found


def _compare(how: str) -> Any:
    return lambda y: _OF_RESULT[how](y, y.type.make_constant(0))
