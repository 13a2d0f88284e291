"""The commands of ``python -m dnnops``, one module each.

A command's module offers ``HELP``, ``add_arguments(parser)`` and ``run(args) -> int``, whose result
is the exit status. Importing it must be cheap: what a command needs is imported when it runs.
"""

from __future__ import annotations

import sys
from pathlib import Path


def is_command_line() -> bool:
    """Tell whether the process is ``python -m dnnops`` or ``dnnops``, not somebody's program."""
    program = getattr(sys, "argv", None) or [""]
    # The word that the interpreter was given as a module or script; argv has "-m" instead until the
    # module is found, and that is while its package is imported.
    word = sys.orig_argv[-len(program)] if len(program) < len(sys.orig_argv) else ""
    if program[0] == "-m":
        return word.removeprefix("-m") == "dnnops"
    return program[0] != "-c" and Path(word).stem == "dnnops"


def is_command(name: str) -> bool:
    """Tell whether the process is ``python -m dnnops NAME``, or ``dnnops NAME``."""
    return is_command_line() and sys.argv[1:2] == [name]
