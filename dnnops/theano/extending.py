"""Base classes and decorators for Ops, types, rewrites and callbacks that are written for Theano.

PyTensor passes the graph, and other arguments, to methods that had fewer in Theano.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from numbers import Real
from typing import Any

from pytensor.compile.debug import monitormode
from pytensor.compile.mode import optdb as database
from pytensor.graph.op import Op as PyTensorOp
from pytensor.graph.rewriting import basic as rewriting
from pytensor.graph.type import Type as PyTensorType
from pytensor.graph.utils import MetaType, MethodNotDefined
from pytensor.link.c.op import COp
from pytensor.link.c.type import CType

__all__ = [
    "LocalOptimizer",
    "MonitorMode",
    "Op",
    "Type",
    "detect_nan",
    "local_optimizer",
    "optdb",
]


def _count(function: Callable[..., Any]) -> int | None:
    """Return the number of positional arguments, or None if there may be any number of them."""
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return None
    return sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)


def _without_graph(method: Callable[..., Any], count: int) -> Callable[..., Any]:
    """Drop the graph, the first argument after `self`, for a method of `count` arguments."""
    if _count(method) != count:
        return method

    @wraps(method)
    def call(self: Any, fgraph: Any, *args: Any, **kwargs: Any) -> Any:
        return method(self, *args)

    return call


def _without_keywords(method: Callable[..., Any]) -> Callable[..., Any]:
    """Drop keyword arguments, such as `c_compiler`, which a method doesn't take."""
    parameters = inspect.signature(method).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return method

    @wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        return method(*args, **{k: v for k, v in kwargs.items() if k in parameters})

    return call


#: Methods that PyTensor calls with the graph, and how many arguments they had without.
_OF_GRAPH = {"infer_shape": 3, "do_constant_folding": 2}
#: Methods that PyTensor calls with keyword arguments.
_OF_COMPILER = (
    *("c_compile_args", "c_header_dirs", "c_headers", "c_init_code", "c_lib_dirs", "c_libraries"),
    *("c_no_compile_args", "c_support_code"),
)


def _adapt(cls: type, name: str, adapt: Callable[..., Any], *args: Any) -> None:
    method = vars(cls).get(name)
    if inspect.isfunction(method):
        setattr(cls, name, adapt(method, *args))


def _set(cls: type, name: str, method: Callable[..., Any]) -> None:
    setattr(cls, name, method)


class StandsFor(MetaType):  # type: ignore[misc]
    """Class of the base classes below, which stand for PyTensor's in `isinstance`.

    Classes that are derived from them are ordinary ones.
    """

    def __instancecheck__(cls, instance: Any) -> bool:  # noqa: N805 - a metaclass
        return cls.__subclasscheck__(type(instance))

    def __subclasscheck__(cls, subclass: type) -> bool:  # noqa: N805
        actual = vars(cls).get("stands_for")
        # issubclass(subclass, actual) would ask this class, which is derived from `actual`.
        return super().__subclasscheck__(subclass) if actual is None else actual in subclass.__mro__


class Op(COp, metaclass=StandsFor):  # type: ignore[misc]
    """Base class of Ops that are written for Theano."""

    stands_for = PyTensorOp

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        for name, count in _OF_GRAPH.items():
            _adapt(cls, name, _without_graph, count)
        for name in _OF_COMPILER:
            _adapt(cls, name, _without_keywords)
        if "pullback" not in vars(cls):
            if "L_op" in vars(cls):
                _set(cls, "pullback", lambda self, *args: self.L_op(*args))
            elif "grad" in vars(cls):
                _set(cls, "pullback", lambda self, ins, outs, grads: self.grad(ins, grads))

    def perform(self, node: Any, inputs: Any, output_storage: Any) -> None:
        """Raise an error: the Op has only C code."""
        raise MethodNotDefined("perform", type(self), type(self).__name__)

    def c_code(self, node: Any, name: str, inputs: Any, outputs: Any, sub: Any) -> str:
        """Raise an error: the Op has no C code."""
        raise MethodNotDefined("c_code", type(self), type(self).__name__)


class Type(CType, metaclass=StandsFor):  # type: ignore[misc]
    """Base class of types that are written for Theano."""

    stands_for = PyTensorType

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        for name in _OF_COMPILER:
            _adapt(cls, name, _without_keywords)
        for theirs, ours in (("Variable", "variable_type"), ("Constant", "constant_type")):
            if theirs in vars(cls):
                setattr(cls, ours, vars(cls)[theirs])

    def filter(self, data: Any, strict: bool = False, allow_downcast: Any = None) -> Any:
        """Raise an error: the type doesn't say which values it has."""
        raise MethodNotDefined("filter", type(self), type(self).__name__)

    def c_declare(self, name: str, sub: Any, check_input: bool = True) -> str:
        """Raise an error: the type has no C code."""
        raise MethodNotDefined("c_declare", type(self), type(self).__name__)

    def c_init(self, name: str, sub: Any) -> str:
        """Raise an error: the type has no C code."""
        raise MethodNotDefined("c_init", type(self), type(self).__name__)

    def c_extract(self, name: str, sub: Any, check_input: bool = True, **kwargs: Any) -> str:
        """Raise an error: the type has no C code."""
        raise MethodNotDefined("c_extract", type(self), type(self).__name__)

    def c_sync(self, name: str, sub: Any) -> str:
        """Raise an error: the type has no C code."""
        raise MethodNotDefined("c_sync", type(self), type(self).__name__)

    def c_cleanup(self, name: str, sub: Any) -> str:
        """Raise an error: the type has no C code."""
        raise MethodNotDefined("c_cleanup", type(self), type(self).__name__)


class LocalOptimizer(rewriting.NodeRewriter, metaclass=StandsFor):  # type: ignore[misc]
    """Base class of rewrites of a node that are written for Theano."""

    stands_for = rewriting.NodeRewriter

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        _adapt(cls, "transform", _without_graph, 2)

    def transform(self, fgraph: Any, node: Any, *args: Any, **kwargs: Any) -> Any:
        """Raise an error: the rewrite doesn't say what it does."""
        raise MethodNotDefined("transform", type(self), type(self).__name__)


def local_optimizer(
    tracks: Any, inplace: bool = False, requirements: Any = ()
) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator that makes a rewrite of a function of a node.

    Parameters
    ----------
    tracks : list of Op or type, or None
        The Ops whose nodes the function takes.
    inplace : bool
        Whether the rewrite makes Ops that overwrite operands.
    requirements : sequence of callable
        Functions that add features to a graph.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        takes_node = _count(function) == 1

        @wraps(function)
        def rewrite(fgraph: Any, node: Any) -> Any:
            return function(node) if takes_node else function(fgraph, node)

        return rewriting.node_rewriter(tracks, inplace, requirements)(rewrite)

    return decorate


class _Database:
    """PyTensor's database of rewrites, whose positions may follow the rewrite as in Theano."""

    def __getattr__(self, name: str) -> Any:
        return getattr(database, name)

    def __getitem__(self, name: str) -> Any:
        return database[name]

    def __contains__(self, name: str) -> bool:
        return name in database

    def register(self, name: str, rewrite: Any, *tags: Any, **kwargs: Any) -> Any:
        """Register a rewrite; a number among the tags is its position."""
        positions = [tag for tag in tags if isinstance(tag, Real)]
        if positions:
            kwargs["position"] = positions[0]
        return database.register(name, rewrite, *(t for t in tags if t not in positions), **kwargs)


optdb = _Database()


def _of_node(callback: Any) -> Any:
    if callback is None or _count(callback) != 3:
        return callback
    return lambda fgraph, i, node, fn: callback(i, node, fn)


class MonitorMode(monitormode.MonitorMode):  # type: ignore[misc]
    """Mode that calls functions of ``(i, node, fn)`` before and after each node.

    Parameters
    ----------
    pre_func, post_func : callable, optional
    *args, **kwargs
        Further arguments of PyTensor's class.
    """

    def __init__(self, pre_func: Any = None, post_func: Any = None, *args: Any, **kwargs: Any):
        super().__init__(_of_node(pre_func), _of_node(post_func), *args, **kwargs)


def detect_nan(i: int, node: Any, fn: Any) -> None:
    """Print the node and its operands, if there is NaN among its results.

    Parameters
    ----------
    i : int
        Position of the node in the order of execution.
    node : Apply
    fn : callable
        Thunk of the node, with its storage, which has run.
    """
    monitormode.detect_nan(None, i, node, fn)
