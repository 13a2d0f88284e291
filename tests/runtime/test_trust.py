"""Which folders and files count as this user's own."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from dnnops.runtime import trust
from dnnops.runtime.trust import distrust_directory, distrust_file


@pytest.fixture(name="place")
def place_fixture(tmp_path: Path) -> Path:
    place = tmp_path / "a" / "b" / "c"
    place.mkdir(mode=0o700, parents=True)
    return place


def test_a_private_folder(place):
    assert distrust_directory(place) == ""
    place.chmod(0o755)
    assert distrust_directory(place) == ""


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770, 0o702])
def test_a_folder_that_others_may_write_to(place, mode):
    place.chmod(mode)
    assert distrust_directory(place) == f"others may write to it, its mode is {mode:04o}"


@pytest.mark.parametrize("above", [1, 2])
def test_a_folder_above_that_others_may_write_to(place, above):
    parent = place.parents[above - 1]
    parent.chmod(0o777)
    assert distrust_directory(place) == f"others may write to {parent}, its mode is 0777"
    parent.chmod(0o1777)
    assert distrust_directory(place) == ""


def test_a_group_of_this_user_alone(place, monkeypatch):
    place.parent.chmod(0o775)
    monkeypatch.setattr(trust, "_is_own_group", lambda group: True)
    assert distrust_directory(place) == ""
    monkeypatch.setattr(trust, "_is_own_group", lambda group: False)
    assert distrust_directory(place) == f"others may write to {place.parent}, its mode is 0775"
    # Never of the folder itself.
    place.parent.chmod(0o755)
    place.chmod(0o775)
    monkeypatch.setattr(trust, "_is_own_group", lambda group: True)
    assert distrust_directory(place) == "others may write to it, its mode is 0775"


@pytest.mark.parametrize("relative", [False, True])
def test_a_link_in_a_folder_that_others_may_write_to(place, tmp_path, relative):
    public = tmp_path / "public"
    public.mkdir()
    link = public / "link"
    link.symlink_to("../a/b" if relative else place.parent)
    assert distrust_directory(link / "c") == ""
    public.chmod(0o777)
    assert distrust_directory(link / "c") == f"others may write to {public}, its mode is 0777"
    assert distrust_directory(place) == ""
    # And one that leads there.
    (tmp_path / "another").symlink_to(public)
    found = distrust_directory(tmp_path / "another" / "link" / "c")
    assert found == f"others may write to {public}, its mode is 0777"


@pytest.mark.needs("root")
def test_owners(place):
    os.chown(place, 12345, -1)
    assert distrust_directory(place) == "it belongs to another user, with the id 12345"
    os.chown(place, 0, -1)
    os.chown(place.parent, 12345, -1)
    assert distrust_directory(place) == f"{place.parent} belongs to another user, with the id 12345"


def test_root_is_trusted(place, monkeypatch):
    status = list(os.stat(place))
    status[stat.ST_UID] = 0
    monkeypatch.setattr(os, "geteuid", lambda: 4321)
    monkeypatch.setattr(os, "stat", lambda *args: os.stat_result(status))
    monkeypatch.setattr(os, "lstat", lambda *args: os.stat_result(status))
    assert distrust_directory(place) == ""


def test_files(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    for mode, reason in ((0o600, ""), (0o644, ""), (0o666, "others may write to it")):
        file.chmod(mode)
        assert distrust_file(file.lstat()).startswith(reason)
        assert bool(distrust_file(file.lstat())) == bool(reason)
    assert distrust_file(tmp_path.lstat()) == "it is not a regular file"
    (tmp_path / "link").symlink_to(file)
    assert distrust_file((tmp_path / "link").lstat()) == "it is not a regular file"


def test_a_missing_folder(tmp_path):
    with pytest.raises(FileNotFoundError):
        distrust_directory(tmp_path / "missing")
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError):
        distrust_directory(tmp_path / "file")
