"""Attention with matrix products and dnnops kernels, where no Op computes it in one call.

The scores are a batched product. One kernel scales and masks them and computes their softmax, in
the same memory if the gradient does not need them; another batched product weights the values.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable
from pytensor.tensor.type import TensorType

import dnnops.gpu.kernels  # noqa: F401 - registers what C code calls
from dnnops.arguments import number, switch
from dnnops.dtypes import compute_dtype
from dnnops.errors import DnnTypeError
from dnnops.gpu.attention.base import device_arrays
from dnnops.gpu.base import CudnnOp, device_operands
from dnnops.gpu.library import GPU_PRODUCTS
from dnnops.gpuarray.basic import GpuDimShuffle
from dnnops.gpuarray.products.blas import GpuBatchedDot
from dnnops.gpuarray.transfer import as_gpuarray_variable, cast
from dnnops.gpuarray.type import GpuArrayType
from dnnops.nnet.attention.masks import spread_mask
from dnnops.nnet.attention.op import Attention, AttentionGrad, softmax_of_scores
from dnnops.nnet.validate import merge_shapes, named_operands
from dnnops.runtime.implementations import BuildContext, implements

__all__ = ["GpuAttentionWeights", "GpuAttentionWeightsGrad"]

#: The optional operands, in the order of their bits in c_code/gpu/attention/attention_weights.cpp.
OPTIONAL = ("mask", "query_lengths", "key_lengths")
_RANKS = {"mask": 4, "query_lengths": 1, "key_lengths": 1}


class _Arrays(NamedTuple):
    """The operands of an abstract Op, on the device.

    Attributes
    ----------
    named : dict of str to Variable
        Operands by name.
    scale : float
        Factor by which the scores are multiplied.
    optional : tuple of str
        The optional operands.
    """

    named: dict[str, Any]
    scale: float
    optional: tuple[str, ...]

    @property
    def masks(self) -> list[Any]:
        """The optional operands."""
        return [self.named[name] for name in self.optional]


def _arrays(op: Any, inputs: list[Any]) -> _Arrays | None:
    """Return the operands of attention or its gradient; None if they are not supported."""
    named = dict(zip(op.operands, inputs, strict=True))
    query, key = named["query"], named["key"]
    heads, depth = query.type.shape[1], query.type.shape[3]
    if op.dropout or query.type.dtype not in ("float32", "float64"):
        return None
    if heads is None or heads != key.type.shape[1] or (op.scale is None and not depth):
        return None
    scale = float(depth) ** -0.5 if op.scale is None else op.scale
    for name in op.optional:
        x = named[name]
        wanted = query.type.dtype if name == "mask" else "int64"
        is_mask = name == "mask" and x.type.dtype == "bool"
        named[name] = x if is_mask else cast(x, wanted)
    return _Arrays(named, scale, op.optional)


def _like_host(x: Any) -> Any:
    return TensorType(x.type.dtype, x.type.shape)()


def _product(x: Any, y: Any, context: BuildContext) -> Any:
    """Return the product of two batches of matrices."""
    op = pt.matmul(_like_host(x), _like_host(y)).owner.op
    return context.apply_once(GpuBatchedDot(op), x, y)


def _transposed(x: Any, context: BuildContext) -> Any:
    """Return a batch of matrices with rows and columns exchanged."""
    op = _like_host(x).dimshuffle(0, 1, 3, 2).owner.op
    return context.apply_once(GpuDimShuffle(op), x)


class _GpuAttentionWeightsBase(CudnnOp):
    """Base class of the weights of attention and their gradient.

    Parameters
    ----------
    scale : float
        Factor by which the scores are multiplied.
    is_causal : bool
        Whether query ``i`` attends only to the keys 0 to ``i``.
    optional : sequence of str
        The members of `OPTIONAL` that are operands, after the others: a boolean or an added mask
        that is broadcast to the scores, and the lengths of each element of the batch, int64.
    inplace : bool
        Whether the results overwrite the scores, and the gradient with respect to the weights.
    """

    __props__ = ("scale", "is_causal", "optional", "inplace")
    function = "dnnops_cudnn_attention_weights"
    contiguous_only = True
    #: Names of the operands before the optional ones.
    leading: ClassVar[tuple[str, ...]]
    is_gradient: ClassVar[bool]

    def __init__(
        self, scale: float = 1.0, is_causal: bool = False, optional: Any = (), inplace: bool = False
    ):
        name = type(self).__name__
        self.scale = number(name, "scale", scale)
        self.is_causal = switch(name, "is_causal", is_causal)
        self.optional = tuple(o for o in OPTIONAL if o in optional)
        self.inplace = switch(name, "inplace", inplace)
        if self.inplace:
            self.destroy_map = {0: [0], 1: [1]} if self.is_gradient else {0: [0]}

    def inplace_versions(self) -> list[Any]:
        """Return the version that overwrites its operands."""
        return [] if self.inplace else [self.replace(inplace=True)]

    def parameters(self) -> list[int]:
        given = sum(1 << OPTIONAL.index(name) for name in self.optional)
        scale = int(np.float64(self.scale).view(np.int64))
        return [scale, int(self.is_causal), given, int(self.is_gradient)]

    def _operands(self, inputs: Any) -> tuple[dict[str, Any], str]:
        """Return the operands by name, on the device, and their dtype."""
        name = type(self).__name__
        given = named_operands(name, (*self.leading, *self.optional), inputs)
        arrays = {o: given[o] for o in self.leading}
        moved = dict(zip(arrays, device_operands(name, 4, **arrays), strict=True))
        scores = moved["scores"].type
        for operand in self.optional:
            x = moved[operand] = as_gpuarray_variable(given[operand], scores.device)
            ndim = _RANKS[operand]
            wanted = ("bool", scores.dtype) if operand == "mask" else ("int64",)
            if x.type.dtype not in wanted or x.type.ndim != ndim:
                raise DnnTypeError(
                    f"{name}: {operand} must have {ndim} dimensions and dtype"
                    f" {' or '.join(wanted)}, got {x.type}"
                )
        return {o: moved[o] for o in given}, scores.dtype

    def _scores(self, inputs: Any) -> Any:
        """Return an expression for the scaled scores, minus infinity where masked out."""
        named = dict(zip((*self.leading, *self.optional), inputs, strict=True))
        scores = named["scores"] * np.asarray(self.scale, named["scores"].type.dtype)
        mask = named.get("mask")
        if mask is not None:
            mask = spread_mask(mask, list(scores.shape))
        if mask is not None and mask.type.dtype != "bool":
            scores = scores + mask
        row = pt.arange(scores.shape[2]).dimshuffle(0, "x")
        column = pt.arange(scores.shape[3]).dimshuffle("x", 0)
        seen = [mask] if mask is not None and mask.type.dtype == "bool" else []
        if self.is_causal:
            seen.append((column <= row).dimshuffle("x", "x", 0, 1))
        for name, positions in (("query_lengths", row), ("key_lengths", column)):
            if name in named:
                seen.append(positions < named[name].dimshuffle(0, "x", "x", "x"))
        for condition in seen:
            scores = pt.switch(condition, scores, np.asarray(-np.inf, scores.type.dtype))
        return scores


@implements(Attention, on=GPU_PRODUCTS, operands=device_arrays)
class GpuAttentionWeights(_GpuAttentionWeightsBase):
    """The weights of attention, called as ``op(scores, ...)``.

    Returns the softmax of the scaled and masked scores (batch, heads, queries, keys), and for each
    query the logarithm of the sum of the exponentials, or minus infinity if all keys are masked
    out. The weights of such a query are zero. See the base class for the parameters.
    """

    leading = ("scores",)
    is_gradient = False

    def make_node(self, *inputs: Any) -> Apply:
        operands, dtype = self._operands(inputs)
        scores = operands["scores"].type
        stats = GpuArrayType(compute_dtype(dtype), scores.shape[:3], scores.device)
        return Apply(self, list(operands.values()), [scores(), stats()])

    def host_expressions(self, *inputs: Any) -> list[Any]:
        weights, stats = softmax_of_scores(self._scores(inputs))
        return [weights, stats[:, :, :, 0]]

    @classmethod
    def build(cls, op: Any, inputs: list[Any], context: BuildContext) -> list[Variable] | None:
        arrays = _arrays(op, inputs)
        if arrays is None:
            return None
        named = arrays.named
        scores = _product(named["query"], _transposed(named["key"], context), context)
        own = cls(arrays.scale, op.is_causal, arrays.optional)
        weights, stats = own.make_node(scores, *arrays.masks).outputs
        return [_product(weights, named["value"], context), stats]


@implements(AttentionGrad, on=GPU_PRODUCTS, operands=device_arrays)
class GpuAttentionWeightsGrad(_GpuAttentionWeightsBase):
    """Gradient of `GpuAttentionWeights`, called as ``op(scores, by_weights, ...)``.

    `by_weights` is the gradient with respect to the weights. Returns the weights and the gradient
    with respect to the scores. See the base class for the parameters.
    """

    leading = ("scores", "by_weights")
    is_gradient = True

    def make_node(self, *inputs: Any) -> Apply:
        operands, _ = self._operands(inputs)
        scores, by_weights = operands["scores"].type, operands["by_weights"].type
        name = type(self).__name__
        shape = merge_shapes(name, scores=scores.shape, by_weights=by_weights.shape)
        results = [scores.clone(shape=shape)() for _ in range(2)]
        return Apply(self, list(operands.values()), results)

    def host_expressions(self, *inputs: Any) -> list[Any]:
        by_weights = inputs[1]
        weights, _ = softmax_of_scores(self._scores(inputs))
        inner = (weights * by_weights).sum(axis=3, keepdims=True)
        scale = np.asarray(self.scale, by_weights.type.dtype)
        return [weights, weights * (by_weights - inner) * scale]

    @classmethod
    def build(cls, op: Any, inputs: list[Any], context: BuildContext) -> list[Variable] | None:
        arrays = _arrays(op, inputs)
        if arrays is None:
            return None
        named = arrays.named
        query, key, gout = named["query"], named["key"], named["gout"]
        scores = _product(query, _transposed(key, context), context)
        by_weights = _product(gout, _transposed(named["value"], context), context)
        own = cls(arrays.scale, op.is_causal, arrays.optional)
        node = own.make_node(scores, by_weights, *arrays.masks)
        weights, by_scores = node.outputs
        return [
            _product(by_scores, key, context),
            _product(_transposed(by_scores, context), query, context),
            _product(_transposed(weights, context), gout, context),
        ]
