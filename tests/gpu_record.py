"""Run the GPU tests, and record the outcome in ``docs/gpu_record.json``.

Run ``python3 -m tests.gpu_record`` in a checkout without uncommitted changes, or with ``--commit``
if Git is not available. Nothing is written unless tests ran on a GPU. The exit status is 0 if all
passed, 1 if the record has failures, and 2 if there is no record.
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

from dnnops.runtime import output
from tests.configurations_run import FOLDER, count_configurations

ROOT = Path(__file__).parents[1]
RECORD = Path("docs", "gpu_record.json")

# pytest's exit statuses after a complete run: all passed, or some failed.
_COMPLETE = (0, 1)


class RecordError(Exception):
    """Raised when there is nothing to record."""


@dataclass
class Outcome:
    """Counts of one run.

    Attributes
    ----------
    passed, failed : int
        Numbers of tests. An error in setup or teardown counts as a failure.
    skipped : Counter
        Numbers of skipped tests by reason.
    """

    passed: int = 0
    failed: int = 0
    skipped: Counter[str] = field(default_factory=Counter)

    def __add__(self, other: Outcome) -> Outcome:
        return Outcome(
            self.passed + other.passed, self.failed + other.failed, self.skipped + other.skipped
        )


def describe_device() -> dict[str, str]:
    """Return the names of the GPU and its software.

    Returns
    -------
    dict
        The entries ``device`` to ``cupy`` of the record.

    Raises
    ------
    RecordError
        If there is no GPU, or cuDNN does not work on it.
    """
    try:
        import cupy
    except ImportError as error:
        raise RecordError(f"CuPy cannot be imported: {error}") from error
    import pytensor

    import dnnops
    from dnnops.gpu.library import cudnn_status

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


def count_gpus() -> int:
    """Return the number of GPUs that this process sees, which has found at least one."""
    import cupy

    return cupy.cuda.runtime.getDeviceCount()


def _driver_version() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        from dnnops.cli.checks import check_driver

        return next(iter(check_driver())).value
    return done.stdout.strip()


def find_commit(given: str | None) -> str:
    """Return the hash of the tested commit.

    Parameters
    ----------
    given : str or None
        Hash to use without asking Git.

    Returns
    -------
    str
        The hash.

    Raises
    ------
    RecordError
        If `given` is not a hash, Git does not know the commit, or files differ from it.
    """
    if given is not None:
        if not re.fullmatch(r"[0-9a-f]{40}", given):
            raise RecordError(f"{given!r} is not the full hash of a commit")
        return given
    commit = _git("rev-parse", "HEAD").strip()
    # Ignore the record, which is about to be replaced.
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


def run_tests(workers: int | None, gpus: int = 1) -> tuple[Outcome, dict[str, int]]:
    """Run the tests marked ``gpu`` in separate processes, those marked ``alone`` last.

    Parameters
    ----------
    workers : int or None
        Number of pytest-xdist processes for the other tests; None to run without pytest-xdist.
    gpus : int
        Number of GPUs for these processes, each of which sees one.

    Returns
    -------
    outcome : Outcome
        The counts.
    configurations : dict
        Number of configurations that ran, by the Op's class.

    Raises
    ------
    RecordError
        If pytest did not finish, or no test ran.
    """
    # Options in the environment could deselect tests.
    environment = {key: v for key, v in os.environ.items() if key != "PYTEST_ADDOPTS"}
    environment["DNNOPS_TEST_GPUS"] = str(gpus)
    if workers is not None:
        # As many threads as cores in each process would compete for them.
        environment.setdefault("OMP_NUM_THREADS", "1")
    environment.setdefault("DNNOPS_TEST_SEED", "random")  # the working files may differ from HEAD
    # Processes of an interrupted test may still write there.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        environment["DNNOPS_TEST_COMPILEDIRS"] = directory
        outcome = Outcome()
        # Neighboring tests share compiled modules, so they stay in a process until another is idle.
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
    # Verbose, so that each failure is printed at once; the run may not reach its end.
    command = [sys.executable, "-m", "pytest", "-v", "--durations=30", "-m", marks, "tests"]
    command += [*options, f"--junit-xml={report}"]
    done = subprocess.run(command, cwd=ROOT, env=environment, check=False)
    if done.returncode == 5:  # no tests were collected
        return Outcome()
    if done.returncode not in _COMPLETE:
        raise RecordError(f"pytest did not finish: exit status {done.returncode}")
    outcome = read_report(report)
    if done.returncode and not outcome.failed:
        raise RecordError("pytest says that tests failed, and its report names none")
    return outcome


def read_report(path: Path) -> Outcome:
    """Count the tests in a JUnit report.

    Parameters
    ----------
    path : Path
        Report that pytest wrote.

    Returns
    -------
    Outcome
        The counts.
    """
    outcome = Outcome()
    # A test has two entries if its teardown fails, too.
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
    """Write the record atomically."""
    output.write(path, json.dumps(record, indent=1) + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; see the module's docstring."""
    parser = argparse.ArgumentParser(
        prog="python3 -m tests.gpu_record",
        description=f"Run the tests marked gpu and write {RECORD}.",
    )
    parser.add_argument(
        "--commit", metavar="HASH", help="the full hash, where Git is not to be asked"
    )
    parser.add_argument("-n", type=int, dest="workers", help="processes, through pytest-xdist")
    parser.add_argument(
        "--gpus", type=int, help="GPUs that the processes are spread over; default: all"
    )
    args = parser.parse_args(arguments)
    try:
        # Find out before the tests run whether a record is possible.
        commit = find_commit(args.commit)
        device = describe_device()
        date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        outcome, configurations = run_tests(args.workers, args.gpus or count_gpus())
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
