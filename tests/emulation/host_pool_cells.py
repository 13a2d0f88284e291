"""Run the kernels of max pooling for channels-last images on the host."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

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
using dnnops::PoolAddend;
using dnnops::PoolProblem;

// Returns the number of blocks, or 0 if the kernels do not support the problem.
extern "C" unsigned describe(const PoolProblem *problem, int gradient, int dtype, int item_bytes,
                             int addend, char *program, char *options) {
  const dnnops::PoolCells cells =
      pool_cells(*problem, gradient, dtype, item_bytes, static_cast<PoolAddend>(addend));
  if (!cells.exist) return 0;
  std::strcpy(program, cells.program);
  std::strcpy(options, cells.options.c_str());
  return cells.blocks;
}
"""

_ENTRY = """
extern "C" int run_{number}(const PoolProblem *problem, int dtype, const void *x, const void *gz,
                            void *result, const void *addend, long long addend_pitch,
                            unsigned seed) {{
  const int item_bytes = (int)sizeof(configuration_{number}::Bits);
  dnnops::PoolCells cells = pool_cells(*problem, gz != nullptr, dtype, item_bytes);
  cells.params.x = x;
  cells.params.gz = gz;
  cells.params.result = result;
  cells.params.addend = addend;
  cells.params.addend_pitch = addend_pitch;
  return run_grid(configuration_{number}::{kernel}, cells.params, cells.blocks,
                  (unsigned)dnnops::CELL_THREADS, 0, seed);
}}
"""

#: The kernel of each program.
KERNELS = {
    "pool_cells_forward": "max_pool_cells",
    "pool_cells_grad": "max_pool_cells_grad",
    "pool_cells_overlap": "max_pool_overlap_grad",
}


#: ``PoolAddend``: nothing is added, or an array that is read by elements or by vectors.
NO_ADDEND, ADDEND_OF_ELEMENTS, ADDEND_OF_VECTORS = range(3)


class Configuration(NamedTuple):
    """A program and the options that it is compiled with."""

    program: str
    options: str


def pool_problem(case: PoolCase) -> ctypes.Array:
    """Return a ``PoolProblem``."""
    words = [case.ndim, POOL_MODES.index(case.mode), int(case.ignore_border)]
    shapes = (case.img_shape, 5), (case.out_shape, 5)
    for values, length in (*shapes, (case.ws, 3), (case.stride, 3), (case.pad, 3)):
        words += [*values, *[0] * (length - len(values))]
    return (ctypes.c_int64 * len(words))(*words)


class HostPoolCells:
    """The launcher, and the kernels in several configurations."""

    def __init__(self, folder: Path, configurations: Iterable[Configuration] = ()):
        self._numbers = {given: i for i, given in enumerate(dict.fromkeys(configurations))}
        text = _LAUNCH + "".join(self._source(given, i) for given, i in self._numbers.items())
        (folder / "cells.cpp").write_text(text)
        command = [config.cxx, "-std=c++17", "-O1", "-shared", "-fPIC"]
        # As on a device, an access to a misaligned address ends the process.
        command += ["-fsanitize=alignment", "-fsanitize-undefined-trap-on-error"]
        command += [f"-I{Path(__file__).parent}", f"-I{c_code_dir()}"]
        compile_once([*command, "-o", "cells.so", "cells.cpp"], folder)
        self._library = ctypes.CDLL(str(folder / "cells.so"))

    @staticmethod
    def _source(configuration: Configuration, number: int) -> str:
        # The launcher has included the struct already.
        source = kernel_source(configuration.program).partition("#endif\n")[2]
        words = configuration.options.split()
        given = [option.removeprefix("-D").split("=") for option in words]
        defines = "".join(f"#define {name} {value}\n" for name, value in given)
        undefine = "".join(f"#undef {name}\n" for name, _ in given)
        entry = _ENTRY.format(number=number, kernel=KERNELS[configuration.program])
        return f"{defines}namespace configuration_{number} {{\n{source}\n}}\n{entry}{undefine}"

    def describe(
        self, case: PoolCase, dtype: str, gradient: bool = True, addend: int = NO_ADDEND
    ) -> tuple[int, Configuration]:
        """Return the blocks and configuration of a launch; no blocks if cuDNN takes the case."""
        program, options = (ctypes.create_string_buffer(1024) for _ in range(2))
        item = 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize
        numbers = int(gradient), DTYPE_CODES[dtype], item, addend
        blocks = self._library.describe(pool_problem(case), *numbers, program, options)
        return blocks, Configuration(program.value.decode(), options.value.decode())

    def run(
        self,
        case: PoolCase,
        dtype: str,
        x: np.ndarray,
        gz: np.ndarray | None,
        out: np.ndarray,
        seed: int,
        addend: np.ndarray | None = None,
    ) -> None:
        """Run a kernel on arrays of bits in channels-last order; without `gz`, pool `x`.

        The pixels of `addend` have the same distance in memory.
        """
        kind, pitch = NO_ADDEND, 0
        if addend is not None:
            aligned = (addend.ctypes.data | addend.strides[-2]) % 16 == 0
            kind = ADDEND_OF_VECTORS if aligned else ADDEND_OF_ELEMENTS
            pitch = addend.strides[-2] // addend.itemsize
        number = self._numbers[self.describe(case, dtype, gz is not None, kind)[1]]
        arrays = (a if a is None else a.ctypes.data for a in (x, gz, out, addend))
        pointers = map(ctypes.c_void_p, arrays)
        run = getattr(self._library, f"run_{number}")
        words = ctypes.c_longlong(pitch), ctypes.c_uint(seed)
        assert run(pool_problem(case), DTYPE_CODES[dtype], *pointers, *words) == 0
