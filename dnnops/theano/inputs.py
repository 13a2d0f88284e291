"""Inputs of functions with default values and updates, and the functions that have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytensor
from pytensor.compile.io import SymbolicInput
from pytensor.graph.basic import Constant, Variable
from pytensor.link.basic import Container

from dnnops.errors import DnnTypeError

__all__ = ["Function", "In", "Param", "as_input", "compile_function"]


class In(pytensor.In):
    """Input of a function, with an optional default value and an optional update.

    Parameters
    ----------
    variable : Variable
    name : str, optional
    value : object, optional
        Default value, which inputs of PyTensor don't support.
    update : Variable, optional
        New default value, computed by each call.
    *args, **kwargs
        Further arguments of ``pytensor.In``.
    """

    def __init__(
        self,
        variable: Any,
        name: str | None = None,
        value: Any = None,
        update: Any = None,
        *args: Any,
        **kwargs: Any,
    ):
        super().__init__(variable, name, None, None, *args, **kwargs)
        self.default = value
        self.new_default = update


def Param(  # noqa: N802 - Theano's name
    variable: Any,
    default: Any = None,
    name: str | None = None,
    mutable: bool = False,
    strict: bool = False,
    allow_downcast: bool | None = None,
    implicit: bool | None = None,
    borrow: bool | None = None,
) -> In:
    """Return an ``In`` with a default value.

    Parameters
    ----------
    variable : Variable
    default : object, optional
        Value where a call does not pass one.
    name : str, optional
        Name of the argument; the default is the variable's.
    mutable : bool
        Whether a function may overwrite the argument.
    strict : bool
        Whether values of other types are refused instead of converted.
    allow_downcast : bool, optional
        Whether values may lose precision; None allows it for Python's floats and ``floatX``.
    implicit : bool, optional
        Whether the input was added by a function rather than by the user.
    borrow : bool, optional
        Whether the function may keep the argument's memory; the default is `mutable`.

    Returns
    -------
    In
    """
    return In(
        variable,
        name=name,
        value=default,
        mutable=mutable,
        strict=strict,
        allow_downcast=allow_downcast,
        implicit=implicit,
        borrow=borrow,
    )


def as_input(given: Any) -> Any:
    """Convert a shortcut for an ``In`` to one.

    Parameters
    ----------
    given : In, Variable, or tuple
        A tuple is ``(variable, value)`` or ``((variable, update), value)``, and may begin with a
        name.

    Raises
    ------
    DnnTypeError
        If the tuple has another form, or the input is a constant.
    """
    if isinstance(given, Constant):
        raise DnnTypeError(f"function: the constant {given} cannot be an input")
    if isinstance(given, (Variable, SymbolicInput)) or not isinstance(given, (tuple, list)):
        return given
    parts = list(given)
    name = parts.pop(0) if parts and isinstance(parts[0], str) else None
    variable = parts.pop(0) if parts else None
    update = None
    if isinstance(variable, (tuple, list)) and len(variable) == 2:
        variable, update = variable
    value = parts.pop(0) if parts else None
    if parts or not isinstance(variable, Variable):
        raise DnnTypeError(
            f"function: the input {given!r} must be a variable, an In, (variable, value) or"
            " ((variable, update), value)"
        )
    return In(variable, name=name, value=value, update=update)


class Function:
    """Compiled function whose inputs may have default values, or whose outputs have names.

    Default values are read and set by ``f[x]``, where `x` is a variable, its name or its place in
    the list of inputs. ``f.value[x]`` is the same, and ``f.container[x]`` an object with an
    attribute ``value``.

    Parameters
    ----------
    compiled : Function
        PyTensor's function, whose last outputs are the updates of inputs.
    inputs : list of Variable or SymbolicInput
    keys : list, optional
        Keys of the outputs, which are returned as a dict.
    single : bool
        Whether there is one output, which is returned itself.
    """

    def __init__(self, compiled: Any, inputs: Sequence[Any], keys: Any, single: bool):
        self._compiled = compiled
        self._keys = keys
        self._single = single
        self.container: dict[Any, Container] = {}
        self._inputs: list[tuple[str | None, Container]] = []
        self._updated: list[Container] = []
        for place, one in enumerate(inputs):
            variable = one if isinstance(one, Variable) else one.variable
            container = Container(variable, [None], allow_downcast=True, name=one.name)
            container.value = getattr(one, "default", None)
            self._inputs.append((one.name, container))
            self.container |= {place: container, variable: container}
            if one.name:
                self.container[one.name] = container
            if getattr(one, "new_default", None) is not None:
                self._updated.append(container)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = list(args)
        for name, container in self._inputs[len(args) :]:
            value = kwargs.pop(name, container.value) if name else container.value
            if value is None:
                break  # the compiled function reports missing inputs
            given.append(value)
        results = self._compiled(*given, **kwargs)
        count = len(results) - len(self._updated)
        for container, value in zip(self._updated, results[count:], strict=True):
            container.value = value
        results = results[:count]
        if self._keys is not None:
            return dict(zip(self._keys, results, strict=True))
        return results[0] if self._single else results

    @property
    def value(self) -> Function:
        """Return this object, which is indexed by inputs."""
        return self

    def __getitem__(self, key: Any) -> Any:
        return self.container[key].value

    def __setitem__(self, key: Any, value: Any) -> None:
        self.container[key].value = value

    def __contains__(self, key: Any) -> bool:
        return key in self.container

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # also before the object is complete, while it is unpickled
            raise AttributeError(name)
        return getattr(self._compiled, name)


def compile_function(inputs: Sequence[Any], outputs: Any, mode: Any, **kwargs: Any) -> Any:
    """Compile a function with ``pytensor.function``, and wrap it if its inputs need that.

    Parameters
    ----------
    inputs : sequence
        Inputs, in any form that :func:`as_input` accepts.
    outputs : Variable, Out, list or dict of them, or None
        A call of the function returns a dict if these are one.
    mode : Mode or str, optional
    **kwargs
        Further arguments of ``pytensor.function``.
    """
    inputs = [as_input(one) for one in inputs]
    keys = sorted(outputs) if isinstance(outputs, Mapping) else None
    if keys is None and not any(isinstance(one, In) for one in inputs):
        return pytensor.function(inputs, outputs, mode=mode, **kwargs)
    if keys is not None:
        results = [outputs[key] for key in keys]
    else:
        several = isinstance(outputs, (list, tuple))
        results = list(outputs) if several else [] if outputs is None else [outputs]
    updates = [getattr(one, "new_default", None) for one in inputs]
    results += [update for update in updates if update is not None]
    compiled = pytensor.function(inputs, results, mode=mode, **kwargs)
    single = keys is None and outputs is not None and not isinstance(outputs, (list, tuple))
    return Function(compiled, inputs, keys, single)
