"""Base class for Ops that are differentiated through equivalent expressions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pytensor.gradient
import pytensor.tensor as pt
from pytensor.gradient import DisconnectedType, disconnected_grad, disconnected_type
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.graph.replace import graph_replace
from pytensor.tensor.variable import TensorVariable

__all__ = ["ExpandableOp", "ExpressionOp", "compared", "is_connected", "reshaped"]


def is_connected(variable: Any) -> bool:
    """Return whether a derivative is connected, that is, not of `DisconnectedType`."""
    return not isinstance(variable.type, DisconnectedType)


def compared(x: TensorVariable) -> TensorVariable:
    """Return `x` as the operand of a comparison, through which no gradient flows.

    PyTensor's gradient of a comparison is zeros of floatX. Added to that of a float32 `x`, they
    would make it float64.
    """
    return disconnected_grad(x)


def reshaped(x: Any, shape: Sequence[Any]) -> Any:
    """Reshape an array or, in an expression, a variable.

    Parameters
    ----------
    x : ndarray or TensorVariable
        Array or variable.
    shape : sequence of int or symbolic int scalar
        Sizes, which may be computed from shapes.

    Returns
    -------
    ndarray or TensorVariable
    """
    # PyTensor 3.0.7 gives a size that is computed with a constant, such as `x.shape[1] // 2`, a
    # tangent of 0.0. If all sizes have one, the pushforward raises a TypeError.
    return x.reshape(tuple(disconnected_grad(n) if isinstance(n, Variable) else n for n in shape))


class ExpandableOp(Op):
    """An Op that rewrites replace with expressions of other Ops where no backend runs it."""

    #: Whether the expressions contain elementwise Ops to fuse with those around the node.
    expands_elementwise: ClassVar[bool] = False

    # Defined by subclasses: returns the results as expressions of the operands.
    _expressions: Callable[..., list[Any]]

    def expressions(self, *inputs: Any) -> list[Any]:
        """Return the results as expressions of PyTensor's Ops.

        Parameters
        ----------
        *inputs : TensorVariable
            Operands of the Op.

        Returns
        -------
        list of TensorVariable
        """
        return self._expressions(*inputs)


class ExpressionOp(Op):
    """An Op that PyTensor can differentiate because its results are written as expressions.

    The derivatives are built from the Ops of these expressions. A subclass that has a faster
    derivative overrides :meth:`pullback`.
    """

    #: Whether all Ops in the expressions have a pushforward. Otherwise, the pushforward is built
    #: from two pullbacks, the first of which is this Op's own. With PyTensor 3.0.7, two pullbacks
    #: of the expressions gave wrong results for products of stacked matrices with an additive mask.
    has_pushforwards = True

    # Defined by subclasses: returns the results as expressions of the operands.
    _expressions: Callable[..., list[Any]]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        return [[True] * len(node.outputs) for _ in node.inputs]

    def _pattern(self, operands: Sequence[Any]) -> list[list[bool]]:
        # Don't use the node that made the outputs: a device Op returns transfers of its results.
        return self.connection_pattern(self.make_node(*operands))

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        # Use new variables, because one input may depend on another.
        own = [x.type() for x in inputs]
        # Copy the results, because one may be part of another: a gradient given for it would
        # replace the gradient that flows through the other.
        results = [result.copy() for result in self._expressions(*own)]
        known = {r: g for r, g in zip(results, cotangents, strict=True) if is_connected(g)}
        stand_ins = {g: g.type() for g in known.values()}
        pattern = self._pattern(own)
        by = [i for i in range(len(own)) if any(pattern[i])]
        gradients: Any = pytensor.gradient.grad(
            None,
            [own[i] for i in by],
            known_grads={r: stand_ins[g] for r, g in known.items()},
            disconnected_inputs="ignore",
            return_disconnected="disconnected",
        )
        replacements = {**dict(zip(own, inputs, strict=True)), **_swapped(stand_ins)}
        found = dict(zip(by, _replace(gradients, replacements), strict=True))
        # The pattern may connect more than the expressions do; PyTensor then expects zeros.
        given = [k for k, g in enumerate(cotangents) if is_connected(g)]
        for i, gradient in found.items():
            if not is_connected(gradient) and any(pattern[i][k] for k in given):
                found[i] = pt.zeros_like(inputs[i])
        by_inputs = [found.get(i, disconnected_type()) for i in range(len(own))]
        return _as_dtypes_of(inputs, by_inputs)

    def pushforward(self, inputs: Any, outputs: Any, tangents: Any) -> list[Any]:
        own = [x.type() for x in inputs]
        results = self._expressions(*own) if self.has_pushforwards else self.make_node(*own).outputs
        pattern = self._pattern(own)
        # Integers have tangents, too, but no output depends on them.
        along = [i for i, t in enumerate(tangents) if is_connected(t) and any(pattern[i])]
        if not along:
            return [disconnected_type() for _ in outputs]
        stand_ins = [tangents[i].type() for i in along]
        moved = [k for k in range(len(outputs)) if any(pattern[i][k] for i in along)]
        moving: Any = pytensor.gradient.pushforward(
            [results[k] for k in moved],
            [own[i] for i in along],
            stand_ins,
            disconnected_outputs="ignore",
            use_op_pushforward=self.has_pushforwards,
        )
        replacements = dict(zip(own, inputs, strict=True))
        replacements |= {s: tangents[i] for s, i in zip(stand_ins, along, strict=True)}
        found = dict(zip(moved, _replace(moving, replacements), strict=True))
        along_outputs = [found.get(k, disconnected_type()) for k in range(len(outputs))]
        return _as_dtypes_of(outputs, along_outputs)


def _swapped(mapping: dict[Any, Any]) -> dict[Any, Any]:
    return {value: key for key, value in mapping.items()}


def _replace(variables: Sequence[Any], replacements: dict[Any, Any]) -> list[Any]:
    """Apply `replacements` to the connected variables."""
    connected = [v for v in variables if is_connected(v)]
    replaced = iter(graph_replace(connected, replacements, strict=False))
    return [next(replaced) if is_connected(v) else v for v in variables]


def _as_dtypes_of(variables: Sequence[Any], derivatives: Sequence[Any]) -> list[Any]:
    """Cast each connected derivative to the dtype of its variable."""
    # PyTensor's derivative of a cast has the dtype of the result, not of the operand.
    return [
        pt.cast(d, v.type.dtype) if is_connected(d) else d
        for v, d in zip(variables, derivatives, strict=True)
    ]
