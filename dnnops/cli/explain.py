"""Run a script, and explain the PyTensor functions that it compiled, the most expensive first.

After the script has ended, each function runs again with the arguments of its last call, and the
time and memory of its nodes are measured. Shared variables are not updated. Numba, PyTensor's
default linker, compiles a function into one piece, whose nodes are only listed; set the flag
mode=DNN to measure them.
"""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import ExitStack, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dnnops.cli.options import integer
from dnnops.cli.scripts import add_script, has_script, run_script
from dnnops.runtime import output

if TYPE_CHECKING:
    from dnnops.cli.recording import RecordedFunction
    from dnnops.explanation import Explanation

__all__ = ["HELP", "add_arguments", "run"]

HELP = "run a script, and show what its functions run"

#: Version of the JSON that the command writes.
VERSION = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.usage = "dnnops explain [OPTION ...] (SCRIPT | -m MODULE) [ARGUMENT ...]"
    parser.add_argument(
        "--function", metavar="F", help="show one function: its name, or its number in the output"
    )
    parser.add_argument(
        "--calls",
        type=integer(0),
        default=5,
        metavar="N",
        help="measured calls of each function; 0 only lists nodes; default: 5",
    )
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="write JSON; with -, to the standard output instead of tables, and what the script"
        " prints goes to the standard error",
    )
    parser.add_argument(
        "--plot",
        type=Path,
        metavar="FILE",
        help="draw the most expensive function shown that was measured, with matplotlib",
    )
    add_script(parser)


def run(args: argparse.Namespace) -> int:
    """Run the script as ``python SCRIPT`` would, then explain its functions.

    Returns
    -------
    int
        0 for success; 1 if the script raised an exception or compiled no function; 2 if there is no
        script, a file cannot be written, or there is no such function. The script's own exit status
        is kept.

    Raises
    ------
    DnnUnavailableError
        If a picture is to be drawn, but matplotlib is missing.
    ScriptError
        If the file or module is no Python code.
    """
    if not has_script(args):
        return 2
    to_stdout = args.json is not None and str(args.json) == "-"

    from dnnops.cli.recording import recording
    from dnnops.explanation.picture import can_draw
    from dnnops.explanation.picture import obstacle as obstacle_to_picture

    for file, obstacle in (
        (args.plot, obstacle_to_picture),
        (None if to_stdout else args.json, output.obstacle),
    ):
        if file is not None and (reason := obstacle(file)):
            return _failed(f"cannot write {file}: {reason}", 2)
    with ExitStack() as stack:
        if to_stdout:
            stack.enter_context(redirect_stdout(sys.stderr))
        with recording() as functions:
            status = _exit_status(args)
        ordered = sorted(functions, key=lambda entry: -entry.seconds)
        if not ordered:
            return _failed(f"{args.script} compiled no PyTensor function", status or 1)
        chosen = _chosen(ordered, args.function)
        if not chosen:
            names = ", ".join(f"{i} {_name(entry)}" for i, entry in enumerate(ordered, 1))
            return _failed(f"there is no function {args.function}; there are: {names}", 2)
        explained = {i: _explained(ordered[i - 1], args.calls) for i in chosen}
    if not to_stdout:
        for i, explanation in explained.items():
            print(f"\n{_summary(i, ordered[i - 1])}\n{explanation}")
    if args.json is not None:
        text = json.dumps(_as_dict(args, status, ordered, explained), indent=2)
        if to_stdout:
            print(text)
        else:
            output.write(args.json, text + "\n")
    if args.plot is not None:
        shown = list(explained.values())
        # The first one raises the error if none can be drawn.
        next(filter(can_draw, shown), shown[0]).plot(args.plot)
    return status


def _failed(message: str, status: int) -> int:
    print(f"dnnops explain: {message}", file=sys.stderr)
    return status


def _exit_status(args: argparse.Namespace) -> int:
    """Run the script, and return its exit status."""
    try:
        return run_script(args)
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            return stop.code or 0
        print(stop.code, file=sys.stderr)
        return 1


def _chosen(functions: list[RecordedFunction], wanted: str | None) -> list[int]:
    """Return the numbers of the functions to show, from 1 on."""
    numbers = range(1, len(functions) + 1)
    if wanted is None:
        return list(numbers)
    named = [i for i in numbers if functions[i - 1].function.name == wanted]
    return named or [i for i in numbers if str(i) == wanted]


def _explained(entry: RecordedFunction, calls: int) -> Explanation:
    """Measure a function, or only describe it if that is not possible, and say why."""
    from dnnops.errors import DnnNotSupportedError
    from dnnops.explanation import explain

    if not calls:
        return explain(entry.function)
    if not entry.calls:
        return replace(explain(entry.function), note="Not measured: the script did not call it")
    try:
        return explain(entry.function, *entry.arguments, calls=calls, named=entry.named)
    except DnnNotSupportedError as error:
        described = explain(entry.function)
        return described if described.note else replace(described, note=str(error))
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        return replace(explain(entry.function), note=f"Not measured: {reason}")


def _name(entry: RecordedFunction) -> str:
    return entry.function.name or "function"


def _summary(number: int, entry: RecordedFunction) -> str:
    times = "1 call" if entry.calls == 1 else f"{entry.calls} calls"
    return f"-- {number}: {times} in the script, {entry.seconds:.3f} s"


def _as_dict(
    args: argparse.Namespace,
    status: int,
    functions: list[RecordedFunction],
    explained: dict[int, Explanation],
) -> dict[str, Any]:
    return {
        "schema": "dnnops.explain.script",
        "version": VERSION,
        "script": args.script,
        "status": status,
        "functions": [
            {
                "number": i,
                "script_calls": functions[i - 1].calls,
                "script_seconds": functions[i - 1].seconds,
                "explanation": explanation.to_dict(),
            }
            for i, explanation in explained.items()
        ],
    }
