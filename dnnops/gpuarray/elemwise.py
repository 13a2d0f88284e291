"""`GpuElemwise`: run an elementwise operation on the device as one CUDA kernel."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Constant
from pytensor.scalar.basic import Composite, ScalarOp
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.type import TensorType

from dnnops.compat import shape_inference
from dnnops.dtypes import host_dtype
from dnnops.errors import DnnNotSupportedError, DnnTypeError, DnnValueError
from dnnops.gpuarray.layout import common_order
from dnnops.gpuarray.op import GpuOp, host_operands, infer_device, is_on_device
from dnnops.gpuarray.type import GpuArrayType
from dnnops.runtime.scalar_code import scalar_code, scalar_dtypes

if TYPE_CHECKING:
    from dnnops.gpuarray.prepared.builder import CallBuilder
    from dnnops.gpuarray.prepared.call import PreparedCall, Result


class GpuElemwise(GpuOp):
    """Apply a scalar Op to each element of device arrays.

    Operands are device arrays of equal rank, broadcast along dimensions whose static length is
    1, and 0-d host tensors, which become kernel arguments. bfloat16 operands are treated as
    float32. Results keep the memory order of the operands, for example ``channels_last``.

    Parameters
    ----------
    scalar_op : ScalarOp
        Operation to apply; a `Composite` fuses several operations into one kernel.
    inplace_pattern : iterable of (int, int)
        Pairs of the index of an output and the index of the operand that it overwrites.
    out_dtypes : iterable of str, optional
        Dtypes in which the results are stored, for results that are stored in fewer bits than the
        scalar Op computes in. Default: the dtypes of the scalar Op's results.
    """

    __props__: ClassVar[tuple[str, ...]] = ("scalar_op", "inplace_pattern", "out_dtypes")

    def __init__(
        self,
        scalar_op: ScalarOp,
        inplace_pattern: Iterable[tuple[int, int]] = (),
        out_dtypes: Iterable[str] | None = None,
    ):
        self.scalar_op = scalar_op
        self.inplace_pattern = tuple(sorted((int(o), int(i)) for o, i in inplace_pattern))
        self.out_dtypes = None if out_dtypes is None else tuple(out_dtypes)
        if self.inplace_pattern:
            self.destroy_map = {o: [i] for o, i in self.inplace_pattern}

    def make_node(self, *inputs: Any) -> Apply:
        """Build the node from the operands; at least one must be a device variable.

        Raises
        ------
        DnnTypeError
            If an operand is neither a device variable nor a 0-d host tensor, if the ranks
            differ, or if an output can't overwrite its operand.
        DnnValueError
            If the static shapes can't be broadcast together.
        DnnNotSupportedError
            If the scalar Op has no CUDA code for these dtypes.
        """
        device = infer_device(*inputs)
        for x in inputs:
            if not is_on_device(x) and not (isinstance(x.type, TensorType) and x.type.ndim == 0):
                raise DnnTypeError(
                    f"{self}: {x} of type {x.type} is neither a device array nor a host scalar"
                )
        ranks = {x.type.ndim for x in inputs if is_on_device(x)}
        if len(ranks) != 1:
            raise DnnTypeError(
                f"{self}: operands must have the same rank; got operands of ranks {sorted(ranks)};"
                " dimshuffle them first"
            )
        scalar_code(self.scalar_op, tuple(x.type.dtype for x in inputs))
        shape = self.result_shape([x.type.shape for x in inputs if is_on_device(x)])
        outputs = [GpuArrayType(dtype, shape, device)() for dtype in self._dtypes(inputs)]
        for o, i in self.inplace_pattern:
            have, want = inputs[i].type, outputs[o].type
            if not isinstance(have, GpuArrayType) or (have.dtype, have.broadcastable) != (
                want.dtype,
                want.broadcastable,
            ):
                raise DnnTypeError(
                    f"{self}: output {o} of type {want} cannot overwrite an operand of type {have}"
                )
        return Apply(self, list(inputs), outputs)

    def host_expressions(self, *inputs: Any) -> list[Any]:
        """Apply the scalar Op on the host, a fused one as the Ops that it consists of."""
        return elementwise_expressions(self.scalar_op, inputs)

    def _dtypes(self, inputs: tuple[Any, ...]) -> tuple[str, ...]:
        if self.out_dtypes is not None:
            return self.out_dtypes
        return scalar_dtypes(self.scalar_op, tuple(host_dtype(x.type.dtype) for x in inputs))

    def result_shape(self, shapes: list[tuple[int | None, ...]]) -> tuple[int | None, ...]:
        """Return the static shape of the results for those of the operands on the device."""
        result = []
        for lengths in zip(*shapes, strict=True):
            known = {length for length in lengths if length not in (None, 1)}
            if len(known) > 1:
                raise DnnValueError(f"{self}: shapes {shapes} cannot be broadcast")
            all_ones = all(length == 1 for length in lengths)
            result.append(known.pop() if known else (1 if all_ones else None))
        return tuple(result)

    @shape_inference
    def infer_shape(self, node: Apply, shapes: Any) -> Any:
        """Infer each length from an operand that isn't broadcast along that dimension."""
        operands = [
            (x.type.broadcastable, shape)
            for x, shape in zip(node.inputs, shapes, strict=True)
            if is_on_device(x)
        ]
        shape = tuple(
            next((s[axis] for ones, s in operands if not ones[axis]), 1)
            for axis in range(node.outputs[0].type.ndim)
        )
        return [shape for _ in node.outputs]

    def number_operands(self, node: Apply) -> frozenset[int]:
        return host_operands(node)

    def prepare(self, node: Apply, *inputs: Any) -> PreparedCall | None:
        """Prepare the kernel, with its axes in the order of the operands' memory."""
        from dnnops.gpuarray.prepared.builder import CallBuilder

        call = CallBuilder(inputs)
        results = self.add_to(call, node, range(len(inputs)))
        return None if results is None else call.call(*results)

    def add_to(self, call: CallBuilder, node: Apply, places: Sequence[int]) -> list[Result] | None:
        """Add the launch for a node to a prepared call.

        Parameters
        ----------
        call : CallBuilder
        node : Apply
            Node of this Op, whose operands are operands of the call.
        places : sequence of int
            Index of each operand in the call.

        Returns
        -------
        list of Result or None
            None if a kernel cannot access the operands.
        """
        from dnnops.gpuarray.elementwise.step import elementwise_step
        from dnnops.gpuarray.prepared.builder import number_at
        from dnnops.gpuarray.prepared.call import Result

        inputs = [call.inputs[place] for place in places]
        on_device = [is_on_device(x) for x in node.inputs]
        arrays = list(itertools.compress(inputs, on_device))
        shape = arrays[0].shape
        if any(x.shape != shape for x in arrays[1:]):
            shape = self._broadcast_shape(node, arrays)
        order = common_order(arrays, shape)
        # Pass all arrays with their axes in memory order, so that neighboring threads read and
        # write neighboring elements.
        operands: list[tuple[str, Any]] = []
        for x, value, place, is_array in zip(node.inputs, inputs, places, on_device, strict=True):
            dtype = x.type.dtype
            if is_array:
                operands.append((dtype, call.operand(place).transpose(order)))
            else:
                operands.append((dtype, number_at(node, place, value)))
        inplace = dict(self.inplace_pattern)
        results, targets = [], []
        for number, z in enumerate(node.outputs):
            if number in inplace:
                results.append(Result(places[inplace[number]]))
                target = operands[inplace[number]][1]
            else:
                result, target = call.new_in_order(shape, z.type.numpy_dtype, order)
                results.append(result)
            targets.append((z.type.dtype, target))
        if targets[0][1].size:
            step = elementwise_step(self.scalar_op, operands, targets)
            if step is None:
                return None
            call.steps.append(step)
        return results

    def compute(self, node: Apply, *inputs: Any) -> Any:
        """Launch the kernel and return its results."""
        call = self.prepared(node, *inputs)
        if call is None:  # elements are not at multiples of their size, or there are too many
            copies = [
                x.copy() if is_on_device(v) else x for v, x in zip(node.inputs, inputs, strict=True)
            ]
            call = self.prepared(node, *copies)
            if call is None:
                raise DnnNotSupportedError(f"{self}: too many elements for a kernel")
            results = list(call.run(copies))
            for o, i in self.inplace_pattern:
                inputs[i][...] = results[o]
                results[o] = inputs[i]
            return tuple(results)
        return call.run(inputs)

    def _broadcast_shape(self, node: Apply, arrays: list[Any]) -> tuple[int, ...]:
        patterns = [x.type.broadcastable for x in node.inputs if is_on_device(x)]
        shape = [1] * arrays[0].ndim
        for x, ones in zip(arrays, patterns, strict=True):
            for axis, length in enumerate(x.shape):
                if not ones[axis]:
                    shape[axis] = length
        for x, ones in zip(arrays, patterns, strict=True):
            for axis, length in enumerate(x.shape):
                if length != (1 if ones[axis] else shape[axis]):
                    raise DnnValueError(
                        f"{self}: shapes {[a.shape for a in arrays]} cannot be broadcast;"
                        " only dimensions that are known to have length 1 are broadcast"
                    )
        return tuple(shape)

    def __str__(self) -> str:
        inplace = f",inplace{dict(self.inplace_pattern)}" if self.inplace_pattern else ""
        dtypes = f",{'/'.join(self.out_dtypes)}" if self.out_dtypes else ""
        return f"GpuElemwise{{{self.scalar_op}{dtypes}{inplace}}}"


def elementwise_expressions(scalar_op: Any, inputs: Sequence[Any]) -> list[Any]:
    """Return the results of a scalar Op on host arrays; those of a fused one step by step.

    Parameters
    ----------
    scalar_op : ScalarOp
    inputs : sequence of TensorVariable
        Their dtypes may differ from those of a fused Op.

    Returns
    -------
    list of TensorVariable
    """
    # PyTensor 3.0 rebuilds some fused Ops wrongly for other dtypes.
    if not isinstance(scalar_op, Composite):
        return Elemwise(scalar_op).make_node(*inputs).outputs
    inner = scalar_op.fgraph
    known: dict[Any, Any] = dict(zip(inner.inputs, inputs, strict=True))
    for node in inner.toposort():
        operands = [
            pt.constant(x.data, dtype=x.type.dtype) if isinstance(x, Constant) else known[x]
            for x in node.inputs
        ]
        known.update(zip(node.outputs, elementwise_expressions(node.op, operands), strict=True))
    # Results that read only some operands have the shape of all of them, too.
    ndim = max(x.type.ndim for x in inputs)
    patterns = [(True,) * (ndim - x.type.ndim) + x.type.broadcastable for x in inputs]
    wanted = tuple(map(all, zip(*patterns, strict=True)))
    found = [known[z] for z in inner.outputs]
    return [
        z if z.type.broadcastable == wanted else pt.broadcast_to(z, pt.broadcast_shape(*inputs))
        for z in found
    ]


def can_run(scalar_op: ScalarOp, in_dtypes: tuple[str, ...]) -> bool:
    """Return whether a scalar Op has CUDA code for operands of these dtypes."""
    try:
        scalar_code(scalar_op, in_dtypes)
    except DnnNotSupportedError:
        return False
    return True
