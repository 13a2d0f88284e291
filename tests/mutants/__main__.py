"""Change single lines of the package, and report which changes no nearby test notices.

``python -m tests.mutants dnnops/capture dnnops/plans --count 100`` draws 100 changes from the
operators of Cosmic Ray. For each one, tests that reach the line run until one fails, the nearest
and quickest first. A change survives if none does. Which tests reach which lines is recorded before
with coverage.py; ``--reached FILE`` keeps the record for the next run. Both must be installed
(``pip install cosmic-ray coverage``).
"""

from __future__ import annotations

import argparse
import ast
import difflib
import os
import random
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.mutants.changes import NOT_KILLED, Examiner

ROOT = Path(__file__).parents[2]
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

Place = tuple[tuple[int, int], tuple[int, int]]


@dataclass(frozen=True)
class Mutant:
    """A changed module: its path in the checkout, the code, and the lines that differ.

    `lines` are those of the statement that changes, the changed one first.
    """

    path: Path
    code: str
    difference: str
    lines: tuple[int, ...]


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
    for path, place, changes in places:
        before = path.read_text()
        after = _changed(before, *generator.choice(changes))
        if after not in (None, before) and _is_code(after):
            lines = difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="")
            difference = "\n".join(list(lines)[2:])
            drawn.append(Mutant(path, after, difference, _statement(before, place[0])))
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


def _is_code(text: str) -> bool:
    """Return whether Python can compile a text: ``not x := y``, for example, is no change."""
    try:
        compile(text, "<changed>", "exec")
    except SyntaxError:
        return False
    return True


def _statement(code: str, place: tuple[int, int]) -> tuple[int, ...]:
    """Return the lines of the innermost statement around a place, the place's own first.

    Of a statement with a body, these are the lines before the body.
    """
    own, *_ = place
    around = [
        node
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.stmt) and node.lineno <= own <= (node.end_lineno or 0)
    ]
    if not around:  # a decorator's
        return (own,)
    node = max(around, key=lambda node: (node.lineno, node.col_offset))
    body = getattr(node, "body", None) or getattr(node, "cases", None)
    inner = getattr(body[0], "lineno", own + 1) if body else (node.end_lineno or 0) + 1
    return (own, *range(node.lineno, max(inner, node.lineno + 1)))


def _is_equivalent(name: str) -> bool:
    match = EQUIVALENT.search(name)
    return bool(match) and match.groups() not in NEGATED


def _annotations(code: str) -> list[Place]:
    """Return where code is that says nothing about tests.

    Annotations and imports for type checkers never run. ``strict=True`` of `zip` states that
    lengths are equal, which holds for all inputs.
    """
    nodes: list[Any] = []
    for node in ast.walk(ast.parse(code)):
        nodes += [getattr(node, "annotation", None), getattr(node, "returns", None)]
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            nodes.append(node)
        if isinstance(node, ast.keyword) and node.arg == "strict":
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


def tests_of(folders: Sequence[str]) -> list[str]:
    """Return the folders of tests that mirror folders of the package."""
    found = []
    for given in folders:
        folder = Path("tests", *Path(given).with_suffix("").parts[1:])
        while not list(folder.rglob("test_*.py")):
            folder = folder.parent
        found.append(str(folder))
    return list(dict.fromkeys(found))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("folders", nargs="+", help="folders or modules of the package")
    parser.add_argument("--count", type=int, default=100, help="number of changes")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random numbers")
    parser.add_argument("--tests", nargs="+", help="tests; by default those of the folders")
    parser.add_argument("--reached", type=Path, help="record of what tests reach, to keep")
    parser.add_argument("--compiled", type=Path, help="folder of compiled modules, to keep")
    parser.add_argument("--seconds", type=float, default=30, help="time of the tests of a change")
    parser.add_argument("--minutes", type=float, default=1e9, help="start no change after these")
    parser.add_argument("-n", type=int, default=1, dest="processes", help="changes at a time")
    args = parser.parse_args(arguments)
    os.chdir(ROOT)
    changes = draw(args.folders, args.count, args.seed)
    options = ["-q", "-n", "0", "-m", "not slow", "-p", "no:cacheprovider", "--tb=no"]
    options += args.tests or tests_of(args.folders)
    outcomes: Counter[str] = Counter()

    def report(change: Mutant, found: str) -> None:
        outcomes[found if found in NOT_KILLED else "killed"] += 1
        print(f"{found}: {change.path}\n{change.difference}\n", flush=True)

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        compiled = (args.compiled or Path(scratch, "compiled")).absolute()
        reached = (args.reached or Path(scratch, "reached.json")).absolute()
        # With these, tests/conftest.py compiles quickly.
        os.environ |= {"DNNOPS_TEST_COMPILEDIRS": str(compiled), "PYTEST_XDIST_WORKER": "gw0"}
        os.environ |= {"PYTEST_XDIST_WORKER_COUNT": "1", "OMP_NUM_THREADS": "1"}
        if not reached.exists():
            recorder = ["-p", "tests.mutants.reached", "--reached", str(reached)]
            subprocess.run([sys.executable, "-m", "pytest", *recorder, *options], check=False)
        limits = {"seconds": args.seconds, "minutes": args.minutes, "processes": args.processes}
        examiner = Examiner(changes, reached, report=report, **limits)
        pytest.main(options, plugins=[examiner])
    print(", ".join(f"{name}: {outcomes[name]}" for name in ("killed", *NOT_KILLED)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
