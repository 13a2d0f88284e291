"""Derivatives of GPU Ops that no GPU Op computes.

They are built from host variables, and rewrites move them to the device. Where an abstract Op or
expressions for the results exist, their derivatives serve.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable

from dnnops.gpu.base import CudnnOp, as_gradient, gradient_like
from dnnops.gpuarray.op import is_on_device
from dnnops.nnet.expressions import ExpressionOp, is_connected

__all__ = ["GpuAbstractOp", "GpuExpressionOp"]


class GpuAbstractOp(CudnnOp):
    """A `CudnnOp` that is differentiated like an abstract Op."""

    #: Operands that the abstract Op does not take. The gradients with respect to them are zero,
    #: because they are functions of the other operands.
    extra_operands: ClassVar[tuple[str, ...]] = ()

    def host_expressions(self, *inputs: Any) -> list[Any]:
        """Apply the abstract Op to the operands that it takes, too."""
        return super().host_expressions(*self.shared(inputs))

    def shared(self, operands: Sequence[Any]) -> list[Any]:
        """Return the operands that the abstract Op takes, too."""
        if not self.extra_operands:
            return list(operands)
        op: Any = self
        named = zip(op.operands, operands, strict=True)
        return [x for name, x in named if name not in self.extra_operands]

    def _abstract_node(self, inputs: Any) -> Apply:
        return self.abstract_op().make_node(*_on_host(self.shared(inputs)))

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Variable]:
        node = self._abstract_node(inputs)
        given = _in_dtypes_of(node.outputs, _on_host(cotangents))
        gradients = node.op.pullback(node.inputs, node.outputs, given)
        places = self.shared(range(len(inputs)))
        found = dict(zip(places, gradients, strict=True))
        gradients = [found.get(i, x.zeros_like()) for i, x in enumerate(inputs)]
        return [as_gradient(g) if is_on_device(g) else g for g in _like(gradients, inputs)]

    def pushforward(self, inputs: Any, outputs: Any, tangents: Any) -> list[Variable]:
        node = self._abstract_node(inputs)
        given = _on_host(self.shared(tangents))
        moved = node.op.pushforward(node.inputs, node.outputs, _in_dtypes_of(node.inputs, given))
        # A GPU Op may leave out the last results.
        return _like(moved[: len(outputs)], outputs)


class GpuExpressionOp(CudnnOp, ExpressionOp):
    """A `CudnnOp` that is differentiated through PyTensor expressions for its results."""

    def host_expressions(self, *inputs: Any) -> list[Any]:
        """Return the expressions that are differentiated."""
        return self._expressions(*inputs)

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Variable]:
        gradients = ExpressionOp.pullback(self, _on_host(inputs), outputs, _on_host(cotangents))
        return [as_gradient(g) if is_on_device(g) else g for g in _like(gradients, inputs)]

    def pushforward(self, inputs: Any, outputs: Any, tangents: Any) -> list[Variable]:
        moved = ExpressionOp.pushforward(self, _on_host(inputs), outputs, _on_host(tangents))
        return _like(moved, outputs)


def _on_host(variables: Any) -> list[Any]:
    return [pt.as_tensor_variable(v) if is_connected(v) else v for v in variables]


def _in_dtypes_of(variables: Any, derivatives: Any) -> list[Any]:
    """Cast each derivative to its variable's dtype; that of bfloat16 is float32 on the host."""
    return [
        pt.cast(d, v.type.dtype) if is_connected(d) else d
        for v, d in zip(variables, derivatives, strict=True)
    ]


def _like(derivatives: Any, variables: Any) -> list[Any]:
    """Move each derivative to its variable's device."""
    return [
        gradient_like(d, v) if is_connected(d) and is_on_device(v) else d
        for d, v in zip(derivatives, variables, strict=True)
    ]
