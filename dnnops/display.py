"""Sizes and lines, as commands and reports show them."""

from __future__ import annotations

import io
import os
import shutil
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["line_width", "plain_console", "rendered", "show_operations", "show_size"]

_BYTES = ["B", "KiB", "MiB", "GiB", "TiB"]
_OPERATIONS = ["FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP"]


def show_size(size: int) -> str:
    """Return a number of bytes in a binary unit, such as ``12.3 MiB``."""
    from rich.filesize import pick_unit_and_suffix

    unit, suffix = pick_unit_and_suffix(size, _BYTES, 1024)
    return f"{size / unit:.{0 if unit == 1 else 1}f} {suffix}"


def show_operations(count: int) -> str:
    """Return a number of floating-point operations, such as ``3.61 GFLOP``."""
    from rich.filesize import pick_unit_and_suffix

    unit, suffix = pick_unit_and_suffix(count, _OPERATIONS, 1000)
    return f"{count / unit:.3g} {suffix}"


def line_width(otherwise: int) -> int:
    """Return the width of lines: ``COLUMNS``, else that of the terminal.

    Parameters
    ----------
    otherwise : int
        Width if the output goes elsewhere and ``COLUMNS`` is not a positive number.
    """
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns) > 0:
        return int(columns)
    # A stream that replaces the standard output may have no more than `write`.
    stream: Any = sys.stdout
    if stream is None or getattr(stream, "closed", False) or not hasattr(stream, "isatty"):
        return otherwise
    if not stream.isatty():
        return otherwise
    return shutil.get_terminal_size((otherwise, 0)).columns


def plain_console(width: int | None = None, colors: bool = True) -> Console:
    """Return a console that prints strings as they are, without markup or highlighting.

    Parameters
    ----------
    width : int, optional
        Characters in a line. By default ``COLUMNS`` or those of the terminal; if the output goes
        elsewhere, lines are not wrapped, so that grep finds whole names.
    colors : bool
        Whether to use colors and bold letters, if the output is a terminal.

    Returns
    -------
    rich.console.Console
    """
    from rich.console import Console

    color_system: Any = "auto" if colors else None
    return Console(
        width=line_width(100_000) if width is None else width,
        # Plain text is only rendered, and does not depend on what the standard output is.
        file=None if colors else io.StringIO(),
        color_system=color_system,
        markup=False,
        highlight=False,
        emoji=False,
    )


def rendered(console: Console, *parts: Any) -> str:
    """Return what a console would print, without blanks at the ends of lines."""
    with console.capture() as capture:
        for part in parts:
            console.print(part)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())
