"""Compile kernels with a single parameter for the host, and run them."""

from __future__ import annotations

import ctypes
import itertools
from pathlib import Path
from typing import Any

import numpy as np
from pytensor import config

from dnnops.gpu.kernels import kernel_source
from tests.emulation.nvrtc import compile_cuda
from tests.host_libraries import compile_once
from tests.precompiled import precompiled

_NUMBERS = itertools.count()

_ENTRY = """
extern "C" int run_{kernel}(const void *launch, unsigned blocks, unsigned threads, unsigned seed) {{
  return run_grid({kernel}, *static_cast<const {struct} *>(launch), blocks, threads, 0, seed);
}}
"""


def with_host_cuda(command: list[str]) -> list[str]:
    """Return a compiler's command that includes ``host_cuda.hpp`` in precompiled form."""
    path = Path(__file__).with_name("host_cuda.hpp")
    options = [word for word in command if word.startswith(("-std", "-O", "-f"))]
    header = precompiled(
        Path(config.base_compiledir) / "dnnops_test_headers",
        f'#include "{path}"\n',
        [command[0], *options],
        path.read_text(),
    )
    return [*command, "-include", str(header)]


def compile_for_host(
    folder: Path, program: str, kernels: dict[str, str], macros: dict[str, Any]
) -> ctypes.CDLL:
    """Compile the kernels of a program.

    Parameters
    ----------
    folder : Path
        Folder for the library.
    program : str
        Name of the program in `dnnops.gpu.kernels`.
    kernels : dict
        The parameter struct of each kernel.
    macros : dict
        Macros to define.

    Returns
    -------
    CDLL
        Library with ``run_<kernel>(launch, blocks, threads, seed)``.
    """
    name = f"{program}_{next(_NUMBERS)}"
    entries = "".join(_ENTRY.format(kernel=k, struct=s) for k, s in kernels.items())
    text = f'#include "host_cuda.hpp"\n{kernel_source(program)}\n{entries}'
    (folder / f"{name}.cpp").write_text(text)
    defines = [f"-D{key}={value}" for key, value in macros.items()]
    command = [config.cxx, "-std=c++17", "-O1", "-shared", "-fPIC", *defines]
    # As on a device, an access to a misaligned address ends the process.
    command += ["-fsanitize=alignment", "-fsanitize-undefined-trap-on-error"]
    command += [f"-I{Path(__file__).parent}", "-o", f"{name}.so", f"{name}.cpp"]
    compile_once(with_host_cuda(command), folder)
    return ctypes.CDLL(str(folder / f"{name}.so"))


def compile_for_gpu(program: str, macros: dict[str, Any]) -> str:
    """Compile a program with NVRTC, which needs no GPU, and return the assembly code."""
    defines = (f"-D{key}={value}" for key, value in macros.items())
    return compile_cuda(kernel_source(program), "-std=c++17", *defines).code


def launch_struct(**fields: Any) -> Any:
    """Return a reference to a struct of 8-byte fields: pointers to arrays, integers and floats."""
    kinds: dict[str, Any] = {}
    values = {}
    for name, value in fields.items():
        if isinstance(value, np.ndarray):
            kinds[name], values[name] = ctypes.c_void_p, value.ctypes.data
        elif isinstance(value, float):
            kinds[name], values[name] = ctypes.c_double, value
        else:
            kinds[name], values[name] = ctypes.c_uint64, int(value) % 2**64
    struct = type("Launch", (ctypes.Structure,), {"_fields_": list(kinds.items())})
    launch = struct(**values)
    launch.arrays = fields  # ctypes does not keep arrays alive
    return ctypes.byref(launch)
