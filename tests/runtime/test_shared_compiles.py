"""A module is compiled once for all processes that need it at the same time."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dnnops.runtime.shared_compiles import (
    KEPT_S,
    compile_once,
    remove_old_modules,
    shared_folder,
)


def compile_in(folder: Path, into: Path, identity: str, calls: list[str]) -> bytes:
    def compiled(location: Path) -> None:
        calls.append(identity)
        time.sleep(0.1)
        (location / "module.so").write_bytes(identity.encode())

    into.mkdir(parents=True)
    compile_once(folder, identity, compiled, into)
    return (into / "module.so").read_bytes()


def test_threads_share_a_compilation(tmp_path):
    folder = shared_folder(tmp_path)
    calls: list[str] = []
    jobs = [("a", 0), ("b", 1), ("a", 2), ("a", 3), ("b", 4)]
    with ThreadPoolExecutor(5) as pool:
        results = [
            pool.submit(compile_in, folder, tmp_path / str(i), identity, calls)
            for identity, i in jobs
        ]
    assert [job.result() for job in results] == [identity.encode() for identity, _ in jobs]
    assert sorted(calls) == ["a", "b"]


def test_processes_share_a_compilation(tmp_path):
    script = """
        import sys, time
        from pathlib import Path
        from dnnops.runtime.shared_compiles import compile_once
        def compiled(location):
            print("compiled", flush=True)
            time.sleep(0.3)
            (location / "module.so").write_text("it")
        into = Path(sys.argv[2])
        into.mkdir()
        compile_once(Path(sys.argv[1]), "module", compiled, into)
        assert (into / "module.so").read_text() == "it"
    """
    folder = shared_folder(tmp_path)
    command = [sys.executable, "-c", textwrap.dedent(script), str(folder)]
    processes = [
        subprocess.Popen([*command, str(tmp_path / str(i))], stdout=subprocess.PIPE, text=True)
        for i in range(2)
    ]
    outputs = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert "".join(outputs) == "compiled\n"


def test_a_failed_compilation_is_tried_again_and_others_do_not_wait(tmp_path):
    folder = shared_folder(tmp_path)
    into = tmp_path / "into"
    into.mkdir()

    def fail(location: Path) -> None:
        raise RuntimeError("no compiler")

    with pytest.raises(RuntimeError, match="no compiler"):
        compile_once(folder, "module", fail, into)
    calls: list[str] = []
    assert compile_in(folder, tmp_path / "again", "module", calls) == b"module"
    assert calls == ["module"]


def test_a_lock_of_one_module_does_not_hold_another(tmp_path):
    folder = shared_folder(tmp_path)
    release = threading.Event()
    (tmp_path / "held").mkdir()
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(
            compile_once, folder, "held", lambda _: release.wait(30), tmp_path / "held"
        )
        assert compile_in(folder, tmp_path / "other", "other", []) == b"other"
        assert not held.done()
        release.set()


def test_without_space_each_process_keeps_its_own(tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copytree", full)
    folder = shared_folder(tmp_path)
    calls: list[str] = []
    assert compile_in(folder, tmp_path / "1", "module", calls) == b"module"
    assert compile_in(folder, tmp_path / "2", "module", calls) == b"module"
    assert len(calls) == 2
    assert not [path for path in folder.iterdir() if path.suffix != ".lock"]


def test_only_unused_modules_are_removed(tmp_path):
    folder = shared_folder(tmp_path)
    for identity in ("old", "new"):
        compile_in(folder, tmp_path / identity, identity, [])
    old = time.time() - KEPT_S - 1
    for path in folder.iterdir():
        os.utime(path, (old, old))
    calls: list[str] = []
    compile_in(folder, tmp_path / "used", "new", calls)
    link, mine = folder / ("f" * 32), folder / "mine" / "notes.txt"
    link.symlink_to(tmp_path / "old")
    os.utime(link, (old, old), follow_symlinks=False)
    # As in a folder of that name of the user's, with compiledir beside it.
    mine.parent.mkdir()
    mine.touch()
    os.utime(mine.parent, (old, old))
    remove_old_modules(folder)
    assert mine.exists()
    compile_in(folder, tmp_path / "used again", "new", calls)
    assert calls == []
    compile_in(folder, tmp_path / "compiled again", "old", calls)
    assert calls == ["old"]
    assert (tmp_path / "old" / "module.so").exists()


def test_a_process_killed_while_it_removes_a_module_leaves_none_without_files(
    tmp_path, monkeypatch
):
    folder = shared_folder(tmp_path)
    compile_in(folder, tmp_path / "1", "module", [])
    old = time.time() - KEPT_S - 1
    for path in folder.iterdir():
        os.utime(path, (old, old))

    def killed(path, **kwargs):
        for file in path.iterdir():
            file.unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            remove_old_modules(folder)
    calls: list[str] = []
    assert compile_in(folder, tmp_path / "2", "module", calls) == b"module"
    for stored in folder.glob("?" * 32):  # as an earlier version, or a user, might leave it
        for file in stored.iterdir():
            file.unlink()
    assert compile_in(folder, tmp_path / "3", "module", calls) == b"module"
    assert compile_in(folder, tmp_path / "4", "module", calls) == b"module"
    assert calls == ["module"] * 2
    for path in folder.iterdir():
        os.utime(path, (old, old))
    remove_old_modules(folder)
    assert not list(folder.iterdir())


def test_a_folder_that_others_may_write_to_is_not_used(tmp_path):
    folder = shared_folder(tmp_path)
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o777)
    assert shared_folder(tmp_path) is None
    (tmp_path / "file").touch()
    assert shared_folder(tmp_path / "file") is None
