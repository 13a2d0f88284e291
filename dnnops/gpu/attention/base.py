"""Base classes of Ops that compute attention or its gradient in one call on a GPU."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import disconnected_type
from pytensor.graph.basic import Apply, Variable

from dnnops.errors import DnnTypeError
from dnnops.gpu.base import (
    TAKES_ROWS,
    as_gradient,
    device_operand,
    device_operands,
    gradient_like,
)
from dnnops.gpu.derivatives import GpuAbstractOp
from dnnops.gpuarray.op import infer_device, is_on_device
from dnnops.gpuarray.transfer import as_gpuarray_variable, cast
from dnnops.gpuarray.type import GpuArrayType
from dnnops.nnet.attention.op import OPTIONAL, AttentionBase
from dnnops.nnet.expressions import is_connected
from dnnops.nnet.optional_result import OptionalResultOp
from dnnops.nnet.regularization.dropout import state_vector
from dnnops.nnet.validate import named_operands
from dnnops.runtime.op import MatchedHeads

__all__ = ["GpuAttentionBase", "GpuAttentionForward", "device_arrays"]

_LENGTHS = ("query_lengths", "key_lengths")


def device_arrays(node: Apply) -> list[int]:
    """Return the indices of the operands of attention that must be on the device."""
    return [i for i, operand in enumerate(node.op.operands) if operand != "state"]


class GpuAttentionBase(MatchedHeads, GpuAbstractOp, AttentionBase):
    """Base class of attention and its gradient in one call.

    Operands can have any strides as long as the last axis is dense. Results are stored in the order
    of their operands. See `AttentionBase` for the parameters.
    """

    contiguous_only = True
    #: Dtypes of query, key and value.
    dtypes: ClassVar[tuple[str, ...]]
    is_gradient: ClassVar[bool]
    #: Whether attention returns the statistics that its gradient takes.
    with_stats: bool = True
    #: How to compute the gradient: with the dnnops kernel (1), with cuDNN (2), or with the one that
    #: suits the shapes (0). Tests and timings that compare the two set it. With 3, known faults of
    #: cuDNN are not avoided, so that they can be checked.
    path: ClassVar[int] = 0
    #: Whether the state of the random numbers is on the device, too.
    from_device: bool = False
    abstract_class: ClassVar[type[AttentionBase]]

    def make_node(self, *inputs: Any) -> Apply:
        name = type(self).__name__
        given = named_operands(name, self.operands, inputs)
        arrays = [o for o in self.operands if o not in (*OPTIONAL, "stats")]
        if "mask" in given and getattr(given["mask"], "dtype", None) != "bool":
            arrays.append("mask")
        devices = [x for x in given.values() if is_on_device(x)]
        device = infer_device(*devices) if devices else 0
        moved = {o: device_operand(name, o, x, device) for o, x in given.items() if o != "state"}
        floats = device_operands(name, 4, **{o: moved[o] for o in arrays})
        moved |= dict(zip(arrays, floats, strict=True))
        dtype = moved["query"].type.dtype
        if dtype not in self.dtypes:
            raise DnnTypeError(
                f"{name} supports {' and '.join(self.dtypes)}, got {dtype}; the function"
                " scaled_dot_product_attention supports any floating-point dtype"
            )
        expected = {"mask": ("bool", 4), "stats": ("float32", 3)}
        expected |= dict.fromkeys(_LENGTHS, ("int64", 1))
        for operand, (wanted, ndim) in expected.items():
            if operand not in moved or operand in arrays:
                continue
            x = moved[operand]
            if operand in _LENGTHS and x.type.dtype in pt.type.integer_dtypes:
                x = moved[operand] = cast(x, "int64")
            if x.type.dtype != wanted or x.type.ndim != ndim:
                raise DnnTypeError(
                    f"{name}: {operand} must have {ndim} dimensions and dtype {wanted}, got"
                    f" {x.type}"
                )
        shapes = self._shapes({o: x.type.shape for o, x in moved.items()})
        if "state" in given:
            moved["state"] = self._state(given["state"], device)
        results = [
            GpuArrayType("float32" if r == "stats" else dtype, tuple(shapes[r]), device)()
            for r in self.results
        ]
        return Apply(self, [moved[operand] for operand in self.operands], results)

    def changing_operands(self, node: Apply) -> frozenset[int]:
        """Return the index of the state of dropout if it is on the host."""
        arrays = range(len(node.inputs)) if self.from_device else device_arrays(node)
        return frozenset(range(len(node.inputs))).difference(arrays)

    def _state(self, state: Any, device: int) -> Any:
        name = type(self).__name__
        if not self.from_device:
            return state_vector(name, state)
        moved = as_gpuarray_variable(state, device)
        if (moved.type.ndim, moved.type.dtype) != (1, "int64"):
            raise DnnTypeError(f"{name}: state must be an int64 vector, got {moved.type}")
        return moved

    def parameters(self) -> list[int]:
        scale, dropout = np.array([self.scale or 0.0, self.dropout]).view("int64").tolist()
        given = sum(1 << OPTIONAL.index(name) for name in self.optional)
        return [
            scale,
            int(self.scale is not None),
            int(self.is_causal),
            given,
            dropout,
            int(self.is_gradient),
            int(self.deterministic),
            int(self.with_stats),
            self.path,
            int(self.from_device),
        ]

    @property
    def deterministic(self) -> bool:
        """Whether repeated calls must give identical results."""
        return False

    def _layouts(self, operand: int) -> int:
        rows = self.operands[operand] in ("query", "key", "value", "out", "gout")
        return TAKES_ROWS if rows else super()._layouts(operand)

    def host_expressions(self, *inputs: Any) -> list[Any]:
        # Attention without statistics has one result.
        return super().host_expressions(*inputs)[: len(self.results)]


class GpuAttentionForward(GpuAttentionBase, OptionalResultOp):
    """Base class of attention that optionally returns the statistics."""

    optional_result = "with_stats"
    is_gradient = False

    def gradient_op(self) -> GpuAttentionBase:
        """Return the Op that computes the gradients with respect to query, key and value."""
        raise NotImplementedError

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Variable]:
        if not self.with_stats:
            # PyTensor's merge can't tell that this node computes the other one's result, too.
            op = self.with_optional_result(True)
            return op.pullback(
                inputs, op.make_node(*inputs).outputs, [*cotangents, disconnected_type()]
            )
        gout, gstats = cotangents
        if is_connected(gstats) or not is_connected(gout) or self._has_mask_gradient(inputs):
            return super().pullback(inputs, outputs, cotangents)
        op = self.gradient_op()
        gradients = op.make_node(*inputs, *outputs, gradient_like(gout, inputs[0])).outputs
        rest = [disconnected_type() for _ in inputs[3:]]
        return [*(as_gradient(g) for g in gradients), *rest]

    def _has_mask_gradient(self, inputs: Any) -> bool:
        return "mask" in self.optional and inputs[3].type.dtype != "bool"
