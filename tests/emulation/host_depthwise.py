"""Compile the depthwise kernels for the host and run plans on NumPy arrays."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from dnnops.gpu.kernels import kernel_source
from dnnops.runtime.build import c_code_dir
from tests.gpu.conv.depthwise_rows import Plan
from tests.host_libraries import compile_once

_MACROS = (
    *("DTYPE", "CHANNELS_LAST", "FLIP", "KH", "KW", "SH", "SW", "DH", "DW", "TH", "TW", "V"),
    *("THREADS", "FILTER_GRADIENT", "UP", "STAGED", "TAIL_H", "TAIL_W", "GROUP", "STAGES"),
)

_PRELUDE = """
#include "host_cuda.hpp"
#include "gpu/depthwise/depthwise_params.hpp"
"""

_ENTRY = """
}}
extern "C" int run_{number}(const char *kernel, const DepthwiseParams *params, unsigned blocks,
                          unsigned threads, unsigned shared, unsigned seed) {{
  using namespace configuration_{number};
  const auto run = [&](auto function) {{
    return run_grid(function, *params, blocks, threads, shared, seed);
  }};
  {kernels}
  return 2;
}}
"""


class HostKernels:
    """The kernels of several configurations, compiled together for the host."""

    def __init__(self, folder: Path, options: Iterable[str]):
        self._numbers = {text: i for i, text in enumerate(dict.fromkeys(options))}
        source = _PRELUDE + "".join(
            self._configuration(text, number) for text, number in self._numbers.items()
        )
        (folder / "depthwise.cpp").write_text(source)
        library = folder / "depthwise.so"
        compile_once(
            [
                *("g++", "-std=c++17", "-O0", "-fPIC", "-shared", "-w"),
                f"-I{Path(__file__).parent}",
                f"-I{c_code_dir()}",
                *("-o", str(library), str(folder / "depthwise.cpp")),
            ],
            folder,
        )
        self._library = ctypes.CDLL(str(library))

    @staticmethod
    def _configuration(options: str, number: int) -> str:
        given = [word[2:].split("=") for word in options.split() if word.startswith("-D")]
        assert {name for name, _ in given} <= set(_MACROS)
        defines = "".join(f"#define {name} {value}\n" for name, value in given)
        # The header with the parameters is already included outside of the namespace.
        source = kernel_source("depthwise").replace(
            "extern __shared__ uint4 shared[];", "uint4 *const shared = Block::dynamic.data();"
        )
        names = ("depthwise_filter", "depthwise_sum")
        if "-DFILTER_GRADIENT=0" in options:
            names = ("depthwise_data",)
        runs = "".join(f'if (!std::strcmp(kernel, "{n}")) return run({n});\n' for n in names)
        undefine = "".join(f"#undef {name}\n" for name in _MACROS)
        return (
            f"namespace configuration_{number} {{\n{defines}{source}"
            f"{_ENTRY.format(number=number, kernels=runs)}{undefine}"
        )

    def run(
        self, plan: Plan, pointers: tuple[int, int, int], alpha: float, beta: float, seed: int
    ) -> None:
        """Run a plan on arrays in the order image, filters, gradient of the output."""
        direction_up = "-DUP=1" in plan.options
        gradient = "-DFILTER_GRADIENT=1" in plan.options
        image, filters, top = pointers
        params = plan.params
        params.source = top if direction_up else image
        params.other = top if gradient else filters
        params.result = filters if gradient else image if direction_up else top
        workspace = np.full(plan.workspace // 4, np.nan, "float32")
        params.partial = workspace.ctypes.data
        params.alpha, params.beta = alpha, beta
        run = getattr(self._library, f"run_{self._numbers[plan.options]}")
        for kernel, blocks, threads, shared in plan.launches:
            status = run(kernel.encode(), ctypes.byref(params), blocks, threads, shared, seed)
            assert status == 0, f"{kernel} of {plan.name} wrote beyond its shared memory"
