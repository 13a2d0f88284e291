"""Compile the kernels that copy arrays between memory formats for the host, and run them."""

from __future__ import annotations

import ctypes
import mmap
import re
import subprocess
from collections.abc import Iterable
from itertools import product
from pathlib import Path

import numpy as np

from dnnops.cudnn.kernels import kernel_source
from dnnops.errors import error_from_status
from dnnops.runtime.build import CUDNN
from dnnops.runtime.op import _Tensor

FORMAT_CODES = {"contiguous": 1, "channels_last": 2}
KERNELS = ("transpose", "transpose_narrow", "change_pitch")

#: All that may be asked of the compiler.
OPTIONS = [
    f"-DWIDTH={width} -DBACK={back} -DLOAD={load} -DSTORE={store}"
    for width, back, load, store in product((2, 4, 8), (0, 1), (1, 2), (1, 2))
]

_MACROS = ("WIDTH", "BACK", "LOAD", "STORE")

#: What a block may have without asking for more.
_SHARED_BYTES = 48 << 10

_ENTRY = """
}}
extern "C" int run_{number}(const char *kernel, const void *source, void *target,
                          const void *params, unsigned blocks, unsigned threads, unsigned seed) {{
  using namespace configuration_{number};
  const auto run = [&](auto function) {{
    const auto copy = [&](const transpose_params &p) {{
      function(static_cast<const element *>(source), static_cast<element *>(target), p);
    }};
    const auto &given = *static_cast<const transpose_params *>(params);
    return run_grid(copy, given, blocks, threads, {shared}, seed);
  }};
  {kernels}
  return 2;
}}
"""


class Params(ctypes.Structure):
    """``TransposeParams``."""

    _fields_ = [
        *(
            (name, ctypes.c_int64)
            for name in ("rows", "columns", "src_pitch", "dst_pitch", "dst_width")
        ),
        ("src_stride", ctypes.c_int64),
        ("dst_stride", ctypes.c_int64),
        ("row_tiles", ctypes.c_int32),
        ("column_tiles", ctypes.c_int32),
        ("slab_rows", ctypes.c_int32),
        ("unused", ctypes.c_int32),
    ]


class Move(ctypes.Structure):
    """``MoveRow``: which kernel copies an array, how it is compiled and how it is launched."""

    _fields_ = [
        ("kernel", ctypes.c_char * 32),
        ("options", ctypes.c_char * 128),
        ("blocks", ctypes.c_int64),
        ("threads", ctypes.c_int64),
        ("params", Params),
    ]


def move_of(array: _Tensor, inner_format: str, inner_channels: int, back: bool) -> Move:
    """How an array is copied to its image in a workspace, or back."""
    row = Move()
    status = CUDNN.library.dnnops_cudnn_move_row(
        ctypes.byref(array),
        ctypes.c_int64(FORMAT_CODES[inner_format]),
        ctypes.c_int64(inner_channels),
        ctypes.c_int64(back),
        ctypes.byref(row),
    )
    if status:
        raise error_from_status(status, CUDNN.library.dnnops_last_error().decode())
    return row


class FencedMemory:
    """Bytes on the host with pages on both sides that can't be read: that ends the process."""

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
        """The last bytes at an address that is a multiple of the alignment."""
        start = (len(self._bytes) - size) // alignment * alignment
        return self._bytes[start : start + size]

    def at_start(self, size: int) -> np.ndarray:
        return self._bytes[:size]


class HostKernels:
    """The kernels, compiled for the host with all of some options.

    Addresses that are no multiples of what is loaded from there, and indexes beyond shared memory's
    arrays, end the process.
    """

    def __init__(self, folder: Path, options: Iterable[str]):
        self._numbers = {text: i for i, text in enumerate(options)}
        source = '#include "host_cuda.hpp"\n' + "".join(
            self._configuration(text, number) for text, number in self._numbers.items()
        )
        (folder / "transpose.cpp").write_text(source)
        library = folder / "transpose.so"
        subprocess.run(
            [
                *("g++", "-std=c++17", "-O1", "-fno-strict-aliasing", "-fPIC", "-shared", "-w"),
                *("-fsanitize=alignment,bounds", "-fsanitize-undefined-trap-on-error"),
                f"-I{Path(__file__).parent}",
                *("-o", str(library), str(folder / "transpose.cpp")),
            ],
            check=True,
        )
        self._library = ctypes.CDLL(str(library))

    @staticmethod
    def _configuration(options: str, number: int) -> str:
        given = [word[2:].split("=") for word in options.split()]
        assert tuple(name for name, _ in given) == _MACROS
        defines = "".join(f"#define {name} {value}\n" for name, value in given)
        source = kernel_source("transpose").replace('extern "C" __global__', "KERNEL")
        # Each block's shared memory begins as NaNs, as that which is asked for at a launch.
        source, count = re.subn(
            r"__shared__ element (\w+)((?:\[[^]]*\])+);",
            r"auto &\1 = *reinterpret_cast<element(*)\2>(Block::dynamic.data());",
            source,
        )
        assert count == 2
        runs = "".join(f'if (!std::strcmp(kernel, "{n}")) return run({n});\n' for n in KERNELS)
        undefine = "".join(f"#undef {name}\n" for name in _MACROS)
        entry = _ENTRY.format(number=number, kernels=runs, shared=_SHARED_BYTES)
        return f"namespace configuration_{number} {{\n{defines}{source}{entry}{undefine}"

    def run(self, move: Move, source: int, target: int, seed: int) -> None:
        """Copy from an address to another one."""
        run = getattr(self._library, f"run_{self._numbers[move.options.decode()]}")
        status = run(
            move.kernel,
            ctypes.c_void_p(source),
            ctypes.c_void_p(target),
            ctypes.byref(move.params),
            ctypes.c_uint(move.blocks),
            ctypes.c_uint(move.threads),
            ctypes.c_uint(seed),
        )
        assert status == 0
