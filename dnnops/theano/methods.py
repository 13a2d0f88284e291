"""Methods that PyTensor's objects have as in Theano, while Theano's names are installed."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from pytensor.graph.rewriting.basic import GraphRewriter
from pytensor.scalar import ScalarVariable
from pytensor.tensor.variable import TensorVariable

from dnnops.theano.attributes import ATTRIBUTES

__all__ = ["adopt_methods", "restore_methods"]

#: Classes, names of their attributes, and what these were before.
_replaced: list[tuple[type, str, Any]] = []
_MISSING = object()


def _definer(cls: type, name: str) -> type:
    """Return the class that gives `cls` an attribute, so that its siblings change with it."""
    return next(base for base in cls.__mro__ if name in vars(base))


def _truth(variable: Any) -> bool:
    """Return True, unless an operator compared two tensors: ``a < b < c`` is no symbolic graph."""
    if getattr(variable.tag, "compares", False):
        raise TypeError(
            "The truth of a comparison of variables is not known before the graph runs: use"
            " theano.tensor.switch or theano.ifelse.ifelse, and (a < b) & (b < c) for a < b < c"
        )
    return True


def _comparison(operator: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Mark the result of a comparison operator, whose truth is an error."""

    @wraps(operator)
    def compare(self: Any, other: Any) -> Any:
        result = operator(self, other)
        if hasattr(result, "tag"):
            result.tag.compares = True
        return result

    return compare


def _optimize(rewriter: Any, fgraph: Any, *args: Any, **kwargs: Any) -> Any:
    """Rewrite a graph."""
    return rewriter.rewrite(fgraph, *args, **kwargs)


def adopt_methods() -> None:
    """Give PyTensor's objects the methods of Theano's, until :func:`restore_methods`."""
    for cls in (TensorVariable, ScalarVariable):
        _replace(_definer(cls, "__bool__"), "__bool__", _truth)
    for name in ("__lt__", "__le__", "__gt__", "__ge__"):
        owner = _definer(TensorVariable, name)
        _replace(owner, name, _comparison(vars(owner)[name]))
    _replace(GraphRewriter, "optimize", _optimize)
    for owner, attributes in ATTRIBUTES.items():
        for name, value in attributes.items():
            _replace(owner, name, value)


def restore_methods() -> None:
    """Undo :func:`adopt_methods`."""
    while _replaced:
        cls, name, before = _replaced.pop()
        if before is _MISSING:
            delattr(cls, name)
        else:
            setattr(cls, name, before)


def _replace(cls: type, name: str, value: Any) -> None:
    _replaced.append((cls, name, vars(cls).get(name, _MISSING)))
    setattr(cls, name, value)
