"""`GpuMultiElemwise`: run one elementwise operation on many arrays as one CUDA kernel."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import numpy as np
from pytensor.graph.basic import Apply
from pytensor.scalar.basic import ScalarOp

from dnnops.compat import shape_inference
from dnnops.dtypes import numpy_dtype
from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.gpuarray.elementwise.packed import DENSE, SCALAR, STORED
from dnnops.gpuarray.elemwise import GpuElemwise
from dnnops.gpuarray.layout import common_order, empty_in_order
from dnnops.gpuarray.multi_elemwise.kernel import KERNEL_NAME, THREADS, MultiKernel
from dnnops.gpuarray.op import GpuOp, host_operands, is_on_device
from dnnops.gpuarray.type import GpuArrayType

__all__ = ["GpuMultiElemwise", "operand_kinds", "parameter_limit"]

#: Bytes of a kernel's parameters, without and with CUDA 12.1 on a device that has more.
LIMIT, LARGE_LIMIT = 4096, 32764
_LARGE_SINCE = 12010


def operand_kinds(node: Apply) -> tuple[str, ...] | None:
    """Return the kinds of the operands of a `GpuElemwise`.

    Parameters
    ----------
    node : Apply

    Returns
    -------
    tuple of str or None
        For each operand, whether it is a number on the host, one element in device memory, or an
        array of the result's shape. None if an operand is broadcast in another way.
    """
    result = node.outputs[0].type.broadcastable
    kinds = []
    for x in node.inputs:
        if not is_on_device(x):
            kinds.append(SCALAR)
        elif x.type.broadcastable == result:
            kinds.append(DENSE)
        elif all(x.type.broadcastable):
            kinds.append(STORED)
        else:
            return None
    return tuple(kinds)


class GpuMultiElemwise(GpuOp):
    """Apply a scalar Op to each element of several groups of device arrays, the items.

    The result is the same as that of a `GpuElemwise` for each item. Items may differ in rank and
    shape. Their arrays come first, in the order of the scalar Op's operands, then the host numbers,
    which all items share.

    Parameters
    ----------
    scalar_op : ScalarOp
        Operation to apply.
    kinds : iterable of str
        What each operand of the scalar Op is: ``"dense"``, an array of the item's shape;
        ``"stored"``, an array of one element; or ``"scalar"``, a host number.
    count : int
        Number of items.
    inplace_pattern : iterable of (int, int)
        Pairs of the index of an output and the index of the operand that it overwrites, in each
        item.
    """

    __props__: ClassVar[tuple[str, ...]] = ("scalar_op", "kinds", "count", "inplace_pattern")

    def __init__(
        self,
        scalar_op: ScalarOp,
        kinds: Iterable[str],
        count: int,
        inplace_pattern: Iterable[tuple[int, int]] = (),
    ):
        self.single = GpuElemwise(scalar_op, inplace_pattern)
        self.scalar_op = scalar_op
        self.inplace_pattern = self.single.inplace_pattern
        self.kinds = tuple(kinds)
        self.count = int(count)
        self.dense = tuple(i for i, kind in enumerate(self.kinds) if kind == DENSE)
        # The operands that each item has for itself.
        self.arrays = tuple(i for i, kind in enumerate(self.kinds) if kind != SCALAR)
        self.numbers = tuple(i for i, kind in enumerate(self.kinds) if kind == SCALAR)
        if self.inplace_pattern:
            width, results = len(self.arrays), scalar_op.nout
            self.destroy_map = {
                item * results + o: [item * width + self.arrays.index(i)]
                for item in range(self.count)
                for o, i in self.inplace_pattern
            }

    def number_operands(self, node: Apply) -> frozenset[int]:
        return host_operands(node)

    def operands(self, inputs: Sequence[Any], item: int) -> list[Any]:
        """Return the operands of an item, in the order of the scalar Op."""
        width = len(self.arrays)
        found = [None] * len(self.kinds)
        for place, i in enumerate(self.arrays):
            found[i] = inputs[item * width + place]
        for place, i in enumerate(self.numbers):
            found[i] = inputs[self.count * width + place]
        return found

    def make_node(self, *inputs: Any) -> Apply:
        """Build the node from the arrays of all items, and the numbers.

        Raises
        ------
        DnnTypeError
            If an item has operands of other dtypes or kinds than the first one.
        DnnValueError
            If the number of operands is wrong.
        DnnError
            If `GpuElemwise` would refuse the first item.
        """
        wanted = self.count * len(self.arrays) + len(self.numbers)
        if len(inputs) != wanted:
            raise DnnValueError(f"{self}: expected {wanted} operands; got {len(inputs)}")
        first = self.single.make_node(*self.operands(inputs, 0))
        outputs = []
        for item in range(self.count):
            operands = self.operands(inputs, item)
            if not self._fits(operands, first):
                raise DnnTypeError(
                    f"{self}: item {item} has operands of types {[str(x.type) for x in operands]};"
                    f" the first one has {[str(x.type) for x in first.inputs]}"
                )
            shape = self.single.result_shape([operands[i].type.shape for i in self.dense])
            outputs += [GpuArrayType(z.dtype, shape, z.device)() for z in _types(first.outputs)]
        return Apply(self, list(inputs), outputs)

    def host_expressions(self, *inputs: Any) -> list[Any]:
        """Apply the scalar Op to the operands of each item."""
        items = [self.operands(inputs, item) for item in range(self.count)]
        return [z for operands in items for z in self.single.host_expressions(*operands)]

    def _fits(self, operands: Sequence[Any], first: Apply) -> bool:
        types = _types(operands)
        if [t.dtype for t in types] != [x.type.dtype for x in first.inputs]:
            return False
        device, pattern = first.outputs[0].type.device, types[self.dense[0]].broadcastable
        wanted = {DENSE: pattern, STORED: (True,) * len(pattern)}
        return all(
            is_on_device(x) is (kind != SCALAR)
            and (kind == SCALAR or (x.type.device, x.type.broadcastable) == (device, wanted[kind]))
            for x, kind in zip(operands, self.kinds, strict=True)
        )

    @shape_inference
    def infer_shape(self, node: Apply, shapes: Any) -> Any:
        """Infer the shape of an item's results from one of its arrays."""
        return [
            self.operands(shapes, item)[self.dense[0]]
            for item in range(self.count)
            for _ in range(self.scalar_op.nout)
        ]

    def compute(self, node: Apply, *inputs: Any) -> Any:
        """Launch the kernel, or several if its parameters don't have room for all items."""
        launcher = _launchers.get(node)
        if launcher is None:
            launcher = _launchers[node] = _Launcher(self, node)
        return launcher(inputs)

    def __str__(self) -> str:
        inplace = f",inplace{dict(self.inplace_pattern)}" if self.inplace_pattern else ""
        return f"GpuMultiElemwise{{{self.count} x {self.scalar_op}{inplace}}}"


def _types(variables: Iterable[Any]) -> list[Any]:
    return [x.type for x in variables]


@functools.lru_cache(maxsize=256)
def _compiled(kernel: MultiKernel, device: int) -> Any:
    # Imported here because only nodes that run need it.
    from dnnops.gpuarray.compiling import compiled_kernel

    return compiled_kernel(kernel.source(), KERNEL_NAME)


@functools.cache
def parameter_limit(device: int) -> int:
    """Return the maximum number of bytes of a kernel's parameters on a device."""
    import cupy

    runtime = cupy.cuda.runtime
    major, minor = cupy.cuda.nvrtc.getVersion()
    releases = (1000 * major + 10 * minor, runtime.driverGetVersion())
    has_more = int(cupy.cuda.Device(device).compute_capability) >= 70
    return LARGE_LIMIT if has_more and min(releases) >= _LARGE_SINCE else LIMIT


class _Launcher:
    """Launch the kernels of a node, with what does not depend on the operands' values cached."""

    def __init__(self, op: GpuMultiElemwise, node: Apply):
        self.op = op
        self.device = op.node_device(node)
        results = node.outputs[: op.scalar_op.nout]
        self.out_dtypes = [z.type.numpy_dtype for z in results]
        self.numbers = [numpy_dtype(x.type.dtype) for x in node.inputs[op.count * len(op.arrays) :]]
        # What the operands of each item are in a node for that item alone.
        self.types = [_types(op.operands(node.inputs, item)) for item in range(op.count)]
        self.alone: dict[int, Apply] = {}
        self.first_dense = op.arrays.index(op.dense[0])
        # Shapes and sizes of the last call in which all arrays were contiguous and none was empty.
        self.contiguous: tuple[list[tuple[int, ...]] | None, Any] = (None, None)
        # By which numbers are on the device.
        self.functions: dict[tuple[bool, ...], Any] = {}
        kernel = MultiKernel(
            op.scalar_op,
            tuple(t.dtype for t in self.types[0]),
            tuple(z.type.dtype for z in results),
            op.kinds,
            (False,) * len(op.numbers),
            op.inplace_pattern,
            op.count,
        )
        most = kernel.with_room(parameter_limit(self.device)).items
        # With equal numbers of items in all launches, one kernel is enough.
        launches = -(-op.count // most)
        self.kernel = replace(kernel, items=-(-op.count // launches))

    def __call__(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        arrays = inputs[: self.op.count * len(self.op.arrays)]
        shapes = [x.shape for x in arrays]
        known, sizes = self.contiguous
        # Reading attributes of CuPy arrays takes most of the time, so read few and all at once.
        if shapes == known and all(x.flags.c_contiguous for x in arrays):
            addresses = np.array([x.data.ptr for x in arrays], "u8").reshape(self.op.count, -1)
            results, new = self._results(inputs)
            addresses = np.hstack([addresses, new])
        else:
            results, rows = [], []
            for item in range(self.op.count):
                found, row = self._item(inputs, item)
                results += found
                if row is not None:
                    rows.append(row)
            values = np.array(rows, "u8").reshape(len(rows), 1 + self.kernel.arrays)
            sizes, addresses = values[:, 0].astype("i8"), values[:, 1:]
            if len(rows) == self.op.count and all(x.flags.c_contiguous for x in arrays):
                self.contiguous = shapes, sizes
        numbers = inputs[len(arrays) :]
        on_device = tuple([not _is_on_host(x) for x in numbers])
        run = self.functions.get(on_device)
        if run is None:
            kernel = replace(self.kernel, on_device=on_device)
            run = self.functions[on_device] = _compiled(kernel, self.device)
        arguments = [
            x if device else np.asarray(x, dtype)
            for x, device, dtype in zip(numbers, on_device, self.numbers, strict=True)
        ]
        for start in range(0, len(sizes), self.kernel.items):
            part = slice(start, start + self.kernel.items)
            self._launch(run, sizes[part], addresses[part], arguments)
        return tuple(results)

    def _results(self, inputs: tuple[Any, ...]) -> tuple[list[Any], np.ndarray]:
        """Return the results for contiguous arrays, and the addresses of those that are new."""
        op, overwriting = self.op, self.op.destroy_map
        results, new = [], []
        for place in range(op.count * op.scalar_op.nout):
            if place in overwriting:
                results.append(inputs[overwriting[place][0]])
                continue
            item, o = divmod(place, op.scalar_op.nout)
            shape = inputs[item * len(op.arrays) + self.first_dense].shape
            result, _ = empty_in_order(shape, self.out_dtypes[o], None)
            results.append(result)
            new.append(result.data.ptr)
        return results, np.array(new, "u8").reshape(op.count, -1)

    def _item(
        self, inputs: tuple[Any, ...], item: int
    ) -> tuple[Sequence[Any], tuple[int, ...] | None]:
        """Return the results of an item, and its size and addresses.

        The latter are None if nothing is left to do: if the item is empty, or if its arrays are in
        different orders in memory, so that it has had a kernel of its own.
        """
        op = self.op
        operands = op.operands(inputs, item)
        dense = [operands[i] for i in op.dense]
        shape = dense[0].shape
        if any(x.shape != shape for x in dense):
            return self._compute_alone(operands, item), None
        order = None
        if not all(x.flags.c_contiguous for x in dense):
            order = common_order(dense, shape)
            if order is None or not all(x.transpose(order).flags.c_contiguous for x in dense):
                return self._compute_alone(operands, item), None
        overwritten = dict(op.inplace_pattern)
        results = [
            operands[overwritten[o]] if o in overwritten else empty_in_order(shape, dtype, order)[0]
            for o, dtype in enumerate(self.out_dtypes)
        ]
        if dense[0].size == 0:
            return results, None
        arrays = [operands[i] for i in op.arrays]
        arrays += [results[o] for o in self.kernel.new_results]
        return results, (dense[0].size, *[x.data.ptr for x in arrays])

    def _compute_alone(self, operands: list[Any], item: int) -> Sequence[Any]:
        node = self.alone.get(item)
        if node is None:
            variables = [t() for t in self.types[item]]
            node = self.alone[item] = self.op.single.make_node(*variables)
        return self.op.single.compute(node, *operands)

    def _launch(
        self, run: Any, sizes: np.ndarray, addresses: np.ndarray, numbers: list[Any]
    ) -> None:
        blocks = -(-sizes // self.kernel.block_size)
        ends = np.cumsum(blocks)
        count = len(sizes)
        table = self.kernel.table()
        table["size"][:count] = sizes
        table["array"][:, :count] = addresses.T
        table["first_block"][:count] = ends - blocks
        run((int(ends[-1]),), (THREADS,), (table, np.int32(count), *numbers))


def _is_on_host(number: Any) -> bool:
    return isinstance(number, np.ndarray | np.generic)


# Kept outside of the nodes, since kernels can't be pickled with a function.
_launchers: WeakKeyDictionary[Apply, _Launcher] = WeakKeyDictionary()
