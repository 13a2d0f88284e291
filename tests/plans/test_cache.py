"""Plans on disk: stored plans are found, within the capacity, in the flag's directory."""

from __future__ import annotations

import copy
import errno
import os
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
from pytensor import config

from dnnops.config import flag_value
from dnnops.errors import DnnValueError, DnnWarning
from dnnops.plans.cache import PlanCache, plan_cache
from tests.plans.cached_plans import (
    CHOICE,
    KEY,
    cache_fixture,  # noqa: F401  by its fixture's name, cache
    choice,
    failing,
    key,
    numbers,
    warnings_are_errors,  # noqa: F401  every test runs with it
)

# --- What is stored is found ---------------------------------------------------------------------


def test_what_is_stored_is_found_by_other_objects(cache: PlanCache):
    assert cache.find(KEY) is None
    assert not cache.path.exists()
    cache.store(KEY, CHOICE)
    assert cache.find(KEY) == CHOICE
    assert PlanCache(cache.path).find(copy.deepcopy(KEY)) == CHOICE
    cache.store(KEY, choice(3))
    assert PlanCache(cache.path).find(KEY) == choice(3)
    assert cache.statistics == {
        "hits": 1,
        "misses": 1,
        "ignored": 0,
        "stores": 2,
        "failures": 0,
        "evictions": 0,
    }


def test_drop(cache: PlanCache):
    cache.drop(KEY)
    cache.store(key(1), CHOICE)
    cache.store(key(2), CHOICE)
    cache.drop(key(1))
    cache.drop(key(1))
    assert cache.find(key(1)) is None
    assert cache.find(key(2)) == CHOICE


def test_entries_and_clear(cache: PlanCache):
    assert list(cache.entries()) == []
    assert cache.clear() == 0
    for number in range(5):
        cache.store(key(number), choice(number))
    entries = {entry.key["number"]: entry.choice for entry in cache.entries()}
    assert entries == {number: choice(number) for number in range(5)}
    (cache.path / "mine.json").write_text("{}")
    (cache.path / ".dnnops-0123456789abcdef.tmp").write_text("half")
    assert cache.clear() == 5
    assert [file.name for file in cache.path.iterdir()] == ["mine.json"]
    assert cache.find(key(1)) is None


# --- Capacity ------------------------------------------------------------------------------------


def set_age(file: Path, days: float) -> None:
    then = time.time() - days * 24 * 3600
    os.utime(file, (then, then))


def stored(cache: PlanCache, number: int, days: float = 0) -> Path:
    before = set(cache.path.iterdir()) if cache.path.exists() else set()
    cache.store(key(number), choice(number))
    (file,) = set(cache.path.iterdir()) - before
    set_age(file, days)
    return file


def test_too_many_entries(tmp_path: Path):
    cache = PlanCache(tmp_path, capacity_entries=16)
    for number in range(16):
        stored(cache, number, days=100 - number if number else 0)
    assert numbers(cache) == set(range(16))
    cache.store(key(16), CHOICE)
    # Down to 14, so that the next store need not look: 0 is the youngest of the old ones.
    assert numbers(cache) == {0, *range(4, 17)}
    assert cache.statistics["evictions"] == 3


def test_too_many_bytes(tmp_path: Path):
    size = stored(PlanCache(tmp_path / "one"), 0).stat().st_size
    cache = PlanCache(tmp_path / "plans", capacity_bytes=8 * size + 4)
    for number in range(8):
        stored(cache, number, days=100 - number)
    assert numbers(cache) == set(range(8))
    cache.store(key(8), choice(8))
    assert numbers(cache) == set(range(2, 9))
    assert sum(file.size for file in cache.files()) <= 8 * size


def test_other_processes_entries_count(tmp_path: Path):
    for number in range(16):
        stored(PlanCache(tmp_path), number, days=100 - number)
    cache = PlanCache(tmp_path, capacity_entries=8)
    cache.store(key(16), CHOICE)
    assert numbers(cache) == set(range(10, 17))


def test_the_new_entry_stays(tmp_path: Path):
    """This holds even if the file system's clock says that it is the oldest."""
    cache = PlanCache(tmp_path, capacity_bytes=100, capacity_entries=1)
    file = stored(PlanCache(tmp_path), 0)
    set_age(file, days=-100)
    cache.store(key(1), CHOICE)
    assert numbers(cache) == {1}


def test_counting_is_not_done_at_each_store(cache: PlanCache, monkeypatch: pytest.MonkeyPatch):
    scans = 0
    real = os.scandir

    def count(path: Any) -> Any:
        nonlocal scans
        scans += 1
        return real(path)

    monkeypatch.setattr(os, "scandir", count)
    for number in range(100):
        cache.store(key(number), CHOICE)
    # Of temporary files and of entries: at the first store, and when there are too many entries.
    assert scans == 2
    full = PlanCache(cache.path, capacity_entries=102)
    for number in range(100, 102):
        full.store(key(number), CHOICE)
    assert scans == 4
    full.store(key(102), CHOICE)
    assert scans == 6


def test_use_keeps_an_entry_young(tmp_path: Path):
    cache = PlanCache(tmp_path)
    files = [stored(cache, number, days) for number, days in enumerate((30, 40, 0.5))]
    before = [file.stat().st_mtime for file in files]
    for number in (1, 2):
        assert cache.find(key(number)) == choice(number)
    after = [file.stat().st_mtime for file in files]
    assert (after[0], after[2]) == (before[0], before[2])
    assert time.time() - after[1] < 60
    small = PlanCache(tmp_path, capacity_entries=3)
    small.store(key(3), CHOICE)
    # Room for two: the new one and the one that was used, which had been the oldest.
    assert numbers(small) == {1, 3}


def test_an_entry_on_a_read_only_system_cannot_be_kept_young(
    cache: PlanCache, monkeypatch: pytest.MonkeyPatch
):
    stored(cache, 0, days=9)
    monkeypatch.setattr(os, "utime", failing(os.utime, errno.EROFS))
    assert cache.find(key(0)) == choice(0)


def test_files_vanish_while_room_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    cache = PlanCache(tmp_path, capacity_entries=4)
    for number in range(4):
        stored(cache, number, days=100 - number)
    real = os.unlink

    def twice(name: str, **kwargs: Any) -> None:
        real(name, **kwargs)
        real(name, **kwargs)

    monkeypatch.setattr(os, "unlink", twice)
    cache.store(key(4), choice(4))
    assert numbers(cache) == {2, 3, 4}


def test_leftovers_of_killed_processes_are_swept_when_old(cache: PlanCache):
    cache.path.mkdir(parents=True, mode=0o700)
    old, new, other = (
        cache.path / name
        for name in (".dnnops-00000000000000ff.tmp", ".dnnops-00000000000000aa.tmp", "other.tmp")
    )
    for file in (old, new, other):
        file.write_text("half")
    set_age(old, days=0.5)
    set_age(other, days=50)
    cache.store(KEY, CHOICE)
    assert not old.exists()
    assert new.exists()
    assert other.exists()


def test_a_folder_that_can_never_be_made():
    # As below /proc, where making one says that there is no such file.
    cache = PlanCache("/proc/self/task/dnnops-plans")
    with pytest.warns(DnnWarning, match=r"flag dnn\.conv\.cache: .* No such file or directory"):
        cache.store(KEY, CHOICE)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache.store(KEY, CHOICE)
        assert cache.find(KEY) is None
    assert cache.statistics["failures"] == 2


# --- The flag ------------------------------------------------------------------------------------


def test_the_flag_names_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with config.change_flags(dnn__conv__cache="off"):
        assert plan_cache() is None
    with config.change_flags(dnn__conv__cache=str(tmp_path / "a")):
        first = plan_cache()
        assert first is not None
        assert first.path == tmp_path / "a"
        assert plan_cache() is first
        with config.change_flags(dnn__conv__cache=str(tmp_path / "b")):
            assert plan_cache().path == tmp_path / "b"
        assert plan_cache().path == tmp_path / "a"
    monkeypatch.chdir(tmp_path)
    with config.change_flags(dnn__conv__cache="relative"):
        assert plan_cache().path == tmp_path / "relative"
        monkeypatch.chdir("/")
        assert plan_cache().path == tmp_path / "relative"
    assert list(tmp_path.iterdir()) == []


def test_the_default_lies_beside_the_compiledir():
    path = Path(flag_value("dnn.conv.cache"))
    assert path.parent == Path(config.compiledir).parent


@pytest.mark.parametrize("path", ["", "a\0b"])
def test_paths_that_cannot_be(path: str):
    with pytest.raises(DnnValueError, match=r"flag dnn\.conv\.cache"):
        PlanCache(path)
