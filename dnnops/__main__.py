"""Run ``python -m dnnops COMMAND``, which is also installed as ``dnnops``."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from typing import TextIO

from dnnops.__about__ import __version__
from dnnops.cli import algos, cache, demo, doctor, explain, theano
from dnnops.cli.scripts import ScriptError
from dnnops.errors import DnnError

COMMANDS = {
    "doctor": doctor,
    "demo": demo,
    "algos": algos,
    "cache": cache,
    "explain": explain,
    "theano": theano,
}


#: Commands whose scripts print as under Python.
_RUN_SCRIPTS = ("explain", "theano")


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="dnnops", description="Neural-network operations for PyTensor on cuDNN and oneDNN."
    )
    parser.add_argument("--version", action="version", version=f"dnnops {__version__}")
    commands = parser.add_subparsers(title="commands", dest="command")
    for name, module in COMMANDS.items():
        module.add_arguments(
            commands.add_parser(name, help=module.HELP, description=module.__doc__)
        )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Parameters
    ----------
    argv : sequence of str, optional
        Command-line arguments without the program name. Default: the arguments of the process.

    Returns
    -------
    int
        Exit status: 0 for success, 1 for a reported failure, 2 for an invalid command line, 130 if
        interrupted, 141 if the reader of the output has closed the pipe.
    """
    parser = make_parser()
    args = parser.parse_args(argv)
    if args.command is None:
        parser.print_help()
        return 0
    for stream in ("stdout", "stderr"):
        if getattr(sys, stream) is None:  # closed by the caller
            setattr(sys, stream, open(os.devnull, "w"))  # noqa: SIM115
    _escape_what_cannot_be_encoded(sys.stderr)
    if args.command not in _RUN_SCRIPTS:
        _escape_what_cannot_be_encoded(sys.stdout)
    try:
        status = COMMANDS[args.command].run(args)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        _drop_output()
        return 141
    except OSError as error:
        _drop_output()
        print(f"dnnops {args.command}: {error}", file=sys.stderr)
        return 1
    except DnnError as error:
        print(f"dnnops {args.command}: {error}", file=sys.stderr)
        return 1
    except ScriptError as error:
        print(f"dnnops {args.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _escape_what_cannot_be_encoded(stream: TextIO) -> None:
    """Print names of files that are no text, and all else in ASCII locales, with escapes."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")


def _drop_output() -> None:
    """Discard pending output, so that flushing it doesn't fail again when the interpreter exits."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


if __name__ == "__main__":
    sys.exit(main())
