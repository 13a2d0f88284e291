"""Run a user's script within a command, as ``python SCRIPT`` would."""

from __future__ import annotations

import argparse
import errno
import os
import runpy
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TextIO

__all__ = ["ScriptError", "add_script", "has_script", "run_script"]

#: Packages whose code runs before that of a script.
_BEFORE = ("dnnops", "runpy", "importlib", "pkgutil", "zipimport", "zlib")
_FROZEN = "_frozen_"
#: Characters of a name or reason in a message.
_LONGEST = 300


class ScriptError(Exception):
    """Raised if a script or module cannot be read, so that none of its code has run."""


def add_script(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments that name the script and follow it."""
    # A flag, because argparse ends the values of an option at "--".
    parser.add_argument(
        "-m", dest="module", action="store_true", help="run a module, as python -m does"
    )
    parser.add_argument("script", nargs="?", metavar="SCRIPT", help="file to run, or the module")
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="ARGUMENT", help="arguments of the script"
    )


def has_script(args: argparse.Namespace) -> bool:
    """Return whether there is a script to run; otherwise, print what is missing."""
    if not args.script:
        print(f"dnnops {args.command}: pass a script, or -m and a module", file=sys.stderr)
        return False
    if not args.module and not os.path.exists(args.script):
        name = _shortened(args.script)
        print(f"dnnops {args.command}: there is no file {name}", file=sys.stderr)
        return False
    return True


def run_script(args: argparse.Namespace) -> int:
    """Run the script, and print the traceback of an exception.

    The standard output and the standard error can be used afterwards, even if the script has
    closed or replaced them.

    Returns
    -------
    int
        0 if the script ended, 1 if it raised an exception.

    Raises
    ------
    SystemExit
        If the script raises it, with the script's own exit status.
    ScriptError
        If there is no such module, or the file is not a script. A script with a syntax error is
        one that raised an exception.
    """
    sys.argv = [args.script, *args.arguments]
    failure: Exception | None = None
    with _kept("stdout"), _kept("stderr"):
        try:
            if args.module:
                sys.path[0] = os.getcwd()
                runpy.run_module(args.script, run_name="__main__", alter_sys=True)
            else:
                # runpy adds a folder or an archive to the path itself.
                if os.path.isfile(args.script):
                    sys.path[0] = os.path.dirname(os.path.abspath(args.script))
                runpy.run_path(args.script, run_name="__main__")
        except Exception as error:
            failure = error
    if failure is None:
        return 0
    has_line = isinstance(failure, SyntaxError) and failure.lineno
    if not has_line and not _has_begun(failure.__traceback__):
        reason = str(failure).replace("\n", " ") or type(failure).__name__
        raise ScriptError(f"cannot run {_shortened(args.script)}: {_shortened(reason)}")
    traceback.print_exception(failure.with_traceback(_of_the_script(failure.__traceback__)))
    return 1


@contextmanager
def _kept(name: str) -> Iterator[None]:
    """Restore a standard stream that is closed or replaced within the block."""
    stream = getattr(sys, name)
    try:
        copy = os.dup(stream.fileno())
    except (AttributeError, OSError, ValueError):  # not a file, or closed by the caller
        copy = -1
    try:
        yield
    finally:
        if stream is None or stream.closed or not _is_open(stream):
            text = {} if stream is None else {"encoding": stream.encoding, "errors": stream.errors}
            setattr(sys, name, open(copy if copy >= 0 else os.devnull, "w", **text))  # noqa: SIM115
        else:
            setattr(sys, name, stream)
            if copy >= 0:
                os.close(copy)


def _is_open(stream: TextIO) -> bool:
    """Return whether the file below a stream is still open."""
    try:
        os.fstat(stream.fileno())
    except OSError as error:
        return error.errno != errno.EBADF
    return True


def _has_begun(trace: TracebackType | None) -> bool:
    """Return whether an exception comes from the script, or from a package that it is in."""
    while trace is not None:
        name = str(trace.tb_frame.f_globals.get("__name__"))
        if name.partition(".")[0] not in _BEFORE and not name.startswith(_FROZEN):
            return True
        trace = trace.tb_next
    return False


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _of_the_script(trace: TracebackType | None) -> TracebackType | None:
    """Drop the traceback frames above the script's own; keep all frames if it has none."""
    inner = trace
    while inner is not None and inner.tb_frame.f_globals.get("__name__") != "__main__":
        inner = inner.tb_next
    # This command's __main__ is not in the trace, which begins in run_script().
    return inner or trace
