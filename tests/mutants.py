"""Change single lines of the package, and report which changes no nearby test notices.

``python -m tests.mutants dnnops/capture dnnops/plans --count 100 -n 2`` draws 100 changes from the
operators of Cosmic Ray, which must be installed (``pip install cosmic-ray``). Each one is made in a
copy of the checkout, where the nearest tests run until one fails. A change survives if none does.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

ROOT = Path(__file__).parents[1]
#: Operators of Cosmic Ray, by the beginnings of their names. Those left out remove decorators and
#: rename exceptions and variables, which fails at once and says nothing about tests.
OPERATORS = (
    "core/Replace",
    "core/AddNot",
    "core/NumberReplacer",
    "core/ZeroIterationForLoop",
)
#: Changes that rarely alter what code does: ``==`` and ``is`` agree for most operands here.
EQUIVALENT = re.compile(r"_(Eq|NotEq|Is|IsNot)_(Eq|NotEq|Is|IsNot)$")
NEGATED = {("Eq", "NotEq"), ("NotEq", "Eq"), ("Is", "IsNot"), ("IsNot", "Is")}
#: What a copy of the checkout does not need.
LEFT_OUT = shutil.ignore_patterns(".*", "docs", "__pycache__", "dist", "build")

Place = tuple[tuple[int, int], tuple[int, int]]


@dataclass(frozen=True)
class Mutant:
    """A changed module: its path in the checkout, the code, and the lines that differ."""

    path: Path
    code: str
    difference: str


def draw(folders: Sequence[str], count: int, seed: int) -> list[Mutant]:
    """Draw places with equal probability, and one change of each.

    Parameters
    ----------
    folders : sequence of str
        Folders or modules in the checkout.
    count : int
        Number of changes.
    seed : int
        Seed of the random numbers.

    Returns
    -------
    list of Mutant
        The changes, fewer if there are not so many places.
    """
    given = [Path(folder) for folder in folders]
    paths = [p for f in given for p in (sorted(f.rglob("*.py")) if f.is_dir() else [f])]
    places = [(path, *found) for path in paths for found in _places(path.read_text())]
    generator = random.Random(seed)
    generator.shuffle(places)
    drawn = []
    for path, _, changes in places:
        before = path.read_text()
        after = _changed(before, *generator.choice(changes))
        if after is not None and after != before:
            lines = difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="")
            drawn.append(Mutant(path, after, "\n".join(list(lines)[2:])))
        if len(drawn) == count:
            break
    return drawn


def _places(code: str) -> Iterator[tuple[Place, list[tuple[str, int]]]]:
    """Yield each place that can change, with operators and which of their occurrences it is."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.plugins import get_operator, operator_names

    tree = get_ast(code)
    annotations = _annotations(code)
    found: dict[Place, list[tuple[str, int]]] = defaultdict(list)
    for name in operator_names():
        if not name.startswith(OPERATORS) or _is_equivalent(name):
            continue
        operator, occurrence = get_operator(name)(), 0
        for node in ast_nodes(tree):
            for place in operator.mutation_positions(node):
                if not any(start <= place[0] < stop for start, stop in annotations):
                    found[place].append((name, occurrence))
                occurrence += 1
    yield from sorted(found.items())


def _is_equivalent(name: str) -> bool:
    match = EQUIVALENT.search(name)
    return bool(match) and match.groups() not in NEGATED


def _annotations(code: str) -> list[Place]:
    """Return where code is that never runs: annotations, and imports for type checkers."""
    nodes: list[Any] = []
    for node in ast.walk(ast.parse(code)):
        nodes += [getattr(node, "annotation", None), getattr(node, "returns", None)]
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            nodes.append(node)
    return [
        ((node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset))
        for node in nodes
        if node is not None
    ]


def _changed(code: str, name: str, occurrence: int) -> str | None:
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    return mutate_code(code, get_operator(name)(), occurrence)


def nearest_tests(path: Path) -> list[str]:
    """Return the files of tests for a module, the nearest first.

    These are its namesakes in the same place, those that import it, and those in its folder.
    """
    folder = Path("tests", *path.parts[1:-1])
    while not list(folder.glob("test_*.py")):
        folder = folder.parent
    module = ".".join(path.with_suffix("").parts)
    tests = sorted(Path("tests").rglob("test_*.py"))
    namesakes = [p for p in tests if p.parent == folder and path.stem in p.stem]
    pattern = re.compile(rf"\b{re.escape(module)}\b")
    importing = [p for p in tests if pattern.search(p.read_text())]
    beside = [p for p in tests if p.parent == folder]
    return list(dict.fromkeys(map(str, [*namesakes, *importing, *beside])))


class Worker:
    """A copy of the checkout in which changes are made one after another."""

    def __init__(self, folder: Path, limit: float):
        shutil.copytree(ROOT, folder, ignore=LEFT_OUT, symlinks=True)
        self.folder, self.limit = folder, limit
        flags = os.environ.get("PYTENSOR_FLAGS", "")
        own = f"base_compiledir={folder}.compiled,gcc__cxxflags=-O0 -g0"
        self.environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]),
            "PYTENSOR_FLAGS": f"{flags},{own}" if flags else own,
            "OMP_NUM_THREADS": "1",
        }

    def examine(self, mutant: Mutant) -> str:
        """Return the test that fails because of a change, or "survived", or "not judged"."""
        target = self.folder / mutant.path
        original = target.read_text()
        try:
            target.write_text(mutant.code)
            failed = self._failed(nearest_tests(mutant.path))
        finally:
            target.write_text(original)
        if not failed:
            return "survived"
        # A test that fails without the change, too, says nothing.
        return "not judged" if self._failed([failed]) else failed

    def _failed(self, tests: Sequence[str]) -> str:
        """Return the first test that fails; empty if none does within the limit."""
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-m", "not slow"]
        command += ["-p", "no:cacheprovider", "-rfE", "--no-header", "--tb=no", *tests]
        try:
            done = subprocess.run(
                command,
                cwd=self.folder,
                env=self.environment,
                capture_output=True,
                text=True,
                timeout=self.limit,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return ""
        if done.returncode in (0, 5):
            return ""
        match = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
        return match[1] if match else tests[0]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("folders", nargs="+", help="folders or modules of the package")
    parser.add_argument("--count", type=int, default=100, help="number of changes")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random numbers")
    parser.add_argument("--limit", type=float, default=240, help="seconds of tests for a change")
    parser.add_argument("--minutes", type=float, default=1e9, help="start no change after these")
    parser.add_argument("-n", type=int, default=1, dest="workers", help="changes at a time")
    args = parser.parse_args(arguments)
    os.chdir(ROOT)
    mutants = draw(args.folders, args.count, args.seed)
    stop = time.monotonic() + 60 * args.minutes
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        idle: SimpleQueue[Worker] = SimpleQueue()
        for number in range(args.workers):
            idle.put(Worker(Path(scratch, str(number)), args.limit))

        def examine(mutant: Mutant) -> None:
            worker = idle.get()
            try:
                if time.monotonic() > stop:
                    return
                found = worker.examine(mutant)
            finally:
                idle.put(worker)
            outcomes[found if found in ("survived", "not judged") else "killed"] += 1
            print(f"{found}: {mutant.path}\n{mutant.difference}\n", flush=True)

        with ThreadPoolExecutor(args.workers) as pool:
            list(pool.map(examine, mutants))
    judged = outcomes["killed"] + outcomes["survived"]
    print(f"{outcomes['survived']} of {judged} survived; not judged: {outcomes['not judged']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
