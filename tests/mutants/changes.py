"""Make changes of the package's code in forks of one pytest process, and see which tests fail.

The process imports the package and collects the tests once. A fork then gives functions other code
and runs some tests, which takes little more time than the tests themselves. No file changes.
"""

from __future__ import annotations

import gc
import importlib
import os
import re
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from inspect import CO_OPTIMIZED
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType, FunctionType
from typing import Any, Protocol

import pytest
from _pytest.runner import runtestprotocol

from tests.mutants import changed_code
from tests.mutants.reached import Chosen, Reached

#: What becomes of a change that no test notices: no test is known to run the line, and the nearest
#: passed; those that run it passed; or one failed, but fails without the change, too.
NOT_KILLED = ("not reached", "survived", "not judged")
#: Bytes of data that a fork may allocate, because a change may let a loop run on.
MOST_DATA = 6 << 30


class Change(Protocol):
    """A module with other code, and the lines of the statement that differs."""

    path: Path
    code: str
    lines: tuple[int, ...]


class Examiner:
    """A plugin of pytest that examines changes instead of running the collected tests.

    Parameters
    ----------
    changes : sequence of Change
        The changes.
    reached : Path
        The record of :mod:`tests.mutants.reached`. If there is none, the tests are run to make it.
    seconds : float
        Time of the tests of one change, as recorded.
    minutes : float
        Minutes after which no change is started.
    processes : int
        Number of changes at a time.
    report : callable
        Called with each change and the test that failed or one of `NOT_KILLED`.
    """

    def __init__(
        self,
        changes: Sequence[Any],
        reached: Path,
        *,
        seconds: float,
        minutes: float,
        processes: int,
        report: Callable[[Any, str], None],
    ):
        self.changes, self.reached = changes, reached
        self.seconds, self.minutes, self.processes = seconds, minutes, processes
        self.report = report
        #: Tests that passed without a change, in the way in which changes are examined.
        self.passed: set[str] = set()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Examine the changes; see the class."""
        items = {item.nodeid: item for item in session.items}
        reached = Reached(self.reached, items)
        stop = time.monotonic() + 60 * self.minutes
        running: dict[int, tuple[Any, int]] = {}
        for change in [*self.changes, *[None] * self.processes]:
            if len(running) == self.processes or change is None:
                self._finish(running)
            if change is None or time.monotonic() > stop:
                continue
            found = reached.tests(change.path, change.lines, self.seconds)
            tests = [items[test] for test in found.tests]
            run = partial(self._examine, change, tests, found)
            running.update([_forked(run, change)])
        return True

    def _finish(self, running: dict[int, tuple[Any, int]]) -> None:
        """Wait for one of the running forks, and report it."""
        if running:
            pid, _ = os.waitpid(-1, 0)
            change, read = running.pop(pid)
            with os.fdopen(read) as pipe:
                found = pipe.read() or "not judged"
            if found not in NOT_KILLED:
                self.passed.add(found)
            self.report(change, found)

    def _examine(self, change: Change, tests: Sequence[pytest.Item], chosen: Chosen) -> str:
        """Return the first test that fails or one of `NOT_KILLED`. This process is a fork."""
        if not tests:
            return "not reached"
        # Of the processor, so that other work on the machine lets no test fail.
        limit = int(30 + 3 * chosen.seconds)
        with TemporaryDirectory() as folder:
            new = _environment_with(change, Path(folder))
            functions = _functions(change) if _is_imported(change) else []
            if functions is None:
                failed = _in_new_process(tests, limit, new)
            else:
                failed = _result(partial(_with_change, functions, new, tests, limit))
        if failed == "survived":
            return failed if chosen.are_known else "not reached"
        if failed in self.passed:
            return failed
        again = [test for test in tests if test.nodeid == failed] or tests
        same = _result(partial(_first_failure, again, limit)) == "survived"
        return failed if same else "not judged"


def _environment_with(change: Change, folder: Path) -> dict[str, str]:
    """Return variables with which new processes of Python import the changed module."""
    shutil.copy(changed_code.__file__, folder / "sitecustomize.py")
    code = folder / "changed.txt"
    code.write_text(change.code)
    paths = [str(folder), os.environ.get("PYTHONPATH", "")]
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        changed_code.VARIABLE: os.pathsep.join([os.path.realpath(change.path), str(code)]),
    }


def _forked(run: Callable[[], str], key: Any) -> tuple[int, tuple[Any, int]]:
    """Start a fork that writes what a function returns into a pipe."""
    read, write = os.pipe()
    if pid := os.fork():
        os.close(write)
        return pid, (key, read)
    try:
        os.write(write, run().encode())
    finally:
        os._exit(0)


def _result(run: Callable[[], str]) -> str:
    """Return the result of a function in a fork; "no result" if it crashes or takes too long."""
    pid, (_, read) = _forked(run, None)
    with os.fdopen(read) as pipe:
        found = pipe.read()
    os.waitpid(pid, 0)
    return found or "no result"


def _first_failure(tests: Sequence[pytest.Item], limit: int) -> str:
    """Run tests, and return the first that fails or "survived"."""
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_DATA, MOST_DATA))
    for test, following in zip(tests, [*tests[1:], None], strict=True):
        if any(report.failed for report in runtestprotocol(test, log=False, nextitem=following)):
            return test.nodeid
    return "survived"


def _with_change(
    functions: Sequence[tuple[FunctionType, CodeType]],
    environment: Mapping[str, str],
    tests: Sequence[pytest.Item],
    limit: int,
) -> str:
    """Give functions other code, here and in new processes, and return the first failure."""
    for function, code in functions:
        function.__code__ = code
    os.environ.update(environment)
    importlib.reload(changed_code)  # for modules that are not yet imported
    return _first_failure(tests, limit)


def _in_new_process(
    tests: Sequence[pytest.Item], limit: int, environment: Mapping[str, str]
) -> str:
    """Return the outcome of a change of code that runs while the module is imported."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider"]
    command += ["-rfE", "--tb=no", *(test.nodeid for test in tests)]
    done = subprocess.run(
        command,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (limit, limit)),
    )
    if done.returncode == 0:
        return "survived"
    match = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", done.stdout, re.MULTILINE)
    return match[1] if match else "no import"


def _is_imported(change: Change) -> bool:
    name = ".".join(change.path.with_suffix("").parts)
    return name.removesuffix(".__init__") in sys.modules


def _functions(change: Change) -> list[tuple[FunctionType, CodeType]] | None:
    """Return the functions to change with their new code, or None if other code changes, too."""
    file = os.path.realpath(change.path)
    before = compile(change.path.read_text(), file, "exec", dont_inherit=True)
    after = compile(change.code, file, "exec", dont_inherit=True)
    if _skeleton(before) != _skeleton(after):
        return None
    pairs = zip(_outermost(before), _outermost(after), strict=True)
    changed = [(old, new) for old, new in pairs if old != new]
    gc.unfreeze()
    functions = [f for f in gc.get_objects() if type(f) is FunctionType]
    gc.freeze()
    found = [
        (function, new)
        for old, new in changed
        for function in functions
        if function.__code__ == old and os.path.realpath(function.__code__.co_filename) == file
    ]
    same = all(new.co_freevars == f.__code__.co_freevars for f, new in found)
    return found if found and same else None


def _outermost(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of functions that are in no other function."""
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            if inner.co_flags & CO_OPTIMIZED:
                yield inner
            else:
                yield from _outermost(inner)


def _skeleton(code: CodeType) -> tuple[Any, ...]:
    """Return what runs while a module is imported, apart from calls of its functions."""
    constants = [
        repr(x)
        if not isinstance(x, CodeType)
        else (x.co_name if x.co_flags & CO_OPTIMIZED else _skeleton(x))
        for x in code.co_consts
    ]
    return code.co_code, code.co_names, constants
