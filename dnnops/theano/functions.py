"""``theano.function``, ``scan``, ``shared`` and related functions, with Theano's arguments."""

from __future__ import annotations

from collections.abc import Mapping
from functools import wraps
from typing import Any

import numpy as np
import pytensor
from pytensor import gradient, printing
from pytensor.compile.mode import Mode
from pytensor.graph.basic import equal_computations
from pytensor.graph.replace import clone_replace

from dnnops.config import flag_value
from dnnops.errors import DnnValueError
from dnnops.theano.inputs import In, Param, compile_function
from dnnops.theano.random import randomstate_constructor
from dnnops.theano.tensor import unbroadcast

__all__ = [
    "In",
    "OrderedUpdates",
    "Param",
    "asarray",
    "clone",
    "debugprint",
    "format_as",
    "function",
    "is_same_graph",
    "scan",
    "shared",
    "sparse_grad",
    "verify_grad",
]

#: The release of Theano that `dnnops.theano` is compatible with.
VERSION = "1.0.5"


class OrderedUpdates(dict[Any, Any]):
    """Mapping from shared variables to their new values; ``+`` merges two mappings."""

    def __add__(self, other: Any) -> OrderedUpdates:
        joined = OrderedUpdates(self)
        joined.update(other)
        return joined

    def __radd__(self, other: Any) -> OrderedUpdates:
        joined = OrderedUpdates(other)
        joined.update(self)
        return joined


@wraps(pytensor.function)
def function(inputs: Any, outputs: Any = None, mode: Any = None, **kwargs: Any) -> Any:
    """Compile a function with ``pytensor.function``.

    As in Theano, inputs may have default values and updates, and outputs may be a dict; calls then
    return a dict with the same keys. The mode ``"FAST_RUN"`` uses the linker of the flag
    ``linker``. An update may have size 1 along an axis where the size of its variable is unknown.
    """
    if kwargs.get("updates"):
        kwargs["updates"] = [(x, _of_any_size(x, new)) for x, new in _pairs(kwargs["updates"])]
    return compile_function(inputs, outputs, _mode(mode), **kwargs)


def _pairs(updates: Any) -> Any:
    return updates.items() if isinstance(updates, Mapping) else updates


def _of_any_size(variable: Any, update: Any) -> Any:
    """Remove static sizes of 1 from an update where the variable's type doesn't have them."""
    given, wanted = (getattr(getattr(x, "type", None), "shape", ()) for x in (update, variable))
    if len(given) != len(wanted):
        return update
    axes = [i for i, (a, b) in enumerate(zip(given, wanted, strict=True)) if a == 1 and b is None]
    return unbroadcast(update, *axes) if axes else update


def _mode(mode: Any) -> Any:
    if not isinstance(mode, str) or mode.upper() != "FAST_RUN":
        return mode
    if flag_value("device") != "cpu":
        return None  # the default mode of the device
    linker = pytensor.config.linker
    return mode if linker == "auto" else Mode(linker, "fast_run")


@wraps(pytensor.shared)
def shared(
    value: Any,
    name: str | None = None,
    strict: bool = False,
    allow_downcast: bool | None = None,
    broadcastable: Any = None,
    target: Any = None,
    **kwargs: Any,
) -> Any:
    """Create a shared variable.

    `broadcastable` gives the axes whose size is always 1. `target` is ignored: the flag ``device``
    determines where variables are stored.
    """
    if isinstance(value, np.random.RandomState):
        return randomstate_constructor(value, name)
    if broadcastable is not None:
        # The constructor for Python numbers doesn't accept a shape.
        value = np.asarray(value)
        kwargs["shape"] = tuple(1 if one else None for one in broadcastable)
    return pytensor.shared(value, name, strict, allow_downcast, **kwargs)


@wraps(pytensor.scan)
def scan(*args: Any, **kwargs: Any) -> Any:
    """Run a loop; return outputs and updates, which can be merged with others by ``+``."""
    outputs, updates = pytensor.scan(*args, **kwargs)
    return outputs, OrderedUpdates(updates)


def clone(
    output: Any,
    replace: Any = None,
    strict: bool = True,
    share_inputs: bool = True,
    copy_inputs: Any = None,
) -> Any:
    """Copy a graph, optionally replacing some of its variables.

    Parameters
    ----------
    output : Variable or list of Variable
        Outputs of the graph to copy.
    replace : dict or sequence of pairs, optional
        Replacements of variables in the copy.
    strict : bool
        Whether replacements must have the types of the variables that they replace.
    share_inputs : bool
        Whether the copy uses the same inputs instead of copies.
    copy_inputs : bool, optional
        Alias of `share_inputs`.
    """
    share = share_inputs if copy_inputs is None else copy_inputs
    return clone_replace(output, replace, rebuild_strict=strict, copy_inputs_over=share)


def is_same_graph(var1: Any, var2: Any, givens: Any = None, debug: bool = False) -> bool:
    """Return whether two variables are computed in the same way from the same inputs.

    Parameters
    ----------
    var1, var2 : Variable
    givens : dict or sequence of pairs, optional
        Replacements of variables in both graphs.
    debug : bool
        Ignored.
    """
    if givens:
        var1, var2 = clone_replace([var1, var2], givens, rebuild_strict=False)
    return bool(equal_computations([var1], [var2]))


def sparse_grad(var: Any) -> Any:
    """Return `var` unchanged: PyTensor's gradients of an indexed matrix are dense."""
    return var


def format_as(use_list: bool, use_tuple: bool, outputs: Any) -> Any:
    """Return outputs as a list, as a tuple, or, if both flags are false, the only output itself.

    Parameters
    ----------
    use_list, use_tuple : bool
    outputs : object, or list or tuple of objects

    Returns
    -------
    list, tuple or object

    Raises
    ------
    DnnValueError
        If both flags are true, or there are several outputs and both are false.
    """
    if use_list and use_tuple:
        raise DnnValueError("format_as: use_list and use_tuple cannot both be true")
    several = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
    if use_list:
        return several
    if use_tuple:
        return tuple(several)
    if len(several) != 1:
        raise DnnValueError(f"format_as: expected one output, got {len(several)}")
    return several[0]


@wraps(gradient.verify_grad)
def verify_grad(*args: Any, **kwargs: Any) -> Any:
    """Compare a gradient with finite differences; raise ``verify_grad.E_grad`` if they differ.

    Parameters
    ----------
    *args, **kwargs
        Arguments of `pytensor.gradient.verify_grad`.

    Raises
    ------
    pytensor.gradient.GradientError
        If the gradients differ.
    """
    return gradient.verify_grad(*args, **kwargs)


verify_grad.E_grad = gradient.GradientError  # type: ignore[attr-defined]


def asarray(a: Any, dtype: Any, order: Any = None) -> np.ndarray:
    """Convert `a` to an array of a dtype, which may be 'floatX', as ``theano._asarray`` did.

    Parameters
    ----------
    a : array_like
    dtype : dtype
    order : {'C', 'F', 'A', 'K'}, optional
        Order in memory, as for `numpy.asarray`.

    Returns
    -------
    numpy.ndarray
    """
    return np.asarray(a, pytensor.config.floatX if str(dtype) == "floatX" else dtype, order)


def debugprint(
    obj: Any,
    depth: int = -1,
    print_type: bool = False,
    file: Any = None,
    ids: Any = "CHAR",
    stop_on_name: bool = False,
    done: Any = None,
    print_storage: bool = False,
    print_clients: bool = False,
    used_ids: Any = None,
    **kwargs: Any,
) -> str | None:
    """Print a graph with ``pytensor.printing.debugprint``.

    Parameters
    ----------
    obj : Variable, Apply, Function, FunctionGraph, or list of them
    depth : int
        Number of levels; all for -1.
    print_type, stop_on_name, print_storage : bool
        Whether to print types and stored values, and to stop at variables with a name.
    file : file or 'str', optional
        Where to print; by default, standard output.
    ids : {'CHAR', 'int', 'auto', ''}
        How to identify variables.
    print_clients : bool
        Ignored.
    done, used_ids : dict, optional
        Identities of earlier calls.
    **kwargs
        Further arguments of PyTensor's function.

    Returns
    -------
    str or None
        The text, if `file` is 'str'.
    """
    text: Any = printing.debugprint(
        obj,
        depth,
        print_type,
        file=file,
        id_type=ids,
        stop_on_name=stop_on_name,
        done=done,
        print_storage=print_storage,
        used_ids=used_ids,
        **kwargs,
    )
    return text if file == "str" else None
