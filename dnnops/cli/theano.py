"""Run an unmodified Theano script on PyTensor and dnnops.

THEANO_FLAGS and .theanorc are read. In a program, call `dnnops.theano.install()` instead.
"""

from __future__ import annotations

import argparse
import os
import runpy
import sys
import traceback
from types import TracebackType

__all__ = ["HELP", "add_arguments", "run"]

HELP = "run a script that was written for Theano"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.usage = "dnnops theano [-h] (SCRIPT | -m MODULE) [ARGUMENT ...]"
    # A flag, because argparse ends the values of an option at "--".
    parser.add_argument(
        "-m", dest="module", action="store_true", help="run a module, as python -m does"
    )
    parser.add_argument("script", nargs="?", metavar="SCRIPT", help="file to run, or the module")
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="ARGUMENT", help="arguments of the script"
    )


def run(args: argparse.Namespace) -> int:
    """Run the script as ``python SCRIPT`` would, but with Theano's names installed.

    Returns
    -------
    int
        0 if the script ended, 1 if it raised an exception, 2 if there is no script. The script's
        own exit status is kept.
    """
    if not args.script:
        print("dnnops theano: pass a script, or -m and a module", file=sys.stderr)
        return 2
    if not args.module and not os.path.exists(args.script):
        print(f"dnnops theano: there is no file {args.script}", file=sys.stderr)
        return 2

    from dnnops.theano import install

    install()
    sys.argv = [args.script, *args.arguments]
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
        traceback.print_exception(error.with_traceback(_of_the_script(error.__traceback__)))
        return 1
    return 0


def _of_the_script(trace: TracebackType | None) -> TracebackType | None:
    """Drop the traceback frames above the script's own; keep all frames if it has none."""
    inner = trace
    while inner is not None and inner.tb_frame.f_globals.get("__name__") != "__main__":
        inner = inner.tb_next
    # This command's __main__ is not in the trace, which begins in run().
    return inner or trace
