"""How many tests may be skipped, by need; ``tests/skips.json`` stores the numbers.

Each run of pytest stores its own numbers in pytest's cache. ``python -m tests.skips NAME`` compares
them with the row NAME of the file, and fails if more were skipped; ``--write`` replaces the row.
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

__all__ = ["SkipCounter", "main", "too_many"]

ROOT = Path(__file__).parents[1]
KEPT = Path("tests", "skips.json")
#: The key in pytest's cache, and the path of its file.
KEY = "dnnops/skips"
FOUND = Path(".pytest_cache", "v", KEY)


def _kind(reason: str) -> str:
    """Return the missing need if that is why a test was skipped."""
    match = re.search(r"(needs [\w ]+):", reason)
    return match[1] if match else "other"


class SkipCounter:
    """A pytest plugin that stores in the cache how many tests were skipped, by need."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.found: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            self._count(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self._count(report)

    def _count(self, report: Any) -> None:
        *_, reason = report.longrepr
        self.found[_kind(reason)] += 1

    def pytest_sessionfinish(self) -> None:
        if getattr(self.config, "cache", None) is not None:
            self.config.cache.set(KEY, dict(sorted(self.found.items())))


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
