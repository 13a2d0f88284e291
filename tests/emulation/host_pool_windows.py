"""Run the kernel of max pooling for images with any strides on the host."""

from __future__ import annotations

import ctypes
import itertools
from pathlib import Path

import numpy as np
from pytensor import config

from dnnops.dtypes import DTYPE_CODES
from dnnops.gpu.kernels import kernel_source
from dnnops.runtime.build import c_code_dir
from tests.emulation.host_kernels import with_host_cuda
from tests.emulation.host_pool_cells import pool_problem
from tests.host_libraries import compile_once
from tests.oracle import PoolCase

_LAUNCH = """
#include "host_cuda.hpp"
#include "gpu/pool/pool_windows.hpp"
using namespace dnnops;

extern "C" int describe(const PoolProblem *problem, const int64_t *strides, int channels_last,
                        int dtype, char *options) {
  const PoolWindows windows = pool_windows(*problem, strides, channels_last, dtype);
  std::strcpy(options, windows.options.c_str());
  return windows.exist;
}
"""

_ENTRY = """
extern "C" int run_{number}(const PoolProblem *problem, const int64_t *strides, int channels_last,
                            int dtype, const void *x, void *result, unsigned seed) {{
  PoolWindows windows = pool_windows(*problem, strides, channels_last, dtype);
  windows.params.x = x;
  windows.params.result = result;
  return run_grid(configuration_{number}::max_pool_windows, windows.params, windows.blocks,
                  (unsigned)WINDOW_THREADS, 0, seed);
}}

extern "C" int grad_{number}(const PoolProblem *problem, int dtype, const void *x,
                             const void *pooled, const void *gz, void *result, unsigned seed) {{
  PoolWindows windows = pool_windows_grad(*problem, false, dtype);
  windows.params.x = x;
  windows.params.pooled = pooled;
  windows.params.gz = gz;
  windows.params.result = result;
  return run_grid(configuration_{number}::max_pool_windows_grad, windows.params, windows.blocks,
                  (unsigned)WINDOW_THREADS, 0, seed);
}}
"""

_LIBRARIES = itertools.count()


class HostPoolWindows:
    """The launcher, and the kernel for some configurations, which are compiler options."""

    def __init__(self, folder: Path, configurations: tuple[str, ...] = ()):
        self._numbers = {given: i for i, given in enumerate(dict.fromkeys(configurations))}
        text = _LAUNCH + "".join(self._source(given, i) for given, i in self._numbers.items())
        name = f"windows_{next(_LIBRARIES)}"
        (folder / f"{name}.cpp").write_text(text)
        command = [config.cxx, "-std=c++17", "-O1", "-shared", "-fPIC"]
        command += [f"-I{Path(__file__).parent}", f"-I{c_code_dir()}"]
        compile_once(with_host_cuda([*command, "-o", f"{name}.so", f"{name}.cpp"]), folder)
        self._library = ctypes.CDLL(str(folder / f"{name}.so"))

    @staticmethod
    def _source(options: str, number: int) -> str:
        # The launcher has included the structs already.
        source = kernel_source("pool_windows").partition("#endif\n")[2]
        given = [option.removeprefix("-D").split("=") for option in options.split()]
        defines = "".join(f"#define {name} {value}\n" for name, value in given)
        undefine = "".join(f"#undef {name}\n" for name, _ in given)
        entry = _ENTRY.format(number=number)
        return f"{defines}namespace configuration_{number} {{\n{source}\n}}\n{entry}{undefine}"

    @staticmethod
    def _arguments(case: PoolCase, x: np.ndarray, dtype: str, channels_last: bool) -> tuple:
        strides = (ctypes.c_int64 * 5)(*(step // x.itemsize for step in x.strides))
        return pool_problem(case), strides, int(channels_last), DTYPE_CODES[dtype]

    def options(self, case: PoolCase, x: np.ndarray, dtype: str, channels_last: bool) -> str:
        """Return the compiler options for a case, or an empty string if cuDNN takes it."""
        options = ctypes.create_string_buffer(1024)
        exist = self._library.describe(*self._arguments(case, x, dtype, channels_last), options)
        return options.value.decode() if exist else ""

    def run(self, case: PoolCase, x: np.ndarray, dtype: str, channels_last: bool) -> np.ndarray:
        """Pool an array of bits; the result has one of the two formats in memory."""
        arguments = self._arguments(case, x, dtype, channels_last)
        number = self._numbers[self.options(case, x, dtype, channels_last)]
        batch, channels, *windows = case.out_shape
        shape = (batch, *windows, channels) if channels_last else case.out_shape
        out = np.full(shape, 7, x.dtype)
        pointers = (ctypes.c_void_p(a.ctypes.data) for a in (x, out))
        run = getattr(self._library, f"run_{number}")
        assert run(*arguments, *pointers, ctypes.c_uint(case.seed)) == 0
        return np.moveaxis(out, -1, 1) if channels_last else out

    def gradient(
        self, case: PoolCase, dtype: str, x: np.ndarray, pooled: np.ndarray, gz: np.ndarray
    ) -> np.ndarray:
        """Return the gradient of arrays of bits, which are made channels-last."""
        x, pooled, gz = (np.ascontiguousarray(np.moveaxis(a, 1, -1)) for a in (x, pooled, gz))
        out = np.full(x.shape, 7, x.dtype)
        pointers = (ctypes.c_void_p(a.ctypes.data) for a in (x, pooled, gz, out))
        # Any configuration of the dtype serves.
        code = f"-DDTYPE={DTYPE_CODES[dtype]}"
        number = next(i for options, i in self._numbers.items() if options.endswith(code))
        run = getattr(self._library, f"grad_{number}")
        words = pool_problem(case), DTYPE_CODES[dtype]
        assert run(*words, *pointers, ctypes.c_uint(case.seed)) == 0
        return np.moveaxis(out, -1, 1)
