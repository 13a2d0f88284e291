"""List and time every plan of one convolution, and show the plan that each flag value selects."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dnnops.errors import DnnTypeError, DnnValueError

if TYPE_CHECKING:
    from dnnops.plans import Progress, Survey
    from dnnops.plans.cases import PlanCase

HELP = "list and time the plans of a convolution"

_LIST = re.compile(r"-?\d+(?:[,x]-?\d+)*")
_PAIRS = re.compile(r"\d+(?::\d+)?(?:[,x]\d+(?::\d+)?)*")
_SEPARATOR = re.compile("[,x]")
# Python refuses to convert numbers of thousands of digits.
_LONGEST = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    shape = parser.add_argument_group("the convolution")
    shape.add_argument(
        "--input",
        required=True,
        metavar="N,C,H,W",
        help="shape of the images: batch, channels, one to three spatial sizes",
    )
    shape.add_argument(
        "--filter",
        required=True,
        metavar="K,C,R,S",
        help="shape of the filters: output channels, input channels of a group, spatial sizes",
    )
    shape.add_argument(
        "--pad",
        default="valid",
        metavar="P",
        help="padding: valid, half, full, 3, or one per axis, as 3,1 or 0:2,1:1 (before:after)",
    )
    shape.add_argument("--stride", default="1", metavar="S", help="one, or one per axis")
    shape.add_argument(
        "--dilation", default="1", metavar="D", help="of the filters: one, or one per axis"
    )
    shape.add_argument("--groups", default="1", metavar="G", help="groups of channels")
    shape.add_argument(
        "--no-flip", action="store_true", help="compute a correlation: do not flip the filters"
    )
    shape.add_argument(
        "--direction",
        default="forward",
        metavar="D",
        help="forward (default), backward_data, backward_filter or all",
    )
    shape.add_argument(
        "--dtype", default="float32", metavar="T", help="float16, bfloat16, float32 or float64"
    )
    shape.add_argument(
        "--memory-format",
        default="contiguous",
        metavar="F",
        help="contiguous (default) or channels_last",
    )
    settings = parser.add_argument_group("cuDNN's settings (default: the flags)")
    settings.add_argument("--precision", metavar="P", help="as the flag dnn.conv.precision")
    settings.add_argument(
        "--allow-tf32",
        action=argparse.BooleanOptionalAction,
        help="whether float32 operands may be rounded to TF32",
    )
    settings.add_argument(
        "--deterministic",
        action=argparse.BooleanOptionalAction,
        help="whether to use only plans that give the same bits in every run",
    )
    settings.add_argument(
        "--workspace-limit", metavar="SIZE", help="such as 512MB: skip plans that need more"
    )
    output = parser.add_argument_group("execution and output")
    output.add_argument(
        "--device", metavar="D", help="cpu, cuda, cuda1...; default: cuda if cuDNN works, else cpu"
    )
    output.add_argument("--no-time", action="store_true", help="list plans without running them")
    output.add_argument(
        "--energy", action="store_true", help="measure millijoules per call if a GPU reports them"
    )
    output.add_argument("--json", action="store_true", help="print one JSON object instead")


def run(args: argparse.Namespace) -> int:
    """Run the command.

    Parameters
    ----------
    args : argparse.Namespace
        Arguments declared by `add_arguments`.

    Returns
    -------
    int
        0 for success, 1 if no plan can be run in some direction, 2 if an argument is invalid.

    Raises
    ------
    DnnError
        If a library or the device cannot be used.
    """
    try:
        if args.energy and args.no_time:
            raise DnnValueError("--energy runs the plans, which --no-time forbids; use only one")
        cases = _cases(args)
    except (DnnValueError, DnnTypeError) as error:
        print(f"dnnops algos: {error}", file=sys.stderr)
        return 2
    from dnnops.cli import algos_report
    from dnnops.plans import survey

    found: list[Survey] = []
    for case in cases:
        with _progress_bar(case) as progress:
            result = survey(case, time=not args.no_time, energy=args.energy, progress=progress)
        if not args.json:
            if not found:
                print(algos_report.heading(case))
            algos_report.print_survey(result)
        found.append(result)
    if args.json:
        print(json.dumps(algos_report.as_json(found), indent=2))
    some_cannot = any(all(plan.reason for plan in result.plans) for result in found)
    return 1 if some_cannot else 0


def _cases(args: argparse.Namespace) -> list[PlanCase]:
    """Return the convolutions that the command line describes, one per direction."""
    from dnnops.plans.arguments import DIRECTION_NAMES, make_case
    from dnnops.plans.cases import DIRECTIONS

    if args.direction not in (*DIRECTION_NAMES, "all"):
        names = ", ".join(dict.fromkeys([*DIRECTIONS.values(), *DIRECTION_NAMES, "all"]))
        raise DnnValueError(f"--direction must be one of {names}; got {args.direction!r}")
    shared = {
        "input_shape": _integers("--input", args.input, 1),
        "filter_shape": _integers("--filter", args.filter, 1),
        "border_mode": _padding(args.pad),
        "subsample": _one_or_each("--stride", args.stride),
        "filter_dilation": _one_or_each("--dilation", args.dilation),
        "num_groups": _one("--groups", args.groups),
        "filter_flip": not args.no_flip,
        "dtype": args.dtype,
        "precision": args.precision,
        "memory_format": args.memory_format,
        "allow_tf32": args.allow_tf32,
        "deterministic": args.deterministic,
        "workspace_limit": args.workspace_limit,
        "device": args.device,
    }
    wanted = DIRECTIONS if args.direction == "all" else [args.direction]
    return [make_case(**shared, direction=direction) for direction in wanted]


def _integers(option: str, text: str, minimum: int) -> tuple[int, ...]:
    if not _LIST.fullmatch(text) or len(text) > _LONGEST:
        raise DnnValueError(f"{option} must be integers separated by commas; got {text!r}")
    numbers = tuple(map(int, _SEPARATOR.split(text)))
    if min(numbers) < minimum:
        raise DnnValueError(f"{option}: numbers must be at least {minimum}; got {text!r}")
    return numbers


def _one(option: str, text: str) -> int:
    numbers = _integers(option, text, 1)
    if len(numbers) > 1:
        raise DnnValueError(f"{option} must be one integer; got {text!r}")
    return numbers[0]


def _one_or_each(option: str, text: str) -> int | tuple[int, ...]:
    numbers = _integers(option, text, 1)
    return numbers[0] if len(numbers) == 1 else numbers


def _padding(text: str) -> Any:
    if text in ("valid", "half", "full"):
        return text
    if not _PAIRS.fullmatch(text) or len(text) > _LONGEST:
        raise DnnValueError(
            "--pad must be valid, half, full, or nonnegative integers, one for all axes or one per"
            f" axis, such as 3,1 or 0:2,1:1 (before:after); got {text!r}"
        )
    entries = [tuple(map(int, entry.split(":"))) for entry in _SEPARATOR.split(text)]
    pads = [entry if len(entry) == 2 else entry[0] for entry in entries]
    return pads[0] if len(pads) == 1 and isinstance(pads[0], int) else tuple(pads)


@contextmanager
def _progress_bar(case: PlanCase) -> Iterator[Progress | None]:
    """Show the progress of the timing on a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"plans, {case.direction}", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
