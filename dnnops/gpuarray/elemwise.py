"""`GpuElemwise`: run an elementwise operation on the device as one CUDA kernel."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from pytensor.graph.basic import Apply
from pytensor.scalar import get_scalar_type
from pytensor.scalar.basic import ScalarOp
from pytensor.tensor.type import TensorType

from dnnops.compat import shape_inference
from dnnops.dtypes import DTYPES, host_dtype
from dnnops.errors import DnnNotSupportedError, DnnTypeError, DnnValueError
from dnnops.gpuarray.layout import common_order, empty_in_order
from dnnops.gpuarray.op import GpuOp, infer_device, is_on_device
from dnnops.gpuarray.type import GpuArrayType
from dnnops.runtime.scalar_code import PREAMBLE, scalar_code


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
    takes_numbers = True

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

    def _dtypes(self, inputs: tuple[Any, ...]) -> tuple[str, ...]:
        if self.out_dtypes is not None:
            return self.out_dtypes
        scalars = [get_scalar_type(host_dtype(x.type.dtype))() for x in inputs]
        return tuple(z.type.dtype for z in self.scalar_op.make_node(*scalars).outputs)

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

    def compute(self, node: Apply, *inputs: Any) -> Any:
        """Launch the kernel and return its results."""
        launcher = _launchers.get(node)
        if launcher is None:
            launcher = _launchers[node] = _Launcher(self, node)
        return launcher(inputs)

    def __str__(self) -> str:
        inplace = f",inplace{dict(self.inplace_pattern)}" if self.inplace_pattern else ""
        dtypes = f",{'/'.join(self.out_dtypes)}" if self.out_dtypes else ""
        return f"GpuElemwise{{{self.scalar_op}{dtypes}{inplace}}}"


class _Launcher:
    """Launch the kernels of a node, with what does not depend on the operands' values cached."""

    def __init__(self, op: GpuElemwise, node: Apply):
        from dnnops.gpuarray import packed as packing

        self.packing = packing
        self.name = str(op)
        self.on_device = [is_on_device(x) for x in node.inputs]
        self.broadcastable = [
            x.type.broadcastable if is_on_device(x) else None for x in node.inputs
        ]
        self.inplace = dict(op.inplace_pattern)
        self.out_dtypes = [z.type.numpy_dtype for z in node.outputs]
        in_dtypes = tuple(x.type.dtype for x in node.inputs)
        out_dtypes = tuple(z.type.dtype for z in node.outputs)
        self.kernel = elementwise_kernel(op.scalar_op, in_dtypes, out_dtypes)
        # Compiled only when large dense arrays occur.
        kernel = packing.packed_kernel
        self.make_packed = functools.partial(kernel, op.scalar_op, in_dtypes, out_dtypes)
        arrays = itertools.compress(in_dtypes, self.on_device)
        self.width = packing.pack_width([*arrays, *out_dtypes])

    def __call__(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        arrays = [x for x, device in zip(inputs, self.on_device, strict=True) if device]
        shape = arrays[0].shape
        if any(x.shape != shape for x in arrays[1:]):
            shape = self._broadcast_shape(arrays)
        order = common_order(arrays, shape)
        # Pass all arrays with their axes in memory order, so that neighboring threads read and
        # write neighboring elements.
        operands = [
            (x if order is None else x.transpose(order)) if device else x[()]
            for x, device in zip(inputs, self.on_device, strict=True)
        ]
        results, targets = [], []
        for number, dtype in enumerate(self.out_dtypes):
            if number in self.inplace:
                result = inputs[self.inplace[number]]
                target = operands[self.inplace[number]]
            else:
                result, target = empty_in_order(shape, dtype, order)
            results.append(result)
            targets.append(target)
        size = targets[0].size
        packed = None
        if size >= self.packing.LEAST_SIZE:
            packed = self.packing.packed_operands(operands, self.on_device, targets, self.width)
        if packed is None:
            self.kernel(*operands, *targets)
        else:
            kernel = self.make_packed(packed.kinds, packed.result_kinds, self.width)
            count = -(-size // self.width)
            kernel(*packed.arguments, *packed.numbers, size, *targets, size=count)
        return tuple(results)

    def _broadcast_shape(self, arrays: list[Any]) -> tuple[int, ...]:
        patterns = [ones for ones in self.broadcastable if ones is not None]
        shape = [1] * arrays[0].ndim
        for x, ones in zip(arrays, patterns, strict=True):
            for axis, length in enumerate(x.shape):
                if not ones[axis]:
                    shape[axis] = length
        for x, ones in zip(arrays, patterns, strict=True):
            for axis, length in enumerate(x.shape):
                if length != (1 if ones[axis] else shape[axis]):
                    raise DnnValueError(
                        f"{self.name}: shapes {[a.shape for a in arrays]} cannot be broadcast;"
                        " only dimensions that are known to have length 1 are broadcast"
                    )
        return tuple(shape)


# Kept outside of the nodes, since kernels can't be pickled with a function.
_launchers: WeakKeyDictionary[Apply, _Launcher] = WeakKeyDictionary()


@functools.lru_cache(maxsize=1024)
def elementwise_kernel(
    scalar_op: ScalarOp, in_dtypes: tuple[str, ...], out_dtypes: tuple[str, ...]
) -> Any:
    """Return the CuPy kernel of a scalar Op.

    Parameters
    ----------
    scalar_op : ScalarOp
    in_dtypes, out_dtypes : tuple of str
        Dtypes of operands and results in memory.

    Returns
    -------
    cupy.ElementwiseKernel
        Kernel with the parameters ``in0``, ``in1``... and ``z0``, ``z1``... The results may
        overwrite operands.
    """
    import cupy

    code = scalar_code(scalar_op, in_dtypes)
    # Assign results to local variables first: an output may overwrite an operand.
    lines = [f"{DTYPES[dtype].c_type} out{i};" for i, dtype in enumerate(out_dtypes)]
    lines.append(code.operation)
    lines += [f"z{i} = out{i};" for i in range(len(out_dtypes))]
    return cupy.ElementwiseKernel(
        ", ".join(f"{dtype} in{i}" for i, dtype in enumerate(in_dtypes)),
        ", ".join(f"{dtype} z{i}" for i, dtype in enumerate(out_dtypes)),
        "\n".join(lines),
        name="dnnops_elementwise",
        preamble=f"{PREAMBLE}\n{code.support}",
        no_return=True,
    )


def can_run(scalar_op: ScalarOp, in_dtypes: tuple[str, ...]) -> bool:
    """Return whether a scalar Op has CUDA code for operands of these dtypes."""
    try:
        scalar_code(scalar_op, in_dtypes)
    except DnnNotSupportedError:
        return False
    return True
