"""Merge a constant factor and a sum into the cuDNN convolution that they follow.

cuDNN computes ``alpha * convolution + beta * out`` at the cost of the convolution alone. Merging
the factor and the sum of, for example, ``velocity = 0.9 * velocity - 0.1 * gradient`` saves a pass
over the arrays, and also memory, since the sum can overwrite `out`. If an elementwise loop
processes the result or the addend anyway, the factor and the sum cost nothing there and are not
merged.

The rewrite runs before PyTensor fuses elementwise operations, since fusion would hide the factor
and the sum in a larger loop. The graph has not moved to the GPU at that point: the merged
convolution is placed between transfers, which the move then removes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import (
    GraphRewriter,
    NodeRewriter,
    WalkingGraphRewriter,
    copy_stack_trace,
)
from pytensor.scalar.basic import Add, Mul, Neg, Sub, TrueDiv
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.type import TensorType

from dnnops.gpu.conv import GpuDnnConv, GpuDnnConvGradI, GpuDnnConvGradW
from dnnops.gpu.library import cudnn_usable
from dnnops.gpuarray.op import is_on_device
from dnnops.gpuarray.transfer import HostFromGpu, host_from_gpu, to_device
from dnnops.nnet.conv.op import Conv, ConvGradInputs, ConvGradWeights
from dnnops.rewriting.move.forecast import Forecast
from dnnops.rewriting.move.lifting import graph_device

__all__ = ["LocalConvMerge"]

_GPU_OPS: dict[type, Any] = {
    Conv: GpuDnnConv,
    ConvGradInputs: GpuDnnConvGradI,
    ConvGradWeights: GpuDnnConvGradW,
}
_MERGED = tuple(_GPU_OPS.values())


@dataclass
class _Term:
    """A factor times a variable: one term of a sum."""

    factor: Any
    variable: Any

    def times(self, factor: Any) -> _Term:
        return _Term(_product(self.factor, factor), self.variable)


def _product(a: Any, b: Any) -> Any:
    return (
        b
        if isinstance(a, float) and a == 1.0
        else a
        if isinstance(b, float) and b == 1.0
        else a * b
    )


def _scalar_op(x: Variable, *classes: type) -> Any:
    """Return the node that computes `x` if it is elementwise with one of these scalar Ops."""
    node = x.owner
    is_one = node is not None and isinstance(node.op, Elemwise)
    return node if is_one and isinstance(node.op.scalar_op, classes) else None


def _constant(x: Any) -> float | None:
    """Return a factor of one element as a float, or None if it may change.

    cuDNN reads factors on the host. A captured function would be captured again for each value.
    """
    if isinstance(x, Constant) and isinstance(x.type, TensorType) and all(x.type.broadcastable):
        return float(x.data.item())
    return None


class LocalConvMerge(NodeRewriter):
    """Merge a factor or a sum into the convolution that it is applied to.

    Parameters
    ----------
    device : int
        Device of convolutions whose operands are on none.
    devices : mapping of Variable to int
        Devices on which the other convolutions will run, by their results.
    """

    def __init__(self, device: int, devices: Mapping[Variable, int] | None = None):
        super().__init__()
        self.device = device
        self.devices = devices or {}

    def __str__(self) -> str:
        # DebugMode compares the names of two runs.
        return type(self).__name__

    def tracks(self) -> list[Any]:
        return [Elemwise]

    def transform(self, fgraph: FunctionGraph, node: Apply, enforce_tracks: bool = False) -> Any:
        """Rewrite the node of a product, quotient, negation, sum or difference."""
        if not isinstance(node.op, Elemwise) or len(node.outputs) != 1:
            return None
        (old,) = node.outputs
        if self._feeds_a_loop(fgraph, old):
            return None
        if isinstance(node.op.scalar_op, Add | Sub):
            merged = self._sum(fgraph, node)
        elif isinstance(node.op.scalar_op, Mul | Neg | TrueDiv):
            merged = self._scaled(fgraph, node)
        else:
            return None
        if merged is None or merged.type.dtype != old.type.dtype:
            return None
        copy_stack_trace(old, merged)
        return [merged]

    def _scaled(self, fgraph: FunctionGraph, node: Apply) -> Any:
        term = self._term(fgraph, node.outputs[0], top=True)
        if self._is_conv(fgraph, term.variable):
            return self._build(term, None)
        if len(fgraph.clients[term.variable]) != 1:
            return None
        # A factor of a sum multiplies both of its terms.
        inner = _scalar_op(term.variable, Add, Sub)
        return None if inner is None else self._sum(fgraph, inner, term.factor)

    def _sum(self, fgraph: FunctionGraph, node: Apply, factor: Any = 1.0) -> Any:
        if len(node.inputs) != 2 or node.inputs[0] is node.inputs[1]:
            return None
        (out,) = node.outputs
        second_sign = -1.0 if isinstance(node.op.scalar_op, Sub) else 1.0
        first = self._term(fgraph, node.inputs[0])
        second = self._term(fgraph, node.inputs[1]).times(second_sign)
        for conv, addend in ((first, second), (second, first)):
            array = addend.variable
            if (
                self._is_conv(fgraph, conv.variable)
                and not isinstance(array, Constant)
                and array.type.dtype == out.type.dtype
                and array.type.broadcastable == out.type.broadcastable
                and not self._joins_a_loop(fgraph, array)
            ):
                return self._build(conv.times(factor), addend.times(factor))
        return None

    def _joins_a_loop(self, fgraph: FunctionGraph, x: Variable) -> bool:
        """Return whether `x` comes from an elementwise loop that the sum could be fused into."""
        node = x.owner
        return node is not None and isinstance(node.op, Elemwise) and len(fgraph.clients[x]) == 1

    def _feeds_a_loop(self, fgraph: FunctionGraph, x: Variable) -> bool:
        """Return whether `x` is used by an elementwise loop, where a factor costs nothing."""
        return any(isinstance(client.op, Elemwise) for client, _ in fgraph.clients[x])

    def _term(self, fgraph: FunctionGraph, x: Variable, top: bool = False) -> _Term:
        """Read `x` as a factor times a variable; only the `top` product may have several uses."""
        whole = _Term(1.0, x)
        node = _scalar_op(x, Mul, Neg, TrueDiv)
        if node is None or (not top and len(fgraph.clients[x]) != 1):
            return whole
        factor: Any = 1.0
        arrays = list(node.inputs)
        if isinstance(node.op.scalar_op, Neg):
            factor = -1.0
        elif isinstance(node.op.scalar_op, TrueDiv):
            divisor = _constant(arrays.pop())
            if not divisor:
                return whole
            factor = 1.0 / divisor
        else:
            constants = {y: _constant(y) for y in arrays}
            arrays = [y for y in arrays if constants[y] is None]
            factor = math.prod(x for x in constants.values() if x is not None)
        if len(arrays) != 1 or arrays[0].type.broadcastable != x.type.broadcastable:
            return whole
        return self._term(fgraph, arrays[0]).times(factor)

    def _is_conv(self, fgraph: FunctionGraph, x: Variable) -> bool:
        node = x.owner
        if node is None or len(fgraph.clients[x]) != 1:
            return False
        if type(node.op) in _GPU_OPS:
            return True
        # A convolution merged before, or inserted by the user.
        inner = node.inputs[0].owner if isinstance(node.op, HostFromGpu) else None
        return inner is not None and isinstance(inner.op, _MERGED) and not inner.op.accumulate

    def _build(self, term: _Term, addend: _Term | None) -> Any:
        node = term.variable.owner
        alpha = term.factor
        if isinstance(node.op, HostFromGpu):
            node = node.inputs[0].owner
            op, inputs = node.op, list(node.inputs)
            alpha = _product(inputs.pop(), alpha)
            inputs = inputs[: op.leading]
        else:
            op = _GPU_OPS[type(node.op)].from_abstract(node.op)
            first, second, *sizes = node.inputs
            device = self.devices.get(term.variable, self.device)
            inputs = [to_device(first, device), to_device(second, device), *sizes]
        if addend is None:
            return host_from_gpu(op(*inputs, alpha))
        out = to_device(addend.variable, inputs[0].type.device)
        return host_from_gpu(op(*inputs, alpha, addend.factor, out))


class ConvMerge(GraphRewriter):
    """Apply `LocalConvMerge` to a graph with convolutions if cuDNN is usable."""

    def apply(self, fgraph: FunctionGraph) -> None:
        """Rewrite `fgraph`."""
        if not any(type(n.op) in _GPU_OPS or isinstance(n.op, _MERGED) for n in fgraph.apply_nodes):
            return
        device = graph_device(fgraph)
        usable, _ = cudnn_usable(device)
        if not usable:
            return
        present = {x.type.device for x in fgraph.variables if is_on_device(x)}
        devices: Mapping[Variable, int] = {}
        if not present <= {device}:
            devices = Forecast(fgraph, fgraph.toposort(), frozenset()).devices
        WalkingGraphRewriter(
            LocalConvMerge(device, devices), order="in_to_out", ignore_newtrees=False
        ).apply(fgraph)
