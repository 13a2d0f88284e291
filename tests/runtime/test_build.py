"""Building the runtime library: once, in one place, with clear errors."""

from __future__ import annotations

import ctypes
import os
import shutil
import stat
import subprocess
import sys
import textwrap
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from filelock import FileLock
from pytensor import config
from pytensor.link.c.cmodule import GCC_compiler

from dnnops.errors import DnnUnavailableError
from dnnops.runtime import build
from dnnops.runtime.build import CUDNN, ONEDNN, Recipe, RuntimeLibrary, abi_hash, c_code_dir
from dnnops.runtime.compiling import compile_library
from dnnops.runtime.prebuilt import levels_of, prebuilt_name

#: Computes with a library that is compiled, even if the package contains one.
PROBE = """
    import numpy as np
    import dnnops.runtime.build
    dnnops.runtime.build.supported_levels = lambda: ()
    from dnnops.cpu.conv import OneDnnConv
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
    """Return a C++ compiler without optimization, which takes most of a build's time."""
    script = folder / "quick-g++"
    script.write_text(f'#!/bin/sh\nexec {config.cxx} "$@" -O0\n')
    script.chmod(0o755)
    return script


@pytest.mark.slow
def test_processes_that_start_at_once_build_one_library(tmp_path):
    flags = f",cxx={quick_compiler(tmp_path)}"
    processes = [start(PROBE, tmp_path, flags) for _ in range(6)]
    for process in processes:
        _, errors = process.communicate()
        assert process.returncode == 0, errors
    (library,) = libraries(tmp_path)
    made = library.stat().st_mtime_ns
    assert not list(library.parent.glob("building_*"))

    # A warm start compiles nothing: it runs without a working compiler.
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
        compile_library(target, ONEDNN.sources, str(false_compiler), ["-O0"], [])
    reason, command = str(caught.value).splitlines()
    assert reason.endswith("failed to compile: it does not compile")
    assert command.startswith(f"The command was: {false_compiler} -O0")
    assert not list(target.parent.iterdir())


def test_compiler_that_is_no_program(tmp_path):
    text = tmp_path / "g++"
    text.write_text("not a program")
    with pytest.raises(DnnUnavailableError, match=r"g\+\+ cannot be run: .*install g\+\+"):
        compile_library(tmp_path / "lib.so", ONEDNN.sources, str(text), [], [])


SMALL = (
    'extern "C" __attribute__((visibility("default")))'
    ' const char *dnnops_last_error() { return "none"; }'
    ' extern "C" __attribute__((visibility("default"))) void dnnops_state_free(void *) {}'
)


@pytest.fixture
def small_library(tmp_path, monkeypatch):
    """Return a library that compiles fast, as in a new process, and counts compilations."""
    built = []

    def count(target, *arguments):
        built.append(target)
        compile_library(target, *arguments)

    monkeypatch.setattr(build, "compile_library", count)
    source = tmp_path / "small.cpp"
    source.write_text(SMALL)
    target = tmp_path / "dnnops" / "libdnnops_small.so"

    def make() -> RuntimeLibrary:
        library = RuntimeLibrary("small", find=lambda: ())
        recipe = Recipe(config.cxx, ["-fPIC", "-O0"], (), target)
        library.__dict__.update(sources=[source], recipe=recipe)
        return library

    make.built = built
    make.source = source
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
    assert len(small_library.built) == 2
    # And then it is in order.
    assert small_library().path == path
    assert len(small_library.built) == 2


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
    assert len(small_library.built) == 2
    refusals[:] = ["first", "second"]
    with pytest.raises(DnnUnavailableError, match="cannot be loaded: not today"):
        small_library().library  # noqa: B018
    assert len(small_library.built) == 3


def as_prebuilt(library: RuntimeLibrary, level: str, path: Path, monkeypatch) -> Path:
    """Put a library where the package would contain it."""
    directory = path.parents[1] / "lib"
    directory.mkdir()
    target = directory / prebuilt_name(library.name, level, library.source_hash)
    for suffix in ("", ".sha256"):
        shutil.copy(f"{path}{suffix}", f"{target}{suffix}")
    monkeypatch.setattr(build, "PREBUILT_DIR", directory)
    monkeypatch.setattr(build, "supported_levels", lambda: ("x86-64-v4", "x86-64-v3"))
    return target


def test_library_of_the_package_is_used(small_library, monkeypatch):
    built = small_library().path
    target = as_prebuilt(small_library(), "x86-64-v3", built, monkeypatch)
    built.unlink()
    library = small_library()
    assert library.path == target
    assert library.library.dnnops_last_error() == b"none"
    assert len(small_library.built) == 1
    # Of other sources it is not.
    small_library.source.write_text(SMALL.replace("none", "changed"))
    assert small_library().path == built
    assert len(small_library.built) == 2


def test_library_of_the_package_that_does_not_load_is_compiled(small_library, monkeypatch):
    built = small_library().path
    target = as_prebuilt(small_library(), "x86-64-v3", built, monkeypatch)
    load = ctypes.CDLL

    def refuse(name):
        if name == str(target):
            raise OSError("undefined symbol")
        return load(name)

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    assert small_library().library.dnnops_last_error() == b"none"


@pytest.mark.parametrize(
    ("flags", "levels"),
    [
        ("sse2 avx", ()),
        ("abm avx avx2 bmi1 bmi2 f16c fma movbe", ("x86-64-v3",)),
        (
            "abm avx avx2 bmi1 bmi2 f16c fma movbe avx512bw avx512cd avx512dq avx512f avx512vl",
            ("x86-64-v4", "x86-64-v3"),
        ),
    ],
)
def test_levels_of_a_processor(tmp_path, flags, levels):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor : 0\nflags\t\t: fpu {flags} mmx\nprocessor : 1\n")
    assert levels_of(cpuinfo) == levels
    assert levels_of(tmp_path / "missing") == ()


def test_only_what_a_change_affects_is_compiled(small_library, tmp_path):
    other = tmp_path / "other.cpp"
    other.write_text('#include "outer.hpp"\nint dnnops_other() { return NUMBER; }')
    (tmp_path / "outer.hpp").write_text('#include "parts/inner.hpp"\n')
    header = tmp_path / "parts" / "inner.hpp"
    header.parent.mkdir()
    header.write_text("#define NUMBER 1\n")
    log = tmp_path / "compiled"
    compiler = tmp_path / "logging-g++"
    compiler.write_text(f'#!/bin/sh\necho "$@" >> {log}\nexec {config.cxx} "$@"\n')
    compiler.chmod(0o755)

    def make() -> list[str]:
        log.unlink(missing_ok=True)
        library = small_library()
        recipe = library.recipe._replace(compiler=str(compiler))
        library.__dict__.update(sources=[small_library.source, other], recipe=recipe)
        library._build(keep_intact=False)
        lines = log.read_text().splitlines() if log.exists() else []
        return sorted(Path(line.split()[-3]).name for line in lines if " -c " in line)

    assert make() == ["other.cpp", "small.cpp"]
    assert make() == []
    small_library.source.write_text(SMALL.replace("none", "changed"))
    assert make() == ["small.cpp"]
    header.write_text("#define NUMBER 2\n")
    assert make() == ["other.cpp"]


def test_leftovers_of_killed_builds_are_removed(small_library):
    path = small_library().path
    dead = subprocess.Popen(["true"])
    dead.wait()
    host = os.uname().nodename
    killed = path.parent / f"building_{host}_{dead.pid}_x"
    alive = path.parent / f"building_{host}_{os.getpid()}_x"
    elsewhere = path.parent / f"building_not-{host}_{dead.pid}_x"
    for leftover in (killed, alive, elsewhere):
        leftover.mkdir()
        (leftover / "conv.o").write_bytes(b"half")
    path.unlink()
    assert small_library().path.is_file()
    assert [d for d in (killed, alive, elsewhere) if d.exists()] == [alive, elsewhere]


def test_waits_for_another_process_that_builds(small_library, monkeypatch, capsys):
    """This takes as long as necessary; PyTensor's time limit for its own lock has no effect."""
    monkeypatch.setattr(build, "_NOTICE_AFTER", 0.05)
    library = small_library()
    directory = library.recipe.target.parent
    directory.mkdir(mode=0o700)
    elsewhere = FileLock(directory / "build.lock")  # another object stands for another process
    found = []
    with elsewhere:
        waiting = threading.Thread(target=lambda: found.append(library.path))
        waiting.start()
        waiting.join(0.5)
        assert waiting.is_alive()
        assert not found
    waiting.join(60)
    assert found == [library.recipe.target]
    assert "another process is compiling the runtime library of small" in capsys.readouterr().err


def test_building_is_announced(small_library, capsys):
    library = small_library()
    library.path  # noqa: B018
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("dnnops: compiling the runtime library of small into ")
    assert str(library.recipe.target.parent) in line
    small_library().path  # noqa: B018
    assert not capsys.readouterr().err


def test_directory_is_private_whatever_the_umask(small_library):
    before = os.umask(0)
    try:
        path = small_library().path
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_flags_of_the_user_do_not_reach_the_library(monkeypatch):
    """PyMC switches exceptions off for PyTensor's modules."""
    given = ["-O0", "-march=znver3", "--param", "l2-cache-size=512", "-fno-exceptions", "-fno-rtti"]
    monkeypatch.setattr(GCC_compiler, "compile_args", staticmethod(lambda: given))
    library = RuntimeLibrary("onednn", ONEDNN.find, ONEDNN.compile_args)
    arguments = library.recipe.arguments
    assert arguments[:3] == ["-march=znver3", "--param", "l2-cache-size=512"]
    assert not {"-O0", "-fno-exceptions", "-fno-rtti"} & set(arguments)
    assert {"-O3", "-fexceptions", "-frtti"} <= set(arguments)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["ONEDNN", None])
def test_flags_of_pymc(mode):
    """With these flags, oneDNN computes the same, and there are no warnings."""
    code = f"""
        import warnings
        warnings.simplefilter("error")
        import numpy as np, pytensor, pytensor.tensor as pt
        from dnnops.nnet import conv2d
        x = pt.tensor("x", dtype="float32", shape=(None, 1, None, None))
        filters = np.ones((1, 1, 2, 2), "float32")
        f = pytensor.function([x], conv2d(x, filters), mode={mode!r})
        assert "OneDnnConv" in str(f.maker.fgraph)
        assert (f(np.ones((1, 1, 3, 3), "float32")) == 4).all()
    """
    flags = ",gcc__cxxflags=-fno-exceptions"
    process = start(code, Path(config.base_compiledir), flags)
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    assert "fno-exceptions" not in errors


@pytest.mark.needs("no root")
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
    """The directory cannot be made, as on a full or read-only disk."""
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
    for library in (ONEDNN, CUDNN):
        for source in library.sources:
            assert source.is_file()
            assert source.is_relative_to(c_code_dir())
    assert ONEDNN.source_hash != CUDNN.source_hash


def test_modules_depend_on_the_interface_alone(monkeypatch):
    """A changed source makes a new library, but no new C module of an Op."""
    from dnnops.cpu.conv import OneDnnConv

    op = OneDnnConv(2)
    version = op.c_code_cache_version()
    assert abi_hash() in version
    monkeypatch.setitem(ONEDNN.__dict__, "source_hash", "another")
    assert op.c_code_cache_version() == version
    assert not op.c_libraries()
    assert not op.c_lib_dirs()


def test_compiledir_that_pytensor_refuses(monkeypatch):
    def refuse(self):
        raise ValueError("compiledir '/there' exists but you don't have permissions.")

    monkeypatch.setattr(type(config), "compiledir", property(refuse))
    library = replace(ONEDNN)  # that has not been asked for its recipe
    with pytest.raises(DnnUnavailableError, match=r"you don't have permissions.* base_compiledir"):
        _ = library.recipe
