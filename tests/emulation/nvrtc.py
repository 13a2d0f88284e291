"""Compile CUDA source with NVRTC, which needs no GPU."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Compiled(NamedTuple):
    """What NVRTC made of a source."""

    log: str
    #: Assembly code (PTX).
    code: str


class CudaError(AssertionError):
    """NVRTC refused a source; the message has its log."""


def compile_cuda(
    source: str, *options: str, names: Iterable[str] = (), architecture: str = "sm_90"
) -> Compiled:
    """Compile a source, with the options that CuPy adds at run time.

    Parameters
    ----------
    source : str
    *options : str
        Further options of NVRTC.
    names : iterable of str, optional
        Instances of templates to compile.
    architecture : str, optional
        That of the GPU, by default an H200's.

    Returns
    -------
    Compiled

    Raises
    ------
    CudaError
        If the source doesn't compile.
    """
    from cupy.cuda import nvrtc

    # Without the second one releases before 13.1 refuse generic lambdas in kernels.
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
