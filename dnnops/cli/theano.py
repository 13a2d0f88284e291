"""Run an unmodified Theano script on PyTensor and dnnops.

THEANO_FLAGS and .theanorc are read. In a program, call `dnnops.theano.install()` instead.
"""

from __future__ import annotations

import argparse

from dnnops.cli.scripts import add_script, has_script, run_script

__all__ = ["HELP", "add_arguments", "run"]

HELP = "run a script that was written for Theano"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.usage = "dnnops theano [-h] (SCRIPT | -m MODULE) [ARGUMENT ...]"
    add_script(parser)


def run(args: argparse.Namespace) -> int:
    """Run the script as ``python SCRIPT`` would, but with Theano's names installed.

    Returns
    -------
    int
        0 if the script ended, 1 if it raised an exception, 2 if there is no script. The script's
        own exit status is kept.

    Raises
    ------
    ScriptError
        If the file or module is no Python code.
    """
    if not has_script(args):
        return 2

    from dnnops.theano import install

    install()
    return run_script(args)
