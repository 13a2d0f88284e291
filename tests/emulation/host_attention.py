"""Compile the kernels around cuDNN's attention for the host, and run them on NumPy arrays."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np

from dnnops.gpu.kernels import kernel_source
from tests.host_libraries import compile_once

#: float16 bits of minus infinity, and of the bias of a masked key.
MACROS = {"MINUS_INFINITY": "0xfc00", "HIDDEN": "0xfc00"}

_ENTRIES = """
#define ENTRY(kernel, params) \\
  extern "C" int run_##kernel( \\
      const void *given, unsigned blocks, unsigned threads, unsigned seed) \\
  { \\
    const auto &values = *static_cast<const params *>(given); \\
    return run_grid(attention_##kernel, values, blocks, threads, 0, seed); \\
  }
ENTRY(lengths, length_params)
ENTRY(mask, mask_params)
ENTRY(stats, stats_params)
ENTRY(copy, row_copy_params)
ENTRY(hide, hide_params)
"""

#: The fields of the kernels' parameters: arrays and numbers of 8 bytes each.
FIELDS = {
    "lengths": (
        *("queries", "keys", "batch", "max_queries", "max_keys", "seed", "offset"),
        *("inner_queries", "inner_keys", "rows", "columns", "random", "state"),
    ),
    "mask": (
        *("mask", ("steps", 4), "bias", "visible", "columns", "batch", "heads", "queries", "keys"),
        *("bias_batch", "bias_stride", "is_causal"),
    ),
    "stats": ("from", "to", "count"),
    "copy": (
        *("from", "to", ("sizes", 4), "rows", "columns", ("from_steps", 3), ("to_steps", 3)),
        "negates",
    ),
    "hide": (
        *("array", "stats", "lengths", "visible", "batch", "heads", "rows", "columns"),
        *(("steps", 3), "visible_batch", "visible_heads", "hides_all"),
    ),
}


class HostKernels:
    """The kernels, compiled for masks with elements of a given size."""

    def __init__(self, directory: Path, mask_width: int):
        header = Path(__file__).with_name("host_cuda.hpp")
        source = directory / f"attention_{mask_width}.cpp"
        source.write_text(f'#include "{header}"\n{kernel_source("attention")}\n{_ENTRIES}')
        library = source.with_suffix(".so")
        macros = [f"-D{name}={value}" for name, value in MACROS.items()]
        command = ["g++", "-std=c++17", "-O1", "-fPIC", "-shared", f"-DMASK_WIDTH={mask_width}"]
        compile_once([*command, *macros, str(source), "-o", str(library)], directory)
        self.library = ctypes.CDLL(str(library))

    def run(self, kernel: str, blocks: int = 3, threads: int = 64, **values: Any) -> None:
        """Run a kernel. Arrays are passed as such or as None, all other parameters as ints."""
        words: list[int] = []
        for field in FIELDS[kernel]:
            name, count = field if isinstance(field, tuple) else (field, 1)
            value = values.pop(name, 0)
            if isinstance(value, np.ndarray):
                value = value.ctypes.data
            words += [int(value or 0)] if count == 1 else [int(v) for v in value]
            assert count in (1, len(value if count > 1 else [0]))
        assert not values, f"no parameters of {kernel}: {values}"
        given = np.array(words, np.int64)
        status = getattr(self.library, f"run_{kernel}")(
            ctypes.c_void_p(given.ctypes.data), blocks, threads, 0
        )
        assert status == 0
