"""Give the nodes of gradients the places of the layers that they belong to.

PyTensor computes a gradient node by node, from the result of a network to its inputs: the
``pullback`` of an Op takes the gradients of a node's outputs and returns terms of those of its
inputs. What lies between the two was made for that node, so it gets the node's place. Functions
that compute gradients call ``_populate_grad_dict``, which is wrapped to find both in its table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Any

import pytensor.gradient
from pytensor.graph.basic import Apply, Variable

__all__ = ["GRADIENT", "LAYER", "layer_frames", "mark_gradients", "show_gradients"]

#: How the file names of frames begin that name a layer, or a gradient of one.
LAYER = "<layer "
GRADIENT = "<the gradient of layer "
_FILLER = "_populate_grad_dict"

#: The frames of a place, from the outermost layer inwards.
_Place = tuple[Any, ...]


def layer_frames(variable: Variable) -> list[_Place]:
    """Return the places in the stack traces of a variable."""
    found = []
    for frames in getattr(variable.tag, "trace", []):
        place = tuple(frame for frame in frames if str(frame[0]).startswith((LAYER, GRADIENT)))
        if place:
            found.append(place)
    return found


def show_gradients() -> None:
    """Let gradients that are computed from now on have the places of their layers."""
    original = getattr(pytensor.gradient, _FILLER, None)
    if original is not None and not hasattr(original, "__wrapped__"):
        setattr(pytensor.gradient, _FILLER, _marking(original))


def _marking(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def populate(clients: Any, gradients: Any, *arguments: Any, **named: Any) -> Any:
        result = original(clients, gradients, *arguments, **named)
        mark_gradients(clients, gradients)
        return result

    return populate


def mark_gradients(
    clients: Mapping[Variable, Iterable[Apply]], gradients: Mapping[Variable, Variable]
) -> None:
    """Give variables of a gradient the places of the nodes that they are the gradient of.

    Parameters
    ----------
    clients : mapping
        The nodes that use each variable between what is differentiated and the cost.
    gradients : mapping
        The gradient of the cost with respect to each of these variables that was needed.
    """
    nodes = dict.fromkeys(node for found in clients.values() for node in found)
    places = {node: place for node in nodes if (place := _place(node))}
    if not places:
        return
    # Where the pullback of a node began.
    starts: dict[Variable, list[Apply]] = {}
    known: set[Variable] = set()
    for node in nodes:
        known.update(node.inputs, node.outputs)
        for output in node.outputs:
            if output in gradients:
                starts.setdefault(gradients[output], []).append(node)
    for variable, found in clients.items():
        if variable in gradients and any(node in places for node in found):
            _mark(gradients[variable], set(found), starts, known, places)


def _mark(
    gradient: Variable,
    clients: set[Apply],
    starts: Mapping[Variable, list[Apply]],
    known: set[Variable],
    places: Mapping[Apply, _Place],
) -> None:
    """Mark what lies between the gradients of a variable's clients and its own gradient."""
    order: list[Variable] = []
    reached: dict[Variable, set[Apply]] = {}
    waiting = [(gradient, False)]
    while waiting:
        variable, done = waiting.pop()
        if done:
            order.append(variable)
            for x in variable.owner.inputs:
                reached[variable] |= reached[x]
        elif variable not in reached:
            begun = clients.intersection(starts.get(variable, ()))
            reached[variable] = begun
            inner = variable is gradient or variable not in starts
            if not begun and inner and variable.owner is not None and variable not in known:
                waiting.append((variable, True))
                waiting += [(x, False) for x in variable.owner.inputs]
    # What depends on no gradient, such as the slope of an activation, was made for what uses it.
    for variable in reversed(order):
        for x in variable.owner.inputs:
            reached[x] = reached[x] or reached[variable]
    for variable in order:
        found = {places.get(node) for node in reached[variable] or clients}
        place = found.pop() if len(found) == 1 else None
        if place is not None and not layer_frames(variable):
            variable.tag.trace = [*getattr(variable.tag, "trace", []), list(place)]


def _place(node: Apply) -> _Place | None:
    """Return the place of a node's gradient, if the node was made in a layer."""
    found = {place for output in node.outputs for place in layer_frames(output)}
    if len(found) != 1:
        return None
    *around, (name, *rest) = found.pop()
    return (*around, (name.replace(LAYER, GRADIENT, 1), *rest))
