"""``theano.grad``, whose results have the types of the variables."""

from __future__ import annotations

from functools import wraps
from typing import Any

from pytensor import gradient
from pytensor.compile.mode import optdb
from pytensor.gradient import disconnected_type
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.graph.replace import _vectorize_node
from pytensor.graph.rewriting.basic import dfs_rewriter, node_rewriter

from dnnops.compat import shape_inference

__all__ = ["grad"]


class TypedGradient(Op):
    """Identity of a gradient, with the type of its variable: ``TypedGradient()(gradient, x)``.

    It is removed when a graph is compiled. The types of PyTensor contain sizes, and a gradient may
    know more of them than its variable. In Theano, the two types were equal. Also, where `x` only
    gave the gradient its shape, PyTensor may know the shape and omit `x`; a program that declares
    `x` as an input of the gradient's function would then have declared an unused input.
    """

    __props__ = ()
    view_map = {0: [0]}  # noqa: RUF012 - PyTensor declares it so

    def make_node(self, value: Variable, x: Variable) -> Apply:
        return Apply(self, [value, x], [x.type()])

    @shape_inference
    def infer_shape(self, node: Apply, shapes: Any) -> list[Any]:
        """Return the shape of the gradient."""
        return [shapes[0]]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        return [[True], [False]]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        return [cotangents[0], disconnected_type()]

    def pushforward(self, inputs: Any, outputs: Any, tangents: Any) -> list[Any]:
        return [tangents[0]]

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        output_storage[0][0] = inputs[0]


_typed_gradient = TypedGradient()


@_vectorize_node.register(TypedGradient)
def _vectorize(op: TypedGradient, node: Apply, value: Variable, x: Variable) -> Apply:
    # `x` may have fewer axes than `value`.
    return _typed_gradient.make_node(value, value)


@node_rewriter([TypedGradient])
def local_untyped_gradient(fgraph: Any, node: Apply) -> list[Variable]:
    """Remove the Op, so that all sizes of the gradient that are known can be used."""
    return [node.inputs[0]]


# Before all other passes, which may look for the gradients of single Ops.
optdb.register(
    "untyped_gradient",
    dfs_rewriter(local_untyped_gradient),
    "fast_run",
    "fast_compile",
    position=-0.03,
)


@wraps(gradient.grad)
def grad(cost: Any, wrt: Any, *args: Any, **kwargs: Any) -> Any:
    """Return the gradients of `cost` with ``pytensor.grad``, each with the type of its variable."""
    found: Any = gradient.grad(cost, wrt, *args, **kwargs)
    if isinstance(wrt, (list, tuple)):
        return type(found)(_typed(*pair) for pair in zip(found, wrt, strict=True))
    return _typed(found, wrt)


def _typed(value: Any, x: Variable) -> Any:
    """Give a gradient the type of its variable, if that differs only in what it leaves open."""
    given = getattr(value, "type", x.type)
    differs = given != x.type and type(given) is type(x.type) and x.type.is_super(given)
    if not differs:
        return value
    typed: Any = _typed_gradient(value, x)
    typed.name = value.name
    return typed
