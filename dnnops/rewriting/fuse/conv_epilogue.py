"""Fuse convolution on the GPU with the bias, the residual sum and the activation that follow it.

The fused Op computes them before it stores the result, which saves a pass over it. Batch
normalization in inference becomes a bias: see `dnnops.rewriting.fuse.fold_batchnorm`.

Relu's gradient takes its mask from relu's result, which the next Op keeps anyway.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import GraphRewriter, copy_stack_trace
from pytensor.scalar.basic import Add

from dnnops.dtypes import HALF_DTYPES, numpy_dtype
from dnnops.errors import DnnUnavailableError
from dnnops.gpu.batchnorm import GpuDnnBatchNormInference
from dnnops.gpu.conv import GpuDnnConv
from dnnops.gpu.fused.batchnorm_activation import GpuDnnBatchNormActivationInference
from dnnops.gpu.fused.conv_activation import GpuDnnConvActivation
from dnnops.gpuarray.elemwise import GpuElemwise
from dnnops.gpuarray.op import is_on_device
from dnnops.gpuarray.transfer import cast
from dnnops.gpuarray.type import GpuArrayType
from dnnops.gpuarray.variable import GpuArrayConstant
from dnnops.rewriting.fuse.activations import FoundActivation, activation_of
from dnnops.rewriting.fuse.fold_batchnorm import fold
from dnnops.rewriting.fuse.relu_mask import MOST_MASKED, FollowedByRelu, Pairs, RefusedError
from dnnops.rewriting.fuse.scalar_graphs import Loop, uncast

__all__ = ["FuseConvEpilogue"]

_NORMS = (GpuDnnBatchNormInference, GpuDnnBatchNormActivationInference)


class FuseConvEpilogue(GraphRewriter):
    """Fuse convolutions with what follows them."""

    def apply(self, fgraph: FunctionGraph) -> None:
        """Rewrite `fgraph`."""
        order = {node: i for i, node in enumerate(fgraph.toposort())}
        for node in list(order):
            if not _is_fusible(node):
                continue
            try:
                pairs = _fusion(fgraph, node)
            except RefusedError:
                continue
            for old, new in pairs:
                copy_stack_trace(old, new)
            # New nodes have to be in the graph when their operands are replaced.
            pairs.sort(key=lambda pair: -order.get(pair[0].owner, len(order)))
            fgraph.replace_all(pairs, reason="fuse_conv_epilogue")


def _is_fusible(node: Apply) -> bool:
    """Return whether a convolution may have faster plans with an epilogue.

    Without tensor cores these are mostly not plans of the graph API, so only timing finds out. An
    algorithm that a user named computes no epilogue.
    """
    op = node.op
    if type(op) is not GpuDnnConv:
        return False
    algo, dtype = str(op.algo), node.outputs[0].type.dtype
    if algo.startswith("time_"):
        return dtype in HALF_DTYPES or dtype == "float32"
    on_tensor_cores = dtype in HALF_DTYPES or (dtype == "float32" and op.allow_tf32)
    return algo.startswith("guess_") and on_tensor_cores


def _fusion(fgraph: FunctionGraph, node: Apply) -> Pairs:
    """Return what replaces a convolution and its user."""
    users = fgraph.clients[node.outputs[0]]
    if len(users) != 1:
        raise RefusedError
    user, index = users[0]
    if type(user.op) in _NORMS and index == 0:
        return _with_norm(node, user)
    if isinstance(user.op, GpuElemwise):
        return _Fusion(fgraph, node, user, index).result()
    raise RefusedError


def _fused(node: Apply, activation: FoundActivation, **parts: Any) -> Apply:
    """Return a convolution with an epilogue; operands that are None are left out."""
    op = node.op
    given = {name: x for name, x in parts.items() if x is not None}
    filters = given.pop("filters", node.inputs[1])
    if op.accumulate:
        _, _, _, beta, addend = node.inputs
        if not isinstance(beta, Constant) or beta.data != 1 or "addend" in given:
            raise RefusedError
        given["addend"] = addend
    names = (n for n in op.__props__ if n in GpuDnnConvActivation.__props__)
    new = GpuDnnConvActivation(
        activation.name,
        activation.coef,
        **dict.fromkeys(given, True),
        **{name: getattr(op, name) for name in names},
    )
    if not new.scale and not new.bias:
        new, given["bias"] = _with_zero_bias(new, node.outputs[0].type) or (new, None)
    operands = [given[name] for name in new.parts]
    return new.make_node(node.inputs[0], filters, node.inputs[2], *operands)


def _with_zero_bias(op: Any, result: Any) -> tuple[Any, Any] | None:
    """Add a bias of zeros: cuDNN's kernels that are compiled in advance add one."""
    channels = result.shape[1]
    if channels is None or op.activation not in ("identity", "relu"):
        return None
    shape = (1, channels, *(1,) * (result.ndim - 2))
    try:
        zeros = np.zeros(shape, numpy_dtype(result.dtype))
    except DnnUnavailableError:  # bfloat16 constants need ml_dtypes
        return None
    bias = GpuArrayConstant(GpuArrayType(result.dtype, shape, result.device), zeros)
    return op.replace(bias=True), bias


def _with_norm(node: Apply, norm: Apply) -> Pairs:
    found = fold(node, norm)
    if found is None or node.op.accumulate:
        raise RefusedError
    addend = norm.inputs[6] if getattr(norm.op, "addend", False) else None
    name = "relu" if getattr(norm.op, "relu", False) else "identity"
    new = _fused(
        node,
        FoundActivation(name, 0.0, None),
        filters=found.filters,
        bias=found.bias,
        addend=addend,
    )
    return [(norm.outputs[0], new.outputs[0])]


class _Fusion(FollowedByRelu):
    """What replaces a convolution and the elementwise node that follows it."""

    def __init__(self, fgraph: FunctionGraph, node: Apply, user: Apply, index: int):
        super().__init__(fgraph, node)
        self.user, self.loop = user, Loop(user)
        self.y_in = self.loop.inputs[index]

    def result(self) -> Pairs:
        """Return replacements for the results of the elementwise node."""
        used = [k for k, z in enumerate(self.user.outputs) if self.fgraph.clients[z]]
        for k in used:
            activation = activation_of(self.loop, self.loop.outputs[k])
            parts = self._summands(activation.operand)
            if parts is None or (len(used) > 1 and activation.name != "relu"):
                continue
            if activation.name == "identity" and not parts:
                continue
            new = _fused(self.node, activation, **parts)
            pairs = self.as_data(k, new.outputs[0])
            for other in used:
                if other != k:
                    old, x = self.user.outputs[other], self.loop.outputs[other]
                    pairs += self.gradient(new, self.loop, activation.operand, old, x)
            if self.masked > MOST_MASKED:
                raise RefusedError
            return pairs
        raise RefusedError

    def _summands(self, x: Any) -> dict[str, Variable] | None:
        """Return the bias and the addend if `x` is their sum with the convolution's result."""
        terms = [self.loop.variables.get(term) for term in self._terms(x)]
        if terms.count(self.y) != 1 or None in terms:
            return None
        found: dict[str, Variable] = {}
        for term in terms:
            if term is self.y:
                continue
            name = self._part(term)
            if name is None or name in found:
                return None
            found[name] = term if name == "addend" else cast(term, self.y.type.dtype)
        return found

    def _terms(self, x: Any) -> list[Any]:
        operands = self.loop.operands(x, Add)
        if not operands:
            return [uncast(x)]
        return [term for operand in operands for term in self._terms(operand)]

    def _part(self, x: Any) -> str | None:
        """Return whether a summand can be the bias or the addend."""
        y = self.y.type
        if not is_on_device(x):
            return None
        if x.type.broadcastable == tuple(axis != 1 for axis in range(y.ndim)):
            return "bias" if y.broadcastable[1] is False else None
        same = (x.type.dtype, x.type.broadcastable) == (y.dtype, y.broadcastable)
        return "addend" if same else None
