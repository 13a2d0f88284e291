"""Compile the pooling kernels for the host, and run them on NumPy arrays."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from pytensor import config

from dnnops.gpu.kernels import kernel_source
from dnnops.gpu.pool_kernels import PoolLaunch
from tests.host_libraries import compile_once

KERNELS = ("max_pool", "average_pool", "max_pool_grad", "average_pool_grad", "max_pool_grad_grad")

_ENTRY = """
}}
extern "C" int run_{number}(int kernel, const void *launch, unsigned blocks, unsigned seed) {{
  using namespace configuration_{number};
  void (*const kernels[])(pool_launch) = {{{kernels}}};
  const auto &given = *static_cast<const pool_launch *>(launch);
  return run_grid(kernels[kernel], given, blocks, THREADS, 0, seed);
}}
"""


class HostKernels:
    """The kernels with several sets of compiler options, compiled together for the host."""

    def __init__(self, folder: Path, options: Iterable[tuple[str, ...]]):
        self._numbers = {given: i for i, given in enumerate(dict.fromkeys(options))}
        source = '#include "host_cuda.hpp"\n' + "".join(
            self._configuration(given, number) for given, number in self._numbers.items()
        )
        (folder / "pool.cpp").write_text(source)
        command = [config.cxx, "-std=c++17", "-O1", "-shared", "-fPIC"]
        # As on a device, an access to a misaligned address ends the process.
        command += ["-fsanitize=alignment", "-fsanitize-undefined-trap-on-error"]
        command += [f"-I{Path(__file__).parent}", "-o", "pool.so", "pool.cpp"]
        compile_once(command, folder)
        self._library = ctypes.CDLL(str(folder / "pool.so"))

    @staticmethod
    def _configuration(options: tuple[str, ...], number: int) -> str:
        given = [option.removeprefix("-D").split("=") for option in options]
        defines = "".join(f"#define {name} {value}\n" for name, value in given)
        undefine = "".join(f"#undef {name}\n" for name, _ in given)
        entry = _ENTRY.format(number=number, kernels=", ".join(KERNELS))
        return (
            f"namespace configuration_{number} {{\n{defines}{kernel_source('pool')}"
            f"{entry}{undefine}"
        )

    def run(
        self, launch: PoolLaunch, x: np.ndarray, other: np.ndarray, out: np.ndarray, seed: int
    ) -> None:
        """Run a launch on arrays."""
        struct = launch.struct.copy()
        struct["words"][0, :3] = [a.ctypes.data for a in (x, other, out)]
        run = getattr(self._library, f"run_{self._numbers[launch.options]}")
        kernel = KERNELS.index(launch.kernel)
        assert run(kernel, ctypes.c_void_p(struct.ctypes.data), launch.blocks, seed) == 0
