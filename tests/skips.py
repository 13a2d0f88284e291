"""Which tests were skipped, and what may be missing: ``tests/skips.json`` lists it for each run.

Each run of pytest stores in pytest's cache how many tests were skipped, by need. ``python -m
tests.skips NAME`` fails if there are needs among them that the row NAME of the file has not, or
tests that were skipped for another reason.

The cache also has the names of the skipped tests, in ``.pytest_cache/v/dnnops/skipped``. With
``--only-skipped=FILE``, pytest runs the tests that a file lists, as what they need is there now.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

__all__ = ["SkipCounter", "add_option", "keep_skipped", "main", "not_allowed"]

ROOT = Path(__file__).parents[1]
ROWS = Path("tests", "skips.json")
#: The key in pytest's cache, and the path of its file.
KEY = "dnnops/skips"
FOUND = Path(".pytest_cache", "v", KEY)
#: The same for the names of the skipped tests, and of files that were skipped as a whole.
KEY_OF_NAMES = "dnnops/skipped"
NAMES = Path(".pytest_cache", "v", KEY_OF_NAMES)


def _kind(reason: str) -> str:
    """Return the missing need if that is why a test was skipped."""
    match = re.search(r"needs ([\w ]+):", reason)
    return match[1] if match else "other"


class SkipCounter:
    """A pytest plugin that stores in the cache which tests were skipped, and how many by need."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.found: Counter[str] = Counter()
        self.names: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            self._count(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self._count(report)

    def _count(self, report: Any) -> None:
        *_, reason = report.longrepr
        self.found[_kind(reason)] += 1
        self.names.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        if getattr(self.config, "cache", None) is not None:
            self.config.cache.set(KEY, dict(sorted(self.found.items())))
            self.config.cache.set(KEY_OF_NAMES, sorted(self.names))


def add_option(parser: pytest.Parser) -> None:
    """Add the option ``--only-skipped``."""
    parser.addoption(
        "--only-skipped",
        metavar="FILE",
        help=f"run only the tests that another run skipped; FILE is a copy of its {NAMES}",
    )


def keep_skipped(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests that are not in the file of ``--only-skipped``, if it is given.

    Raises
    ------
    pytest.UsageError
        If the file does not exist or is not such a file.
    """
    file = config.getoption("--only-skipped")
    if not file:
        return
    try:
        names = set(json.loads(Path(file).read_text()))
    except (OSError, ValueError) as error:
        raise pytest.UsageError(f"--only-skipped: {error}") from error
    kept = [item for item in items if {item.nodeid, item.nodeid.partition("::")[0]} & names]
    config.hook.pytest_deselected(items=list(set(items).difference(kept)))
    items[:] = kept


def not_allowed(found: Mapping[str, int], allowed: Iterable[str]) -> list[str]:
    """Report the skipped tests that should have run.

    Parameters
    ----------
    found : mapping of str to int
        Numbers of skipped tests by need.
    allowed : iterable of str
        The needs that may be missing.

    Returns
    -------
    list of str
        A line for each other need.
    """
    others = sorted(set(found).difference(allowed))
    return [f"{need}: may not be missing here, skipped: {found[need]}" for need in others]


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Run the command. Return 1 if others were skipped, and 2 if there is nothing to compare."""
    parser = argparse.ArgumentParser(prog="python -m tests.skips", description=__doc__)
    parser.add_argument("name", help="a row of the file, as `bare`")
    args = parser.parse_args(arguments)
    rows = json.loads((root / ROWS).read_text())
    try:
        found = json.loads((root / FOUND).read_text())
    except FileNotFoundError:
        print(f"no run of pytest has left {FOUND}", file=sys.stderr)
        return 2
    if args.name not in rows:
        print(f"{ROWS} has no row {args.name!r}; it has {sorted(rows)}", file=sys.stderr)
        return 2
    lines = not_allowed(found, rows[args.name])
    for line in lines:
        print(line, file=sys.stderr)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
