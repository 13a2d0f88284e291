"""The kernel that copies a part of an array from or to a place that it reads in device memory."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dnnops.gpuarray.deferred import deferred_error
from dnnops.gpuarray.prepared.call import Address, KernelStep, Number
from dnnops.gpuarray.prepared.placed import Placed
from dnnops.runtime.build import c_code_dir
from dnnops.runtime.scalar_code import from_stored, stored_type, to_stored

__all__ = ["Start", "WindowKernel", "window_step"]

KERNEL_NAME = "copy_window"
_THREADS, _MAX_BLOCKS, _MOST_SMALL = 128, 2**31 - 1, 2**31 - 1
_FILES = ("kernels/kernel.cuh", "kernels/numbers.cuh")
_ENTRY = """
#ifdef __CUDACC__
#define ENTRY extern "C" __global__
#else
#define ENTRY static
#endif
"""


@dataclass(frozen=True)
class Start:
    """Where a part begins along an axis of the whole array.

    Attributes
    ----------
    number : Address or Number
        An int64, on the device or on the host.
    stride : int
        Stride of the axis in bytes.
    length : int
        Length of the axis, which an index must fit; -1 if the number is known to fit.
    message : str
        Message of the error if it does not, which transfers to the host raise.
    """

    number: Address | Number
    stride: int
    length: int
    message: str


@dataclass(frozen=True)
class WindowKernel:
    """What a kernel depends on.

    Attributes
    ----------
    from_dtype, to_dtype : str
    ndim : int
        Number of axes of the part, after axes that are adjacent in both arrays are merged.
    on_device : tuple of bool
        Where the number of each start is.
    reads : bool
        Whether the part is copied from the whole array, not to it.
    adds : bool
        Whether values are added to those of the target.
    is_large : bool
        Whether the number of elements takes more than 32 bits.
    """

    from_dtype: str
    to_dtype: str
    ndim: int
    on_device: tuple[bool, ...]
    reads: bool
    adds: bool
    is_large: bool

    def source(self) -> str:
        """Return the CUDA source of the kernel `KERNEL_NAME`."""
        axes, starts = range(self.ndim), range(len(self.on_device))
        source, target = stored_type(self.from_dtype), stored_type(self.to_dtype)
        parameters = ["const char *from", "char *to", "const long long n"]
        for axis in axes:
            parameters += [f"const long long {x}{axis}" for x in ("length", "from_step", "to_step")]
        for k, is_pointer in enumerate(self.on_device):
            parameters.append(f"const long long {'*' if is_pointer else ''}start{k}")
            parameters += [f"const long long {x}{k}" for x in ("stride", "most")]
            parameters.append(f"const int message{k}")
        parameters.append("const unsigned long long flag")
        lines = ["long long window = 0;"]
        for k in starts:
            value = f"*start{k}" if self.on_device[k] else f"start{k}"
            lines += [
                f"long long at{k} = {value};",
                f"if (most{k} >= 0) {{",
                f"if (at{k} < -most{k} || at{k} >= most{k}) {{",
                f"*reinterpret_cast<volatile int *>(flag) = message{k}; return; }}",
                f"if (at{k} < 0) at{k} += most{k};",
                "}",
                f"window += at{k} * stride{k};",
            ]
        lines += ["Index rest = (Index)i;"]
        for axis in reversed(axes):
            # The first index is what is left.
            lines += [f"const Index index{axis} = rest % (Index)length{axis};"] if axis else []
            lines += [f"rest /= (Index)length{axis};"] if axis else ["const Index index0 = rest;"]
            lines += [
                f"from += (long long)index{axis} * from_step{axis};",
                f"to += (long long)index{axis} * to_step{axis};",
            ]
        lines.append(f"{'from' if self.reads else 'to'} += window;")
        value = f"*reinterpret_cast<const {source} *>(from)"
        place = f"*reinterpret_cast<{target} *>(to)"
        if self.adds:
            total = f"{from_stored(self.to_dtype, place)} + {from_stored(self.from_dtype, value)}"
            value = to_stored(self.to_dtype, f"({total})")
        elif self.from_dtype != self.to_dtype:
            value = to_stored(self.to_dtype, from_stored(self.from_dtype, value))
        return "\n".join(
            [
                *((c_code_dir() / "gpu" / name).read_text(encoding="utf-8") for name in _FILES),
                _ENTRY,
                f"using Index = {'unsigned long long' if self.is_large else 'unsigned'};",
                f"ENTRY void __launch_bounds__({_THREADS}) {KERNEL_NAME}({', '.join(parameters)})",
                "{",
                f"const long long i = (long long)blockIdx.x * {_THREADS} + threadIdx.x;",
                "if (i >= n) return;",
                *lines,
                f"{place} = {value};",
                "}\n",
            ]
        )


@functools.lru_cache(maxsize=256)
def compiled(kernel: WindowKernel) -> Any:
    """Return a kernel, compiled for the current device when it is first launched."""
    # Imported here because only nodes that run need it.
    from dnnops.gpuarray.compiling import compiled_kernel

    return compiled_kernel(kernel.source(), KERNEL_NAME)


def window_step(
    dtypes: tuple[str, str],
    source: Placed,
    target: Placed,
    starts: Sequence[Start],
    *,
    reads: bool,
    adds: bool = False,
) -> KernelStep | None:
    """Return the launch that copies a part of an array.

    Parameters
    ----------
    dtypes : tuple of str
        Dtypes of the elements of `source` and `target`.
    source, target : Placed
        Arrays of one rank; `target` has the shape of the part, `source` may have length 1 instead.
        The address of the whole array is that of its first element.
    starts : sequence of Start
        Where the part begins in the whole array.
    reads : bool
        Whether `source` is the part of the whole array. Otherwise `target` is.
    adds : bool
        Whether the values are added to those of the part.

    Returns
    -------
    KernelStep or None
        None if a kernel cannot access the arrays.
    """
    size = target.size
    if not (source.is_aligned and target.is_aligned) or -(-size // _THREADS) > _MAX_BLOCKS:
        return None
    on_device = tuple(isinstance(start.number, Address) for start in starts)
    axes = _merged(source, target)
    is_large = size > _MOST_SMALL
    kernel = WindowKernel(*dtypes, len(axes), on_device, reads, adds, is_large)
    flag = 0
    arguments: list[Any] = [source.address, target.address, np.int64(size)]
    for axis in axes:
        arguments += map(np.int64, axis)
    for start in starts:
        flag, message = deferred_error(start.message)
        arguments += [start.number, np.int64(start.stride), np.int64(start.length)]
        arguments.append(np.int32(message))
    arguments.append(np.uint64(flag))
    return KernelStep(compiled(kernel), max(1, -(-size // _THREADS)), _THREADS, arguments)


def _merged(source: Placed, target: Placed) -> list[tuple[int, int, int]]:
    """Return the lengths and the strides of both arrays, of as few axes as possible."""
    axes: list[tuple[int, int, int]] = []
    for axis in reversed(range(target.ndim)):
        length = target.shape[axis]
        step = source.strides[axis] if source.shape[axis] != 1 else 0
        if length == 1:
            continue
        if axes:
            inner, from_step, to_step = axes[0]
            if (step, target.strides[axis]) == (from_step * inner, to_step * inner):
                axes[0] = length * inner, from_step, to_step
                continue
        axes.insert(0, (length, step, target.strides[axis]))
    return axes
