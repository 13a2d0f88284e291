"""Building the runtime library: once, in one place, with clear errors."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

PROBE = """
    import numpy as np
    from dnnops.onednn.conv import OneDnnConv
    op, storage = OneDnnConv(2), [[None]]
    arrays = [np.ones((1, 1, 3, 3), "float32"), np.ones((1, 1, 2, 2), "float32")]
    op.perform(op.make_node(*arrays), arrays, storage)
    assert (storage[0][0] == 4).all()
"""


def start(code: str, compiledir: Path, flags: str = "", **environment: str) -> subprocess.Popen:
    env = {**os.environ, "PYTENSOR_FLAGS": f"base_compiledir={compiledir}{flags}", **environment}
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def libraries(compiledir: Path) -> list[Path]:
    return sorted(compiledir.glob("*/dnnops/*.so"))


def test_two_processes_build_one_library(tmp_path):
    processes = [start(PROBE, tmp_path) for _ in range(2)]
    for process in processes:
        _, errors = process.communicate()
        assert process.returncode == 0, errors
    (library,) = libraries(tmp_path)
    made = library.stat().st_mtime_ns
    assert not list(library.parent.glob("building_*"))

    # A warm start compiles nothing: it runs without a compiler that works.
    process = start(PROBE, tmp_path)
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    assert libraries(tmp_path) == [library]
    assert library.stat().st_mtime_ns == made


def test_no_compiler(tmp_path):
    process = start(PROBE, tmp_path, ",cxx=")
    _, errors = process.communicate()
    assert process.returncode != 0
    assert "DnnUnavailableError: dnnops needs a C++ compiler" in errors
    assert "apt install g++" in errors


def test_failing_compiler_leaves_nothing(tmp_path):
    false_compiler = tmp_path / "broken-g++"
    false_compiler.write_text("#!/bin/sh\necho 'it does not compile' >&2\nexit 1\n")
    false_compiler.chmod(0o755)
    code = """
        from pathlib import Path
        from pytensor import config
        from dnnops.errors import DnnUnavailableError
        from dnnops.runtime.build import ONEDNN
        from dnnops.runtime.find import find_onednn
        target = Path(config.compiledir) / "dnnops" / "lib.so"
        target.parent.mkdir(parents=True)
        try:
            ONEDNN._compile(COMPILER, ["-O0"], (find_onednn(),), target)
        except DnnUnavailableError as error:
            assert "it does not compile" in str(error)
            assert not list(target.parent.iterdir())
            print("refused")
    """.replace("COMPILER", repr(str(false_compiler)))
    process = start(code, tmp_path / "compiledir")
    output, errors = process.communicate()
    assert output.strip() == "refused", errors


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_read_only_compiledir(tmp_path):
    process = start("from pytensor import config; print(config.compiledir)", tmp_path)
    compiledir = Path(process.communicate()[0].strip())
    compiledir.chmod(0o500)
    try:
        process = start(PROBE, tmp_path)
        _, errors = process.communicate()
    finally:
        compiledir.chmod(0o700)
    assert "cannot be written" in errors


def test_place_that_cannot_be_written(tmp_path):
    """As on a full or read-only disk: the directory cannot be made."""
    code = f"""
        from pathlib import Path
        from pytensor import config
        (Path(config.compiledir) / "dnnops").write_text("in the way")
        {PROBE.strip().replace(chr(10) + "    ", chr(10) + "        ")}
    """
    process = start(code, tmp_path)
    _, errors = process.communicate()
    assert process.returncode != 0
    assert "cannot be written to" in errors
    assert "base_compiledir" in errors


def test_import_compiles_loads_and_probes_nothing(tmp_path):
    code = """
        import sys
        import dnnops
        heavy = {"cupy", "numba", "torch", "jax", "scipy.linalg"} & set(sys.modules)
        assert not heavy, heavy
        maps = open("/proc/self/maps").read()
        assert "dnnl" not in maps and "cudnn" not in maps
    """
    process = start(code, tmp_path)
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    assert not libraries(tmp_path)


def test_source_hash_covers_every_source():
    from dnnops.runtime.build import CUDNN, ONEDNN, c_code_dir

    for library in (ONEDNN, CUDNN):
        for source in library.sources:
            assert source.is_file()
            assert source.is_relative_to(c_code_dir())
    assert ONEDNN.source_hash != CUDNN.source_hash
