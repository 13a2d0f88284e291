"""Device Ops that are differentiated through PyTensor expressions for their results."""

from __future__ import annotations

from typing import Any

import pytensor.tensor as pt
from pytensor.graph.basic import Variable

from dnnops.gpu.base import CudnnOp, as_gradient, gradient_like
from dnnops.gpuarray.op import is_on_device
from dnnops.nnet.expressions import ExpressionOp, is_connected

__all__ = ["GpuExpressionOp"]


class GpuExpressionOp(CudnnOp, ExpressionOp):
    """A `CudnnOp` that is differentiated through PyTensor expressions for its results.

    The expressions are built from host variables; rewrites move the derivatives to the device.
    """

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Variable]:
        gradients = ExpressionOp.pullback(self, _on_host(inputs), outputs, _on_host(cotangents))
        return [as_gradient(g) if is_on_device(g) else g for g in _like(gradients, inputs)]

    def pushforward(self, inputs: Any, outputs: Any, tangents: Any) -> list[Variable]:
        moved = ExpressionOp.pushforward(self, _on_host(inputs), outputs, _on_host(tangents))
        return _like(moved, outputs)


def _on_host(variables: Any) -> list[Any]:
    return [pt.as_tensor_variable(v) if is_connected(v) else v for v in variables]


def _like(derivatives: Any, variables: Any) -> list[Any]:
    """Move each derivative to its variable's device."""
    return [
        gradient_like(d, v) if is_connected(d) and is_on_device(v) else d
        for d, v in zip(derivatives, variables, strict=True)
    ]
