"""Indices and slices whose places change from call to call, on the device.

`GpuSubtensor` and `GpuIncSubtensor` need the bounds of slices and indices on the host, because the
address of a view depends on them. The Ops here take the start and the length of each slice apart.
In a captured function the starts are in device memory: a part is read or written by a kernel
that finds its place there, so that the function is captured once for all positions, as of a token
in a key-value cache. Lengths, on which shapes depend, stay on the host.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply
from pytensor.tensor.subtensor import inc_subtensor, set_subtensor

from dnnops.compat import shape_inference
from dnnops.errors import DnnNotSupportedError
from dnnops.gpuarray.deferred import DnnIndexError
from dnnops.gpuarray.layout import common_order, inverse
from dnnops.gpuarray.op import GpuOp

if TYPE_CHECKING:
    from dnnops.gpuarray.prepared.builder import CallBuilder
    from dnnops.gpuarray.prepared.call import PreparedCall
    from dnnops.gpuarray.prepared.placed import Placed

__all__ = ["GpuSetWindow", "GpuWindow", "Window"]


class Window(NamedTuple):
    """What is taken of an axis.

    Attributes
    ----------
    axis : int
    step : int
        Step of a slice, whose start and length are operands; 0 for an index, which is one operand.
    """

    axis: int
    step: int


class _Windows(GpuOp):
    """Base class of the Ops with windows, whose operands come after `leading` arrays."""

    leading: ClassVar[int]
    windows: tuple[Window, ...]

    def number_operands(self, node: Apply) -> frozenset[int]:
        """Return the indices of the starts."""
        found, place = set(), self.leading
        for window in self.windows:
            found.add(place)
            place += 2 if window.step else 1
        return frozenset(found)

    def prepares(self, node: Apply) -> bool:
        """Return False: each call on the host may have other places, which views depend on."""
        return False

    def _bounds(self, operands: Sequence[Any]) -> list[tuple[Window, Any, Any]]:
        """Return each window with its start and its length, which is None for an index."""
        given = iter(operands)
        return [(w, next(given), next(given) if w.step else None) for w in self.windows]

    def index(self, x: Any, operands: Sequence[Any]) -> tuple[Any, ...]:
        """Return the index of the part of `x`, from starts and lengths of any kind."""
        index: list[Any] = [slice(None)] * x.ndim
        for window, start, length in self._bounds(operands):
            if length is None:
                index[window.axis] = start
                continue
            stop = start + length * window.step
            if window.step < 0:
                # A negative stop counts from the end, and one below all places is the beginning.
                stop = stop - (stop < 0) * x.shape[window.axis]
            index[window.axis] = slice(start, stop, window.step)
        return tuple(index)

    def view(self, x: Any, operands: Sequence[Any]) -> Any:
        """Return the part of a device array, with starts on the host."""
        numbers = [int(operand) for operand in operands]
        for window, start, length in self._bounds(numbers):
            if length is None and not -x.shape[window.axis] <= start < x.shape[window.axis]:
                raise DnnIndexError(self._message(x.shape, window.axis))
        return x[self.index(x, numbers)]

    def _message(self, shape: tuple[int, ...], axis: int) -> str:
        return f"{self}: index out of bounds for axis {axis} of shape {shape}"

    def _part(
        self, node: Apply, whole: Placed, operands: Sequence[Any]
    ) -> tuple[Placed, list[Any]]:
        """Return the part at the start of an array, and where it really starts."""
        from dnnops.gpuarray.prepared.builder import number_at
        from dnnops.gpuarray.prepared.placed import Placed
        from dnnops.gpuarray.windows.kernel import Start

        shape, strides = [*whole.shape], [*whole.strides]
        starts, place, dropped = [], self.leading, []
        for window, start, length in self._bounds(operands):
            axis = window.axis
            most = whole.shape[axis] if length is None else -1
            number, message = number_at(node, place, start), self._message(whole.shape, axis)
            starts.append(Start(number, whole.strides[axis], most, message))
            place += 1 if length is None else 2
            if length is None:
                dropped.append(axis)
            else:
                shape[axis] = int(length)
                strides[axis] *= window.step
        kept = [axis for axis in range(len(shape)) if axis not in dropped]
        own = tuple(shape[axis] for axis in kept), tuple(strides[axis] for axis in kept)
        return Placed(whole.address, *own, whole.itemsize, whole.remainder), starts


def _on_host(operands: Iterable[Any]) -> bool:
    return all(isinstance(x, np.ndarray | np.generic | int) for x in operands)


class GpuWindow(_Windows):
    """A part of a device array, called as ``GpuWindow(windows)(x, start, length, ...)``.

    The result is a view if all starts are on the host, otherwise a copy.

    Parameters
    ----------
    windows : iterable of Window
        In ascending order of their axes. Each has an int64 scalar on the host as its start, from 0
        to the length of the axis for slices, and another one as its length, which fits. For a
        negative step, the start is the last place of the axis that is taken.
    """

    __props__ = ("windows",)
    view_map: ClassVar[dict[int, list[int]]] = {0: [0]}
    leading = 1

    def __init__(self, windows: Iterable[Any]):
        self.windows = tuple(Window(*window) for window in windows)

    def make_node(self, x: Any, *operands: Any) -> Apply:
        """Build the node from a device variable and int64 scalars on the host."""
        shape: list[Any] = [*x.type.shape]
        for window in reversed(self.windows):
            if window.step:
                shape[window.axis] = None
            else:
                del shape[window.axis]
        return Apply(self, [x, *operands], [x.type.clone(shape=tuple(shape))()])

    def host_expressions(self, x: Any, *operands: Any) -> list[Any]:
        return [x[self.index(x, operands)]]

    @shape_inference
    def infer_shape(self, node: Apply, shapes: Any) -> Any:
        """Return the lengths of the windows, and those of the other axes."""
        shape: list[Any] = [*shapes[0]]
        for window, _, length in reversed(self._bounds(node.inputs[1:])):
            if length is None:
                del shape[window.axis]
            else:
                shape[window.axis] = pt.as_tensor(length)
        return [tuple(shape)]

    def prepare(self, node: Apply, x: Any, *operands: Any) -> PreparedCall | None:
        """Prepare the copy of a part whose starts may be on the device."""
        from dnnops.gpuarray.prepared.builder import CallBuilder
        from dnnops.gpuarray.prepared.call import Result
        from dnnops.gpuarray.windows.kernel import window_step

        call = CallBuilder((x, *operands))
        part, starts = self._part(node, call.operand(0), operands)
        out = call.new(part.shape, x.dtype)
        if out.size:
            dtype = x.dtype.name
            step = window_step((dtype, dtype), part, out, starts, reads=True)
            if step is None:
                return None
            call.steps.append(step)
        return call.call(Result(out.address.place))

    def compute(self, node: Apply, x: Any, *operands: Any) -> Any:
        if _on_host(operands):
            return self.view(x, operands)
        call = self.prepare(node, x, *operands)
        if call is None:
            raise DnnNotSupportedError(f"{self}: the array is too large or not aligned")
        return call.run((x, *operands))

    def __str__(self) -> str:
        return f"GpuWindow{{{_shown(self.windows)}}}"


class GpuSetWindow(_Windows):
    """Set or increment a part of a device array.

    Called as ``GpuSetWindow(windows, ...)(x, y, start, length, ...)``.

    Parameters
    ----------
    windows : iterable of Window
        See `GpuWindow`.
    set_instead_of_inc : bool
        Whether `y` replaces the part, instead of being added to it.
    inplace : bool
        Whether the result overwrites `x`.
    """

    __props__ = ("windows", "set_instead_of_inc", "inplace")
    leading = 2

    def __init__(
        self, windows: Iterable[Any], set_instead_of_inc: bool = True, inplace: bool = False
    ):
        self.windows = tuple(Window(*window) for window in windows)
        self.set_instead_of_inc, self.inplace = bool(set_instead_of_inc), bool(inplace)
        if self.inplace:
            self.destroy_map = {0: [0]}

    def inplace_versions(self) -> list[GpuSetWindow]:
        """Return the version that overwrites the array."""
        return [type(self)(self.windows, self.set_instead_of_inc, True)]

    def make_node(self, x: Any, y: Any, *operands: Any) -> Apply:
        """Build the node from device variables of one device, and int64 scalars on the host."""
        return Apply(self, [x, y, *operands], [x.type()])

    def host_expressions(self, x: Any, y: Any, *operands: Any) -> list[Any]:
        change = set_subtensor if self.set_instead_of_inc else inc_subtensor
        return [change(x[self.index(x, operands)], y)]

    @shape_inference
    def infer_shape(self, node: Apply, shapes: Any) -> Any:
        """Return the shape of the array."""
        return [shapes[0]]

    def prepare(self, node: Apply, x: Any, y: Any, *operands: Any) -> PreparedCall | None:
        """Prepare the change of a part whose starts may be on the device."""
        from dnnops.gpuarray.prepared.builder import CallBuilder
        from dnnops.gpuarray.prepared.call import Result
        from dnnops.gpuarray.windows.kernel import window_step

        call = CallBuilder((x, y, *operands))
        result, whole = Result(0), call.operand(0)
        if not self.inplace and (copied := _copied(call, x)) is not None:
            result, whole = copied
        elif not self.inplace:
            return None
        part, starts = self._part(node, whole, operands)
        source = call.operand(1).with_axes_before(part.ndim)
        if not _fits(source.shape, part.shape):
            return None  # CuPy raises the error
        if part.size:
            step = window_step(
                (y.dtype.name, x.dtype.name),
                source,
                part,
                starts,
                reads=False,
                adds=not self.set_instead_of_inc,
            )
            if step is None:
                return None
            call.steps.append(step)
        return call.call(result)

    def compute(self, node: Apply, x: Any, y: Any, *operands: Any) -> Any:
        if not _on_host(operands):
            call = self.prepare(node, x, y, *operands)
            if call is None:
                raise DnnNotSupportedError(f"{self}: the arrays do not fit or are not aligned")
            return call.run((x, y, *operands))
        out = x if self.inplace else x.copy(order="K")
        part = self.view(out, operands)
        if self.set_instead_of_inc:
            part[...] = y
        else:
            part += y
        return out

    def __str__(self) -> str:
        change = "set" if self.set_instead_of_inc else "inc"
        inplace = ",inplace" if self.inplace else ""
        return f"GpuSetWindow{{{_shown(self.windows)},{change}{inplace}}}"


def _copied(call: CallBuilder, x: Any) -> tuple[Any, Placed] | None:
    """Add a copy of the first operand in its memory order; return it as a result and an array."""
    from dnnops.gpuarray.elementwise.step import copy_step

    order = common_order([x], x.shape)
    result, memory = call.new_in_order(x.shape, x.dtype, order)
    if memory.size:
        step = copy_step(x.dtype.name, call.operand(0).transpose(order), memory)
        if step is None:
            return None
        call.steps.append(step)
    return result, memory if order is None else memory.transpose(inverse(order))


def _fits(shape: tuple[int, ...], part: tuple[int, ...]) -> bool:
    return len(shape) == len(part) and all(n in (1, m) for n, m in zip(shape, part, strict=True))


def _shown(windows: Sequence[Window]) -> str:
    return ",".join(f"{w.axis}:{w.step}" if w.step else str(w.axis) for w in windows)
