"""Attributes of Theano's variables, functions and graphs that PyTensor's don't have."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.compile.executor import Function
from pytensor.graph.fg import FunctionGraph
from pytensor.tensor.type import TensorType
from pytensor.tensor.variable import TensorVariable

from dnnops.theano.tensor import choose

__all__ = ["ATTRIBUTES"]


def _reshape(self: Any, shape: Any, ndim: int | None = None) -> Any:
    """Return the variable with another shape, of `ndim` axes."""
    return pt.reshape(self, shape, ndim=ndim)


def _choose(self: Any, choices: Any, out: Any = None, mode: str = "raise") -> Any:
    """Select each element from one of several tensors."""
    return choose(self, choices, out, mode)


def _constant_value(self: Any) -> Any:
    """Return the value of a constant scalar; raise ``NotScalarConstantError`` for others."""
    return pt.get_scalar_constant_value(self)


def _change_input(
    self: Any, node: Any, i: int, new_r: Any, reason: Any = None, **kwargs: Any
) -> None:
    """Change an input of a node or, for the node 'output', an output of the graph."""
    if node == "output":
        node = next(n for n, j in self.clients[self.outputs[i]] if getattr(n.op, "idx", None) == i)
        i = 0
    self.change_node_input(node, i, new_r, reason, **kwargs)


def _containers(self: Any) -> dict[Any, Any]:
    """Return the containers of the inputs by variable, by name and by place."""
    containers: dict[Any, Any] = {}
    for place, (one, container) in enumerate(
        zip(self.maker.inputs, self.input_storage, strict=True)
    ):
        containers |= {place: container, one.variable: container}
        if one.name:
            containers[one.name] = container
    return containers


def _value_of_input(self: Any, key: Any) -> Any:
    """Return the value of an input, such as a shared variable."""
    return _containers(self)[key].value


def _set_value_of_input(self: Any, key: Any, value: Any) -> None:
    """Set the value of an input, such as a shared variable."""
    _containers(self)[key].value = value


def _has_input(self: Any, key: Any) -> bool:
    """Return whether this is an input, its name or its place."""
    return key in _containers(self)


def _returned_outputs(self: Any) -> int:
    """Return the number of outputs, without those that are updates."""
    return len(self.output_storage) - sum(one.update is not None for one in self.maker.inputs)


def _zeros(self: Any, shape: Any) -> np.ndarray:
    """Return an array of zeros of the type's dtype."""
    return np.zeros(shape, dtype=self.dtype)


#: The base class of all kinds of tensor variables that defines their methods.
_TENSOR_METHODS = next(base for base in TensorVariable.__mro__ if "reshape" in vars(base))
#: Attributes by class and name.
ATTRIBUTES: dict[type, dict[str, Any]] = {
    _TENSOR_METHODS: {
        "choose": _choose,
        "get_scalar_constant_value": _constant_value,
        "reshape": _reshape,
    },
    TensorType: {"sparse_grad": False, "value_zeros": _zeros},
    FunctionGraph: {"change_input": _change_input},
    Function: {
        "__contains__": _has_input,
        "__getitem__": _value_of_input,
        "__setitem__": _set_value_of_input,
        "container": property(_containers),
        "fn": property(lambda self: self.vm, doc="What runs the compiled graph."),
        "n_returned_outputs": property(_returned_outputs),
        "nodes_with_inner_function": (),
        "output_keys": None,
        "sync_shared": lambda self: None,
        "value": property(lambda self: self, doc="This function, which is indexed by inputs."),
    },
}
