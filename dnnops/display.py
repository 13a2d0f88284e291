"""Sizes and tables, as commands and reports show them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

__all__ = ["plain_console", "plain_table", "rendered", "show_operations", "show_size"]

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


def plain_console(width: int | None = None, colors: bool = True) -> Console:
    """Return a console that prints strings as they are, without markup or highlighting.

    Parameters
    ----------
    width : int, optional
        Characters in a line. By default those of the terminal; if the output goes elsewhere, lines
        are not wrapped, so that grep finds whole names.
    colors : bool
        Whether to use colors and bold letters, if the output is a terminal.

    Returns
    -------
    rich.console.Console
    """
    from rich.console import Console

    if width is None and not sys.stdout.isatty():
        width = 100_000
    color_system: Any = "auto" if colors else None
    return Console(
        width=width, color_system=color_system, markup=False, highlight=False, emoji=False
    )


def plain_table(header: bool = True) -> Table:
    """Return a table without lines."""
    from rich.table import Table

    return Table(box=None, pad_edge=False, show_header=header, header_style="bold")


def rendered(console: Console, *parts: Any) -> str:
    """Return what a console would print, without blanks at the ends of lines."""
    with console.capture() as capture:
        for part in parts:
            console.print(part)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())
