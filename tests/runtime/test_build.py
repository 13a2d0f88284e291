"""Building the runtime library: once, in one place, with clear errors."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import textwrap
from functools import partial
from pathlib import Path

import pytest
from filelock import FileLock
from pytensor import config
from pytensor.compile import compilelock

import dnnops.onednn.base as onednn
from dnnops.errors import DnnUnavailableError
from dnnops.runtime.build import ONEDNN, RuntimeLibrary

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


def quick_compiler(folder: Path) -> Path:
    """The C++ compiler without optimization, which takes most of a build's time."""
    script = folder / "quick-g++"
    script.write_text(f'#!/bin/sh\nexec {config.cxx} "$@" -O0\n')
    script.chmod(0o755)
    return script


def test_two_processes_build_one_library(tmp_path):
    flags = f",cxx={quick_compiler(tmp_path)}"
    processes = [start(PROBE, tmp_path, flags) for _ in range(2)]
    for process in processes:
        _, errors = process.communicate()
        assert process.returncode == 0, errors
    (library,) = libraries(tmp_path)
    made = library.stat().st_mtime_ns
    assert not list(library.parent.glob("building_*"))

    # A warm start compiles nothing: it runs without a compiler that works.
    process = start(PROBE, tmp_path, flags)
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


def test_missing_compiler(tmp_path):
    process = start(PROBE, tmp_path, ",cxx=/nowhere/g++")
    _, errors = process.communicate()
    assert process.returncode != 0
    last = errors.strip().splitlines()[-1]
    assert "DnnUnavailableError: the C++ compiler /nowhere/g++" in last
    assert "was not found" in last
    assert "apt install g++" in last


def test_failing_compiler_leaves_nothing(tmp_path):
    false_compiler = tmp_path / "broken-g++"
    false_compiler.write_text("#!/bin/sh\necho 'it does not compile' >&2\nexit 1\n")
    false_compiler.chmod(0o755)
    target = tmp_path / "dnnops" / "lib.so"
    target.parent.mkdir()
    with pytest.raises(DnnUnavailableError) as caught:
        ONEDNN._compile(str(false_compiler), ["-O0"], (), target)
    reason, command = str(caught.value).splitlines()
    assert reason.endswith("failed to compile: it does not compile")
    assert command.startswith(f"The command was: {false_compiler} -O0")
    assert not list(target.parent.iterdir())


def test_compiler_that_is_no_program(tmp_path):
    text = tmp_path / "g++"
    text.write_text("not a program")
    with pytest.raises(DnnUnavailableError, match=r"g\+\+ cannot be run: .*install g\+\+"):
        ONEDNN._compile(str(text), [], (), tmp_path / "lib.so")


@pytest.fixture
def small_library(tmp_path, monkeypatch):
    """Makes a library that compiles fast, as a fresh process would, and counts compilations."""
    compiled = []
    compile_ = RuntimeLibrary._compile

    def count(self, *recipe):
        compiled.append(recipe[-1])
        compile_(self, *recipe)

    monkeypatch.setattr(RuntimeLibrary, "_compile", count)
    source = tmp_path / "small.cpp"
    source.write_text(
        'extern "C" __attribute__((visibility("default")))'
        ' const char *dnnops_last_error() { return "none"; }'
    )
    target = tmp_path / "dnnops" / "libdnnops_small.so"

    def make() -> RuntimeLibrary:
        library = RuntimeLibrary("small", find=lambda: ())
        recipe = (config.cxx, ["-fPIC", "-O0"], (), target)
        library.__dict__.update(sources=[source], _recipe=recipe)
        return library

    make.compiled = compiled
    return make


@pytest.mark.parametrize("damage", ["empty", "truncated", "garbage", "no checksum", "bad checksum"])
def test_damaged_library_is_built_again(small_library, damage):
    path = small_library().path
    content = path.read_bytes()
    checksum = path.with_name(f"{path.name}.sha256")
    path.write_bytes(
        {
            "empty": b"",
            "truncated": content[: len(content) // 2],
            "garbage": bytes(len(content)),
        }.get(damage, content)
    )
    if damage == "no checksum":
        checksum.unlink()
    elif damage == "bad checksum":
        checksum.write_bytes(b"\xff")
    assert small_library().library.dnnops_last_error() == b"none"
    assert len(small_library.compiled) == 2
    # And then it is in order.
    assert small_library().path == path
    assert len(small_library.compiled) == 2


def test_library_that_does_not_load_is_built_once_more(small_library, monkeypatch):
    refusals = ["first"]
    load = ctypes.CDLL

    def refuse(name):
        if refusals:
            refusals.pop()
            raise OSError("not today")
        return load(name)

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    assert small_library().library.dnnops_last_error() == b"none"
    assert len(small_library.compiled) == 2
    refusals[:] = ["first", "second"]
    with pytest.raises(DnnUnavailableError, match="cannot be loaded: not today"):
        small_library().library  # noqa: B018
    assert len(small_library.compiled) == 3


def test_leftovers_of_a_killed_build_are_removed(small_library):
    path = small_library().path
    leftover = path.parent / "building_killed"
    leftover.mkdir()
    (leftover / "conv.o").write_bytes(b"half")
    path.unlink()
    assert small_library().path.is_file()
    assert not leftover.exists()


def test_lock_of_another_process(small_library, monkeypatch):
    elsewhere = FileLock(Path(config.compiledir) / ".lock")
    monkeypatch.setattr(onednn, "ONEDNN", small_library())
    onednn._final_answer.cache_clear()
    try:
        # Another lock object stands for another process.
        with elsewhere, monkeypatch.context() as patience:
            patience.setattr(compilelock, "lock_ctx", partial(compilelock.lock_ctx, timeout=0.1))
            available, reason = onednn.onednn_available()
        assert not available
        assert "another process is compiling" in reason
        assert "compile__timeout" in reason
        assert "cannot be written" not in reason
        # That answer isn't remembered.
        assert onednn.onednn_available() == (True, "")
    finally:
        onednn._final_answer.cache_clear()


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
    from dnnops.runtime.build import CUDNN, c_code_dir

    for library in (ONEDNN, CUDNN):
        for source in library.sources:
            assert source.is_file()
            assert source.is_relative_to(c_code_dir())
    assert ONEDNN.source_hash != CUDNN.source_hash
