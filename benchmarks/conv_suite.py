"""Compare convolutions with PyTorch and JAX on GPUs: ``python -m benchmarks.conv_suite``."""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from benchmarks.conv_cases import CASES, Work, row_key, rows_in_order, small_cases, units
from benchmarks.conv_measure import DeadlinePassedError, Gpu, SuiteSettings
from benchmarks.conv_rows import (
    draw_suite,
    geometric_mean,
    losses,
    misses,
    ratio,
    ratios,
    read_rows,
    summary,
    why,
)
from benchmarks.harness import BenchmarkError
from benchmarks.machine import describe_machine
from benchmarks.peers.device_timer import build
from benchmarks.report import Row, write_benchmark

__all__ = ["TITLE", "main", "selected", "work_through"]

OUTPUT = Path(__file__).parents[1] / "docs" / "benchmarks"
FILE = "conv_suite"
TITLE = "Convolutions on the GPU, beside the faster of PyTorch and JAX"
#: Seconds between two progress lines.
_REPORT_S = 15.0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--gpus", type=int, default=1, help="number of GPUs to use")
    parser.add_argument(
        "--rows",
        type=Path,
        default=Path("conv_suite_rows.jsonl"),
        help="file to which rows are appended as soon as they are measured",
    )
    parser.add_argument(
        "--resume",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="files with rows that are already measured",
    )
    parser.add_argument(
        "--retry", action="store_true", help="repeat rows in which a library failed"
    )
    parser.add_argument(
        "--retry-losses",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="repeat the rows of these files that are below the loss limit, with more rounds; the"
        " second measurement counts, whether it is better or worse",
    )
    parser.add_argument("--deadline", type=float, metavar="S", help="stop after this many seconds")
    parser.add_argument(
        "--shard", default="0/1", metavar="I/N", help="only every Nth case and direction"
    )
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        metavar="WORD",
        help="measure only rows whose case, direction, precision and layout contain all of these",
    )
    parser.add_argument("--count", type=int, metavar="N", help="only the first N rows")
    parser.add_argument(
        "--rounds", type=int, default=5, help="minimum number of turns of each library"
    )
    parser.add_argument(
        "--slopes", action="store_true", help="measure with the host's clock too, for comparison"
    )
    parser.add_argument(
        "--merge",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="measure nothing; write the benchmark's files from these files of rows",
    )
    parser.add_argument("--output", type=Path, default=OUTPUT, help="where --merge writes")
    parser.add_argument("--list", action="store_true", help="measure nothing; list the rows")
    parser.add_argument(
        "--small", action="store_true", help="use small sizes on the CPU for a quick check"
    )
    args = parser.parse_args(arguments)
    try:
        args.shard = tuple(map(int, args.shard.split("/")))
        shard, shards = args.shard
    except ValueError:
        parser.error(f"--shard {args.shard}: expected I/N, for example 0/4")
    if not 0 <= shard < shards:
        parser.error(f"--shard {shard}/{shards}: I must be from 0 to N - 1")
    return args


def selected(args: argparse.Namespace, done: Sequence[Row]) -> list[Work]:
    """Return the rows that the command line asks for, in order, without those already measured."""
    rows = rows_in_order(small_cases() if args.small else CASES)
    if args.only:
        rows = [
            row
            for row in rows
            if all(word.lower() in " ".join((row[0].words, *row[1:])).lower() for word in args.only)
        ]
    shard, shards = args.shard
    rows = [row for unit in units(rows)[shard::shards] for row in unit]
    if args.retry_losses:
        _, first = read_rows(args.retry_losses)
        # Never a third time: repeating until a row wins by chance would bias the result.
        wanted = {row_key(row) for row in losses(first) if not row.get("remeasured")}
        rows = [row for row in rows if (row[0].words, *row[1:]) in wanted]
        done = [row for row in done if row.get("remeasured")]
    if args.count is not None:
        rows = rows[: args.count]
    known = {row_key(row) for row in done if not (args.retry and row.get("reasons"))}
    return [row for row in rows if (row[0].words, *row[1:]) not in known]


class Writer:
    """Write rows as they come, from several threads, and print the progress."""

    def __init__(self, file: TextIO, total: int) -> None:
        self.file = file
        self.total = total
        self.rows: list[Row] = []
        self._lock = threading.Lock()
        self._start = self._told = time.monotonic()

    def machine(self, found: dict[str, Any]) -> None:
        with self._lock:
            self._write({"machine": found})

    def row(self, row: Row) -> None:
        with self._lock:
            self._write(row)
            self.rows.append(row)
            if time.monotonic() - self._told > _REPORT_S or len(self.rows) in (1, self.total):
                self._told = time.monotonic()
                self._tell(row)

    def _write(self, entry: dict[str, Any]) -> None:
        self.file.write(json.dumps(entry, allow_nan=False) + "\n")
        self.file.flush()

    def _tell(self, row: Row) -> None:
        took = time.monotonic() - self._start
        mean = geometric_mean(ratios(self.rows))
        print(
            f"{took:6.0f} s  {len(self.rows)} of {self.total} rows, mean {mean:.3f}, "
            f"{len(losses(self.rows))} losses; last: {', '.join(row_key(row))}, "
            f"{ratio(row) or 0:.2f}, {row['all_s']:.1f} s",
            flush=True,
        )


def work_through(
    gpus: Sequence[Gpu], work: Sequence[Work], writer: Writer, deadline: float
) -> list[str]:
    """Measure rows on all GPUs, each taking the next case and direction.

    Parameters
    ----------
    gpus : sequence of Gpu
        GPUs; each is served by a thread.
    work : sequence of tuple
        Rows to measure, in order.
    writer : Writer
        Receives the rows.
    deadline : float
        Time of `time.monotonic` after which no row is started.

    Returns
    -------
    list of str
        Errors that stopped the work of a GPU.
    """
    # Threads may use both ends of a deque safely.
    remaining = deque(units(work))
    problems: list[str] = []

    def serve(gpu: Gpu) -> None:
        rows: deque[Work] = deque()
        try:
            with gpu:
                versions = gpu.versions()
                if gpu is gpus[0]:
                    writer.machine({**versions, "gpus": len(gpus)})
                while time.monotonic() < deadline and (rows or remaining):
                    if not rows:
                        with suppress(IndexError):  # another thread took the last one
                            rows.extend(remaining.popleft())
                        continue
                    writer.row(gpu.measure(*rows.popleft()))
        except DeadlinePassedError:
            pass
        except Exception as error:  # the other GPUs continue
            problems.append(f"error: GPU {gpu.number}: {type(error).__name__}: {error}")
            if rows:
                remaining.appendleft(list(rows))

    threads = [threading.Thread(target=serve, args=(gpu,)) for gpu in gpus]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return problems


def measure(args: argparse.Namespace, make_gpu: Callable[..., Gpu] = Gpu) -> list[str]:
    """Measure what the command line asks for, print the results, and return the problems."""
    start = time.monotonic()
    deadline = start + args.deadline if args.deadline else float("inf")
    before = (*args.retry_losses, *args.resume, args.rows)
    known = [path for path in dict.fromkeys(before) if path.exists()]
    _, done = read_rows(known)
    work = selected(args, done)
    print(f"{len(work)} rows to measure, {len(done)} known", flush=True)
    device = "cpu" if args.small else "cuda"
    with tempfile.TemporaryDirectory() as directory:
        timer, without_jax = build(Path(directory), device == "cuda")
        if without_jax:
            print(f"JAX is timed by the host's clock: {without_jax}", file=sys.stderr)
        settings = SuiteSettings(
            str(timer),
            device,
            args.rounds,
            args.slopes,
            deadline,
            args.gpus,
            again=bool(args.retry_losses),
        )
        with args.rows.open("a", encoding="utf-8") as file:
            writer = Writer(file, len(work))
            writer.machine(describe_machine(1))
            gpus = [make_gpu(number, settings) for number in range(args.gpus)]
            problems = work_through(gpus, work, writer, deadline)
    print(f"{time.monotonic() - start:.0f} s, {len(writer.rows)} rows in {args.rows}")
    _, rows = read_rows([*known, args.rows])
    show(rows)
    left = len(selected(args, rows))
    if left:
        problems.append(f"{left} rows remain; continue with --resume")
    return problems + [f"missed: {miss}" for miss in misses(rows)]


def show(rows: Sequence[Row], most: int = 30) -> None:
    """Print a summary of the rows, and the worst of them."""
    for words, count, figure in summary(rows):
        print(f"{figure:>14}  {words} ({count} rows)")
    for row in losses(rows)[:most]:
        times = " ".join(
            f"{name} {row.get(f'{name}_ms') or float('nan'):.4f}"
            for name in ("time", "guess", "torch", "jax")
        )
        print(
            f"{ratio(row) or 0:.2f} {', '.join(row_key(row))}: {times}; {row['plan']}; {why(row)}"
        )


def write(args: argparse.Namespace) -> list[str]:
    """Write the benchmark's files from files of rows."""
    machine, rows = read_rows(args.merge)
    if not rows:
        return ["error: there are no rows"]
    show(rows)
    rows = [{**row, "why": why(row)} if row in losses(rows) else row for row in rows]
    print(f"wrote {write_benchmark(args.output, FILE, TITLE, machine, rows, draw_suite)}")
    return [f"missed: {miss}" for miss in misses(rows)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status is 1 if something failed or missed its goal."""
    args = parse(arguments)
    try:
        if args.list:
            for row in itertools.islice(selected(args, []), 5000):
                print(", ".join((row[0].words, *row[1:])))
            return 0
        problems = write(args) if args.merge else measure(args)
    except BenchmarkError as error:
        problems = [f"error: {error}"]
    for problem in problems[:40]:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
