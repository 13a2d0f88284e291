"""The command line that the benchmarks share."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness import BenchmarkError, Session, Settings, WorkerLostError
from benchmarks.machine import describe_machine
from benchmarks.report import Row, draw_ratios, print_table, ratios, write_benchmark

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Part", "at_least", "main"]

OUTPUT = Path(__file__).parents[1] / "docs" / "benchmarks"


@dataclass(frozen=True)
class Part:
    """A benchmark with its own file.

    Attributes
    ----------
    name : str
        Name on the command line.
    file : str
        Base name of its files.
    title : str
        Title of its table and picture.
    cases : callable
        Returns the cases of a session: dicts with a description, ``case``.
    measure : callable
        Returns the rows of a case.
    misses : callable
        Returns a message for each goal that the rows miss.
    draw : callable
        Draws the picture.
    environment : callable, optional
        Replaces the `environment` that was passed to `main`.
    prepare : callable, optional
        Called with the session and all cases to be measured, before the first is measured.
    summary : callable
        Returns what the table on the terminal shows of a row; everything by default.
    """

    name: str
    file: str
    title: str
    cases: Callable[[Session], list[dict[str, Any]]]
    measure: Callable[[Session, dict[str, Any]], list[Row]]
    misses: Callable[[Sequence[Row]], list[str]] = field(default=lambda rows: [])
    draw: Callable[[str, Sequence[Row]], Figure] = draw_ratios
    environment: Callable[[int], dict[str, str]] | None = None
    prepare: Callable[[Session, Sequence[dict[str, Any]]], None] | None = None
    summary: Callable[[Row], Row] = dict


def at_least(target: float, peer: str = "torch") -> Callable[[Sequence[Row]], list[str]]:
    """Return a `Part.misses` for a required speed relative to a peer."""

    def misses(rows: Sequence[Row]) -> list[str]:
        return [
            f"{row['case']}: {ratios(row)[peer]:.2f} times as fast as {peer}, not {target:g} times"
            for row in rows
            if ratios(row)[peer] < target
        ]

    return misses


def main(
    description: str,
    parts: Sequence[Part],
    environment: Callable[[int], dict[str, str]],
    arguments: Sequence[str] | None = None,
) -> int:
    """Measure what the command line asks for.

    Parameters
    ----------
    description : str
        Description for ``--help``.
    parts : sequence of Part
        The parts that can be measured.
    environment : callable
        Returns the environment variables of the workers, given the number of threads.
    arguments : sequence of str, optional
        Arguments to parse; by default those of the command line.

    Returns
    -------
    int
        Exit status: 1 if something failed or missed its goal.
    """
    names = [part.name for part in parts]
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"what to measure: {', '.join(names)}"
    )
    parser.add_argument(
        "--only",
        metavar="PATTERN",
        help="measure only cases whose part or name contains this; print the rows, write nothing",
    )
    parser.add_argument("--threads", type=int, default=2, help="threads of each library")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each library")
    parser.add_argument("--turn", type=float, default=0.4, metavar="S", help="seconds of a turn")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="where the files go")
    parser.add_argument(
        "--small", action="store_true", help="use small sizes for a quick check; write nothing"
    )
    parser.add_argument(
        "--rows",
        type=Path,
        metavar="FILE",
        help="store rows in this file as soon as they are measured, and skip rows that it has",
    )
    parser.add_argument(
        "--deadline",
        type=float,
        metavar="S",
        help="start no case after this many seconds; continue later with --rows",
    )
    args = parser.parse_args(arguments)
    if unknown := set(args.parts) - set(names):
        parser.error(f"no such part: {', '.join(sorted(unknown))}; parts are {', '.join(names)}")
    for package in ("matplotlib", "rich"):
        try:
            importlib.import_module(package)
        except ImportError:
            parser.error(f"{package} is missing: pip install 'dnnops[demo]'")

    problems: list[str] = []
    for part in parts:
        if args.parts and part.name not in args.parts:
            continue
        settings = Settings(args.rounds, args.turn)
        variables = (part.environment or environment)(args.threads)
        with Session(variables, settings, args.small) as session:
            cases = part.cases(session)
            if args.only:
                cases = [
                    c for c in cases if args.only.lower() in f"{part.name} {c['case']}".lower()
                ]
            if cases:
                problems += _run(part, cases, session, args)
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


def _run(
    part: Part, cases: Sequence[dict[str, Any]], session: Session, args: argparse.Namespace
) -> list[str]:
    """Measure a part and return its problems."""
    machine = describe_machine(args.threads)
    # By the description of each case, with the versions that measured it.
    kept = _kept(args.rows, part) if args.rows else {}
    rows: list[Row] = []
    problems: list[str] = []
    begin = time.perf_counter()
    missing = [case for case in cases if case["case"] not in kept]
    if part.prepare and missing:
        part.prepare(session, missing)
        print(f"{time.perf_counter() - begin:6.1f} s  prepared {part.name}", flush=True)
    for number, case in enumerate(cases):
        start = time.perf_counter()
        if case["case"] in kept:
            new, versions = kept[case["case"]]
        elif args.deadline is not None and start - begin > args.deadline:
            problems.append(
                f"error: {part.name}: stopped at the deadline of {args.deadline:g} s; of"
                f" {len(cases)} cases, number {number + 1} and later are missing: {case['case']}"
            )
            break
        else:
            try:
                new = part.measure(session, case)
                versions = dict(session.versions)
                for worker in list(session.workers.values()):
                    versions.update(worker.call("versions"))
            except BenchmarkError as error:
                problems.append(f"error: {part.name}: {case['case']}: {error}")
                print(problems[-1], file=sys.stderr, flush=True)
                if isinstance(error, WorkerLostError):
                    session.__exit__()  # the next case restarts them
                continue
            # Printed at once, in case a later case fails.
            for row in new:
                print(f"{time.perf_counter() - start:6.1f} s  {json.dumps(row)}", flush=True)
            if args.rows:
                with args.rows.open("a") as file:
                    line = {"part": part.name, "case": case["case"], "rows": new}
                    file.write(json.dumps({**line, "versions": versions}) + "\n")
        rows += new
        machine.update(versions)
    if rows:
        print_table(part.title, [part.summary(row) for row in rows])
        problems += [f"missed: {part.name}: {miss}" for miss in part.misses(rows)]
    if any(problem.startswith("error") for problem in problems):
        return problems
    if not (args.only or args.small):
        path = write_benchmark(args.output, part.file, part.title, machine, rows, part.draw)
        print(f"wrote {path}")
    return problems


def _kept(path: Path, part: Part) -> dict[str, tuple[list[Row], dict[str, Any]]]:
    """Return the rows of a part that a file has, and the versions that measured them, by case."""
    if not path.exists():
        return {}
    found = map(json.loads, path.read_text().splitlines())
    return {
        line["case"]: (line["rows"], line["versions"])
        for line in found
        if line["part"] == part.name
    }
