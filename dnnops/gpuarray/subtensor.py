"""Indexing Ops on device arrays.

Integers and slices stay on the host; index arrays are on the device.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
from pytensor.graph.basic import Apply
from pytensor.tensor.subtensor import unflatten_index_variables

from dnnops.errors import DnnValueError
from dnnops.gpuarray.deferred import DnnIndexError, check_indices
from dnnops.gpuarray.op import MirrorOp, depends_on_values, host_operands

if TYPE_CHECKING:
    from dnnops.gpuarray.prepared.call import PreparedCall


def _int(index: Any) -> Any:
    """Convert an index to a Python int, since CuPy accepts no other integers in slices."""
    return None if index is None else int(index)


class _GpuIndexing(MirrorOp):
    """Base class of Ops with an ``idx_list``, the pattern that the index operands fill in."""

    def index(self, node: Apply, operands: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the index built from the operands."""
        return tuple(
            slice(_int(entry.start), _int(entry.stop), _int(entry.step))
            if isinstance(entry, slice)
            else entry
            for entry in unflatten_index_variables(operands, self.host_op.idx_list)
        )

    def target(self, x: Any) -> Any:
        """Return the array to modify: `x` itself if the Op works in place, otherwise a copy."""
        return x if self.host_op.inplace else x.copy(order="K")

    def __str__(self) -> str:
        inplace = ",inplace" if getattr(self.host_op, "inplace", False) else ""
        change = ""
        if hasattr(self.host_op, "set_instead_of_inc"):
            change = ",set" if self.host_op.set_instead_of_inc else ",inc"
        return f"{type(self).__name__}{{{self.host_op.idx_list}{change}{inplace}}}"


class GpuSubtensor(_GpuIndexing):
    """`Subtensor` on the device, which returns a view."""

    def prepares(self, node: Apply) -> bool:
        """Return False if each call may have other indices, so that none is like an earlier one."""
        return not depends_on_values(node.inputs[1:])

    def prepare(self, node: Apply, x: Any, *indices: Any) -> PreparedCall:
        from dnnops.gpuarray.prepared.call import PreparedCall, Result

        return PreparedCall([Result(0, (itemgetter(self.index(node, indices)),))])

    def compute(self, node: Apply, x: Any, *indices: Any) -> Any:
        return x[self.index(node, indices)]

    def index(self, node: Apply, operands: tuple[Any, ...]) -> tuple[Any, ...]:
        index = super().index(node, operands)
        return tuple(i if isinstance(i, slice) else int(i) for i in index)


class GpuIncSubtensor(_GpuIndexing):
    """`IncSubtensor` on the device: increment or set a part of an array."""

    inplace_parameter = "inplace"

    def number_operands(self, node: Apply) -> frozenset[int]:
        return host_operands(node) & {1}

    def compute(self, node: Apply, x: Any, y: Any, *indices: Any) -> Any:
        index = self.index(node, indices)
        out = self.target(x)
        part = out[tuple(i if isinstance(i, slice) else int(i) for i in index)]
        if self.host_op.set_instead_of_inc:
            part[...] = _value(y)
        else:
            part += _value(y)
        return out


class _GpuAdvancedIndexing(_GpuIndexing):
    """Base class of Ops with index arrays.

    CuPy wraps out-of-bounds indices around, so a separate kernel checks them. The error is
    raised at the next transfer to the host.
    """

    def index_numbers(self, node: Apply, first: int) -> frozenset[int]:
        """Return the indices of operands on the host that are indices, not parts of slices.

        `first` is that of the first index operand.
        """
        return host_operands(node) & {first + i for i in self.host_op.idx_list if type(i) is int}

    def checked_index(self, node: Apply, x: Any, operands: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the index, after launching the bounds checks of its arrays."""
        index = []
        axis = 0
        for entry in self.index(node, operands):
            if isinstance(entry, slice):
                axis += 1
            elif entry.dtype == bool:
                shape = x.shape[axis : axis + entry.ndim]
                if entry.shape != shape:
                    raise DnnValueError(
                        f"{self}: a mask of shape {entry.shape} cannot index axes of shape {shape}"
                    )
                axis += entry.ndim
            else:
                length = x.shape[axis]
                if isinstance(entry, np.ndarray | np.generic) and entry.ndim == 0:
                    entry = int(entry)
                    if not -length <= entry < length:
                        raise DnnIndexError(self._message(x, axis))
                else:
                    check_indices(entry, length, self._message(x, axis))
                axis += 1
            index.append(entry)
        return tuple(index)

    def _message(self, x: Any, axis: int) -> str:
        return f"{self}: index out of bounds for axis {axis} of shape {x.shape}"


class GpuAdvancedSubtensor(_GpuAdvancedIndexing):
    """`AdvancedSubtensor` and `AdvancedSubtensor1` on the device."""

    def number_operands(self, node: Apply) -> frozenset[int]:
        return self.index_numbers(node, 1)

    def compute(self, node: Apply, x: Any, *indices: Any) -> Any:
        index = self.checked_index(node, x, indices)
        result = x[index]
        # Without an index array the result is a view, but the Op declares no view_map.
        return result if any(getattr(i, "ndim", 0) for i in index) else result.copy()


class GpuAdvancedIncSubtensor(_GpuAdvancedIndexing):
    """`AdvancedIncSubtensor` and `AdvancedIncSubtensor1` on the device.

    Increments of repeated indices add up, unless the host Op ignores duplicates.
    """

    inplace_parameter = "inplace"

    def number_operands(self, node: Apply) -> frozenset[int]:
        return (host_operands(node) & {1}) | self.index_numbers(node, 2)

    def compute(self, node: Apply, x: Any, y: Any, *indices: Any) -> Any:
        import cupy

        index = self.checked_index(node, x, indices)
        y = _value(y)
        if self.host_op.set_instead_of_inc:
            out = self.target(x)
            out[index] = y
        elif getattr(self.host_op, "ignore_duplicates", False):
            out = self.target(x)
            out[index] += y
        elif x.dtype.name in _ATOMIC:
            out = self.target(x)
            cupy.add.at(out, index, y)
        else:
            # There is no atomic addition for this dtype: add in a wider one.
            wide = x.astype("uint64" if x.dtype.kind in "iub" else "float32", order="K")
            cupy.add.at(wide, index, y)
            out = x if self.host_op.inplace else wide.astype(x.dtype, order="K")
            if out is x:
                out[...] = wide
        return out


# The dtypes for which CuPy supports CUDA's atomicAdd.
_ATOMIC = frozenset({"float32", "float64", "int32", "uint32", "uint64"})


def _value(y: Any) -> Any:
    """Convert a 0-d host array to a NumPy scalar, which CuPy accepts."""
    return y[()] if isinstance(y, np.ndarray) else y
