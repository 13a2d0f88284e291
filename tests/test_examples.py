"""The programs of examples/ and README.rst behave as the documentation says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.rst").read_text() if (ROOT / "README.rst").exists() else ""


def run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        # Processes of pytest-xdist have 80 columns, in which tables fold names.
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "120"},
    )
    assert done.returncode == 0, done.stderr
    # PyTensor logs these lines about a BLAS that it does not need here.
    assert "BLAS" not in done.stderr
    return done.stdout


def blocks(start: str) -> list[str]:
    """Return indented blocks of the README that follow a line with a part that matches `start`."""
    found = re.findall(rf"{start}\n\n((?:(?:    .*)?\n)+)", README)
    return [textwrap.dedent(block).strip() for block in found]


def test_the_readmes_graphs_are_what_the_example_prints():
    printed = run("examples/graph.py")
    before, after = re.fullmatch(r"before:\n(.*)\n\nafter:\n(.*)", printed.strip(), re.S).groups()
    graphs = [block for block in blocks("::") if "[id A]" in block]
    assert graphs == [before, after]


def test_the_landing_page_shows_library_calls():
    before, after = run("examples/landing.py").split("\n\n")
    assert not re.search("OneDnn|GpuDnn", before)
    for name in ("Softmax", "Pool", "Conv"):
        assert f"{name}{{" in before
        assert re.search(rf"(OneDnn|GpuDnn){name}{{", after)


@pytest.mark.slow
def test_explanation_of_a_training_step():
    printed = run("examples/explain.py")
    assert re.match(r"train: \d+ nodes, \S+ ms a call \(median of 5\), results need", printed)
    for name in ("Conv", "Pool", "MaxPoolGrad", "ConvGradWeights"):
        assert re.search(rf"^ *\d+  (OneDnn|GpuDnn){name} .* (oneDNN|cuDNN) ", printed, re.M), name


@pytest.mark.slow
def test_quickstart_learns():
    printed = run("examples/quickstart.py")
    first, last = re.search(r"loss (\S+) at first, (\S+) after", printed).groups()
    assert float(last) < float(first) / 10


@pytest.mark.slow
def test_recurrent_network_learns():
    costs = [float(cost) for cost in re.findall(r"steps: (\S+)", run("examples/recurrent.py"))]
    assert len(costs) == 3
    assert costs[-1] < costs[0] / 10


def test_the_readmes_program_runs():
    (program,) = blocks(r"\.\. code-block:: python")
    run("-c", program)


@pytest.mark.slow
@pytest.mark.needs("sklearn")
def test_digits_are_classified():
    accuracies = re.findall(r"test accuracy (\S+)", run("examples/digits.py"))
    assert len(accuracies) == 4
    assert float(accuracies[-1]) > 0.96


@pytest.mark.slow
def test_lstm_remembers():
    accuracies = re.findall(r"accuracy (\S+)", run("examples/lstm.py"))
    assert len(accuracies) == 3
    assert float(accuracies[-1]) > 0.9


@pytest.mark.slow
def test_attention_model_finds_the_angle_that_matters():
    printed = run("examples/attention_model.py")
    first, second = re.search(r"first angle: (\S+), of the second: (\S+)", printed).groups()
    assert float(first) > 4 * float(second)
    assert 0.08 < float(re.search(r"noise: (\S+)", printed)[1]) < 0.15


@pytest.mark.slow
def test_algorithms_are_listed_and_forced():
    listed, selected, used = run("examples/algorithms.py").split("\n\n")
    assert re.search(r"^winograd +.* ms$|^jit\S* +.* ms$", listed, re.M)
    plans = dict(re.findall(r"algo=(\S+) selects (\S+)", selected))
    assert set(plans) >= {"auto", "direct"}
    assert plans["direct"] in used


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.name)
def test_every_example_is_on_a_page(path):
    pages = (ROOT / "docs").rglob("*.rst")
    shown = re.compile(rf"literalinclude:: (\.\./)+examples/{re.escape(path.name)}\n")
    assert any(shown.search(page.read_text()) for page in pages)


@pytest.mark.parametrize(
    "path", sorted((ROOT / "docs/benchmarks").glob("*.json")), ids=lambda p: p.stem
)
def test_every_benchmark_is_on_its_page(path):
    page = (ROOT / "docs" / "benchmarks.rst").read_text()
    assert f".. benchmark:: {path.stem}\n" in page
