"""CUDA kernels that do not compile, and CuPy modules that NVRTC compiles without a GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from pytensor.scalar.basic import UnaryScalarOp, same_out

__all__ = ["LOG", "Failing", "HostModule", "broken"]

#: What NVRTC says of a source with two errors in a file of CuPy; {} is the file.
LOG = """\
{}(3): error: identifier "missing" is undefined
    z[0] = missing;
           ^

{}(5): error: no instance of overloaded function "f" matches the argument list
            argument types are: (float, int)
    f(z[0], 1);
    ^

{}(4): warning #177-D: variable "error" was declared but never referenced
    int error = 3;
        ^

Remark: The warnings can be suppressed with "-diag-suppress <warning-number>"

2 errors detected in the compilation of "{}".
"""


class Broken(UnaryScalarOp):
    """A scalar Op whose C code is not valid."""

    nfunc_spec = None

    def impl(self, x: Any) -> Any:
        return x

    def c_code(self, node: Any, name: str, inputs: Any, outputs: Any, sub: Any) -> str:
        return f"{outputs[0]} = missing_function({inputs[0]});"

    def c_code_cache_version(self) -> tuple[int, ...]:
        return (1,)


broken = Broken(same_out, name="broken")


class Failing:
    """Stands in for `cupy.RawModule`; nothing compiles."""

    log, file = LOG, "/tmp/of_cupy/0a1b.cubin.cu"

    def __init__(self, code: str, options: tuple[str, ...], backend: str, name_expressions: Any):
        assert backend == "nvrtc"
        self.code, self.options = code, options

    def get_function(self, name: str) -> Any:
        from cupy.cuda.compiler import CompileException

        log = self.log.replace("{}", self.file or "default_program")
        raise CompileException(log, self.code, self.file, (*self.options, "-arch=sm_90"))


class HostModule:
    """Stands in for `cupy.RawModule`; NVRTC compiles the source, but nothing is loaded."""

    def __init__(self, code: str, options: tuple[str, ...], backend: str, name_expressions: Any):
        self.code, self.options, self.instances = code, options, name_expressions

    def get_function(self, name: str) -> Any:
        from cupy.cuda.compiler import _NVRTCProgram

        program = _NVRTCProgram(self.code, "kernel.cu", name_expressions=self.instances)
        program.compile((*self.options, "-arch=sm_90"))
        return SimpleNamespace(name=name)
