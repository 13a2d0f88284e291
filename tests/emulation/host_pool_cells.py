"""Run the max pooling gradient's kernel for channels-last images on the host."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from pytensor import config

from dnnops.dtypes import DTYPE_CODES
from dnnops.gpu.kernels import kernel_source
from dnnops.nnet.pool.geometry import POOL_MODES
from dnnops.runtime.build import c_code_dir
from tests.host_libraries import compile_once
from tests.oracle import PoolCase

_LAUNCH = """
#include "host_cuda.hpp"
#include "gpu/pool/pool_cells.hpp"
using dnnops::pool_cells;
using dnnops::PoolProblem;

// Returns the number of blocks, or 0 if the kernel does not support the problem.
extern "C" unsigned describe(const PoolProblem *problem, int dtype, int item_bytes, char *options) {
  const dnnops::PoolCells cells = pool_cells(*problem, dtype, item_bytes);
  if (!cells.exist) return 0;
  std::strcpy(options, cells.options.c_str());
  return cells.blocks;
}
"""

_ENTRY = """
extern "C" int run_{number}(const PoolProblem *problem, int dtype, const void *x, const void *gz,
                            void *result, unsigned seed) {{
  const int item_bytes = (int)sizeof(configuration_{number}::Bits);
  dnnops::PoolCells cells = pool_cells(*problem, dtype, item_bytes);
  cells.params.x = x;
  cells.params.gz = gz;
  cells.params.result = result;
  return run_grid(configuration_{number}::max_pool_cells_grad, cells.params, cells.blocks,
                  (unsigned)dnnops::CELL_THREADS, 0, seed);
}}
"""


def _problem(case: PoolCase) -> ctypes.Array:
    """Return a ``PoolProblem``."""
    words = [case.ndim, POOL_MODES.index(case.mode), int(case.ignore_border)]
    shapes = (case.img_shape, 5), (case.out_shape, 5)
    for values, length in (*shapes, (case.ws, 3), (case.stride, 3), (case.pad, 3)):
        words += [*values, *[0] * (length - len(values))]
    return (ctypes.c_int64 * len(words))(*words)


class HostPoolCells:
    """The launcher, and the kernel with several sets of compiler options."""

    def __init__(self, folder: Path, options: Iterable[str] = ()):
        self._numbers = {given: i for i, given in enumerate(dict.fromkeys(options))}
        # The launcher has included the struct already.
        source = kernel_source("pool_cells").partition("#endif\n")[2]
        text = _LAUNCH + "".join(
            self._configuration(source, given, number) for given, number in self._numbers.items()
        )
        (folder / "cells.cpp").write_text(text)
        command = [config.cxx, "-std=c++17", "-O1", "-shared", "-fPIC"]
        # As on a device, an access to a misaligned address ends the process.
        command += ["-fsanitize=alignment", "-fsanitize-undefined-trap-on-error"]
        command += [f"-I{Path(__file__).parent}", f"-I{c_code_dir()}"]
        compile_once([*command, "-o", "cells.so", "cells.cpp"], folder)
        self._library = ctypes.CDLL(str(folder / "cells.so"))

    @staticmethod
    def _configuration(source: str, options: str, number: int) -> str:
        given = [option.removeprefix("-D").split("=") for option in options.split()]
        defines = "".join(f"#define {name} {value}\n" for name, value in given)
        undefine = "".join(f"#undef {name}\n" for name, _ in given)
        entry = _ENTRY.format(number=number)
        return f"{defines}namespace configuration_{number} {{\n{source}\n}}\n{entry}{undefine}"

    def describe(self, case: PoolCase, dtype: str) -> tuple[int, str]:
        """Return the blocks and compiler options of a launch; no blocks if cuDNN takes the case."""
        options = ctypes.create_string_buffer(1024)
        item = 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize
        blocks = self._library.describe(_problem(case), DTYPE_CODES[dtype], item, options)
        return blocks, options.value.decode()

    def run(
        self, case: PoolCase, dtype: str, x: np.ndarray, gz: np.ndarray, out: np.ndarray, seed: int
    ) -> None:
        """Run the kernel on arrays of bits in channels-last order."""
        number = self._numbers[self.describe(case, dtype)[1]]
        arrays = (ctypes.c_void_p(a.ctypes.data) for a in (x, gz, out))
        run = getattr(self._library, f"run_{number}")
        assert run(_problem(case), DTYPE_CODES[dtype], *arrays, ctypes.c_uint(seed)) == 0
