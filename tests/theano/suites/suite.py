"""Libraries and tests of Theano's time, run from their source distributions on today's Python.

Each has a TOML file beside this one. It names the source distribution, lists replacements in its
text, which only concern what Python, NumPy and pytest have changed since, and lists the tests that
cannot pass, with the reason.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.needs import SOURCES

__all__ = ["Results", "Suite", "run", "run_tests", "suite"]

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Suite:
    """A source distribution and its tests.

    Attributes
    ----------
    source : str
        Name and version; also the name of the folder in the source distribution.
    copied : mapping of str to str
        Files and folders that are copied, and where to.
    tests : tuple of str
        Files or folders to test, among the copies.
    flags : str
        ``THEANO_FLAGS``.
    sample : int
        Number of tests that a run of dnnops' slow tests draws; 0 for all.
    sampled : tuple of str
        Files that it draws from, because their tests are quick; by default all.
    passed : int
        Least number of tests that pass on a machine without a GPU.
    skipped : str
        Pattern of the reasons for which tests may skip themselves.
    environment : mapping of str to str
        Variables for the process.
    replaced : tuple of dict
        Replacements: a regular expression ``old``, the text ``new``, and ``why``. If ``files`` is
        given, a glob pattern, then only there.
    excluded : mapping of str to tuple of str
        Tests that cannot pass, by reason. A final ``*`` stands for any rest of the name.
    """

    source: str
    copied: Mapping[str, str]
    tests: tuple[str, ...] = ()
    flags: str = ""
    sample: int = 0
    sampled: tuple[str, ...] = ()
    passed: int = 0
    skipped: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    replaced: tuple[Mapping[str, str], ...] = ()
    excluded: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """Where the source distribution is unpacked."""
        return SOURCES / self.source

    def copy(self, target: Path) -> None:
        """Copy what is tested, with the replacements.

        Raises
        ------
        ValueError
            If a replacement finds nothing to replace.
        """
        used: set[int] = set()
        for name, place in self.copied.items():
            source = self.folder / name
            for file in [source] if source.is_file() else source.rglob("*"):
                if file.is_file():
                    copy = target / place / file.relative_to(source)
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    copy.write_bytes(self._replace(file, used))
        if unused := [new for i, new in enumerate(self.replaced) if i not in used]:
            raise ValueError(f"{self.source} has nothing to replace for {unused}")

    def _replace(self, file: Path, used: set[int]) -> bytes:
        content = file.read_bytes()
        if file.suffix != ".py":
            return content
        text = content.decode()
        for i, row in enumerate(self.replaced):
            if "files" in row and not file.relative_to(self.folder).match(row["files"]):
                continue
            text, count = re.subn(row["old"], row["new"], text)
            if count:
                used.add(i)
        return text.encode()

    def why_excluded(self, test: str) -> str:
        """Return why a test cannot pass; empty if it can."""
        for reason, names in self.excluded.items():
            for name in names:
                if test == name or (name.endswith("*") and test.startswith(name[:-1])):
                    return reason
        return ""


def suite(name: str) -> Suite:
    """Read the TOML file of a suite."""
    table: dict[str, Any] = tomllib.loads((Path(__file__).parent / f"{name}.toml").read_text())
    return Suite(**{key: tuple(x) if isinstance(x, list) else x for key, x in table.items()})


@dataclass
class Results:
    """Outcomes of a suite's tests.

    Attributes
    ----------
    of : Suite
    passed, failed : set of str
        Names of tests.
    skipped : dict
        Reasons of skipped tests.
    output : str
        What pytest printed.
    """

    of: Suite
    output: str
    passed: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    skipped: dict[str, str] = field(default_factory=dict)

    def surprises(self) -> Iterator[str]:
        """Describe tests that failed although they are not excluded, and other such outcomes."""
        for name in sorted(self.failed):
            if not self.of.why_excluded(name):
                yield f"failed: {name}"
        for name in sorted(self.passed):
            if reason := self.of.why_excluded(name):
                yield f"passed, although it is excluded ({reason}): {name}"
        for name, reason in sorted(self.skipped.items()):
            if not re.match(self.of.skipped, reason):
                yield f"skipped ({reason}): {name}"

    def __str__(self) -> str:
        return (
            f"{self.of.source}: {len(self.passed)} passed, {len(self.failed)} failed,"
            f" {len(self.skipped)} skipped"
        )


def run(
    folder: Path, *arguments: str, flags: str, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run ``python -m dnnops theano`` in a folder.

    Parameters
    ----------
    folder : Path
        Working directory, which is also in the path of modules.
    *arguments : str
        Script, or ``-m`` and module, and its arguments.
    flags : str
        ``THEANO_FLAGS``.
    environment : mapping, optional
        Further variables.
    """
    return subprocess.run(
        [sys.executable, "-m", "dnnops", "theano", *arguments],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, (ROOT, folder, Path(__file__).parent))),
            "THEANO_FLAGS": flags,
            "THEANORC": str(folder / "theanorc"),
            "DNNOPS_FLAGS": "",
            **(environment or {}),
        },
        capture_output=True,
        text=True,
        check=False,
    )


def run_tests(of: Suite, folder: Path, *arguments: str, flags: str, seed: int = -1) -> Results:
    """Copy a suite into an empty folder, and run its tests.

    Parameters
    ----------
    of : Suite
    folder : Path
    *arguments : str
        Further arguments for pytest.
    flags : str
        ``THEANO_FLAGS``.
    seed : int
        Seed of the suite's sample; if negative, all tests run.
    """
    tests = of.tests
    if seed >= 0 and of.sample:
        tests = (*(of.sampled or of.tests), f"--sample={of.sample}:{seed}")
    of.copy(folder)
    (folder / "pytest.ini").write_text("[pytest]\njunit_family = xunit1\n")
    done = run(
        folder,
        *("-m", "pytest", "-c", "pytest.ini", "-p", "of_theanos_time", "-p", "no:cacheprovider"),
        *("--quiet", "--tb=short", "--junitxml=results.xml", *tests, *arguments),
        flags=flags,
        environment=of.environment,
    )
    results = Results(of, done.stdout + done.stderr)
    assert (folder / "results.xml").exists(), results.output
    for case in ElementTree.parse(folder / "results.xml").findall(".//testcase"):
        name = f"{case.get('classname')}.{case.get('name')}"
        if case.find("failure") is not None or case.find("error") is not None:
            results.failed.add(name)
        elif (skip := case.find("skipped")) is not None:
            results.skipped[name] = skip.get("message") or ""
        else:
            results.passed.add(name)
    # A test whose fixtures fail at its end is listed twice.
    results.passed -= results.failed
    return results
