"""The commands of ``python -m dnnops``, each in its own module.

The module of a command defines ``HELP``, ``add_arguments(parser)`` and ``run(args) -> int``, which
returns the exit status. Importing it must be cheap: a command imports what it needs when it runs.
"""

from __future__ import annotations

import sys
from pathlib import Path


def is_command_line() -> bool:
    """Return whether the process is ``python -m dnnops`` or ``dnnops``, not a user's program."""
    program = getattr(sys, "argv", None) or [""]
    # The module or script named on the interpreter's command line. While the package of a module is
    # imported, argv has "-m" in its place.
    word = sys.orig_argv[-len(program)] if len(program) < len(sys.orig_argv) else ""
    if program[0] == "-m":
        return word.removeprefix("-m") == "dnnops"
    return program[0] != "-c" and Path(word).stem == "dnnops"


def is_command(name: str) -> bool:
    """Return whether the process is ``python -m dnnops NAME`` or ``dnnops NAME``."""
    return is_command_line() and sys.argv[1:2] == [name]
