"""The CUDA source of kernels that apply one elementwise operation to many arrays."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from pytensor.scalar.basic import ScalarOp

from dnnops.dtypes import DTYPES
from dnnops.gpuarray.elementwise.packed import DENSE, SCALAR, STORED, pack_width
from dnnops.runtime.build import c_code_dir
from dnnops.runtime.scalar_code import (
    PREAMBLE,
    from_stored,
    scalar_code,
    stored_type,
    to_stored,
)

__all__ = ["KERNEL_NAME", "THREADS", "MultiKernel"]

KERNEL_NAME = "multi_elemwise"
#: Threads of a block, and how often each loads 16 bytes of the arrays with the largest elements.
THREADS, ROUNDS = 256, 8


@dataclass(frozen=True)
class MultiKernel:
    """What the kernel of a node depends on.

    Attributes
    ----------
    scalar_op : ScalarOp
    in_dtypes, out_dtypes : tuple of str
        Dtypes of operands and results in memory.
    kinds : tuple of str
        Kinds of the operands, as in `GpuMultiElemwise`.
    on_device : tuple of bool
        For each host number, whether it is a 0-d array on the device, as in a CUDA graph.
    inplace_pattern : tuple of (int, int)
        Pairs of an output and the operand that it overwrites.
    items : int
        Maximum number of items.
    """

    scalar_op: ScalarOp
    in_dtypes: tuple[str, ...]
    out_dtypes: tuple[str, ...]
    kinds: tuple[str, ...]
    on_device: tuple[bool, ...]
    inplace_pattern: tuple[tuple[int, int], ...]
    items: int

    @property
    def operands(self) -> list[int]:
        """Return the operands that are arrays, in the order of the kernel's arrays."""
        return [i for i, kind in enumerate(self.kinds) if kind != SCALAR]

    @property
    def new_results(self) -> list[int]:
        """Return the results that overwrite nothing; their arrays follow those of the operands."""
        overwriting = dict(self.inplace_pattern)
        return [o for o in range(len(self.out_dtypes)) if o not in overwriting]

    @property
    def arrays(self) -> int:
        """Return the number of arrays of an item."""
        return len(self.operands) + len(self.new_results)

    @property
    def width(self) -> int:
        """Return the number of elements that a thread loads at once."""
        dense = [t for t, kind in zip(self.in_dtypes, self.kinds, strict=True) if kind == DENSE]
        return pack_width([*dense, *self.out_dtypes])

    @property
    def block_size(self) -> int:
        """Return the number of elements of a block."""
        return THREADS * self.width * ROUNDS

    def table(self) -> np.ndarray:
        """Return an empty struct ``Items`` of the kernel, as an array without axes."""
        fields = [
            ("size", "i8", (self.items,)),
            ("array", "u8", (self.arrays, self.items)),
            ("first_block", "u4", (self.items,)),
        ]
        return np.zeros((), np.dtype(fields, align=True))  # type: ignore[call-overload]

    def with_room(self, limit: int) -> MultiKernel:
        """Return the kernel for as many items as fit into parameters of `limit` bytes."""
        # The number of items and the host numbers follow, of at most 8 bytes each.
        left = limit - 8 * (2 + len(self.on_device))
        return replace(self, items=min(self.items, left // (12 + 8 * self.arrays)))

    def source(self) -> str:
        """Return the CUDA source of the kernel `KERNEL_NAME`.

        Its parameters are the struct ``Items``, the number of items, and the host numbers.
        """
        code = scalar_code(self.scalar_op, self.in_dtypes)
        of_kind: dict[str, list[int]] = {SCALAR: [], STORED: [], DENSE: []}
        for i, kind in enumerate(self.kinds):
            of_kind[kind].append(i)
        numbers = dict(zip(of_kind[SCALAR], self.on_device, strict=True))
        outs = range(len(self.out_dtypes))
        overwritten = dict(self.inplace_pattern)
        targets = [f"a{overwritten[o]}" if o in overwritten else f"z{o}" for o in outs]
        # In the order of ``Items.array``.
        arrays = {f"a{i}": stored_type(self.in_dtypes[i]) for i in self.operands}
        arrays |= {f"z{o}": stored_type(self.out_dtypes[o]) for o in self.new_results}
        single = {f"a{i}" for i in of_kind[STORED]}
        packs = {f"p{i}": self.in_dtypes[i] for i in of_kind[DENSE]}
        packs |= {f"q{o}": self.out_dtypes[o] for o in outs}

        def operand(i: int, stored: str) -> str:
            return f"const auto in{i} = {from_stored(self.in_dtypes[i], stored)};"

        def moves(function: str, more: str, pairs: Iterable[tuple[str, str]]) -> list[str]:
            return [f"{function}({array} + at, {more}{pack});" for array, pack in pairs]

        loads = [(f"a{i}", f"p{i}") for i in of_kind[DENSE]]
        stores = list(zip(targets, (f"q{o}" for o in outs), strict=True))
        parameters = ["GRID_CONSTANT const Items items", "const int count"]
        parameters += [
            f"const {stored_type(self.in_dtypes[i])} {'*' * is_address}a{i}"
            for i, is_address in numbers.items()
        ]
        places = [place for place, array in enumerate(arrays) if array not in single]
        macros = {
            "ITEMS": self.items,
            "ARRAYS": self.arrays,
            "DENSE_ARRAYS": f"{sum(1 << place for place in places)}ull",
            "THREADS": THREADS,
            "ROUNDS": ROUNDS,
            "WIDTH": self.width,
        }
        return "\n".join(
            [
                *(_file(name) for name in ("kernels/kernel.cuh", "kernels/numbers.cuh")),
                *(f"#define {name} {value}" for name, value in macros.items()),
                _file("elementwise/multi_elemwise.cuh"),
                # The code of scalar Ops needs another macro of this name.
                f"#undef KERNEL\n{PREAMBLE}\n{code.support}",
                f"ENTRY void __launch_bounds__(THREADS) {KERNEL_NAME}({', '.join(parameters)})",
                "{",
                "const int item = item_of_block(items, count);",
                "const long long size = items.size[item];",
                "const bool aligned = are_aligned(items, item);",
                *(
                    f"{c_type} *const {array} = address<{c_type}>(items, {place}, item);"
                    for place, (array, c_type) in enumerate(arrays.items())
                ),
                *(operand(i, f"{'*' * is_address}a{i}") for i, is_address in numbers.items()),
                *(operand(i, f"*a{i}") for i in of_kind[STORED]),
                "const long long first = (blockIdx.x - items.first_block[item]) * BLOCK_SIZE;",
                "const long long end = size < first + BLOCK_SIZE ? size : first + BLOCK_SIZE;",
                "long long at = first + threadIdx.x * WIDTH;",
                "for (; at < end; at += THREADS * WIDTH) {",
                "const long long left = size - at;",
                "const bool whole = aligned && left >= WIDTH;",
                *(f"Pack<{stored_type(dtype)}> {pack};" for pack, dtype in packs.items()),
                "if (whole) {",
                *moves("load", "", loads),
                "} else {",
                *moves("load_single", "left, ", loads),
                "}",
                "UNROLL",
                "for (int k = 0; k < WIDTH; ++k) {",
                *(operand(i, f"p{i}.of[k]") for i in of_kind[DENSE]),
                *(f"{DTYPES[dtype].c_type} out{o};" for o, dtype in enumerate(self.out_dtypes)),
                code.operation,
                *(
                    f"q{o}.of[k] = {to_stored(dtype, f'out{o}')};"
                    for o, dtype in enumerate(self.out_dtypes)
                ),
                "}",
                "if (whole) {",
                *moves("store", "", stores),
                "} else {",
                *moves("store_single", "left, ", stores),
                "}",
                "}",
                "}\n",
            ]
        )


def _file(name: str) -> str:
    return (c_code_dir() / "gpu" / name).read_text(encoding="utf-8")
