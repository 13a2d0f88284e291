"""Run ``python -m dnnops COMMAND``, which is also installed as ``dnnops``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from dnnops.__about__ import __version__
from dnnops.cli import algos, cache, demo, doctor, explain, theano
from dnnops.errors import DnnError

COMMANDS = {
    "doctor": doctor,
    "demo": demo,
    "algos": algos,
    "cache": cache,
    "explain": explain,
    "theano": theano,
}


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
    except KeyboardInterrupt:
        return 130


def _drop_output() -> None:
    """Discard pending output, so that flushing it doesn't fail again when the interpreter exits."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


if __name__ == "__main__":
    sys.exit(main())
