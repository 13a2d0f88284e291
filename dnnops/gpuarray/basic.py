"""Ops that reshape, view, allocate and join device arrays."""

from __future__ import annotations

import itertools
import math
from operator import itemgetter, methodcaller
from typing import TYPE_CHECKING, Any, ClassVar

from numpy.lib.array_utils import normalize_axis_index
from pytensor.graph.basic import Apply, Variable
from pytensor.tensor.basic import AllocEmpty, infer_static_shape
from pytensor.tensor.shape import SpecifyShape

from dnnops.compat import shape_inference
from dnnops.dtypes import host_dtype
from dnnops.errors import DnnNotSupportedError, DnnValueError
from dnnops.gpuarray.layout import is_reshaped_view
from dnnops.gpuarray.op import GpuOp, MirrorOp, depends_on_values, infer_device, is_on_device
from dnnops.gpuarray.transfer import as_gpuarray_variable, cast
from dnnops.gpuarray.type import GpuArrayType

if TYPE_CHECKING:
    from dnnops.gpuarray.prepared.call import PreparedCall


class GpuDimShuffle(MirrorOp):
    """`DimShuffle` on the device, which returns a view."""

    def prepare(self, node: Apply, x: Any) -> PreparedCall:
        from dnnops.gpuarray.prepared.call import PreparedCall, Result

        host_op = self.host_op
        for axis in host_op.drop:
            if x.shape[axis] != 1:
                raise DnnValueError(
                    f"{self}: axis {axis} is dropped and must have length 1; got shape {x.shape}"
                )
        order = (*host_op.shuffle, *host_op.drop)
        views: list[Any] = (
            [] if order == tuple(range(x.ndim)) else [methodcaller("transpose", order)]
        )
        if host_op.drop or host_op.augment:
            # Index instead of reshaping: a reshape copies some non-contiguous arrays.
            index = tuple(None if axis == "x" else slice(None) for axis in host_op.new_order)
            views.append(itemgetter(index + (0,) * len(host_op.drop)))
        return PreparedCall([Result(0, tuple(views))])

    def __str__(self) -> str:
        return f"GpuDimShuffle{{{','.join(map(str, self.host_op.new_order))}}}"


class GpuReshape(MirrorOp):
    """`Reshape` on the device: a view if the strides allow it, otherwise a copy."""

    def prepare(self, node: Apply, x: Any, shape: Any) -> PreparedCall | None:
        from dnnops.gpuarray.elementwise.moves import contiguous_call
        from dnnops.gpuarray.prepared.call import PreparedCall, Result

        lengths = tuple(int(length) for length in shape)
        if -1 in lengths and lengths.count(-1) == 1 and (rest := -math.prod(lengths)):
            lengths = tuple(x.size // rest if n == -1 else n for n in lengths)
        if min(lengths, default=0) < 0 or math.prod(lengths) != x.size:
            return None  # CuPy raises the error
        if is_reshaped_view(x.shape, x.strides, lengths):
            return PreparedCall([Result(0, (methodcaller("reshape", lengths),))])
        return contiguous_call((x, shape), lengths)

    def compute(self, node: Apply, x: Any, shape: Any) -> Any:
        call = self.prepared(node, x, shape)
        if call is None:
            return x.reshape(tuple(int(length) for length in shape))
        return call.run((x, shape))

    def __str__(self) -> str:
        return f"GpuReshape{{{self.host_op.ndim}}}"


class GpuSpecifyShape(MirrorOp):
    """`SpecifyShape` on the device: check the shape and return the array itself."""

    def prepare(self, node: Apply, x: Any, *shape: Any) -> PreparedCall:
        from dnnops.gpuarray.prepared.call import PreparedCall, Result

        if any(
            want is not None and have != want for have, want in zip(x.shape, shape, strict=True)
        ):
            wanted = tuple(None if s is None else int(s) for s in shape)
            raise AssertionError(f"SpecifyShape: got shape {x.shape}, expected {wanted}")
        return PreparedCall([Result(0)])

    def __str__(self) -> str:
        return "GpuSpecifyShape"


class GpuAlloc(MirrorOp):
    """`Alloc` on the device: fill a new array with a device array or a host scalar.

    Unlike the other Ops, it may have only host operands, so `device` says where it runs.
    """

    __props__: ClassVar[tuple[str, ...]] = ("host_op", "device")

    def __init__(self, host_op: Any, device: int = 0):
        super().__init__(host_op)
        self.device = device

    def make_node(self, value: Any, *shape: Any) -> Apply:
        """Build the node from a fill value (device variable or host tensor) and int64 lengths."""
        node = self.host_node(value, *shape)
        if value.type.ndim:
            value = as_gpuarray_variable(value, self.device)
        output_type = GpuArrayType(value.type.dtype, node.outputs[0].type.shape, self.device)
        return Apply(self, [value, *node.inputs[1:]], [output_type()])

    def number_operands(self, node: Apply) -> frozenset[int]:
        return frozenset() if is_on_device(node.inputs[0]) else frozenset({0})

    def prepare(self, node: Apply, value: Any, *shape: Any) -> PreparedCall | None:
        from dnnops.gpuarray.elementwise.moves import filling_call

        lengths = tuple(int(length) for length in shape)
        if min(lengths, default=0) < 0:
            return None  # CuPy raises the error
        if is_on_device(node.inputs[0]):
            self._check_broadcast(node, value, lengths)
        return filling_call(node, (value, *shape), lengths)

    def compute(self, node: Apply, value: Any, *shape: Any) -> Any:
        import cupy

        call = self.prepared(node, value, *shape)
        if call is not None:
            return call.run((value, *shape))
        out = cupy.empty(tuple(map(int, shape)), dtype=node.outputs[0].type.numpy_dtype)
        out[...] = value
        return out

    def _check_broadcast(self, node: Apply, value: Any, lengths: tuple[int, ...]) -> None:
        known = node.inputs[0].type.shape
        for axis in range(-value.ndim, 0):
            if known[axis] != 1 and value.shape[axis] != lengths[axis]:
                raise DnnValueError(
                    f"GpuAlloc: cannot broadcast a value of shape {value.shape} to {lengths}; only"
                    " dimensions that are known to have length 1 are broadcast"
                )

    def __str__(self) -> str:
        return "GpuAlloc"


class GpuAllocEmpty(GpuOp):
    """Allocate a device array without filling it.

    Parameters
    ----------
    dtype : str
        Dtype of the array.
    device : int, default 0
        Device number.
    """

    __props__: ClassVar[tuple[str, ...]] = ("dtype", "device")
    _output_type_depends_on_input_value = True

    def __init__(self, dtype: str, device: int = 0):
        self.dtype = dtype
        self.device = device

    def make_node(self, *shape: Any) -> Apply:
        """Build the node from the lengths, which are int64 scalars."""
        lengths, static_shape = infer_static_shape(shape)
        return Apply(self, list(lengths), [GpuArrayType(self.dtype, static_shape, self.device)()])

    @shape_inference
    def infer_shape(self, node: Apply, shapes: Any) -> Any:
        """Return the operands, which are the shape."""
        return [node.inputs]

    def host_expressions(self, *shape: Any) -> list[Any]:
        """Allocate a host array without filling it."""
        return [AllocEmpty(host_dtype(self.dtype))(*shape)]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        """Disconnect the output, since its values don't depend on the operands."""
        return [[False] for _ in node.inputs]

    def prepare(self, node: Apply, *shape: Any) -> PreparedCall:
        from dnnops.gpuarray.prepared.builder import CallBuilder
        from dnnops.gpuarray.prepared.call import Result

        call = CallBuilder(shape)
        out = call.new([int(length) for length in shape], node.outputs[0].type.numpy_dtype)
        return call.call(Result(out.address.place))


class GpuARange(MirrorOp):
    """`ARange` on the device, with host scalars as operands."""

    __props__: ClassVar[tuple[str, ...]] = ("host_op", "device")

    def __init__(self, host_op: Any, device: int = 0):
        super().__init__(host_op)
        self.device = device

    def make_node(self, start: Any, stop: Any, step: Any) -> Apply:
        """Build the node from host scalars."""
        node = self.host_node(start, stop, step)
        (out,) = node.outputs
        return Apply(
            self, node.inputs, [GpuArrayType(out.type.dtype, out.type.shape, self.device)()]
        )

    def compute(self, node: Apply, start: Any, stop: Any, step: Any) -> Any:
        import cupy

        dtype = node.outputs[0].type.numpy_dtype
        return cupy.arange(start.item(), stop.item(), step.item(), dtype=dtype)

    def __str__(self) -> str:
        return "GpuARange"


def first_joined(op: Any) -> int:
    """Return the index of the first operand that a `Join` joins: 1 if operand 0 is the axis."""
    return 0 if hasattr(op, "axis") else 1


class GpuJoin(MirrorOp):
    """`Join` on the device.

    The axis is a host integer operand, or a parameter of the Op since PyTensor 3.3. The result has
    the memory order of the first operand, for example ``channels_last``.
    """

    def prepare(self, node: Apply, *operands: Any) -> PreparedCall | None:
        from dnnops.gpuarray.elementwise.moves import joining_call

        first = first_joined(self.host_op)
        axis = int(operands[0] if first else self.host_op.axis)
        axis = normalize_axis_index(axis, operands[first].ndim)
        return joining_call(node, operands, first, axis)

    def compute(self, node: Apply, *operands: Any) -> Any:
        call = self.prepared(node, *operands)
        if call is None:  # elements are not at multiples of their size
            first = first_joined(self.host_op)
            operands = (*operands[:first], *(a.copy() for a in operands[first:]))
            call = self.prepared(node, *operands)
            if call is None:
                raise DnnNotSupportedError(f"{self}: the arrays are too large")
        return call.run(operands)

    def __str__(self) -> str:
        return "GpuJoin"


class GpuSplit(MirrorOp):
    """`Split` on the device, which returns views.

    The lengths of the parts are on the host. So is the axis, or it is a parameter of the Op since
    PyTensor 3.3.
    """

    def prepares(self, node: Apply) -> bool:
        """Return False if each call may have other lengths, so that none is like an earlier one."""
        return not depends_on_values(node.inputs[1:])

    def prepare(self, node: Apply, x: Any, *operands: Any) -> PreparedCall:
        from dnnops.gpuarray.prepared.call import PreparedCall, Result

        axis = int(self.host_op.axis if hasattr(self.host_op, "axis") else operands[0])
        lengths = [int(length) for length in operands[-1]]
        count = self.host_op.len_splits
        if len(lengths) != count:
            raise DnnValueError(f"{self}: expected {count} lengths, got {lengths}")
        if min(lengths, default=0) < 0 or sum(lengths) != x.shape[axis]:
            raise DnnValueError(
                f"{self}: the lengths {lengths} must not be negative, and their sum must be the"
                f" length of axis {axis} of shape {x.shape}"
            )
        ends = itertools.accumulate(lengths)
        before = (slice(None),) * (axis % x.ndim)
        return PreparedCall(
            [
                Result(0, (itemgetter((*before, slice(end - length, end))),))
                for end, length in zip(ends, lengths, strict=True)
            ]
        )

    def compute(self, node: Apply, x: Any, *operands: Any) -> Any:
        return self.prepare(node, x, *operands).run((x, *operands))

    def __str__(self) -> str:
        return f"GpuSplit{{{self.host_op.len_splits}}}"


class GpuContiguous(GpuOp):
    """Return the operand itself if it is C-contiguous, otherwise a C-contiguous copy."""

    __props__: ClassVar[tuple[str, ...]] = ()
    view_map: ClassVar[dict[int, list[int]]] = {0: [0]}

    def make_node(self, x: Any) -> Apply:
        """Build the node from a device variable."""
        x = as_gpuarray_variable(x)
        return Apply(self, [x], [x.type()])

    def host_expressions(self, x: Any) -> list[Any]:
        """Return the operand: layouts in memory are not part of the graph."""
        return [x]

    @shape_inference
    def infer_shape(self, node: Apply, shapes: Any) -> Any:
        """Return the shape of the operand."""
        return shapes

    def pullback(self, inputs: Any, outputs: Any, output_grads: Any) -> list[Variable]:
        """Pass the gradient through unchanged."""
        (x,), (gradient,) = inputs, output_grads
        gradient = as_gpuarray_variable(gradient, x.type.device)
        return [cast(gradient, "float32") if x.type.dtype == "bfloat16" else gradient]

    def pushforward(self, inputs: Any, outputs: Any, tangents: Any) -> list[Variable]:
        """Pass the tangent through unchanged."""
        return list(tangents)

    def prepare(self, node: Apply, x: Any) -> PreparedCall | None:
        from dnnops.gpuarray.elementwise.moves import contiguous_call
        from dnnops.gpuarray.prepared.call import PreparedCall, Result

        if x.flags.c_contiguous:
            return PreparedCall([Result(0)])
        return contiguous_call((x,), x.shape)

    def compute(self, node: Apply, x: Any) -> Any:
        call = self.prepared(node, x)
        return x.copy() if call is None else call.run((x,))


def specify_gpu_shape(x: Any, shape: tuple[int | None, ...]) -> Any:
    """Check at run time that a device variable has the known lengths of `shape`.

    Parameters
    ----------
    x : GpuArrayVariable
    shape : tuple of int or None

    Returns
    -------
    GpuArrayVariable
        A variable with the known lengths of both `shape` and `x` in its static shape.
    """
    lengths = [known if known is not None else x.type.shape[i] for i, known in enumerate(shape)]
    return GpuSpecifyShape(SpecifyShape())(x, *lengths)


__all__ = [
    "GpuARange",
    "GpuAlloc",
    "GpuAllocEmpty",
    "GpuContiguous",
    "GpuDimShuffle",
    "GpuJoin",
    "GpuReshape",
    "GpuSpecifyShape",
    "GpuSplit",
    "as_gpuarray_variable",
    "first_joined",
    "infer_device",
    "specify_gpu_shape",
]
