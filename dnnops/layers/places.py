"""Name the layer in which an error occurs, when a graph is built and when it runs.

While a layer is called, its place in the layer around it is known. Variables that it makes get the
place as a frame of the stack trace that PyTensor keeps for each of them, because PyTensor's
rewrites pass traces on to the nodes that replace them. When a node fails, PyTensor looks for the
trace in ``raise_with_op``, which is wrapped to add the place to the exception. Gradients get
theirs in `dnnops.layers.gradient_places`.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from typing import Any

from pytensor.compile import Function
from pytensor.graph.basic import Variable

from dnnops.layers.gradient_places import layer_frames, show_gradients

__all__ = ["Call", "inside", "show_places"]

#: Most places that an error names, if a node was made from those of several layers.
_MOST = 3
_numbers = itertools.count()


@dataclass(frozen=True)
class Call:
    """A layer that is being called.

    Attributes
    ----------
    layer : Layer or callable
        What is called.
    text : str
        Its name and sizes.
    within : str
        Its place in the layer around it, such as ``layer 6 of Sequential``; empty if there is none.
    number : int
        Number of the call in the process.
    """

    layer: Any
    text: str
    within: str
    number: int

    def variables(self, outputs: Any, inputs: Any) -> list[Variable]:
        """Return the variables that the call has made or read, except its arguments.

        Parameters
        ----------
        outputs, inputs : object
            Results and arguments of the layer's call, in nested tuples, lists and dictionaries.
        """
        known = set(_variables_in(inputs))
        found: dict[Variable, None] = {}
        waiting = list(_variables_in(outputs))
        while waiting:
            variable = waiting.pop()
            number = getattr(variable.tag, "layer_call", self.number)
            # Not beyond what earlier calls have made.
            if variable in known or variable in found or number < self.number:
                continue
            found[variable] = None
            if variable.owner is not None:
                waiting += variable.owner.inputs
        return list(found)

    def mark(self, variables: Iterable[Variable]) -> None:
        """Note the place in `variables`, except in those that no node computes."""
        if not self.within:
            return
        calls = _calls.get()
        frames = [(f"<{call.within}>", 0, call.text, "") for call in calls if call.within]
        for variable in variables:
            if variable.owner is not None and not hasattr(variable.tag, "layer_call"):
                variable.tag.layer_call = self.number
                variable.tag.trace = [*getattr(variable.tag, "trace", []), frames]


def _variables_in(values: Any) -> Iterator[Variable]:
    if isinstance(values, Variable):
        yield values
    elif isinstance(values, (dict, list, tuple)):
        for value in values.values() if isinstance(values, dict) else values:
            yield from _variables_in(value)


#: Layers that are being called, from the outside inwards.
_calls: ContextVar[tuple[Call, ...]] = ContextVar("dnnops layers", default=())


@contextmanager
def inside(layer: Any, text: str, name_in: Callable[[Any], str | None]) -> Iterator[Call]:
    """Add the place of a layer to the exceptions that are raised in its call.

    Parameters
    ----------
    layer : Layer or callable
        What is called.
    text : str
        Its name and sizes.
    name_in : callable
        Function that returns the name of `layer` within the layer around it, or None.

    Yields
    ------
    Call
    """
    calls = _calls.get()
    around = calls[-1].layer if calls else None
    name = None if around is None else name_in(around)
    within = "" if name is None else f"layer {name} of {type(around).__name__}"
    call = Call(layer, text, within, next(_numbers))
    token = _calls.set((*calls, call))
    try:
        yield call
    except Exception as error:
        if within:
            _add(error, f"in {within}, {text}")
        raise
    finally:
        _calls.reset(token)


def _places(variables: Sequence[Variable]) -> list[str]:
    """Return the places in the traces of variables, the innermost layer first."""
    found = []
    for variable in variables:
        for frames in layer_frames(variable):
            parts = [f"{frame[0][1:-1]}, {frame[2]}" for frame in frames]
            found.append("\n  in ".join(reversed(parts)))
    return list(dict.fromkeys(found))


def _add(error: Exception, words: str) -> None:
    """Add words to an exception: to its message if that is all it consists of, else as a note."""
    if words in str(error):
        return
    if len(error.args) == 1 and isinstance(error.args[0], str) and str(error) == error.args[0]:
        error.args = (f"{error.args[0]}\n  {words}",)
    else:
        error.add_note(words)


def show_places() -> None:
    """Let the errors of compiled functions name the layer whose node has failed."""
    show_gradients()
    modules = (
        Function.__module__,
        *("pytensor.link.utils", "pytensor.link.basic", "pytensor.link.vm"),
    )
    for module in map(sys.modules.get, modules):
        original = getattr(module, "raise_with_op", None)
        if original is not None and not hasattr(original, "__wrapped__"):
            setattr(module, "raise_with_op", _with_place(original))  # noqa: B010


def _with_place(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def raise_with_op(fgraph: Any, node: Any, *arguments: Any, **named: Any) -> Any:
        error = sys.exc_info()[1]
        # What rewrites have made anew has no place.
        places = _places(node.outputs)
        if isinstance(error, Exception) and places:
            more = "\n  and others" if len(places) > _MOST else ""
            joined = "\n  and in ".join(places[:_MOST])
            _add(error, f"in {joined}{more}")
        return original(fgraph, node, *arguments, **named)

    return raise_with_op
