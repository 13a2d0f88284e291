"""Compile CUDA kernels with CuPy, and explain why one does not compile.

CuPy's exception has the compiler's log, but neither the kernel nor its source.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from dnnops.errors import DnnCompileError

__all__ = ["compiled_kernel"]

#: A source of at most so many lines is shown as a whole.
_LINES = 200
#: Otherwise, so many lines before and after those with errors are shown.
_AROUND = 5
#: So many errors are shown.
_ERRORS = 10
#: What NVRTC calls a source without a name.
_UNNAMED = "default_program"
#: The start of an error in NVRTC's log; a blank line ends it.
_ERROR = re.compile(r".*: (?:catastrophic )?error\b")


def compiled_kernel(source: str, name: str, options: tuple[str, ...] = ("-std=c++17",)) -> Any:
    """Return a kernel, compiled for the current device.

    CuPy keeps what it has compiled, in memory and on disk.

    Parameters
    ----------
    source : str
        CUDA source code.
    name : str
        Name of the kernel, or an instance of a template such as ``kernel<float>``.
    options : tuple of str, optional
        Options of NVRTC, in addition to CuPy's.

    Returns
    -------
    cupy.RawKernel

    Raises
    ------
    DnnCompileError
        If the source does not compile.
    """
    import cupy

    module = cupy.RawModule(
        code=source,
        options=options,
        backend="nvrtc",
        name_expressions=(name,) if "<" in name else None,
    )
    try:
        return module.get_function(name)  # compiles
    except cupy.cuda.compiler.CompileException as error:
        raise DnnCompileError(_explanation(source, name, error)) from error


def _explanation(source: str, name: str, error: Any) -> str:
    """Return what does not compile, and why, with what matters most first.

    Parameters
    ----------
    source, name : str
    error : cupy.cuda.compiler.CompileException
    """
    # The source's file was temporary.
    file = re.escape(error.name or _UNNAMED)
    log = re.sub(rf"{file}\((\d+)\)", r"line \1", str(error)).strip()
    errors = [part for part in re.split(r"\n\s*\n", log) if _ERROR.match(part)]
    shown = errors[:_ERRORS] or [log]
    if len(errors) > _ERRORS:
        shown.append(f"and {len(errors) - _ERRORS} more errors")
    lines = source.splitlines()
    numbers = {int(number) for number in re.findall(r"(?m)^line (\d+)", "\n".join(shown))}
    return "\n".join(
        [
            f"kernel {name} does not compile:",
            *shown,
            f"options: {' '.join(error.options)}",
            f"source, {len(lines)} lines:",
            *_numbered(lines, numbers),
        ]
    )


def _numbered(lines: list[str], errors: Iterable[int]) -> list[str]:
    """Return the lines with numbers; of a long source, those around the lines with errors."""
    wanted = range(1, len(lines) + 1)
    if len(lines) > _LINES:
        near = {n + k for n in errors for k in range(-_AROUND, _AROUND + 1)}
        wanted = sorted(near.intersection(wanted))
    width, last, result = len(str(len(lines))), 0, []
    for number in wanted:
        if number != last + 1:
            result.append("...")
        result.append(f"{number:{width}}  {lines[number - 1]}".rstrip())
        last = number
    if last != len(lines):
        result.append("...")
    return result
