"""The template of a new Op: its files, its errors, and its own tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytensor
import pytest

from dnnops.devtools.__main__ import main
from dnnops.devtools.new_op import FAMILIES, write_op
from dnnops.errors import DnnValueError

CHECKOUT = Path(__file__).parents[2]

pytestmark = pytest.mark.needs("checkout")


@pytest.fixture
def exports_only(tmp_path):
    """A folder in which the command finds what it changes, and nothing else."""
    exports = tmp_path / "dnnops" / "nnet" / "__init__.py"
    exports.parent.mkdir(parents=True)
    shutil.copy(CHECKOUT / "dnnops" / "nnet" / "__init__.py", exports)
    for folder in ("dnnops/nnet", "dnnops/c_code/cpu", "tests/nnet"):
        (tmp_path / folder / "activation").mkdir(parents=True)
    (tmp_path / "dnnops" / "cpu").mkdir()
    return tmp_path


def test_families_are_the_folders_of_nnet():
    folders = {path.parent.name for path in (CHECKOUT / "dnnops" / "nnet").glob("*/__init__.py")}
    assert set(FAMILIES) == folders


def test_at_most_six_files_and_two_edits(exports_only, monkeypatch, capsys):
    before = {path for path in exports_only.rglob("*") if path.is_file()}
    old = (exports_only / "dnnops/nnet/__init__.py").read_text()
    monkeypatch.chdir(exports_only)
    assert main(["new-op", "scaled_softsign"]) == 0
    after = {path for path in exports_only.rglob("*") if path.is_file()}
    assert len(after - before) == 4
    assert all(path.read_text().count("$") == 0 for path in after - before)
    changed = (exports_only / "dnnops/nnet/__init__.py").read_text()
    lines = [line for line in changed.splitlines() if line not in old.splitlines()]
    assert lines == [
        "from dnnops.nnet.activation.scaled_softsign import ScaledSoftsign, scaled_softsign",
        '    "ScaledSoftsign",',
        '    "scaled_softsign",',
    ]
    assert "test_scaled_softsign.py" in capsys.readouterr().out


@pytest.mark.needs("ruff")
def test_generated_files_pass_the_linter(exports_only):
    write_op(exports_only, "scaled_softsign", "activation")
    config = ["--config", str(CHECKOUT / "pyproject.toml")]
    for command in (["check", *config], ["format", "--check", *config]):
        subprocess.run([sys.executable, "-m", "ruff", *command, str(exports_only)], check=True)


@pytest.mark.parametrize("name", ["Gelu", "two words", "_x", "x__y", "lambda", "", "é", "../x"])
def test_bad_names(exports_only, name):
    with pytest.raises(DnnValueError, match="name must be lowercase words"):
        write_op(exports_only, name, "activation")


def test_nothing_is_overwritten(exports_only, monkeypatch, capsys):
    (exports_only / "dnnops" / "cpu" / "gelu.py").write_text("# mine\n")
    monkeypatch.chdir(exports_only)
    assert main(["new-op", "gelu"]) == 1
    assert "dnnops/cpu/gelu.py exists" in capsys.readouterr().err
    assert not list(exports_only.rglob("test_gelu.py"))


def test_outside_of_a_checkout(tmp_path):
    with pytest.raises(DnnValueError, match="is not a checkout of dnnops"):
        write_op(tmp_path, "gelu", "activation")


@pytest.mark.slow
def test_a_new_op_runs_on_the_cpu(tmp_path):
    """Its own tests pass, and so do those that look at every Op."""
    ignored = shutil.ignore_patterns("__pycache__", "lib")
    for folder in ("dnnops", "tests", "docs", "examples", "benchmarks"):
        shutil.copytree(CHECKOUT / folder, tmp_path / folder, ignore=ignored)
    for file in ("setup.cfg", "pyproject.toml"):
        shutil.copy(CHECKOUT / file, tmp_path)
    write_op(tmp_path, "scaled_softsign", "activation")
    tests = [
        "tests/nnet/activation/test_scaled_softsign.py",
        "tests/rewriting/cpu/test_every_dtype.py",
        "tests/test_bad_arguments.py::test_every_public_function_is_tried",
        "tests/test_bad_arguments.py::test_a_bad_argument_raises_an_error_that_names_it",
        "tests/rewriting/test_golden.py::test_every_abstract_op_is_there",
        "tests/project/test_names.py",
    ]
    only = ["-k", "scaled_softsign or every or listed or name", "-m", "", "-p", "no:cacheprovider"]
    flags = (
        f"{os.environ.get('PYTENSOR_FLAGS', '')},base_compiledir={pytensor.config.base_compiledir}"
    )
    found = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *only, *tests],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "PYTENSOR_FLAGS": flags.strip(",")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout[-4000:] + found.stderr[-1000:]
