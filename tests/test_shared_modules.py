"""Modules that one test process has compiled are not compiled by another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pytensor.link.c import cmodule

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
