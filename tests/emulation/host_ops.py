"""Run Ops' kernels on the host, with the code that launches them on a GPU.

The C++ sources of an Op are compiled with `host_runtime.cpp`, which replaces the GPU, and its
kernels with `host_cuda.hpp`, which runs them on NumPy arrays.
"""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dnnops.dtypes import DTYPE_CODES, numpy_dtype
from dnnops.errors import error_from_status
from dnnops.gpu.kernels import kernel_source
from dnnops.runtime.build import c_code_dir
from dnnops.runtime.find import find_cuda, find_cudnn
from dnnops.runtime.op import empty_tensors, make_context
from tests.host_libraries import OWN_SYMBOLS

_HERE = Path(__file__).parent
_C_CODE = c_code_dir()
_SHARED_SOURCES = (
    "gpu/base/tensor.cpp",
    "gpu/base/legacy.cpp",
    "gpu/base/check.cpp",
    "common/exports.cpp",
)
_NAMES = {code: name for name, code in DTYPE_CODES.items()}


def _source(name: str) -> Path:
    """Return the path of a source file of a GPU family."""
    (found,) = _C_CODE.glob(f"gpu/*/{name}")
    return found


def _compile(folder: Path, target: str, *arguments: str) -> ctypes.CDLL:
    command = ["g++", OWN_SYMBOLS, "-std=c++17", "-O1", "-fPIC", "-shared", "-w", "-Wl,-Bsymbolic"]
    subprocess.run([*command, "-o", target, *arguments], cwd=folder, check=True)
    return ctypes.CDLL(str(folder / target))


def _kernels_source(
    program: str, params: str, kernels: tuple[str, ...], dtype: str, macros: Mapping[str, int]
) -> str:
    source = kernel_source(program).replace(
        "extern __shared__ uint4 shared[];", "uint4 *const shared = Block::dynamic.data();"
    )
    # The header with the parameters is already included outside of the namespace.
    source = source[source.index("#endif", source.index("struct")) :].removeprefix("#endif")
    code = DTYPE_CODES[dtype]
    entries = "".join(
        f'extern "C" int {kernel}_{code}(const {params} *p, unsigned blocks, unsigned threads,'
        " unsigned shared, unsigned seed) {\n"
        f"  return run_grid({kernel}, *p, blocks, threads, shared, seed);\n}}\n"
        for kernel in kernels
    )
    given = {"DTYPE": code, **macros}
    defines = "".join(f"#define {name} {value}\n" for name, value in given.items())
    undefine = "".join(f"#undef {name}\n" for name in (*given, "NEVER"))
    return f"namespace of_{dtype} {{\n{defines}{source}\n{entries}}}\n{undefine}"


def _filled(shape: tuple[int, ...], dtype: str, memory_format: str) -> np.ndarray:
    """Return an array for a result."""
    if memory_format == "channels_last":
        batch, channels, *rest = shape
        return np.moveaxis(_filled((batch, *rest, channels), dtype, ""), -1, 1)
    return np.full(shape, 7, numpy_dtype(dtype))


class HostOp:
    """The functions of one C++ source of the runtime library, on the host.

    Parameters
    ----------
    folder : Path
        Folder for compiled files.
    name : str
        Name of the source, and of the function after ``dnnops_cudnn_``.
    program, params : str
        The program with the kernels, and the name of their parameter struct.
    kernels : tuple of str
        Names of the kernels.
    dtypes : tuple of str
        Dtypes for which the kernels are compiled.
    macros : mapping, optional
        Macros to define in addition to the dtype.
    sources : tuple of Path, optional
        Other C++ sources that the Op needs.
    header : str, optional
        Name of the header with the parameter struct. Default: that of the program.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        program: str,
        params: str,
        kernels: tuple[str, ...],
        dtypes: tuple[str, ...],
        macros: Mapping[str, int] | None = None,
        sources: tuple[Path, ...] = (),
        header: str | None = None,
    ):
        cuda, cudnn = find_cuda(), find_cudnn()
        header = header or f"{program}_params.hpp"
        text = f'#include "host_cuda.hpp"\n#include "{_source(header)}"\n'
        text += "".join(
            _kernels_source(program, params, kernels, dtype, macros or {}) for dtype in dtypes
        )
        (folder / "kernels.cpp").write_text(text)
        _compile(folder, "kernels.so", f"-I{_HERE}", "kernels.cpp")
        includes = [*cuda.include_dirs, *cudnn.include_dirs]
        self._library = _compile(
            folder,
            "op.so",
            str(_HERE / "host_runtime.cpp"),
            *map(str, sources),
            *(str(_C_CODE / source) for source in (_source(f"{name}.cpp"), *_SHARED_SOURCES)),
            *(f"-I{directory}" for directory in (_C_CODE, *includes)),
            str(cudnn.library),
            f"-Wl,-rpath,{cudnn.library.parent}",
            "-ldl",
        )
        self._library.dnnops_last_error.restype = ctypes.c_char_p
        self._library.take_report.restype = ctypes.c_char_p
        assert self._library.use_kernels(str(folder / "kernels.so").encode()) == 0
        self._function = f"dnnops_cudnn_{name}"

    def reported(self) -> str:
        """Return the error that a kernel has reported since the last call, or an empty string."""
        return (self._library.take_report() or b"").decode()

    def _call(self, suffix: str, *arguments: Any) -> None:
        status = getattr(self._library, self._function + suffix)(*arguments)
        if status:
            raise error_from_status(status, self._library.dnnops_last_error().decode())

    def run(self, op: Any, *arrays: np.ndarray, device: int = 0) -> list[np.ndarray]:
        """Run an Op of this source on arrays of the dtypes that it takes; return float64."""
        inputs = empty_tensors(len(arrays))
        for tensor, array in zip(inputs, arrays, strict=True):
            tensor.data, tensor.ndim = array.ctypes.data, array.ndim
            tensor.dtype = DTYPE_CODES[array.dtype.name]
            tensor.shape[: array.ndim] = array.shape
            tensor.strides[: array.ndim] = array.strides
        outputs = empty_tensors(2)
        for tensor in outputs:
            tensor.ndim = -1
        words = op.words
        context = ctypes.byref(make_context(0, device))
        arguments = (context, ctypes.c_void_p(words.ctypes.data), inputs, outputs)
        self._call("_shape", *arguments)
        results = []
        for tensor in outputs:
            if tensor.ndim < 0:
                break
            shape = tuple(tensor.shape[: tensor.ndim])
            result = _filled(shape, _NAMES[tensor.dtype], getattr(op, "memory_format", ""))
            results.append(result)
            tensor.data = result.ctypes.data
            tensor.strides[: tensor.ndim] = result.strides
        self._call("", *arguments)
        return [result.astype("float64") for result in results]
