"""Files that users name: kept until the new one is complete, with mode and links; no devices."""

from __future__ import annotations

import errno
import os
import resource
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dnnops.errors import DnnValueError
from dnnops.runtime import output

CONTENT = bytes(range(256)) * 1000


def test_new_files_get_the_mode_of_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        output.write(tmp_path / "new", CONTENT)
    finally:
        os.umask(before)
    assert (tmp_path / "new").read_bytes() == CONTENT
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640
    output.write(str(tmp_path / "text"), "ä")
    assert (tmp_path / "text").read_text(encoding="utf-8") == "ä"
    assert sorted(os.listdir(tmp_path)) == ["new", "text"]


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664, 0o755])
def test_the_mode_is_kept(tmp_path, mode):
    file = tmp_path / "file"
    file.write_text("former")
    file.chmod(mode)
    output.write(file, CONTENT)
    assert file.read_bytes() == CONTENT
    assert stat.S_IMODE(file.stat().st_mode) == mode


@pytest.mark.needs("root")
def test_the_owner_is_kept(tmp_path):
    file = tmp_path / "file"
    file.write_text("former")
    os.chown(file, 12345, 54321)
    output.write(file, CONTENT)
    assert (file.stat().st_uid, file.stat().st_gid) == (12345, 54321)


def test_another_group_may_read_no_more_than_others(tmp_path, monkeypatch):
    """Where the group cannot be kept."""
    file = tmp_path / "file"
    file.write_text("former")
    file.chmod(0o664)
    monkeypatch.setattr(os, "fchown", failing(PermissionError))
    output.write(file, CONTENT)
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    file.chmod(0o640)
    output.write(file, CONTENT)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("exists", [False, True])
def test_links_are_kept(tmp_path, relative, exists):
    target, link, another = tmp_path / "a" / "target", tmp_path / "link", tmp_path / "b" / "another"
    target.parent.mkdir()
    another.parent.mkdir()
    if exists:
        target.write_text("former")
        target.chmod(0o600)
    link.symlink_to("a/target" if relative else target)
    another.symlink_to("../link")
    output.write(another, CONTENT)
    assert another.is_symlink()
    assert link.is_symlink()
    assert not target.is_symlink()
    assert target.read_bytes() == CONTENT
    assert (stat.S_IMODE(target.stat().st_mode) == 0o600) == exists
    assert os.listdir(another.parent) == ["another"]


def test_links_in_a_circle(tmp_path):
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    assert output.obstacle(tmp_path / "a") == os.strerror(errno.ELOOP)
    with pytest.raises(OSError, match=r"'.*/a'"):
        output.write(tmp_path / "a", CONTENT)


def test_errors_name_only_the_path_that_was_given(tmp_path):
    path = tmp_path / "missing" / "file"
    with pytest.raises(FileNotFoundError) as caught:
        output.write(path, CONTENT)
    assert str(caught.value) == f"[Errno {errno.ENOENT}] {os.strerror(errno.ENOENT)}: '{path}'"


@pytest.mark.parametrize("exists", [False, True])
def test_a_slash_at_the_end_names_a_folder(tmp_path, exists):
    if exists:
        (tmp_path / "file").write_text("former")
    assert output.obstacle(f"{tmp_path}/file/") == os.strerror(errno.ENOTDIR)
    with pytest.raises(NotADirectoryError):
        output.write(f"{tmp_path}/file/", CONTENT)
    assert (tmp_path / "file").exists() == exists
    output.write(os.fsencode(tmp_path / "file"), CONTENT)
    assert (tmp_path / "file").read_bytes() == CONTENT


def refused(path: Path, kind: str) -> None:
    before = path.lstat()
    assert output.obstacle(path) == f"it is {kind}"
    with pytest.raises(DnnValueError, match=f"{path.name} is not a regular file but {kind}"):
        output.write(path, CONTENT)
    assert path.lstat().st_ino == before.st_ino
    assert path.lstat().st_mode == before.st_mode
    assert not list(path.parent.glob(".dnnops*"))


@pytest.mark.needs("root")
@pytest.mark.parametrize("kind", [stat.S_IFCHR, stat.S_IFBLK])
def test_devices_are_refused(tmp_path, kind):
    number = os.makedev(1, 7) if kind == stat.S_IFCHR else os.makedev(240, 250)  # /dev/full, none
    os.mknod(tmp_path / "device", kind | 0o666, number)
    refused(tmp_path / "device", "a device")
    (tmp_path / "link").symlink_to("device")
    refused(tmp_path / "link", "a device")


@pytest.mark.parametrize("name", ["full", "null", "zero"])
def test_devices_of_the_system_are_refused(name):
    before = os.stat(f"/dev/{name}")
    with pytest.raises(DnnValueError, match="a device"):
        output.write(f"/dev/{name}", CONTENT)
    assert os.stat(f"/dev/{name}").st_rdev == before.st_rdev
    assert os.stat(f"/dev/{name}").st_ino == before.st_ino


def test_folders_and_sockets_are_refused(tmp_path):
    (tmp_path / "folder").mkdir()
    refused(tmp_path / "folder", "a folder")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        refused(tmp_path / "socket", "a socket")


@pytest.mark.parametrize("late", [False, True])
def test_a_named_pipe(tmp_path, late):
    pipe, started = tmp_path / "pipe", threading.Event()
    os.mkfifo(pipe)
    found: list[bytes] = []

    def read() -> None:
        started.wait(10)
        found.append(pipe.read_bytes())

    reader = threading.Thread(target=read)
    reader.start()
    timer = threading.Timer(0.05 if late else 0, started.set)
    timer.start()
    assert output.obstacle(pipe) == ""
    output.write(pipe, CONTENT)
    reader.join()
    timer.join()
    assert found == [CONTENT]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_named_pipe_that_nobody_reads(tmp_path, monkeypatch):
    monkeypatch.setattr(output, "_READER_WITHIN", 0.02)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match=r"/pipe'") as caught:
        output.write(tmp_path / "pipe", CONTENT)
    assert caught.value.errno == errno.ENXIO


@pytest.fixture(name="descriptors")
def descriptors_fixture() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


@pytest.mark.parametrize("folder", ["/dev/fd", "/proc/self/fd", "/proc/{pid}/fd"])
def test_descriptors(descriptors, folder):
    reader, writer = descriptors
    path = f"{folder.format(pid=os.getpid())}/{writer}"
    assert output.obstacle(path) == ""
    output.write(path, b"content")
    assert os.read(reader, 100) == b"content"
    with pytest.raises(OSError, match=str(reader)):
        output.write(path.replace(str(writer), str(reader)), b"content")


@pytest.mark.parametrize("where", ["pipe", "file"])
def test_the_standard_output(tmp_path, where):
    """Also one that is redirected to a file: that stays the one that the shell opened."""
    code = (
        "from dnnops.runtime import output; print('before');"
        "output.write('/dev/stdout', 'written\\n'); print('after')"
    )
    file = tmp_path / "file"
    with file.open("w") as stream:
        to = stream if where == "file" else subprocess.PIPE
        done = subprocess.run([sys.executable, "-c", code], stdout=to, text=True, check=True)
    found = done.stdout if where == "pipe" else file.read_text()
    assert found == "before\nwritten\nafter\n"


def failing(error: type[BaseException], *arguments: Any) -> Callable[..., Any]:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise error(*arguments)

    return fail


@pytest.mark.parametrize("function", ["fsync", "replace", "fchmod"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_an_interrupt_leaves_the_former_file(tmp_path, monkeypatch, function, error):
    file = tmp_path / "file"
    file.write_text("former")
    monkeypatch.setattr(os, function, failing(error, errno.EIO, "broken"))
    with pytest.raises(error):
        output.write(file, CONTENT)
    monkeypatch.undo()
    assert file.read_text() == "former"
    assert os.listdir(tmp_path) == ["file"]


def test_a_full_disk_leaves_the_former_file(tmp_path):
    file = tmp_path / "file"
    file.write_text("former")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(OSError, match=r"'.*/file'") as caught:
            output.write(file, CONTENT)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.errno == errno.EFBIG
    assert file.read_text() == "former"
    assert os.listdir(tmp_path) == ["file"]


def test_content_is_synchronized_before_and_the_folder_after(tmp_path, monkeypatch):
    calls: list[str] = []
    real_fsync, real_replace = os.fsync, os.replace

    def fsync(descriptor: int) -> None:
        status = os.fstat(descriptor)
        calls.append("folder" if stat.S_ISDIR(status.st_mode) else f"{status.st_size} bytes")
        real_fsync(descriptor)

    def replace(source: str, target: str) -> None:
        calls.append("replace")
        real_replace(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    output.write(tmp_path / "file", CONTENT)
    assert calls == ["256000 bytes", "replace", "folder"]


def test_obstacles(tmp_path, monkeypatch):
    assert output.obstacle(tmp_path / "new") == ""
    missing = tmp_path / "missing"
    assert output.obstacle(missing / "new") == f"there is no folder {missing}"
    with pytest.raises(FileNotFoundError, match="missing/new"):
        output.write(missing / "new", CONTENT)
    (tmp_path / "file").write_text("")
    assert output.obstacle(tmp_path / "file" / "new") == f"there is no folder {tmp_path / 'file'}"
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path / "file")
    assert output.obstacle(tmp_path / "file") == f"no permission to write to {tmp_path / 'file'}"
    assert output.obstacle(tmp_path / "new") == ""
    with pytest.raises(PermissionError, match="/file'"):
        output.write(tmp_path / "file", CONTENT)


def test_what_exists(tmp_path, descriptors):
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "dangling").symlink_to("none")
    os.mkfifo(tmp_path / "pipe")
    found = {name: output.is_file(tmp_path / name) for name in [*os.listdir(tmp_path), "none"]}
    assert found == {"file": True, "link": True, "dangling": False, "pipe": False, "none": False}
    assert not output.is_file(f"/dev/fd/{descriptors[1]}")
