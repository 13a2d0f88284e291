"""What a wheel holds, and what an installation brings along."""

from __future__ import annotations

import configparser
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
if not (ROOT / "setup.cfg").exists():
    pytest.skip("not a checkout", allow_module_level=True)


@pytest.fixture(scope="module")
def setup_cfg() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Build a wheel from a copy of what is needed for it, and list its files."""
    tree = tmp_path_factory.mktemp("tree")
    shutil.copytree(ROOT / "dnnops", tree / "dnnops")
    for name in ("setup.cfg", "README.rst", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    # The back end is called as pip would, but from this environment: nothing is downloaded.
    program = "from setuptools import build_meta; print(build_meta.build_wheel('dist'))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tree, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    name = done.stdout.split()[-1]
    assert name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(tree / "dist" / name) as wheel:
        return set(wheel.namelist())


def test_wheel_holds_every_source_file(wheel_names: set[str]):
    on_disk = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "dnnops").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {"dnnops/py.typed", "dnnops/c_code/runtime/dnnops_runtime.h"} <= on_disk
    assert on_disk - wheel_names == set()


def test_wheel_holds_nothing_else(wheel_names: set[str]):
    assert {name.split("/")[0].split("-")[0] for name in wheel_names} == {"dnnops"}


def test_extras(setup_cfg: configparser.ConfigParser):
    extras = setup_cfg["options.extras_require"]
    assert {"cuda12", "cuda13", "demo", "docs", "test"} <= set(extras)

    def packages(text: str) -> set[str]:
        return {line.split(">")[0].split("=")[0] for line in text.split()}

    assert packages(setup_cfg["options"]["install_requires"]) == {
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
