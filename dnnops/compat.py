"""Differences between the supported releases of PyTensor."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any

from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.fg import FunctionGraph
from pytensor.tensor.basic import Join, Split
from pytensor.tensor.elemwise import Elemwise

from dnnops.errors import DnnNotSupportedError

__all__ = [
    "arrays_of",
    "axis_of",
    "default_update",
    "existing",
    "inferred_shapes",
    "inferred_size",
    "join_along",
    "set_default_update",
    "shape_inference",
    "split_along",
]

#: Whether ``Op.infer_shape`` takes the graph, as before PyTensor 3.1.
_TAKES_FGRAPH = "fgraph" in inspect.signature(Elemwise.infer_shape).parameters


def shape_inference(method: Callable[..., Any]) -> Callable[..., Any]:
    """Adapt an Op's ``infer_shape(self, node, shapes)`` to the installed PyTensor.

    Parameters
    ----------
    method : callable
        Method that takes a node and the shapes of its inputs, and returns the shapes of its
        outputs.

    Returns
    -------
    callable
        Method with the parameters that PyTensor passes.
    """
    if not _TAKES_FGRAPH:
        return method

    @wraps(method)
    def infer_shape(self: Any, *arguments: Any) -> Any:
        return method(self, *arguments[-2:])

    return infer_shape


def inferred_shapes(op: Any, node: Any, shapes: Any) -> Any:
    """Call an Op's ``infer_shape``.

    Parameters
    ----------
    op : Op
        Op that defines ``infer_shape``.
    node : Apply
    shapes : list of tuple
        Shapes of the inputs.

    Returns
    -------
    list of tuple
        Shapes of the outputs.
    """
    return op.infer_shape(None, node, shapes) if _TAKES_FGRAPH else op.infer_shape(node, shapes)


def inferred_size(fgraph: FunctionGraph, x: Any, axis: int) -> Any:
    """Return the size of an axis as inferred from the graph's inputs.

    PyTensor 3.0 only accepts variables of the graph, and 3.3 does not support negative axes.

    Parameters
    ----------
    fgraph : FunctionGraph
    x : TensorVariable
    axis : int
        Axis, which may be negative.

    Returns
    -------
    TensorVariable or None
        None if the graph has no shape feature or does not contain `x`.
    """
    feature = getattr(fgraph, "shape_feature", None)
    if feature is None or x not in fgraph.variables:
        return None
    return feature.get_shape(x, axis % x.type.ndim)


def axis_of(node: Any) -> Any:
    """Return the axis of a `Join` or `Split`, which is an operand before PyTensor 3.3.

    Returns
    -------
    int or Variable
    """
    if "axis" in node.op.__props__:
        return node.op.axis
    return node.inputs[0 if isinstance(node.op, Join) else 1]


def arrays_of(node: Any) -> list[Any]:
    """Return the arrays that a `Join` joins."""
    return node.inputs[0 if "axis" in node.op.__props__ else 1 :]


def join_along(axis: Any) -> tuple[Any, list[Any]]:
    """Return a `Join` along an axis, and the operands that come before the arrays."""
    kind: Any = Join
    return (kind(axis), []) if "axis" in kind.__props__ else (kind(), [axis])


def split_along(count: int, axis: Any) -> tuple[Any, list[Any]]:
    """Return a `Split` into parts along an axis, and the operands between the array and sizes."""
    kind: Any = Split
    return (kind(count, axis), []) if "axis" in kind.__props__ else (kind(count), [axis])


def existing(module: Any, *names: str) -> tuple[type, ...]:
    """Return the named classes of a module that exist in the installed PyTensor.

    Parameters
    ----------
    module : module
    *names : str
        Classes that some supported releases do not have.

    Returns
    -------
    tuple of type
    """
    return tuple(getattr(module, name) for name in names if hasattr(module, name))


def default_update(variable: Any) -> Any:
    """Return the update of a shared variable that functions apply by themselves, or None."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return getattr(variable, "default_update", None)


def set_default_update(variable: Any, update: Any) -> None:
    """Set the default update of a shared variable, which functions apply unless they override it.

    Parameters
    ----------
    variable : SharedVariable
    update : Variable

    Raises
    ------
    DnnNotSupportedError
        If the installed PyTensor no longer has default updates, which are deprecated.
    """
    if not hasattr(SharedVariable, "default_update"):
        raise DnnNotSupportedError(
            "this release of PyTensor has no default updates of shared variables: pass a state, and"
            " use the returned next state as its update"
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        variable.default_update = update
