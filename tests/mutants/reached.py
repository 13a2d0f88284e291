"""Record which tests reach which lines of the package, and choose tests by it.

This is a plugin of pytest: ``python -m pytest -p tests.mutants.reached --reached FILE ...`` writes
JSON. It needs coverage.py. What runs only in other processes is not recorded.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--reached", type=Path, help="file for the lines that each test reaches")


def pytest_configure(config: pytest.Config) -> None:
    if file := config.getoption("--reached"):
        config.pluginmanager.register(_Recorder(file, config.rootpath), "reached recorder")


class _Recorder:
    """Measures the lines of each test that passes, and its time."""

    def __init__(self, file: Path, root: Path):
        import coverage

        self.file, self.root = file, root
        self.seconds: dict[str, float] = {}
        self.coverage = coverage.Coverage(data_file=None, source=[str(root / "dnnops")])
        self.coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[Any]:
        self.coverage.switch_context(item.nodeid)
        try:
            return (yield)
        finally:
            self.coverage.switch_context("")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[Any]:
        start = time.process_time()
        result = yield
        self.seconds[item.nodeid] = time.process_time() - start
        return result

    def pytest_sessionfinish(self) -> None:
        self.coverage.stop()
        data = self.coverage.get_data()
        lines: dict[str, dict[int, list[str]]] = {}
        for name in sorted(data.measured_files()):
            by_line = data.contexts_by_lineno(name)
            lines[str(Path(name).relative_to(self.root))] = {
                line: [test for test in tests if test in self.seconds]
                for line, tests in sorted(by_line.items())
            }
        self.file.write_text(json.dumps({"seconds": self.seconds, "lines": lines}))


class Reached:
    """The lines that each test reaches.

    Parameters
    ----------
    file : Path
        The record.
    tests : collection of str
        Node ids of the tests to choose from.
    """

    def __init__(self, file: Path, tests: Collection[str]):
        record = json.loads(file.read_text())
        self._tests = tests
        self._seconds: dict[str, float] = record["seconds"]
        self._lines: dict[str, dict[str, list[str]]] = record["lines"]

    def tests(self, path: Path, lines: Iterable[int], seconds: float) -> Chosen:
        """Choose tests that reach one of some lines, the nearest and then the quickest first.

        Parameters
        ----------
        path : Path
            A module, relative to the checkout.
        lines : iterable of int
            Lines of a statement. The first one that tests reach counts. If it only runs while the
            module is imported, all tests of the module count. If it does not run at all, it may run
            in other processes, which only some tests start, so all tests of their files count.
        seconds : float
            Time that the tests take together, except that the first may take longer.

        Returns
        -------
        Chosen
        """
        of_module = self._lines.get(str(path), {})
        found = [of_module[str(line)] for line in lines if str(line) in of_module]
        tests = next(filter(None, found), None)
        if tests is None and found:
            tests = sorted(set().union(*of_module.values()))
        if tests is None:
            tests = [test for test in self._seconds if _starts_processes(test.partition("::")[0])]
        parts = path.with_suffix("").parts[1:]

        def order(test: str) -> tuple[int, float]:
            near = Path(test.partition("::")[0].replace("test_", "")).with_suffix("").parts[1:]
            common = sum(a == b for a, b in zip(near, parts, strict=False))
            return -common, self._seconds[test]

        chosen: list[str] = []
        for test in sorted((test for test in tests if test in self._tests), key=order):
            if chosen and self._seconds[test] > seconds:
                continue
            seconds -= self._seconds[test]
            chosen.append(test)
        return Chosen(chosen, bool(found))


@dataclass(frozen=True)
class Chosen:
    """Tests for a line.

    Attributes
    ----------
    tests : list of str
        Node ids.
    are_known : bool
        Whether the tests are known to run the line.
    """

    tests: list[str]
    are_known: bool


@cache
def _starts_processes(file: str) -> bool:
    return bool(re.search("process", Path(file).read_text()))
