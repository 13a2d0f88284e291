"""Modules that one test process has compiled are not compiled by another."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from pytensor.link.c import cmodule

from tests import shared_modules
from tests.shared_modules import share_modules


class Compiler:
    """Copies the source, and counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, command: list[str], **options: Any) -> Any:
        self.calls += 1
        if "-fail" in command:
            return b"", b"failed", 1
        Path(command[command.index("-o") + 1]).write_bytes(Path(command[-1]).read_bytes())
        return b"", b"", 0


def compiled(folder: Path, source: str, *options: str) -> tuple[int, str]:
    """Run the compiler in a new folder; return its status and what it made."""
    folder.mkdir()
    (folder / "mod.cpp").write_text(source)
    target = folder / "m1.so"
    command = ["g++", *options, "-o", str(target), str(folder / "mod.cpp")]
    status = cmodule.output_subprocess_Popen(command)[2]
    return status, target.read_text() if target.exists() else ""


def test_the_same_module_is_compiled_once(tmp_path, monkeypatch):
    compiler = Compiler()
    monkeypatch.setattr(cmodule, "output_subprocess_Popen", compiler)
    share_modules(tmp_path / "shared")
    assert compiled(tmp_path / "a", "one") == (0, "one")
    assert compiled(tmp_path / "b", "one") == (0, "one")
    assert compiler.calls == 1
    assert compiled(tmp_path / "c", "two") == (0, "two")
    assert compiled(tmp_path / "d", "one", "-O3") == (0, "one")
    assert compiler.calls == 3
    for folder in "ef":
        assert compiled(tmp_path / folder, "one", "-fail") == (1, "")
    assert compiler.calls == 5
    other = tmp_path / "a" / "other.cpp"
    other.touch()
    for _ in range(2):
        cmodule.output_subprocess_Popen(["g++", "-o", str(tmp_path / "other"), str(other)])
    assert compiler.calls == 7, "only modules are stored"


def test_headers_count_by_their_contents(tmp_path, monkeypatch):
    """A module of another checkout and virtual environment is the same if the headers are."""
    compiler = Compiler()
    monkeypatch.setattr(cmodule, "output_subprocess_Popen", compiler)

    def modules_of(checkout: str, release: str = "2.0", header: str = "") -> list[str]:
        """Share modules as a checkout does; return the options of its compiler."""
        root = tmp_path / checkout
        own, numpy = root / "c_code", root / "venv" / "numpy" / "include"
        (own / "abi").mkdir(parents=True, exist_ok=True)
        (own / "abi" / "dnnops.h").write_text(header)
        (root / "first.hpp").write_text("#include <vector>")
        monkeypatch.setattr(shared_modules, "c_code_dir", lambda: own)
        monkeypatch.setattr(shared_modules.np, "get_include", lambda: str(numpy))
        monkeypatch.setattr(shared_modules, "version", lambda name: release)
        monkeypatch.setattr(cmodule, "output_subprocess_Popen", compiler)
        share_modules(tmp_path / "shared")
        return [f"-I{numpy}", f"-I{own}/abi", "-include", str(root / "first.hpp")]

    def compiles(*options: str) -> bool:
        before = compiler.calls
        assert compiled(tmp_path / str(next(folders)), "source", *options) == (0, "source")
        return compiler.calls > before

    folders = itertools.count()
    assert compiles(*modules_of("one"))
    assert not compiles(*modules_of("two"))
    assert compiles(*modules_of("newer_numpy", release="2.1"))
    assert compiles(*modules_of("changed", header="int f();"))
    options = modules_of("two")
    assert not compiles(*options)
    assert compiles(*options, f"-I{tmp_path}"), "nothing is known of other folders"
    assert compiles(*options, f"-Wl,-rpath,{tmp_path}/one"), "a module contains this path"
    (tmp_path / "two" / "first.hpp").write_text("#include <algorithm>")
    assert compiles(*options)
