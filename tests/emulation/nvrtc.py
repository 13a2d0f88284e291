"""Compile CUDA source with NVRTC, which needs no GPU."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Compiled(NamedTuple):
    """Result of compiling a source."""

    log: str
    #: Assembly code (PTX).
    code: str


class CudaError(AssertionError):
    """Raised when NVRTC rejects a source; the message contains its log."""


def compile_cuda(
    source: str, *options: str, names: Iterable[str] = (), architecture: str = "sm_90"
) -> Compiled:
    """Compile a source, with the options that CuPy adds at run time.

    Parameters
    ----------
    source : str
        CUDA source code.
    *options : str
        Additional NVRTC options.
    names : iterable of str, optional
        Template instances to compile.
    architecture : str, optional
        Architecture of the GPU; an H200's by default.

    Returns
    -------
    Compiled

    Raises
    ------
    CudaError
        If the source does not compile.
    """
    from cupy.cuda import nvrtc

    # Without the second option, releases before 13.1 reject generic lambdas in kernels.
    given = (f"-arch={architecture}", "-default-device", *options)
    program = nvrtc.createProgram(source, "kernel.cu", (), ())
    try:
        for name in names:
            nvrtc.addNameExpression(program, name)
        nvrtc.compileProgram(program, given)
        return Compiled(nvrtc.getProgramLog(program), str(nvrtc.getPTX(program)))
    except nvrtc.NVRTCError as error:
        raise CudaError(f"{' '.join(given)}: {nvrtc.getProgramLog(program)}") from error
    finally:
        nvrtc.destroyProgram(program)
