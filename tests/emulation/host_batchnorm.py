"""Compile the kernels of batch normalization for the host, and run them on NumPy arrays."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from dnnops.dtypes import DTYPE_CODES
from dnnops.errors import error_from_status
from dnnops.gpu.kernels import kernel_source
from dnnops.runtime.build import CUDNN, c_code_dir
from tests.host_libraries import compile_once

__all__ = ["FUSED", "KINDS", "WAYS", "HostKernels", "Work", "work_of"]

#: ``BatchNormKind``.
KINDS = {"train": 0, "gradient": 1, "inference": 2}

#: ``BatchNormFused``.
FUSED = {"relu": 1, "addend": 2, "slope_at_zero": 4, "slope_at_nan": 8}

#: ``BatchNormWay``.
WAYS = {
    "by_given": 0,
    "alone": 1,
    "kept": 2,
    "streamed": 3,
    "swept": 4,
    "by_warps": 5,
    "held": 6,
    "short": 7,
}

_MACROS = (
    *("DTYPE", "KIND", "FUSED", "HOW", "ROWS", "V", "LANES", "THREADS", "BLOCKS", "BUNDLED"),
    *("HOLDS", "EVEN", "LINED"),
)

_ENTRY = """
}}
extern "C" int run_{number}(const BatchNormParams *params, unsigned blocks, unsigned threads,
                          unsigned shared, unsigned seed) {{
  return {run}(configuration_{number}::batchnorm, *params, blocks, threads, shared, seed);
}}
"""


class Params(ctypes.Structure):
    """The struct ``BatchNormParams``."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("x", "other", "result", "masked", "out")),
        *((name, ctypes.c_void_p) for name in ("scale", "bias", "mean", "spread")),
        ("results", ctypes.c_void_p * 2),
        ("offsets", ctypes.c_void_p),
        *((name, ctypes.c_void_p * 2) for name in ("running", "new_running")),
        ("epsilon", ctypes.c_double),
        ("factor", ctypes.c_double),
        ("workspace", ctypes.c_void_p),
        *((name, ctypes.c_longlong) for name in ("batch", "channels", "inner")),
        *((name, ctypes.c_int) for name in ("groups", "splits", "share", "lag", "slots")),
        *(
            (name, ctypes.c_int)
            for name in ("pieces", "abreast", "bundles", "across", "members", "jump_at")
        ),
        *((name, ctypes.c_longlong) for name in ("jump", "wrap")),
        *((name, ctypes.c_int) for name in ("lanes", "stride", "kept", "cached")),
        ("reach", ctypes.c_longlong),
    ]


class Work(ctypes.Structure):
    """The struct ``BatchNormRow``: the kernel for given arrays, and how to launch it."""

    _fields_ = [
        ("options", ctypes.c_char * 256),
        *((name, ctypes.c_int64) for name in ("way", "grid", "threads", "shared_bytes")),
        *((name, ctypes.c_int64) for name in ("workspace", "filled_bytes", "fill")),
        ("params", Params),
    ]

    def macro(self, name: str) -> int:
        """Return the value of one of the compiler's options."""
        words = dict(word[2:].split("=") for word in self.options.decode().split())
        return int(words[name])


def work_of(
    shape: tuple[int, int, int],
    kind: str,
    dtype: str,
    alignment: int = 16,
    blocks: int = 528,
    kept_blocks: tuple[int, int, int, int] = (528, 132, 132, 132),
    fused: int = 0,
) -> Work:
    """Return the work on arrays of (batch, channel, inner), on a device that runs so many blocks.

    `kept_blocks` gives how many blocks a cooperative launch can run at once: for kernels that take
    shares in sequence, by blocks and by warps; for kernels that go over rows; and for kernels that
    keep shares in registers. `fused` has bits of ``BatchNormFused``.
    """
    work = Work()
    status = CUDNN.library.dnnops_cudnn_batchnorm_row(
        (ctypes.c_int64 * 3)(*shape),
        *map(ctypes.c_int64, (KINDS[kind], fused, DTYPE_CODES[dtype], alignment)),
        (ctypes.c_int64 * 5)(blocks, *kept_blocks),
        ctypes.byref(work),
    )
    if status:
        raise error_from_status(status, CUDNN.library.dnnops_last_error().decode())
    if work.way in (WAYS["kept"], WAYS["by_warps"]):
        work.grid = min(work.grid, kept_blocks[work.way == WAYS["by_warps"]])
    return work


class HostKernels:
    """The kernels of several configurations, by their options."""

    def __init__(self, folder: Path, options: Iterable[bytes]):
        self._numbers = {text: i for i, text in enumerate(dict.fromkeys(options))}
        source = '#include "host_cuda.hpp"\n#include "gpu/norm/batchnorm_params.hpp"\n' + "".join(
            self._configuration(text.decode(), number) for text, number in self._numbers.items()
        )
        (folder / "batchnorm.cpp").write_text(source)
        library = folder / "batchnorm.so"
        compile_once(
            [
                *(
                    "g++",
                    "-std=c++17",
                    "-O1",
                    "-fno-strict-aliasing",
                    "-fPIC",
                    "-pthread",
                    "-shared",
                ),
                *("-w", "-fsanitize=alignment,bounds", "-fsanitize-undefined-trap-on-error"),
                f"-I{Path(__file__).parent}",
                f"-I{c_code_dir()}",
                *("-o", str(library), str(folder / "batchnorm.cpp")),
            ],
            folder,
        )
        self._library = ctypes.CDLL(str(library))

    @staticmethod
    def _configuration(options: str, number: int) -> str:
        given = [word[2:].split("=") for word in options.split()]
        assert tuple(name for name, _ in given) == _MACROS
        defines = "".join(f"#define {name} {value}\n" for name, value in given)
        undefine = "".join(f"#undef {name}\n" for name in _MACROS)
        source = kernel_source("batchnorm").replace(
            "extern __shared__ __align__(128) uint4 shared[];",
            "uint4 *const shared = Block::dynamic.data();",
        )
        at_once = int(dict(given)["HOW"]) in [
            WAYS[way] for way in ("kept", "swept", "by_warps", "held")
        ]
        run = "run_grid_at_once" if at_once else "run_grid"
        entry = _ENTRY.format(number=number, run=run)
        return f"namespace configuration_{number} {{\n{defines}{source}{entry}{undefine}"

    def run(self, work: Work, seed: int) -> None:
        """Run the kernel of `work`, whose parameters have all addresses except the workspace."""
        workspace = np.full(work.workspace // 4 + 1, 0xFFFFFFFF, "uint32")
        end = work.workspace // 4
        assert work.fill in (0, 0xFF)
        workspace[end - work.filled_bytes // 4 : end] = 0xFFFFFFFF if work.fill else 0
        params = Params.from_buffer_copy(bytes(work.params))
        params.workspace = workspace.ctypes.data
        run = getattr(self._library, f"run_{self._numbers[work.options]}")
        numbers = (work.grid, work.threads, work.shared_bytes, seed)
        arguments = map(ctypes.c_uint, numbers)
        assert run(ctypes.byref(params), *arguments) == 0
        assert workspace[end] == 0xFFFFFFFF, "it wrote beyond its workspace"
