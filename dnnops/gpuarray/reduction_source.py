"""Source code and compilation of dnnops' reduction kernels."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from dnnops.dtypes import DTYPES, numpy_dtype
from dnnops.runtime.build import c_code_dir
from dnnops.runtime.scalar_code import from_stored, stored_type, to_stored

if TYPE_CHECKING:
    from dnnops.gpuarray.prepared.pending import Pending
    from dnnops.gpuarray.prepared.placed import Placed

__all__ = ["Arithmetic", "Kernels", "apply", "processors", "reduction_source"]


class Arithmetic(NamedTuple):
    """C++ types and expressions of a reduction.

    Attributes
    ----------
    in_dtype, out_dtype : str
        Dtypes of the operand and the result.
    accumulator : str
        C++ type of the accumulator.
    identity : str
        Initial value of the accumulator.
    premap : str
        Expression in terms of `x`, an element converted to the accumulator's type.
    combine : str
        Expression that combines the accumulators `a` and `b`.
    """

    in_dtype: str
    out_dtype: str
    accumulator: str
    identity: str
    premap: str
    combine: str

    @property
    def accumulator_bytes(self) -> int:
        """Return the size of an accumulator."""
        names = (name for name in reversed(DTYPES) if DTYPES[name].c_type == self.accumulator)
        return numpy_dtype(next(names)).itemsize


def reduction_source(arithmetic: Arithmetic, name: str) -> str:
    """Return the CUDA source of reduction kernels.

    Parameters
    ----------
    arithmetic : Arithmetic
    name : str
        File in ``c_code/gpu/reduction``. Before it come the types of the operand and the result in
        memory, ``Stored`` and ``Result``; ``Acc``; ``IDENTITY``; and the functions ``acc_of``,
        ``combine`` and ``result_of``.

    Returns
    -------
    str
    """
    of = arithmetic
    value = from_stored(of.in_dtype, "element")
    result = to_stored(of.out_dtype, f"({DTYPES[of.out_dtype].c_type})value")
    declared = f"""
using Stored = {stored_type(of.in_dtype)};
using Result = {stored_type(of.out_dtype)};
using Acc = {of.accumulator};
#define IDENTITY ((Acc){of.identity})
DEVICE Acc premapped(Acc x) {{ return {of.premap}; }}
DEVICE Acc acc_of(Stored element) {{ return premapped((Acc){value}); }}
DEVICE Acc combine(Acc a, Acc b) {{ return {of.combine}; }}
DEVICE Result result_of(Acc value) {{ return {result}; }}
"""
    files = ("kernels/kernel.cuh", "kernels/numbers.cuh", f"reduction/{name}")
    kernel, numbers, own = ((c_code_dir() / "gpu" / f).read_text(encoding="utf-8") for f in files)
    return f"{kernel}{numbers}{declared}{own}"


@functools.cache
def processors(device: int) -> int:
    """Return the number of multiprocessors of a device."""
    import cupy

    return cupy.cuda.Device(device).attributes["MultiProcessorCount"]


def apply(add: Callable[[Pending, tuple[int, ...]], Placed | None], x: Any, axes: Any) -> Any:
    """Add a reduction to the call that `x` is part of, or launch it now for a device array.

    Parameters
    ----------
    add : callable
        Function of an array in a call and of axes, which adds launches to the call. It returns
        where the result is, or None if it cannot reduce the array.
    x : Pending or cupy.ndarray
    axes : tuple of int

    Returns
    -------
    Pending or cupy.ndarray or None
    """
    from dnnops.gpuarray.prepared.pending import Pending

    operand = x if isinstance(x, Pending) else Pending.of(x)
    out = add(operand, axes)
    if out is None:
        return None
    found = Pending(operand.call, out)
    return found if operand is x else operand.call.call(found.result).run((x,))[0]


class Kernels:
    """Kernels of one source file, compiled when they are first used.

    Parameters
    ----------
    arithmetic : Arithmetic
    name : str
        File in ``c_code/gpu/reduction``.
    macro : str
        Macro that distinguishes variants of the kernels.
    """

    def __init__(self, arithmetic: Arithmetic, name: str, macro: str):
        self.arithmetic = arithmetic
        self.name = name
        self.macro = macro
        self._kernels: dict[tuple[int, int, str], Any] = {}

    def get(self, device: int, value: int, kernel: str) -> Any:
        """Return a CuPy kernel for a device and a value of the macro."""
        # Imported here because only nodes that run need it.
        from dnnops.gpuarray.compiling import compiled_kernel

        key = (device, value, kernel)
        if key not in self._kernels:
            source = reduction_source(self.arithmetic, self.name)
            options = ("-std=c++17", f"-D{self.macro}={value}")
            self._kernels[key] = compiled_kernel(source, kernel, options)
        return self._kernels[key]
