"""The programs of examples/ and README.rst do what the README and the documentation say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.rst").read_text() if (ROOT / "README.rst").exists() else ""


def run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    # PyTensor's lines on a BLAS that it does not need here; as an error they would be logged.
    assert "BLAS" not in done.stderr
    return done.stdout


def blocks(start: str) -> list[str]:
    """Indented blocks of the README that follow a line, or a part of one, that matches `start`."""
    found = re.findall(rf"{start}\n\n((?:(?:    .*)?\n)+)", README)
    return [textwrap.dedent(block).strip() for block in found]


def test_the_readmes_graphs_are_what_the_example_prints():
    printed = run("examples/graph.py")
    before, after = re.fullmatch(r"before:\n(.*)\n\nafter:\n(.*)", printed.strip(), re.S).groups()
    graphs = [block for block in blocks("::") if "[id A]" in block]
    assert graphs == [before, after]


def test_quickstart_learns():
    printed = run("examples/quickstart.py")
    first, last = re.search(r"loss (\S+) at first, (\S+) after", printed).groups()
    assert float(last) < float(first) / 10


def test_recurrent_network_learns():
    costs = [float(cost) for cost in re.findall(r"steps: (\S+)", run("examples/recurrent.py"))]
    assert len(costs) == 3
    assert costs[-1] < costs[0] / 10


def test_the_readmes_program_runs():
    (program,) = blocks(r"\.\. code-block:: python")
    run("-c", program)
