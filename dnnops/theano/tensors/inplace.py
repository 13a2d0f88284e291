"""``theano.tensor.inplace``: elementwise Ops that overwrite their first operand."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytensor.scalar as ps
import pytensor.tensor as pt
from pytensor.tensor.elemwise import Elemwise

_SUFFIX = "_inplace"
#: Scalar Ops of PyTensor by the names of Theano's functions, where they differ.
_SCALAR = {"abs_": "abs", "inv": "reciprocal", "sgn": "sign", "fill": "second"}
_SAME = (
    *("add", "and_", "arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctan2", "arctanh"),
    *("ceil", "conj", "cos", "cosh", "deg2rad", "eq", "erf", "erfc", "erfcx", "exp", "exp2"),
    *("expm1", "floor", "gamma", "gammaln", "ge", "gt", "i0", "i1", "int_div", "invert"),
    *("j0", "j1", "jv", "le", "log", "log10", "log1p", "log2", "lt", "maximum", "minimum", "mod"),
    *("mul", "neg", "neq", "or_", "pow", "psi", "rad2deg", "round_half_away_from_zero"),
    *("round_half_to_even", "second", "sin", "sinh", "sqr", "sqrt", "sub", "tan", "tanh"),
    *("tri_gamma", "true_div", "trunc", "xor"),
)
_NAMES = [f"{name}{_SUFFIX}" for name in (*_SAME, *_SCALAR, "transpose")]

__all__ = list(_NAMES)


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _inplace(name.removesuffix(_SUFFIX))


@cache
def _inplace(name: str) -> Any:
    if name == "transpose":
        return pt.transpose  # a view
    scalar_name = _SCALAR.get(name, name)
    scalar = getattr(ps, scalar_name, None) or getattr(ps.basic, scalar_name)
    return Elemwise(type(scalar)(_first), {0: 0}, name=f"{name}{_SUFFIX}")


def _first(first: Any, *others: Any) -> list[Any]:
    """Return the type of the result, which takes the place of the first operand."""
    return [first]
