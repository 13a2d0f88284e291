"""Which tests were skipped, and how many may be, by need; ``tests/skips.json`` stores the numbers.

Each run of pytest stores its own numbers in pytest's cache. ``python -m tests.skips NAME`` compares
them with the row NAME of the file, and fails if more were skipped; ``--write`` replaces the row.

The cache also has the names of the skipped tests, in ``.pytest_cache/v/dnnops/skipped``. With
``--only-skipped=FILE``, pytest runs the tests that a file lists, as what they need is there now.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

__all__ = ["SkipCounter", "add_option", "keep_skipped", "main", "too_many"]

ROOT = Path(__file__).parents[1]
KEPT = Path("tests", "skips.json")
#: The key in pytest's cache, and the path of its file.
KEY = "dnnops/skips"
FOUND = Path(".pytest_cache", "v", KEY)
#: The same for the names of the skipped tests, and of files that were skipped as a whole.
KEY_OF_NAMES = "dnnops/skipped"
NAMES = Path(".pytest_cache", "v", KEY_OF_NAMES)


def _kind(reason: str) -> str:
    """Return the missing need if that is why a test was skipped."""
    match = re.search(r"(needs [\w ]+):", reason)
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


def too_many(found: Mapping[str, int], allowed: Mapping[str, int]) -> list[str]:
    """Report the needs for which more tests were skipped than allowed.

    Parameters
    ----------
    found, allowed : mapping of str to int
        Numbers of tests by need.

    Returns
    -------
    list of str
        A line for each such need.
    """
    return [
        f"{kind}: {count} tests were skipped, {allowed.get(kind, 0)} may be"
        for kind, count in sorted(found.items())
        if count > allowed.get(kind, 0)
    ]


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Run the command. Return 1 if more were skipped, and 2 if there is nothing to compare."""
    parser = argparse.ArgumentParser(prog="python -m tests.skips", description=__doc__)
    parser.add_argument("name", help="a row of the file, as `bare`")
    parser.add_argument("--write", action="store_true", help="replace the row")
    args = parser.parse_args(arguments)
    kept = json.loads((root / KEPT).read_text())
    try:
        found = json.loads((root / FOUND).read_text())
    except FileNotFoundError:
        print(f"no run of pytest has left {FOUND}", file=sys.stderr)
        return 2
    if args.write:
        kept[args.name] = found
        (root / KEPT).write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
        return 0
    if args.name not in kept:
        print(f"{KEPT} has no row {args.name!r}; it has {sorted(kept)}", file=sys.stderr)
        return 2
    lines = too_many(found, kept[args.name])
    for line in lines:
        print(line, file=sys.stderr)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
