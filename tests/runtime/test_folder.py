"""The folder of libraries: what others could have put there is neither loaded nor removed."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from dnnops.errors import DnnUnavailableError
from dnnops.runtime.build import CUDNN, ONEDNN
from dnnops.runtime.compiling import compile_library
from dnnops.runtime.folder import holds_own, make_private

NAME = "libdnnops_small_0123456789abcdef.so"
OBJECT = "objects/conv_0123456789abcdef.o"


@pytest.fixture(name="folder")
def folder_fixture(tmp_path: Path) -> Path:
    """Return a folder as builds leave it."""
    folder = tmp_path / "dnnops"
    for path in (OBJECT, f"{OBJECT}.sha256", "building_host_1_x/conv.o", NAME, "build.lock"):
        (folder / path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / path).write_bytes(path.encode())
    folder.chmod(0o700)
    return folder


def content(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_what_builds_left_is_removed_if_others_could_write(folder, mode):
    folder.chmod(mode)
    make_private(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert not list(folder.iterdir())


def test_a_private_folder_is_kept_as_it_is(folder):
    before = content(folder)
    make_private(folder)
    assert content(folder) == before
    folder.chmod(0o755)
    make_private(folder)
    assert content(folder) == before


@pytest.mark.parametrize(
    "path",
    ["setup.cfg", ".git/HEAD", "objects/mine.o", "objects/a/b", "building_x/a/b.o", "libmine.so"],
)
def test_nothing_is_removed_beside_files_of_the_user(folder, path):
    """As where ``compiledir`` is the folder of a checkout whose name is dnnops."""
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_text("mine")
    folder.chmod(0o775)
    before = content(folder)
    with pytest.raises(DnnUnavailableError, match="dnnops did not make") as caught:
        make_private(folder)
    assert str(folder) in str(caught.value)
    assert path.split("/")[0] in str(caught.value)
    assert content(folder) == before
    assert stat.S_IMODE(folder.stat().st_mode) == 0o775


def test_no_link_is_followed(folder, tmp_path):
    link = tmp_path / "elsewhere" / "dnnops"
    link.parent.mkdir(mode=0o700)
    link.symlink_to(folder)
    make_private(link)  # where only this user can write
    before = content(folder)
    folder.chmod(0o777)
    with pytest.raises(DnnUnavailableError, match="others may write to it") as caught:
        make_private(link)
    assert str(link) in str(caught.value)
    assert content(folder) == before


def test_links_within_the_folder_are_not_followed(folder, tmp_path):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "a_0123456789abcdef.o").write_text("mine")
    (folder / "objects" / "b_0123456789abcdef.o").symlink_to(mine / "a_0123456789abcdef.o")
    folder.chmod(0o777)
    make_private(folder)
    assert (mine / "a_0123456789abcdef.o").read_text() == "mine"
    (folder / "objects").symlink_to(mine)
    folder.chmod(0o777)
    with pytest.raises(DnnUnavailableError, match="dnnops did not make objects"):
        make_private(folder)
    assert (mine / "a_0123456789abcdef.o").read_text() == "mine"


def test_a_folder_that_others_could_replace(folder, tmp_path):
    tmp_path.chmod(0o777)
    before = content(folder)
    try:
        assert not holds_own(folder / NAME)
        with pytest.raises(DnnUnavailableError, match="others may write to") as caught:
            make_private(folder)
        assert str(tmp_path) in str(caught.value)
        assert content(folder) == before
        tmp_path.chmod(0o1777)  # as /tmp is
        make_private(folder)
    finally:
        tmp_path.chmod(0o700)


def test_a_folder_of_another_user(folder, monkeypatch):
    before, real = content(folder), os.stat

    def foreign(path, **options):
        fields = list(real(path, **options))
        fields[stat.ST_UID] = os.geteuid() + 1
        return os.stat_result(fields)

    monkeypatch.setattr(os, "stat", foreign)
    with pytest.raises(DnnUnavailableError, match="belongs to another user"):
        make_private(folder)
    monkeypatch.undo()
    assert content(folder) == before


@pytest.fixture(name="library")
def library_fixture(tmp_path: Path) -> Path:
    """Return a library that the true compiler would make, with its checksum."""
    compiler = tmp_path / "compiler"
    compiler.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\necho made > "$2"\n')
    compiler.chmod(0o755)
    target = tmp_path / "dnnops" / NAME
    target.parent.mkdir(mode=0o700)
    source = tmp_path / "small.cpp"
    source.write_text("")
    before = os.umask(0)
    try:
        compile_library(target, [source], str(compiler), [], [])
    finally:
        os.umask(before)
    return target


def test_a_library_is_used_whatever_the_umask(library):
    assert holds_own(library)
    assert not library.stat().st_mode & 0o022


@pytest.mark.parametrize("suffix", ["", ".sha256"])
@pytest.mark.parametrize("mode", [0o666, 0o620])
def test_a_library_that_others_may_write_to(library, suffix, mode):
    Path(f"{library}{suffix}").chmod(mode)
    assert not holds_own(library)


@pytest.mark.needs("root")
@pytest.mark.parametrize("suffix", ["", ".sha256"])
def test_a_library_of_another_user(library, suffix):
    os.chown(f"{library}{suffix}", 12345, -1)
    assert not holds_own(library)


def test_a_link_in_the_place_of_a_library(library, tmp_path):
    library.rename(tmp_path / "moved.so")
    library.symlink_to(tmp_path / "moved.so")
    assert not holds_own(library)


@pytest.mark.parametrize("library", [ONEDNN, CUDNN], ids=lambda library: library.name)
def test_names_of_the_libraries_are_known(library, tmp_path):
    """What a build makes can be removed again."""
    folder = tmp_path / "dnnops"
    folder.mkdir()
    (folder / f"libdnnops_{library.name}_0123456789abcdef.so").write_text("")
    folder.chmod(0o777)
    make_private(folder)
    assert not list(folder.iterdir())


def test_another_users_objects_are_compiled_again(library, tmp_path):
    objects = library.parent / "objects"
    objects.mkdir()
    compiler, source = tmp_path / "compiler", tmp_path / "small.cpp"
    compile_library(library, [source], str(compiler), [], [], objects)
    (kept,) = objects.glob("*.o")
    made = kept.stat().st_mtime_ns
    compile_library(library, [source], str(compiler), [], [], objects)
    assert kept.stat().st_mtime_ns == made
    kept.chmod(0o666)
    compile_library(library, [source], str(compiler), [], [], objects)
    assert kept.stat().st_mtime_ns != made


def test_old_files_of_others_among_the_objects_are_kept(library, tmp_path, monkeypatch):
    monkeypatch.setattr("dnnops.runtime.compiling._KEPT_OBJECTS", 1)
    objects = library.parent / "objects"
    objects.mkdir()
    (objects / "mine.o").write_text("mine")
    os.utime(objects / "mine.o", (0, 0))
    compile_library(library, [tmp_path / "small.cpp"], str(tmp_path / "compiler"), [], [], objects)
    assert len(list(objects.glob("small_*.o"))) == 1
    assert (objects / "mine.o").read_text() == "mine"
