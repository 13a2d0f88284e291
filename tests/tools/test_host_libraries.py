"""A library that tests compile is compiled again only if it would be another one."""

from __future__ import annotations

import ctypes
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import host_libraries
from tests.host_libraries import compile_once


def test_the_same_library_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    calls = []

    def compiler(command: list[str], cwd: Path, check: bool) -> None:
        calls.append(command)
        (cwd / "a.so").write_bytes((cwd / "a.cpp").read_bytes())

    def compiles(text: str, *options: str, name: str = "g++") -> bool:
        folder = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        (folder / "a.cpp").write_text(text)
        (folder / "first.hpp").write_text("#include <vector>" if text == "one" else "")
        before = len(calls)
        included = ["-include", str(folder / "first.hpp"), f"-I{host_libraries.SOURCES[0]}"]
        compile_once([name, *options, *included, "-o", "a.so", "a.cpp"], folder)
        assert (folder / "a.so").read_text() == text
        return len(calls) > before

    shared: Any = SimpleNamespace(base_compiledir=tmp_path / "shared")
    monkeypatch.setattr(host_libraries, "config", shared)
    monkeypatch.setattr(host_libraries, "_version", lambda name: f"{name} 12")
    monkeypatch.setattr(host_libraries.subprocess, "run", compiler)
    assert compiles("one")
    assert not compiles("one")
    assert compiles("two")
    assert compiles("one", "-O2")
    assert compiles("one", name="clang++")
    assert not compiles("one")
    monkeypatch.setattr(host_libraries, "_hash_of_sources", lambda: "a header has changed")
    assert compiles("one")
    with pytest.raises(ValueError, match="elsewhere is none of"):
        compiles("one", f"-I{tmp_path}/elsewhere")


def test_libraries_share_no_variables(tmp_path: Path):
    """The same kernel with other macros has arrays of other sizes."""
    source = """
    inline int *array() {{
      static thread_local int elements[{size}];
      return elements;
    }}
    extern "C" int set(int value) {{ return array()[0] = value; }}
    extern "C" int get() {{ return array()[0]; }}
    """
    libraries = []
    for size in (1, 1000):
        name = f"size{size}"
        (tmp_path / f"{name}.cpp").write_text(source.format(size=size))
        command = ["g++", "-fPIC", "-shared", "-o", f"{name}.so", f"{name}.cpp"]
        compile_once(command, tmp_path)
        libraries.append(ctypes.CDLL(str(tmp_path / f"{name}.so")))
    libraries[0].set(1)
    libraries[1].set(2)
    assert [library.get() for library in libraries] == [1, 2]
