"""Run the tests that need a GPU, and record the outcome in ``docs/gpu_record.json``.

``python3 -m tests.gpu_record`` in a checkout with everything committed, or with ``--commit`` where
Git is not at hand. Nothing is written unless tests ran on a GPU. The exit status is 0 if none of
them failed, 1 if the record holds failures, and 2 if there is no record.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.configurations_run import FOLDER, count_configurations

ROOT = Path(__file__).parents[1]
RECORD = Path("docs", "gpu_record.json")

# What pytest returns when it ran to its end: all passed, or some failed.
_COMPLETE = (0, 1)


class RecordError(Exception):
    """There is nothing to record; the message says why."""


@dataclass
class Outcome:
    """The counts of one run.

    Attributes
    ----------
    passed, failed : int
        Tests. One that fails while it is set up or torn down has failed.
    skipped : Counter
        Tests by the reason why they didn't run.
    """

    passed: int = 0
    failed: int = 0
    skipped: Counter[str] = field(default_factory=Counter)

    def __add__(self, other: Outcome) -> Outcome:
        return Outcome(
            self.passed + other.passed, self.failed + other.failed, self.skipped + other.skipped
        )


def describe_device() -> dict[str, str]:
    """Name the GPU and the software on it.

    Returns
    -------
    dict
        The entries ``device`` to ``cupy`` of the record.

    Raises
    ------
    RecordError
        If there is no GPU, or cuDNN doesn't work on it.
    """
    try:
        import cupy
    except ImportError as error:
        raise RecordError(f"CuPy cannot be imported: {error}") from error
    import pytensor

    import dnnops
    from dnnops.gpu.base import cudnn_status

    runtime = cupy.cuda.runtime
    try:
        count = runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:
        raise RecordError(f"no GPU: {error}") from error
    if not count:
        raise RecordError("no GPU")
    if reason := cudnn_status():
        raise RecordError(f"cuDNN does not work: {reason}")
    cuda, cudnn = runtime.runtimeGetVersion(), dnnops.version()
    return {
        "device": runtime.getDeviceProperties(0)["name"].decode(),
        "driver": _driver_version(),
        "cuda": f"{cuda // 1000}.{cuda % 1000 // 10}",
        "cudnn": f"{cudnn // 10000}.{cudnn // 100 % 100}.{cudnn % 100}",
        "pytensor": pytensor.__version__,
        "cupy": cupy.__version__,
    }


def _driver_version() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        from dnnops.cli.checks import check_driver

        return next(iter(check_driver())).value
    return done.stdout.strip()


def find_commit(given: str | None) -> str:
    """Find out which commit is tested.

    Parameters
    ----------
    given : str or None
        Its hash, if Git is not to be asked.

    Returns
    -------
    str
        The hash.

    Raises
    ------
    RecordError
        If `given` is no hash, Git doesn't know, or files differ from the commit.
    """
    if given is not None:
        if not re.fullmatch(r"[0-9a-f]{40}", given):
            raise RecordError(f"{given!r} is not the full hash of a commit")
        return given
    commit = _git("rev-parse", "HEAD").strip()
    # The record that is about to be replaced doesn't count.
    changes = _git("status", "--porcelain", "--", ".", f":(exclude){RECORD.as_posix()}")
    if changes:
        raise RecordError(f"there are changes that are not committed:\n{changes.rstrip()}")
    return commit


def _git(*arguments: str) -> str:
    advice = "the commit is unknown; give it with --commit"
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise RecordError(f"{advice}: {error}") from error
    if done.returncode:
        raise RecordError(f"{advice}: {done.stderr.strip()}")
    return done.stdout


def run_tests(workers: int | None, gpus: int | None = None) -> tuple[Outcome, dict[str, int]]:
    """Run the tests marked ``gpu`` in processes of their own, and those marked ``alone`` at last.

    Parameters
    ----------
    workers : int or None
        How many processes share the others, through pytest-xdist; None to do without it.
    gpus : int or None
        Over how many GPUs these are spread; None if all of them use the first.

    Returns
    -------
    outcome : Outcome
        What happened.
    configurations : dict
        By the Op's class, of how many configurations it ran.

    Raises
    ------
    RecordError
        If pytest did not run to its end, or no test did.
    """
    # Options in the environment could leave out tests.
    environment = {key: v for key, v in os.environ.items() if key != "PYTEST_ADDOPTS"}
    if gpus is not None:
        environment["DNNOPS_TEST_GPUS"] = str(gpus)
    # A test that is interrupted leaves processes that may go on to write there.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        environment["DNNOPS_TEST_COMPILEDIRS"] = directory
        outcome = Outcome()
        # Each process has neighboring tests, which share what is compiled, until one has none left.
        parts: list[tuple[str, list[str]]] = [("gpu", [])]
        if workers is not None:
            spread = ["-p", "xdist", "-n", str(workers), "--dist=worksteal"]
            parts = [("gpu and not alone", spread), ("gpu and alone", [])]
        environment[FOLDER] = directory
        for marks, options in parts:
            outcome += _run_marked(marks, options, environment, Path(directory, "report.xml"))
        configurations = count_configurations(Path(directory))
    if outcome == Outcome():
        raise RecordError("there are no tests marked gpu")
    if not outcome.passed + outcome.failed:
        reasons = "".join(f"\n{count} tests: {why}" for why, count in outcome.skipped.items())
        raise RecordError(f"no test ran; all were skipped:{reasons}")
    return outcome, configurations


def _run_marked(
    marks: str, options: Sequence[str], environment: dict[str, str], report: Path
) -> Outcome:
    # Verbose: each failure has a line as soon as it is there, should the run not reach its end.
    command = [sys.executable, "-m", "pytest", "-v", "--durations=30", "-m", marks, "tests"]
    command += [*options, f"--junit-xml={report}"]
    done = subprocess.run(command, cwd=ROOT, env=environment, check=False)
    if done.returncode == 5:  # there are none
        return Outcome()
    if done.returncode not in _COMPLETE:
        raise RecordError(f"pytest did not finish: exit status {done.returncode}")
    outcome = read_report(report)
    if done.returncode and not outcome.failed:
        raise RecordError("pytest says that tests failed, and its report names none")
    return outcome


def read_report(path: Path) -> Outcome:
    """Count the tests of a report in JUnit's format.

    Parameters
    ----------
    path : Path
        The file that pytest wrote.

    Returns
    -------
    Outcome
        Its counts.
    """
    outcome = Outcome()
    # A test that fails and whose teardown fails as well has two entries.
    failed: set[tuple[str, str]] = set()
    others: list[tuple[tuple[str, str], str | None]] = []
    for case in ElementTree.parse(path).iter("testcase"):
        name = (case.get("classname", ""), case.get("name", ""))
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            failed.add(name)
        else:
            others.append((name, None if skipped is None else skipped.get("message", "")))
    outcome.failed = len(failed)
    for name, reason in others:
        if name in failed:
            continue
        if reason is None:
            outcome.passed += 1
        else:
            outcome.skipped[reason or "no reason given"] += 1
    return outcome


def write_record(record: dict[str, Any], path: Path) -> None:
    """Write the record, whole or not at all."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        scratch.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        os.replace(scratch, path)
    finally:
        scratch.unlink(missing_ok=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; see the module."""
    parser = argparse.ArgumentParser(
        prog="python3 -m tests.gpu_record",
        description=f"Run the tests marked gpu and write {RECORD}.",
    )
    parser.add_argument(
        "--commit", metavar="HASH", help="the full hash, where Git is not to be asked"
    )
    parser.add_argument("-n", type=int, dest="workers", help="processes, through pytest-xdist")
    parser.add_argument("--gpus", type=int, help="GPUs that the processes are spread over")
    args = parser.parse_args(arguments)
    try:
        # What would prevent a record is better said before the tests run than after.
        commit = find_commit(args.commit)
        device = describe_device()
        date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        outcome, configurations = run_tests(args.workers, args.gpus)
    except RecordError as error:
        print(f"{RECORD} is not written: {error}", file=sys.stderr)
        return 2
    record = {
        "date": date,
        **device,
        "passed": outcome.passed,
        "failed": outcome.failed,
        "skipped": dict(outcome.skipped.most_common()),
        "configurations": configurations,
        "commit": commit,
    }
    write_record(record, ROOT / RECORD)
    print(f"wrote {RECORD}: {outcome.passed} passed, {outcome.failed} failed")
    return 1 if outcome.failed else 0


if __name__ == "__main__":
    sys.exit(main())
