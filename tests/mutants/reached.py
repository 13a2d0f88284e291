"""Record which tests reach which lines of the package, and choose tests by it.

This is a plugin of pytest: ``python -m pytest -p tests.mutants.reached --reached FILE ...`` writes
JSON. It needs coverage.py. Of what runs in other processes, only the tests that start them are
recorded.
"""

from __future__ import annotations

import ast
import json
import sys
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from multiprocessing import active_children
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
        self.started = 0
        #: Fixtures that start processes, with the folder or file in which they are defined.
        self.fixtures: set[tuple[str, str]] = set()
        self.starting: list[str] = []
        sys.addaudithook(self._count_processes)
        self.coverage = coverage.Coverage(data_file=None, source=[str(root / "dnnops")])
        self.coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[Any]:
        self.coverage.switch_context(item.nodeid)
        try:
            return (yield)
        finally:
            self.coverage.switch_context("")

    def _count_processes(self, event: str, arguments: tuple[Any, ...]) -> None:
        is_python = event == "subprocess.Popen" and str(arguments[0]).startswith(sys.prefix)
        self.started += is_python or event == "os.fork"

    @property
    def processes(self) -> int:
        """Number that only grows while processes are started."""
        return self.started + len(active_children())

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Iterator[Any]:
        before = self.processes
        result = yield
        if self.processes > before:
            self.fixtures.add((fixturedef.baseid, fixturedef.argname))
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[Any]:
        start, start_of_wall, before = time.process_time(), time.perf_counter(), self.processes
        result = yield
        seconds = time.process_time() - start
        names = getattr(item, "fixturenames", ())
        if self.processes > before or any(
            name in names and item.nodeid.startswith(base) for base, name in self.fixtures
        ):
            self.starting.append(item.nodeid)
            seconds = time.perf_counter() - start_of_wall
        self.seconds[item.nodeid] = seconds
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
        processes = [test for test in self.starting if test in self.seconds]
        record = {"seconds": self.seconds, "processes": processes, "lines": lines}
        self.file.write_text(json.dumps(record))


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
        self._processes: list[str] = record["processes"]
        self._lines: dict[str, dict[str, list[str]]] = record["lines"]

    def tests(self, path: Path, lines: Collection[int], seconds: float) -> Chosen:
        """Choose tests that reach one of some lines, the nearest and then the quickest first.

        Parameters
        ----------
        path : Path
            A module, relative to the checkout.
        lines : collection of int
            Lines of a statement. The first one that tests reach counts. If it only runs while the
            module is imported, all tests of the module count. If it does not run at all, it may run
            in other processes, so the tests that start some count.
        seconds : float
            Time that the tests take together, except that the first may take longer.

        Returns
        -------
        Chosen
        """
        of_module = self._lines.get(str(path), {})
        found = [of_module[str(line)] for line in lines if str(line) in of_module]
        tests = next(filter(None, found), None)
        if tests is None and of_module and (found or not _is_in_function(path, min(lines))):
            tests = sorted(set().union(*of_module.values()))
        if tests is None:
            tests = self._processes
        parts = path.with_suffix("").parts[1:]

        def order(test: str) -> tuple[int, float]:
            near = Path(test.partition("::")[0].replace("test_", "")).with_suffix("").parts[1:]
            common = sum(a == b for a, b in zip(near, parts, strict=False))
            return -common, self._seconds[test]

        chosen: list[str] = []
        left = seconds
        for test in sorted((test for test in tests if test in self._tests), key=order):
            if chosen and self._seconds[test] > left:
                continue
            left -= self._seconds[test]
            chosen.append(test)
        return Chosen(chosen, tests is not self._processes, seconds - left)


def _is_in_function(path: Path, line: int) -> bool:
    """Return whether a line runs only when a function is called."""
    return any(
        node.body[0].lineno <= line <= (node.end_lineno or 0)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
    )


@dataclass(frozen=True)
class Chosen:
    """Tests for a line.

    Attributes
    ----------
    tests : list of str
        Node ids.
    are_known : bool
        Whether the tests are known to run the line.
    seconds : float
        Time that the tests take.
    """

    tests: list[str]
    are_known: bool
    seconds: float
