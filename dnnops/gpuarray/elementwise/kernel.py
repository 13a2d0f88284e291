"""The CUDA source of elementwise kernels."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from pytensor.scalar.basic import ScalarOp

from dnnops.dtypes import DTYPES
from dnnops.gpuarray.elementwise.packed import DENSE, REPEATED, ROWS, SCALAR, STORED, STRIDED
from dnnops.runtime.build import c_code_dir
from dnnops.runtime.scalar_code import (
    PREAMBLE,
    from_stored,
    scalar_code,
    stored_type,
    to_stored,
)

__all__ = ["KERNEL_NAME", "THREADS", "ElementwiseKernel"]

KERNEL_NAME = "elementwise"
#: Threads of a block.
THREADS = 128

_FILES = ("kernels/kernel.cuh", "kernels/numbers.cuh", "elementwise/elementwise.cuh")
_REPEATED_NUMBERS = ("run", "count")
_ROW_NUMBERS = ("run", "middle", "inner", "stride0_", "stride1_", "stride2_")


@dataclass(frozen=True)
class ElementwiseKernel:
    """What an elementwise kernel depends on.

    Its parameters are the operands, each followed by the numbers that its kind needs; the numbers
    of the results; the number of elements; the lengths of the strided arrays' axes, except the
    first; and the results, which may overwrite operands.

    Attributes
    ----------
    scalar_op : ScalarOp
    in_dtypes, out_dtypes : tuple of str
        Dtypes of operands and results in memory.
    kinds, result_kinds : tuple of str
        Kind of each operand and of each result; see `dnnops.gpuarray.elementwise.packed`.
    width : int
        Number of adjacent elements per thread; 1 if an array is strided.
    axes : int
        Number of axes of the strided arrays.
    is_large : bool
        Whether the number of elements takes more than 32 bits.
    """

    scalar_op: ScalarOp
    in_dtypes: tuple[str, ...]
    out_dtypes: tuple[str, ...]
    kinds: tuple[str, ...]
    result_kinds: tuple[str, ...]
    width: int
    axes: int = 0
    is_large: bool = False

    def number_types(self, kind: str) -> list[str]:
        """Return the NumPy dtypes of the numbers that a kind needs, after an array's address."""
        if kind == STRIDED:
            return ["int64"] * self.axes
        if kind == ROWS:
            return ["uint32"] * 3 + ["int64"] * 3
        return ["uint32"] * 2 if kind == REPEATED else []

    @property
    def length_type(self) -> str:
        """Return the NumPy dtype of the lengths of axes."""
        return "uint64" if self.is_large else "uint32"

    def source(self) -> str:
        """Return the CUDA source of the kernel `KERNEL_NAME`."""
        code = scalar_code(self.scalar_op, self.in_dtypes)
        outs = range(len(self.out_dtypes))
        parameters = []
        for i, (kind, dtype) in enumerate(zip(self.kinds, self.in_dtypes, strict=True)):
            pointer = "" if kind == SCALAR else "*"
            parameters.append(f"const {stored_type(dtype)} {pointer}a{i}")
            parameters += self._numbers(kind, f"{i}")
        for o, kind in enumerate(self.result_kinds):
            parameters += self._numbers(kind, f"z{o}")
        parameters.append("const long long n")
        parameters += [f"const Length length{axis}" for axis in range(1, self.axes)]
        parameters += [f"{stored_type(t)} *z{o}" for o, t in enumerate(self.out_dtypes)]
        before, elements = self._loads()
        packs = [
            f"Pack<{self.width}, {stored_type(dtype)}> q{o};"
            for o, dtype in enumerate(self.out_dtypes)
            if self.result_kinds[o] != STRIDED
        ]
        types = [DTYPES[dtype].c_type for dtype in self.out_dtypes]
        after, stores = self._stores()
        return "\n".join(
            [
                *((c_code_dir() / "gpu" / name).read_text(encoding="utf-8") for name in _FILES),
                # The code of scalar Ops needs another macro of this name.
                f"#undef KERNEL\n{PREAMBLE}\n{code.support}",
                f"using Length = {DTYPES[self.length_type].c_type};",
                f"ENTRY void __launch_bounds__({THREADS}) {KERNEL_NAME}({', '.join(parameters)})",
                "{",
                f"const long long first = ((long long)blockIdx.x * {THREADS} + threadIdx.x)"
                f" * {self.width};",
                "if (first >= n) return;",
                *self._walk(),
                *before,
                *packs,
                "UNROLL",
                f"for (int k = 0; k < {self.width}; ++k) {{",
                *elements,
                # Results are assigned to local variables first: one may overwrite an operand.
                *(f"{c_type} out{o};" for o, c_type in zip(outs, types, strict=True)),
                code.operation,
                *after,
                "}",
                *stores,
                "}\n",
            ]
        )

    def _numbers(self, kind: str, name: str) -> list[str]:
        names: tuple[str, ...] = ()
        if kind == STRIDED:
            names = tuple(f"step{axis}_" for axis in range(self.axes))
        elif kind == ROWS:
            names = _ROW_NUMBERS
        elif kind == REPEATED:
            names = _REPEATED_NUMBERS
        types = [DTYPES[dtype].c_type for dtype in self.number_types(kind)]
        return [f"const {t} {number}{name}" for t, number in zip(types, names, strict=True)]

    def _walk(self) -> list[str]:
        """Find the thread's element of each strided array."""
        kinds = {str(i): kind for i, kind in enumerate(self.kinds)}
        kinds |= {f"z{o}": kind for o, kind in enumerate(self.result_kinds)}
        names = [name for name, kind in kinds.items() if kind == STRIDED]
        if not names:
            return []
        lines = ["Length left = (Length)first;"]
        lines += [f"long long at{name} = 0;" for name in names]
        for axis in range(self.axes - 1, 0, -1):
            lines += [
                f"{{ const Length before = left / length{axis};",
                f"const long long index = left - before * length{axis};",
                *(f"at{name} += index * step{axis}_{name};" for name in names),
                "left = before; }",
            ]
        return [*lines, *(f"at{name} += (long long)left * step0_{name};" for name in names)]

    def _where(self, kind: str, array: str, name: str) -> str:
        """Return the C arguments that say which elements a thread loads or stores."""
        if kind == DENSE:
            return f"{array}, first, n"
        numbers = ", ".join(f"{number}{name}" for number in _ROW_NUMBERS)
        return f"row_element({array}, first, {numbers}), 0, {self.width}"

    def _loads(self) -> tuple[list[str], list[str]]:
        """Return what loads operands, before and in the loop over a thread's elements."""
        before, elements = [], []
        for i, (kind, dtype) in enumerate(zip(self.kinds, self.in_dtypes, strict=True)):
            if kind in (SCALAR, STORED, STRIDED):
                value = {SCALAR: f"a{i}", STORED: f"*a{i}", STRIDED: f"a{i}[at{i}]"}[kind]
                before.append(f"const auto in{i} = {from_stored(dtype, value)};")
                continue
            if kind == REPEATED:
                before.append(f"auto p{i} = repeat(a{i}, first, run{i}, count{i});")
                element = f"p{i}.next()"
            else:
                where = self._where(kind, f"a{i}", str(i))
                before.append(f"const auto p{i} = load<{self.width}>({where});")
                element = f"p{i}.of[k]"
            elements.append(f"const auto in{i} = {from_stored(dtype, element)};")
        return before, elements

    def _stores(self) -> tuple[list[str], list[str]]:
        """Return what stores results, in and after the loop over a thread's elements."""
        in_loop, after = [], []
        for o, (kind, dtype) in enumerate(zip(self.result_kinds, self.out_dtypes, strict=True)):
            value = to_stored(dtype, f"out{o}")
            if kind == STRIDED:
                in_loop.append(f"z{o}[atz{o}] = {value};")
                continue
            where = self._where(kind, f"z{o}", f"z{o}")
            in_loop.append(f"q{o}.of[k] = {value};")
            after.append(f"store<{self.width}>({where}, q{o});")
        return in_loop, after

    def compiled(self) -> Any:
        """Return the kernel, compiled for the current device when it is first launched."""
        return _compiled(self)


@functools.lru_cache(maxsize=1024)
def _compiled(kernel: ElementwiseKernel) -> Any:
    # Imported here because only nodes that run need it.
    from dnnops.gpuarray.compiling import compiled_kernel

    return compiled_kernel(kernel.source(), KERNEL_NAME)
