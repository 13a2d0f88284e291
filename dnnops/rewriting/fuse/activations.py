"""Recognize activations in the scalar graphs of elementwise Ops."""

from __future__ import annotations

from typing import Any, NamedTuple

from pytensor.scalar.basic import Expm1, Mul, Switch, Tanh
from pytensor.scalar.math import Sigmoid

from dnnops.rewriting.fuse.scalar_graphs import Loop, uncast

__all__ = ["FoundActivation", "activation_of"]


class FoundActivation(NamedTuple):
    """An activation in a scalar graph.

    Attributes
    ----------
    name : str
        Mode of `dnnops.nnet.activation.op.Activation`, or ``"identity"``.
    coef : float
        Its coefficient; 0 if it has none.
    operand : ScalarVariable
        What it is applied to.
    """

    name: str
    coef: float
    operand: Any


def activation_of(loop: Loop, x: Any) -> FoundActivation:
    """Return the activation that computes an expression; ``"identity"`` if none does.

    Parameters
    ----------
    loop : Loop
        The scalar graph.
    x : ScalarVariable
        An expression in it.

    Returns
    -------
    FoundActivation
    """
    x = uncast(x)
    of = loop.relu_of(x)
    if of is not None:
        return FoundActivation("relu", 0.0, of)
    for name, kind in (("tanh", Tanh), ("sigmoid", Sigmoid)):
        if operands := loop.operands(x, kind):
            return FoundActivation(name, 0.0, uncast(operands[0]))
    return _elu(loop, x) or _clipped_relu(loop, x) or _swish(loop, x) or _identity(x)


def _identity(x: Any) -> FoundActivation:
    return FoundActivation("identity", 0.0, x)


def _elu(loop: Loop, x: Any) -> FoundActivation | None:
    """Match ``switch(z > 0, z, alpha * expm1(z))``."""
    found = loop.operands(x, Switch)
    if not found:
        return None
    condition, above, below = found
    of = uncast(above)
    factors = loop.operands(below, Mul) or [below]
    numbers = [loop.number(v) for v in factors]
    exponentials = [v for v, number in zip(factors, numbers, strict=True) if number is None]
    if len(exponentials) != 1 or len(factors) > 2:
        return None
    inner = loop.operands(exponentials[0], Expm1)
    if not inner or uncast(inner[0]) is not of:
        return None
    if loop.relation(condition, lambda v: v is of) != ">":
        return None
    alpha = next((number for number in numbers if number is not None), 1.0)
    return FoundActivation("elu", alpha, of)


def _clipped_relu(loop: Loop, x: Any) -> FoundActivation | None:
    """Match ``switch(z <= 0, 0, switch(z >= ceiling, ceiling, z))``."""
    found = loop.operands(x, Switch)
    if not found or loop.number(found[1]) != 0:
        return None
    inner = loop.operands(found[2], Switch)
    if not inner:
        return None
    of, ceiling = uncast(inner[2]), loop.number(inner[1])
    if ceiling is None or ceiling <= 0 or loop.relation(found[0], lambda v: v is of) != "<=":
        return None
    if loop.relation(inner[0], lambda v: v is of, ceiling) != ">=":
        return None
    return FoundActivation("clipped_relu", ceiling, of)


def _swish(loop: Loop, x: Any) -> FoundActivation | None:
    """Match ``z * sigmoid(beta * z)``, also if a switch replaces it by 0 where the sigmoid is 0."""
    if (found := loop.operands(x, Switch)) and loop.number(found[1]) == 0:
        x = uncast(found[2])
        gates = [uncast(v) for v in loop.operands(x, Mul)]
        if loop.relation(found[0], lambda v: any(v is gate for gate in gates)) != "<=":
            return None
    factors = [uncast(v) for v in loop.operands(x, Mul)]
    if len(factors) != 2:
        return None
    for of, gate in (factors, factors[::-1]):
        inner = loop.operands(gate, Sigmoid)
        if not inner:
            continue
        scaled = loop.operands(inner[0], Mul) or [inner[0]]
        rest = [v for v in scaled if uncast(v) is not of]
        numbers = [loop.number(v) for v in rest]
        if len(rest) == len(scaled) - 1 and len(rest) < 2 and None not in numbers:
            return FoundActivation("swish", float(*numbers) if numbers else 1.0, of)
    return None
