"""The directory of plans on disk: unusable, full, or written by stopped or many processes."""

from __future__ import annotations

import errno
import multiprocessing
import os
import random
import resource
import signal
import stat
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

from dnnops.errors import DnnCacheError
from dnnops.plans import cache as module
from dnnops.plans.cache import CachedChoice, PlanCache
from dnnops.runtime import files
from tests.plans.cached_plans import (
    CHOICE,
    KEY,
    cache_fixture,  # noqa: F401  by its fixture's name, cache
    choice,
    failing,
    key,
    numbers,
    one_warning,
    the_file,
    warnings_are_errors,  # noqa: F401  every test runs with it
)

# --- Directories that cannot be used -------------------------------------------------------------


def test_a_directory_that_others_may_write_to(cache: PlanCache):
    cache.store(KEY, CHOICE)
    for mode in (0o770, 0o702):
        cache.path.chmod(mode)
        victim = PlanCache(cache.path)
        module._warned.clear()
        with one_warning(cache.path, f"others may write to it, its mode is {mode:04o}"):
            assert victim.find(KEY) is None
            victim.store(key(1), CHOICE)
        cache.path.chmod(0o700)
        # Off for good: what is in there may come from others.
        assert victim.find(KEY) is None
        victim.store(key(2), CHOICE)
        victim.drop(KEY)
    assert len(list(cache.entries())) == 1
    cache.path.chmod(0o755)
    assert PlanCache(cache.path).find(KEY) == CHOICE


def test_a_directory_of_another_user(cache: PlanCache, monkeypatch: pytest.MonkeyPatch):
    cache.store(KEY, CHOICE)
    real = os.stat

    def foreign(path: Any, **kwargs: Any) -> Any:
        status = real(path, **kwargs)
        fields = list(status)
        fields[stat.ST_UID] += stat.S_ISDIR(status.st_mode)
        return os.stat_result(fields)

    monkeypatch.setattr(os, "stat", foreign)
    with one_warning(cache.path, "another user", os.geteuid() + 1):
        assert cache.find(KEY) is None
        cache.store(KEY, choice(1))
    for call in (cache.clear, lambda: list(cache.entries())):
        with pytest.raises(DnnCacheError, match="another user"):
            call()
    monkeypatch.undo()
    assert PlanCache(cache.path).find(KEY) == CHOICE


def test_a_directory_that_others_could_replace(cache: PlanCache):
    cache.store(KEY, CHOICE)
    parent = cache.path.parent
    parent.chmod(0o777)
    with one_warning(cache.path, f"others may write to {parent}, its mode is 0777"):
        assert cache.find(KEY) is None
    parent.chmod(0o700)
    assert PlanCache(cache.path).find(KEY) == CHOICE


def test_a_directory_of_root(cache: PlanCache, monkeypatch: pytest.MonkeyPatch):
    """Root could change everything anyway, and may store plans for all users of a machine."""
    cache.store(KEY, CHOICE)
    for name in ("stat", "lstat", "fstat"):
        real = getattr(os, name)

        def of_root(place: Any, real: Any = real, **options: Any) -> Any:
            fields = list(real(place, **options))
            fields[stat.ST_UID] = 0
            return os.stat_result(fields)

        monkeypatch.setattr(os, name, of_root)
    monkeypatch.setattr(os, "geteuid", lambda: 4321)
    found = cache.find(KEY)
    monkeypatch.undo()
    assert found == CHOICE


def test_a_file_that_others_may_write_to(cache: PlanCache):
    cache.store(KEY, CHOICE)
    the_file(cache).chmod(0o666)
    with one_warning(the_file(cache), "others may write to it, its mode is 0666"):
        assert cache.find(KEY) is None
    cache.store(KEY, CHOICE)
    assert stat.S_IMODE(the_file(cache).stat().st_mode) == 0o600
    assert cache.find(KEY) == CHOICE


@pytest.mark.needs("root")
def test_a_file_of_another_user(cache: PlanCache):
    cache.store(KEY, CHOICE)
    os.chown(the_file(cache), 12345, -1)
    with one_warning(the_file(cache), "it belongs to another user, with the id 12345"):
        assert cache.find(KEY) is None


def test_a_file_in_the_place_of_the_directory(tmp_path: Path):
    (tmp_path / "plans").write_text("")
    for path in (tmp_path / "plans", tmp_path / "plans" / "below"):
        cache = PlanCache(path)
        with one_warning(path, "cannot be used: ", "continues"):
            assert cache.find(KEY) is None
            cache.store(KEY, CHOICE)
            cache.store(key(1), CHOICE)
            cache.drop(KEY)
        assert cache.statistics["failures"] == 2
        for call in (cache.clear, lambda cache=cache: list(cache.entries())):
            with pytest.raises(DnnCacheError, match="cannot be used"):
                call()


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("function", ["open", "replace"])
def test_a_directory_that_cannot_be_written_to(
    cache: PlanCache, monkeypatch: pytest.MonkeyPatch, function: str, number: int
):
    cache.store(KEY, CHOICE)
    writes = lambda path, *args: ".tmp" in str(path)  # noqa: E731
    monkeypatch.setattr(os, function, failing(getattr(os, function), number, writes))
    with one_warning(cache.path, "cannot be written to", os.strerror(number)):
        cache.store(KEY, choice(1))
        cache.store(key(2), choice(2))
    assert len(list(cache.path.iterdir())) == 1
    assert cache.find(KEY) == CHOICE
    assert cache.statistics["failures"] == 2
    monkeypatch.undo()
    # Where there is space again, it is used.
    cache.store(KEY, choice(1))
    assert cache.find(KEY) == choice(1)


def test_a_directory_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    cache = PlanCache(tmp_path / "plans")
    monkeypatch.setattr(os, "mkdir", failing(os.mkdir, errno.EROFS))
    assert cache.find(KEY) is None
    with one_warning(cache.path, "Read-only file system"):
        cache.store(KEY, CHOICE)
        cache.store(KEY, CHOICE)


def test_a_directory_in_the_place_of_an_entry(cache: PlanCache):
    cache.store(KEY, CHOICE)
    file = the_file(cache)
    file.unlink()
    file.mkdir()
    with one_warning(cache.path, "Is a directory"):
        cache.store(KEY, CHOICE)
    assert list(cache.path.iterdir()) == [file]
    assert cache.clear() == 0


def test_a_disk_that_fills_up_while_writing(cache: PlanCache):
    """A real error in the middle of a file: the system limits the size of files."""
    cache.store(KEY, CHOICE)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    big = CachedChoice(tuple((f"engine{i}", 1.0, 0) for i in range(200)))
    with one_warning(cache.path, "cannot be written to", "File too large"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (4000, limits[1]))
        try:
            cache.store(KEY, big)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert cache.find(KEY) == CHOICE
    the_file(cache)
    cache.store(KEY, big)
    assert cache.find(KEY) == big


def test_a_full_disk_that_shows_when_a_file_is_closed(
    cache: PlanCache, monkeypatch: pytest.MonkeyPatch
):
    """This happens on network file systems."""

    class Unclosable:
        def __init__(self, descriptor: int, mode: str):
            self.file = open(descriptor, mode)  # noqa: SIM115

        def __enter__(self) -> Any:
            return self.file

        def __exit__(self, *error: object) -> None:
            self.file.close()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    cache.store(KEY, CHOICE)
    monkeypatch.setattr(files, "open", Unclosable, raising=False)
    with one_warning("No space left on device"):
        cache.store(KEY, choice(1))
    monkeypatch.undo()
    assert cache.find(KEY) == CHOICE
    the_file(cache)


def test_the_directory_is_removed_meanwhile(cache: PlanCache, monkeypatch: pytest.MonkeyPatch):
    cache.store(KEY, CHOICE)
    real = os.replace
    removals = 0

    def remove_first(source: Path, target: Path) -> None:
        nonlocal removals
        removals += 1
        if removals == 1:
            for file in cache.path.iterdir():
                file.unlink()
            cache.path.rmdir()
        real(source, target)

    monkeypatch.setattr(os, "replace", remove_first)
    cache.store(KEY, choice(1))
    assert cache.find(KEY) == choice(1)
    assert removals == 2


# --- Interrupts and concurrency ------------------------------------------------------------------


@pytest.mark.parametrize("is_done", [False, True])
@pytest.mark.parametrize("function", ["open", "replace"])
def test_an_interrupt_leaves_a_whole_entry(
    cache: PlanCache, monkeypatch: pytest.MonkeyPatch, function: str, is_done: bool
):
    cache.store(KEY, CHOICE)
    real = getattr(os, function)

    def interrupted(*args: Any, **kwargs: Any) -> None:
        if is_done:
            real(*args, **kwargs)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, function, interrupted)
    with pytest.raises(KeyboardInterrupt):
        cache.store(KEY, choice(1))
    monkeypatch.undo()
    assert cache.find(KEY) == (choice(1) if function == "replace" and is_done else CHOICE)
    the_file(cache)


fork = multiprocessing.get_context("fork")
pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")


def _store_until_killed(path: Path, ready: Any) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    cache, number = PlanCache(path), 0
    try:
        ready.set()
        while True:
            number += 1
            cache.store(key(number % 5), choice(number))
    except KeyboardInterrupt:
        os._exit(0)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_processes_stopped_at_any_time_leave_whole_entries(cache: PlanCache, number: int):
    generator = random.Random(7)
    for _ in range(12):
        ready = fork.Event()
        process = fork.Process(target=_store_until_killed, args=(cache.path, ready))
        process.start()
        assert ready.wait(10)
        time.sleep(generator.uniform(0, 0.03))
        # Python ignores an interrupt that arrives in a finalizer.
        for _ in range(100):
            os.kill(process.pid, number)
            process.join(0.1)
            if process.exitcode is not None:
                break
        else:
            process.kill()
        assert process.exitcode == (0 if number == signal.SIGINT else -number)
        found = list(cache.files())
        assert all(file.entry is not None for file in found), [file.reason for file in found]
    assert numbers(cache) == set(range(5))
    leftovers = list(cache.path.glob(".dnnops-*"))
    assert number == signal.SIGKILL or not leftovers


def _share(path: Path, seed: int, results: Any) -> None:
    """Store, find and drop the same keys as other processes; report errors and hits."""
    warnings.simplefilter("error")
    generator, cache = random.Random(seed), PlanCache(path, capacity_entries=6)
    wrong = []
    try:
        for _ in range(400):
            number, action = generator.randrange(8), generator.random()
            if action < 0.4:
                plans = [(f"engine{number}", 1.0, seed)] * generator.randrange(1, 200)
                cache.store(key(number), CachedChoice(tuple(plans)))
            elif action < 0.95:
                found = cache.find(key(number))
                if found and {plan.name for plan in found.plans} != {f"engine{number}"}:
                    wrong.append(f"{number}: {found}")
            elif action < 0.99:
                cache.drop(key(number))
            else:
                list(cache.entries())
                cache.clear()
    except BaseException as error:
        wrong.append(repr(error))
    results.put((wrong, cache.statistics))


@pytest.mark.slow
def test_many_processes_share_the_same_keys(cache: PlanCache):
    results = fork.Queue()
    processes = [fork.Process(target=_share, args=(cache.path, i, results)) for i in range(8)]
    for process in processes:
        process.start()
    reports = [results.get(timeout=60) for _ in processes]
    for process in processes:
        process.join(10)
        assert process.exitcode == 0
    assert [wrong for wrong, _ in reports if wrong] == []
    for _, statistics in reports:
        assert statistics["hits"] > 20
        assert statistics["ignored"] == 0
    assert sum(statistics["evictions"] for _, statistics in reports) > 0
    assert not list(cache.path.glob(".dnnops-*"))


def test_threads_share_one_cache(cache: PlanCache):
    wrong = []

    def use(seed: int) -> None:
        try:
            for i in range(60):
                number = (seed + i) % 5
                cache.store(key(number), choice(number))
                if cache.find(key(number)) != choice(number):
                    wrong.append(number)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=use, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert wrong == []
    assert cache.statistics["stores"] == cache.statistics["hits"] == 360


def test_a_forked_process_does_not_wait_for_a_lock(cache: PlanCache):
    cache.store(KEY, CHOICE)
    with module._lock:  # as another thread may have it while this one forks
        process = fork.Process(target=lambda: os._exit(0 if cache.find(KEY) == CHOICE else 1))
        process.start()
        process.join(10)
        code = process.exitcode
        if code is None:
            process.kill()
    assert code == 0
