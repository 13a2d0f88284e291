"""Compile the kernels that copy arrays between memory formats for the host, and run them."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from dnnops.errors import error_from_status
from dnnops.gpu.kernels import kernel_source
from dnnops.runtime.build import CUDNN
from tests.host_libraries import compile_once

FORMAT_CODES = {"contiguous": 1, "channels_last": 2}

#: The kinds of ``CopyKind``, and the flags that can be added to them.
NO_COPY = -1
KINDS = range(6)
TILES, SLABS_OF_ROWS, SLABS_OF_COLUMNS, SAME_AXES, STRIPS_OF_ROWS, STRIPS_OF_COLUMNS = KINDS
LOADS_PAIRS, LOADS_QUADS, STORES_PAIRS, STORES_QUADS, *_OTHERS = (8 << i for i in range(10))
NARROW_TILES, FILLS_GAPS, CROSSES, LARGE_SLABS, HALF_VECTORS, VECTORS = _OTHERS


def kind_of(copy: Copy) -> int:
    """Return the kind, one of `KINDS`, without flags."""
    return copy.kind % LOADS_PAIRS


def _tiles(loads: Sequence[int], stores: Sequence[int]) -> Iterator[int]:
    for load, store in product(loads, stores):
        yield TILES + load + store
        if load != LOADS_QUADS:
            yield TILES + load + store + NARROW_TILES


def _rows(loads: Sequence[int], stores: Sequence[int]) -> Iterator[int]:
    for load, store, fills in product(loads, stores, (0, FILLS_GAPS)):
        yield SAME_AXES + load + store + fills


def _strips(counts: Sequence[int], halves: Sequence[int]) -> Iterator[int]:
    for kind, crosses in product((STRIPS_OF_ROWS, STRIPS_OF_COLUMNS), (0, CROSSES)):
        yield from (kind + crosses + count * VECTORS for count in counts)
        yield from (kind + crosses + count * VECTORS + HALF_VECTORS for count in halves)


def _slabs(pairs: Sequence[bool]) -> Iterator[int]:
    for has_pairs, crosses, large in product(pairs, (0, CROSSES), (0, LARGE_SLABS)):
        yield SLABS_OF_ROWS + crosses + large + (STORES_PAIRS if has_pairs else 0)
        yield SLABS_OF_COLUMNS + crosses + large + (LOADS_PAIRS if has_pairs else 0)


#: All kinds that exist, by the size of an element.
COPY_KINDS = {
    2: (
        *_tiles((0, LOADS_PAIRS, LOADS_QUADS), (0, STORES_PAIRS, STORES_QUADS)),
        *_slabs((False, True)),
        *_strips((1, 2, 3, 4, 6), (1, 3)),
        *_rows((0, LOADS_QUADS), (0, STORES_QUADS)),
    ),
    4: (
        *_tiles((0, LOADS_QUADS), (0, STORES_QUADS)),
        *_slabs((False,)),
        *_strips((1, 2, 3, 4, 6, 8), (1, 3)),
        *_rows((0, LOADS_QUADS), (0, STORES_QUADS)),
    ),
    8: (*_tiles((0,), (0,)), *_slabs((False,)), *_rows((0,), (0,))),
}

#: Configurations to compile: all single copies, and some pairs.
CONFIGURATIONS = [
    *((width, kind, NO_COPY) for width, kinds in COPY_KINDS.items() for kind in kinds),
    *((2, kind, kind) for kind in COPY_KINDS[2] if kind < CROSSES),
    (2, TILES, STRIPS_OF_COLUMNS + VECTORS),
    (2, STRIPS_OF_ROWS + VECTORS, STRIPS_OF_COLUMNS + VECTORS),
    (4, TILES, TILES),
    (4, TILES, SLABS_OF_ROWS),
]

_ENTRY = """
}}
extern "C" int run_{number}(const void *launch, unsigned threads, unsigned shared, unsigned seed) {{
  using namespace configuration_{number};
  const auto &given = *static_cast<const copy_launch *>(launch);
  const unsigned blocks = given.copies[0].blocks + (SECOND == NO_COPY ? 0 : given.copies[1].blocks);
  return run_grid(copy_arrays, given, blocks, threads, shared, seed);
}}
"""


class Params(ctypes.Structure):
    """The struct ``CopyParams``."""

    _fields_ = [
        *(
            (name, ctypes.c_int64)
            for name in ("rows", "columns", "src_pitch", "dst_pitch", "dst_width")
        ),
        ("src_stride", ctypes.c_int64),
        ("dst_stride", ctypes.c_int64),
        ("order", ctypes.c_int32),
        ("period", ctypes.c_int32),
        ("sizes", ctypes.c_int32 * 2),
        ("steps", ctypes.c_int32 * 3),
        *(
            (name, ctypes.c_int32)
            for name in ("row_tiles", "column_tiles", "tile_rows", "tile_columns", "slab_shift")
        ),
        ("lane_shift", ctypes.c_int32),
        ("blocks", ctypes.c_int32),
    ]


class Copy(ctypes.Structure):
    """The struct ``CopyRow``: the kernel that copies an array, and how to launch it."""

    _fields_ = [
        ("kind", ctypes.c_int64),
        ("threads", ctypes.c_int64),
        ("shared_bytes", ctypes.c_int64),
        ("params", Params),
    ]


class _Launch(ctypes.Structure):
    """The struct ``copy_launch``."""

    _fields_ = [
        ("sources", ctypes.c_void_p * 2),
        ("targets", ctypes.c_void_p * 2),
        ("copies", Params * 2),
    ]


def _copy_row(
    array: Any,
    *arguments: int,
    strides: Sequence[int] | None = None,
    sizes: Sequence[int] | None = None,
) -> Copy:
    row = Copy()
    status = CUDNN.library.dnnops_cudnn_copy_row(
        ctypes.byref(array),
        *map(ctypes.c_int64, arguments),
        *(None if given is None else (ctypes.c_int64 * 3)(*given) for given in (strides, sizes)),
        ctypes.byref(row),
    )
    if status:
        raise error_from_status(status, CUDNN.library.dnnops_last_error().decode())
    return row


def copy_of(array: Any, inner_format: str, inner_channels: int, back: bool) -> Copy:
    """Return how an array is copied to its image in a workspace, or back."""
    return _copy_row(array, FORMAT_CODES[inner_format], inner_channels, back, 0, 0)


def exchange_of(filters: Any, groups: int, reverse: bool) -> Copy:
    """Return how filters are copied with input and output channels exchanged."""
    return _copy_row(filters, FORMAT_CODES["channels_last"], 0, 0, groups, reverse)


def spread_of(array: Any, strides: Sequence[int], sizes: Sequence[int]) -> Copy:
    """Return how an array is copied to the strided positions of a larger one."""
    channels = array.shape[1]
    return _copy_row(
        array, FORMAT_CODES["channels_last"], channels, 0, 0, 0, strides=strides, sizes=sizes
    )


class FencedMemory:
    """Host memory between unreadable pages, so that an access beyond it ends the process."""

    def __init__(self, size: int):
        page = mmap.PAGESIZE
        size = -(-size // page) * page
        self._pages = mmap.mmap(-1, size + 2 * page)
        everything = np.frombuffer(self._pages, "uint8")
        for fence in (0, page + size):
            address = ctypes.c_void_p(everything.ctypes.data + fence)
            # 0 is PROT_NONE.
            assert ctypes.CDLL(None).mprotect(address, ctypes.c_size_t(page), 0) == 0
        self._bytes = everything[page : page + size]

    def at_end(self, size: int, alignment: int) -> np.ndarray:
        """Return the last `size` bytes that start at a multiple of the alignment."""
        start = (len(self._bytes) - size) // alignment * alignment
        return self._bytes[start : start + size]

    def at_start(self, size: int) -> np.ndarray:
        return self._bytes[:size]


class HostKernels:
    """The kernels, compiled for the host in configurations of an element's size and two kinds.

    Misaligned addresses, and indexes beyond the arrays in shared memory, end the process.
    """

    def __init__(self, folder: Path, configurations: Iterable[tuple[int, int, int]]):
        self._numbers = {key: number for number, key in enumerate(configurations)}
        source = '#include "host_cuda.hpp"\n' + "".join(
            self._configuration(key, number) for key, number in self._numbers.items()
        )
        (folder / "transpose.cpp").write_text(source)
        library = folder / "transpose.so"
        compile_once(
            [
                *("g++", "-std=c++17", "-O1", "-fno-strict-aliasing", "-fPIC", "-shared", "-w"),
                *("-fsanitize=alignment,bounds", "-fsanitize-undefined-trap-on-error"),
                f"-I{Path(__file__).parent}",
                *("-o", str(library), str(folder / "transpose.cpp")),
            ],
            folder,
        )
        self._library = ctypes.CDLL(str(library))

    @staticmethod
    def _configuration(key: tuple[int, int, int], number: int) -> str:
        macros = dict(zip(("WIDTH", "FIRST", "SECOND"), key, strict=True))
        defines = "".join(f"#define {name} {value}\n" for name, value in macros.items())
        declared = "extern __shared__ uint4 shared[];"
        source = kernel_source("transpose")
        assert source.count(declared) == 1
        source = source.replace(declared, "uint4 *const shared = Block::dynamic.data();")
        undefine = "".join(f"#undef {name}\n" for name in (*macros, "BOUNDS"))
        entry = _ENTRY.format(number=number)
        return f"namespace configuration_{number} {{\n{defines}{source}{entry}{undefine}"

    def run(self, width: int, copies: Sequence[tuple[Copy, int, int]], seed: int) -> None:
        """Run one or two copies in one launch, each from an address to another."""
        launch = _Launch()
        kinds = [NO_COPY, NO_COPY]
        for i, (copy, source, target) in enumerate(copies):
            launch.sources[i], launch.targets[i], launch.copies[i] = source, target, copy.params
            kinds[i] = copy.kind
        run = getattr(self._library, f"run_{self._numbers[(width, *kinds)]}")
        status = run(
            ctypes.byref(launch),
            ctypes.c_uint(copies[0][0].threads),
            ctypes.c_uint(max(copy.shared_bytes for copy, _, _ in copies)),
            ctypes.c_uint(seed),
        )
        assert status == 0
