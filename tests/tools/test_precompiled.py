"""The compiler uses the precompiled headers, which saves about half of its time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytensor.tensor as pt
import pytest
from pytensor import config
from pytensor.graph.fg import FunctionGraph
from pytensor.link.c.basic import CLinker
from pytensor.link.c.cmodule import GCC_compiler, std_include_dirs
from pytensor.scalar.basic import exp

from dnnops.cpu.elemwise import CpuElemwise
from dnnops.cpu.softmax import OneDnnSoftmax
from tests.conftest import QUICK, flags_with_headers
from tests.emulation.host_kernels import with_host_cuda


def headers_read(command: list[str], folder: Path, text: str) -> list[str]:
    """Compile a text, and return GCC's list of headers; used precompiled ones start with ``!``."""
    (folder / "text.cpp").write_text(text)
    command = [*command, "-S", "-H", "-o", "text.s", "text.cpp"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [line for line in done.stderr.splitlines() if line.startswith(("!", "x", "."))]


@pytest.mark.parametrize(
    "make",
    [lambda x: x + 1, OneDnnSoftmax((1,)), CpuElemwise(exp)],
    ids=["PyTensor", "dnnops", "OpenMP"],
)
def test_modules(tmp_path, make):
    """The options of the modules are those with which the headers were compiled."""
    x = pt.fmatrix()
    with config.change_flags(gcc__cxxflags=QUICK):
        flags = flags_with_headers(Path(config.base_compiledir) / "dnnops_test_headers")
    with config.change_flags(gcc__cxxflags=flags):
        linker = CLinker().accept(FunctionGraph([x], [make(x)], clone=False))
        folders = [f"-I{folder}" for folder in (*linker.header_dirs(), *std_include_dirs())]
        command = [config.cxx, "-shared", "-g", *linker.compile_args(), *folders]
    included = "".join(f"#include {header}\n" for header in linker.headers() if header[0] in '<"')
    # Those that start with x are forms for other options.
    used = [line for line in headers_read(command, tmp_path, included) if line[0] != "x"]
    assert used[0].startswith("! ")


def test_emulated_kernels(tmp_path):
    folder = Path(__file__).parents[1] / "emulation"
    command = [config.cxx, "-std=c++17", "-O1", "-fPIC", "-DDTYPE=2", f"-I{folder}"]
    found = headers_read(with_host_cuda(command), tmp_path, '#include "host_cuda.hpp"\n')
    assert len(found) == 1
    assert found[0].startswith("! ")


def test_processes_that_tests_start():
    """They compile with the same options, and so use the modules and libraries of this process."""
    program = "from pytensor.link.c.cmodule import GCC_compiler as c; print(*c.compile_args())"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == GCC_compiler.compile_args()
