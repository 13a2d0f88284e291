"""What differs between the supported releases of PyTensor."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any

from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.fg import FunctionGraph
from pytensor.tensor.elemwise import Elemwise

from dnnops.errors import DnnNotSupportedError

__all__ = ["existing", "inferred_shapes", "inferred_size", "set_default_update", "shape_inference"]

#: Whether ``Op.infer_shape`` is given the graph, as before PyTensor 3.1.
_TAKES_FGRAPH = "fgraph" in inspect.signature(Elemwise.infer_shape).parameters


def shape_inference(method: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate an Op's ``infer_shape(self, node, shapes)`` for the installed PyTensor.

    Parameters
    ----------
    method : callable
        Takes the node and the shapes of its inputs, and gives those of the outputs.

    Returns
    -------
    callable
        The method with the parameters that PyTensor passes.
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
        One that has the method.
    node : Apply
    shapes : list of tuple
        Of the inputs.

    Returns
    -------
    list of tuple
        The shapes of the outputs.
    """
    return op.infer_shape(None, node, shapes) if _TAKES_FGRAPH else op.infer_shape(node, shapes)


def inferred_size(fgraph: FunctionGraph, x: Any, axis: int) -> Any:
    """The size of an axis, as the graph's inputs give it.

    PyTensor 3.0 knows the variables of the graph only, and 3.3 counts no axis from the end.

    Parameters
    ----------
    fgraph : FunctionGraph
    x : TensorVariable
    axis : int
        May be negative.

    Returns
    -------
    TensorVariable or None
        None if nobody follows the shapes in this graph, or `x` is no part of it.
    """
    feature = getattr(fgraph, "shape_feature", None)
    if feature is None or x not in fgraph.variables:
        return None
    return feature.get_shape(x, axis % x.type.ndim)


def existing(module: Any, *names: str) -> tuple[type, ...]:
    """Those of a module's classes that the installed PyTensor has.

    Parameters
    ----------
    module : module
    *names : str
        Classes that a release has dropped, or not had yet.

    Returns
    -------
    tuple of type
    """
    return tuple(getattr(module, name) for name in names if hasattr(module, name))


def set_default_update(variable: Any, update: Any) -> None:
    """Let each function that uses a shared variable update it, unless it says otherwise.

    Parameters
    ----------
    variable : SharedVariable
    update : Variable

    Raises
    ------
    DnnNotSupportedError
        If the installed PyTensor has no default updates: it has deprecated them.
    """
    if not hasattr(SharedVariable, "default_update"):
        raise DnnNotSupportedError(
            "this release of PyTensor has no default updates of shared variables: pass a state,"
            " and the one that follows as its update"
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        variable.default_update = update
