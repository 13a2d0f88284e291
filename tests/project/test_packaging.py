"""The contents of a wheel, and of an installation."""

from __future__ import annotations

import configparser
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from dnnops.runtime.build import ONEDNN
from dnnops.runtime.prebuilt import prebuilt_name
from dnnops.startup import PTH, PTH_NAME

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.needs("checkout")


@pytest.fixture(scope="module")
def setup_cfg() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the files that building a wheel needs."""
    tree = tmp_path_factory.mktemp("tree")
    shutil.copytree(ROOT / "dnnops", tree / "dnnops")
    shutil.rmtree(tree / "dnnops" / "lib", ignore_errors=True)
    for name in ("pyproject.toml", "setup.cfg", "setup.py", "README.rst", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    # Compiling takes a minute, and the CI's smoke test runs the result.
    compiler = tree / "g++"
    compiler.write_text('#!/bin/sh\nfor last; do :; done\necho compiled > "$last"\n')
    compiler.chmod(0o755)
    return tree


def build(tree: Path, what: str) -> Path:
    """Build a wheel as pip would, but in this environment, so that nothing is downloaded."""
    program = f"from setuptools import build_meta; print(build_meta.build_{what}('dist'))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tree,
        env={**os.environ, "CXX": str(tree / "g++")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    name = done.stdout.split()[-1]
    return tree / "dist" / name


@pytest.fixture(scope="module")
def wheel(tree: Path) -> Path:
    return build(tree, "wheel")


@pytest.fixture(scope="module")
def editable(tree: Path) -> Path:
    """Return the wheel that an editable installation installs."""
    return build(tree, "editable")


@pytest.fixture(scope="module")
def wheel_names(wheel: Path) -> set[str]:
    """Return the files in the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.mark.skipif(platform.machine() != "x86_64", reason="compiled ahead for x86-64 alone")
def test_wheel_holds_the_runtime_library(wheel: Path, wheel_names: set[str]):
    assert wheel.name.endswith(f"-py3-none-linux_{platform.machine()}.whl")
    for level in ("x86-64-v3", "x86-64-v4"):
        name = f"dnnops/lib/{prebuilt_name('onednn', level, ONEDNN.source_hash)}"
        assert {name, f"{name}.sha256"} <= wheel_names


def test_wheel_holds_every_source_file(wheel_names: set[str]):
    on_disk = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "dnnops").rglob("*")
        if path.is_file() and not {"__pycache__", "lib"} & set(path.parts)
    }
    assert {"dnnops/py.typed", "dnnops/c_code/abi/dnnops_runtime.h"} <= on_disk
    assert on_disk - wheel_names == set()


def test_wheel_holds_nothing_else(wheel_names: set[str]):
    assert {name.split("/")[0].split("-")[0] for name in wheel_names} == {"dnnops"}


@pytest.mark.parametrize("kind", ["wheel", "editable"])
def test_start_up_file_is_installed(request: pytest.FixtureRequest, kind: str):
    """Beside the package, where Python looks for it, and listed, so that pip removes it."""
    with zipfile.ZipFile(request.getfixturevalue(kind)) as archive:
        assert archive.read(PTH_NAME).decode() == PTH
        (record,) = (name for name in archive.namelist() if name.endswith("/RECORD"))
        assert f"{PTH_NAME},sha256=" in archive.read(record).decode()
        # Python executes the files in this order, and the others make the package known.
        names = sorted(name for name in archive.namelist() if name.endswith(".pth"))
        assert names[-1] == PTH_NAME


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["wheel", "editable"])
def test_pytensor_may_be_imported_first(tree: Path, tmp_path: Path, kind: str):
    """Test an environment with the package installed by pip, and that uninstalling removes it."""
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    (site,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    # What dnnops needs is there, and its own installation here is not.
    (site / "a_borrowed.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    environment = os.environ | {"CXX": str(tree / "g++"), "PYTHONPATH": ""}

    def pip(*arguments: str) -> None:
        command = [sys.executable, "-m", "pip", "--python", str(python), "--quiet", *arguments]
        subprocess.run(command, check=True, env=environment, cwd=tmp_path)

    options = ("--no-index", "--no-deps", "--no-build-isolation", "--ignore-installed")
    pip("install", *options, *(["--editable"] if kind == "editable" else []), str(tree))
    program = (
        "import pytensor; print(pytensor.config.mode)\n"
        "import dnnops; print(pytensor.config.dnn__conv__algo_fwd, dnnops.__file__)"
    )
    flags = os.environ.get("PYTENSOR_FLAGS", "")
    done = subprocess.run(
        [python, "-W", "error", "-c", program],
        env=environment | {"PYTENSOR_FLAGS": f"{flags},dnn.conv.algo_fwd=time_once,mode=DNN"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    place = tree if kind == "editable" else site
    assert done.stdout == f"DNN\ntime_once {place / 'dnnops' / '__init__.py'}\n"

    pip("uninstall", "--yes", "dnnops")
    assert [path.name for path in site.iterdir()] == ["a_borrowed.pth"]


def test_the_installed_command_runs(wheel: Path, tmp_path: Path):
    """From its entry point, as the script that pip writes; the version is the metadata's."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    program = (
        "import sys; from importlib.metadata import distribution; "
        "(script,) = distribution('dnnops').entry_points.select(group='console_scripts'); "
        "sys.argv = [script.name, '--version']; sys.exit(script.load()())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"dnnops {wheel.name.split('-')[1]}\n"


def test_extras(setup_cfg: configparser.ConfigParser):
    extras = setup_cfg["options.extras_require"]
    assert {"cuda12", "cuda13", "demo", "docs", "test"} <= set(extras)

    def packages(text: str) -> set[str]:
        return {line.split(">")[0].split("=")[0] for line in text.split()}

    assert packages(setup_cfg["options"]["install_requires"]) == {
        "cffi",
        "filelock",
        "numpy",
        "onednn-cpu-gomp",
        "onednn-devel-cpu-gomp",
        "pycparser",
        "pytensor",
        "rich",
        "safetensors",
    }
    # One generation of CUDA each: two of them in one environment shadow each other.
    for ours, other in (("12", "13"), ("13", "12")):
        assert not any(f"cu{other}" in name for name in packages(extras[f"cuda{ours}"]))
        assert f"cupy-cuda{ours}x" in packages(extras[f"cuda{ours}"])


def test_both_markers_of_slow_and_gpu_tests_exist(pytestconfig: pytest.Config):
    names = {line.split(":")[0] for line in pytestconfig.getini("markers")}
    assert {"gpu", "slow"} <= names
