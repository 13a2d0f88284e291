"""What a wheel holds, and what an installation brings along."""

from __future__ import annotations

import configparser
import os
import platform
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from dnnops.runtime.build import ONEDNN
from dnnops.runtime.prebuilt import prebuilt_name

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.needs("checkout")


@pytest.fixture(scope="module")
def setup_cfg() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a wheel from a copy of what is needed for it."""
    tree = tmp_path_factory.mktemp("tree")
    shutil.copytree(ROOT / "dnnops", tree / "dnnops")
    shutil.rmtree(tree / "dnnops" / "lib", ignore_errors=True)
    for name in ("setup.cfg", "setup.py", "README.rst", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    # Compiling takes a minute, and the CI's smoke test runs what comes of it.
    compiler = tree / "g++"
    compiler.write_text('#!/bin/sh\nfor last; do :; done\necho compiled > "$last"\n')
    compiler.chmod(0o755)
    # The back end is called as pip would, but from this environment: nothing is downloaded.
    program = "from setuptools import build_meta; print(build_meta.build_wheel('dist'))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tree,
        env={**os.environ, "CXX": str(compiler)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    name = done.stdout.split()[-1]
    return tree / "dist" / name


@pytest.fixture(scope="module")
def wheel_names(wheel: Path) -> set[str]:
    """The files that the wheel holds."""
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
    assert {"dnnops/py.typed", "dnnops/c_code/runtime/dnnops_runtime.h"} <= on_disk
    assert on_disk - wheel_names == set()


def test_wheel_holds_nothing_else(wheel_names: set[str]):
    assert {name.split("/")[0].split("-")[0] for name in wheel_names} == {"dnnops"}


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
        "filelock",
        "numpy",
        "onednn-cpu-gomp",
        "onednn-devel-cpu-gomp",
        "pytensor",
        "rich",
    }
    # One generation of CUDA each: two of them in one environment shadow each other.
    for ours, other in (("12", "13"), ("13", "12")):
        assert not any(f"cu{other}" in name for name in packages(extras[f"cuda{ours}"]))
        assert f"cupy-cuda{ours}x" in packages(extras[f"cuda{ours}"])


def test_both_markers_of_slow_and_gpu_tests_exist(pytestconfig: pytest.Config):
    names = {line.split(":")[0] for line in pytestconfig.getini("markers")}
    assert {"gpu", "slow"} <= names
