"""Plans on disk: what is stored is found, and nothing on the disk can do harm."""

from __future__ import annotations

import calendar
import copy
import errno
import json
import multiprocessing
import os
import random
import resource
import signal
import stat
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pytensor import config

from dnnops import __version__
from dnnops.config import flag_value
from dnnops.cudnn import plan_cache as module
from dnnops.cudnn.plan_cache import CachedChoice, CachedPlan, PlanCache, plan_cache
from dnnops.cudnn.plan_entry import MAX_ENTRY_BYTES, MAX_PLANS, canonical_json, write_entry
from dnnops.errors import DnnCacheError, DnnTypeError, DnnValueError, DnnWarning

KEY: dict[str, Any] = {
    "schema": 1,
    "gpu": "NVIDIA H200",
    "driver": "580.159.04",
    "cudnn": 91900,
    "wish": "time",
    "case": {
        "direction": "forward",
        "dtype": "float32",
        "compute": "float32",
        "groups": 1,
        "flip": 0,
        "stride": [1, 1],
        "dilation": [1, 1],
        "pad": [3, 3],
        "image": {"shape": [64, 128, 9, 9], "strides": [10368, 81, 9, 1], "alignment": 16},
        "filters": {"shape": [128, 128, 7, 7], "strides": [6272, 49, 7, 1], "alignment": 16},
        "allow_tf32": 0,
        "deterministic": False,
        "workspace_limit": -1,
        "beta": 0.0,
    },
}
CHOICE = CachedChoice(
    (
        CachedPlan("FFT_TILING", 3.640625, 123456),
        CachedPlan("engine7_k2=4_k18=0", 7.1, 0),
        CachedPlan("engine0", 36.125, 2**40),
    )
)


def key(number: int = 0) -> dict[str, Any]:
    return {**KEY, "number": number}


def choice(number: int) -> CachedChoice:
    return CachedChoice(((f"engine{number}_k1=-2", number + 0.5, number),))


@pytest.fixture
def cache(tmp_path: Path) -> PlanCache:
    return PlanCache(tmp_path / "deep" / "plans")


@pytest.fixture(autouse=True)
def _warnings_are_errors() -> Iterator[None]:
    """Fail at a warning that a test does not expect."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", DnnWarning)
        yield


@contextmanager
def one_warning(*parts: object) -> Iterator[None]:
    """Expect exactly one warning, which names the flag and has these parts."""
    with pytest.warns(DnnWarning) as caught:
        yield
    (warning,) = caught
    # It points at who called the cache.
    assert warning.filename == __file__
    message = str(warning.message)
    for part in ("flag dnn.conv.cache", *parts):
        assert str(part) in message


def the_file(cache: PlanCache) -> Path:
    (file,) = cache.path.iterdir()
    return file


def failing(function: Any, number: int, only: Any = lambda *args: True) -> Any:
    """Make a function of os fail with an error number where its arguments are such."""

    def fail(*args: Any, **kwargs: Any) -> Any:
        if only(*args):
            raise OSError(number, os.strerror(number))
        return function(*args, **kwargs)

    return fail


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


def test_the_form_of_a_file(cache: PlanCache):
    os.umask(mask := os.umask(0))
    cache.store(KEY, CHOICE)
    file = the_file(cache)
    content = json.loads(file.read_text())
    assert content.pop("sha256")
    date = time.strptime(content.pop("date"), "%Y-%m-%dT%H:%M:%SZ")
    assert abs(time.time() - calendar.timegm(date)) < 60
    assert content == {
        "format": "dnnops-plan",
        "schema": 1,
        "key": KEY,
        "dnnops": __version__,
        "plans": [
            {"name": name, "time_ms": time_ms, "workspace_bytes": size}
            for name, time_ms, size in CHOICE.plans
        ],
    }
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(cache.path.stat().st_mode) == 0o700
    assert stat.S_IMODE(cache.path.parent.stat().st_mode) == 0o777 & ~mask


def leaves(value: Any, path: tuple = ()) -> Iterator[tuple]:
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for name, member in items:
            yield from leaves(member, (*path, name))
    else:
        yield path


def test_each_member_of_a_key_matters(cache: PlanCache):
    cache.store(KEY, CHOICE)
    paths = list(leaves(KEY))
    assert len(paths) > 30
    for path in paths:
        other = copy.deepcopy(KEY)
        holder = other
        for name in path[:-1]:
            holder = holder[name]
        value = holder[path[-1]]
        holder[path[-1]] = f"{value}x" if isinstance(value, str) else value + 1
        assert cache.find(other) is None, path
        del holder[path[-1]]
        assert cache.find(other) is None, path
    assert cache.find({**KEY, "more": None}) is None
    assert cache.statistics["hits"] == 0


def test_the_order_of_members_and_tuples_do_not_matter(cache: PlanCache):
    cache.store({"a": [1, 2], "b": {"c": 1, "d": 2}}, CHOICE)
    assert cache.find({"b": {"d": 2, "c": 1}, "a": (1, 2)}) == CHOICE


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


def test_very_many_plans(cache: PlanCache):
    name = "engine1" + "_k18=1234567" * 40
    cache.store(KEY, CachedChoice(tuple((name, 1 + i / 7, 2**62) for i in range(MAX_PLANS + 9))))
    found = PlanCache(cache.path).find(KEY)
    assert found is not None
    assert len(found.plans) == MAX_PLANS
    assert found.plans[-1].time_ms == 1 + (MAX_PLANS - 1) / 7


@pytest.mark.parametrize(
    ("error", "plans"),
    [
        (DnnValueError, ()),
        (DnnValueError, [("engine0", 0.0, 0)]),
        (DnnValueError, [("engine0", float("nan"), 0)]),
        (DnnValueError, [("engine0", float("inf"), 0)]),
        (DnnValueError, [("engine0", 1.0, -1)]),
        (DnnValueError, [("engine0", 1.0, 2**63)]),
        (DnnValueError, [("", 1.0, 0)]),
        (DnnValueError, [("a\nb", 1.0, 0)]),
        (DnnValueError, [("a" * 513, 1.0, 0)]),
        (DnnValueError, [("../a", 1.0, 0)]),
        (DnnValueError, [("a", 2.0, 0), ("b", 1.0, 0)]),
        (DnnTypeError, [(7, 1.0, 0)]),
        (DnnTypeError, [("a", True, 0)]),
        (DnnTypeError, [("a", "fast", 0)]),
        (DnnTypeError, [("a", 1.0, 0.5)]),
    ],
)
def test_impossible_choices(error: type[Exception], plans: Any):
    with pytest.raises(error):
        CachedChoice(tuple(plans))


@pytest.mark.parametrize(
    ("error", "wrong"),
    [
        (DnnTypeError, ["a"]),
        (DnnTypeError, {"a": {1}}),
        (DnnTypeError, {"a": {1: 2}}),
        (DnnTypeError, {"a": b"b"}),
        (DnnValueError, {"a": [float("nan")]}),
        (DnnValueError, {"a": 2**64}),
        (DnnValueError, {"a": "\x1b[2J"}),
        (DnnValueError, {"a": "b" * 513}),
        (DnnValueError, {"a": "\ud800"}),
        (DnnValueError, {"a": [[[[[[[[[1]]]]]]]]]}),
        (DnnValueError, {"a": ["b" * 500] * 100}),
    ],
)
def test_impossible_keys(cache: PlanCache, error: type[Exception], wrong: Any):
    for call in (cache.find, cache.drop, lambda key: cache.store(key, CHOICE)):
        with pytest.raises(error):
            call(wrong)
    assert not cache.path.exists()


# --- Damaged and foreign entries -----------------------------------------------------------------


def test_truncated_and_flipped_files_are_ignored_or_right(cache: PlanCache):
    """Whatever happens to its bits, a file gives what was stored or nothing."""
    cache.store(KEY, CHOICE)
    file = the_file(cache)
    intact = file.read_bytes()
    seed = 20261103
    generator = random.Random(seed)
    damages = [intact[:length] for length in generator.sample(range(len(intact) - 1), 100)]
    for _ in range(400):
        damaged = bytearray(intact)
        for _ in range(generator.choice((1, 1, 1, 2, 8))):
            damaged[generator.randrange(len(damaged))] ^= 1 << generator.randrange(8)
        damages.append(bytes(damaged))
    damages += [generator.randbytes(generator.randrange(300)) for _ in range(50)]
    ignored = 0
    for number, content in enumerate(damages):
        file.write_bytes(content)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DnnWarning)
            found = cache.find(KEY)
        assert found in (None, CHOICE), f"seed {seed}, damage {number}: {content!r}"
        ignored += found is None
    # A flip in the last newline may make another space, and a digit of a float may not matter.
    assert ignored > 0.98 * len(damages)
    assert cache.statistics["ignored"] == ignored

    cache.store(KEY, choice(1))
    assert PlanCache(cache.path).find(KEY) == choice(1)


def signed(**changes: Any) -> str:
    """An entry with other members, and a checksum that fits."""
    from dnnops.cudnn import plan_entry

    content = write_entry(plan_entry.new_entry(KEY, CHOICE)) | changes
    del content["sha256"]
    content["sha256"] = plan_entry._sha256(canonical_json(content))
    return json.dumps(content)


PLAN = {"name": "engine0", "time_ms": 1.0, "workspace_bytes": 0}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (lambda: "", "no valid JSON"),
        (lambda: "\0" * 100, "no valid JSON"),
        (lambda: "[]", "no dnnops-plan"),
        (lambda: signed(format="pickle"), "no dnnops-plan"),
        (lambda: signed(schema=0), "an older version: its schema is 0"),
        (lambda: signed(schema=2), "a newer version: its schema is 2"),
        (lambda: signed(schema=True), "schema is no number"),
        (lambda: signed(schema="1"), "schema is no number"),
        (lambda: signed(more=1), "missing or unknown members: 'more'"),
        (lambda: signed(key=key(7)), "name does not fit its key"),
        (lambda: signed(key=[1]), "a key has to be a dict"),
        (lambda: signed(plans={}), "no list"),
        (lambda: signed(plans=[]), "one plan at least"),
        (lambda: signed(plans=[PLAN] * (MAX_PLANS + 1)), "no list of at most 256"),
        (lambda: signed(plans=[[1]]), "other members"),
        (lambda: signed(plans=[{**PLAN, "more": 1}]), "other members"),
        (lambda: signed(plans=[{**PLAN, "name": "a b"}]), "cannot be the name"),
        (lambda: signed(plans=[{**PLAN, "name": 1}]), "has to be a string"),
        (lambda: signed(plans=[{**PLAN, "time_ms": "1"}]), "time is no number"),
        (lambda: signed(plans=[{**PLAN, "time_ms": True}]), "not booleans"),
        (lambda: signed(plans=[{**PLAN, "time_ms": -1}]), "not positive and finite"),
        (lambda: signed(plans=[{**PLAN, "time_ms": 10**400}]), "more than 64 bits"),
        (lambda: signed(plans=[{**PLAN, "workspace_bytes": 0.5}]), "plan engine0"),
        (lambda: signed(plans=[{**PLAN, "workspace_bytes": -1}]), "-1 bytes"),
        (lambda: signed(plans=[{**PLAN, "time_ms": 2}, PLAN]), "ordered by time"),
        (lambda: signed(date="yesterday"), "date is none"),
        (lambda: signed(date=20261103), "date is none"),
        (lambda: signed(dnnops="\x1b[2J"), "version of dnnops is none"),
        (lambda: signed().replace("91900", "91901"), "checksum does not fit"),
        (lambda: signed().replace("3.640625", "NaN"), "NaN is no number"),
        (lambda: signed().replace("3.640625", "-Infinity"), "-Infinity is no number"),
        (lambda: signed().replace("3.640625", "1e999"), "not finite"),
        (lambda: signed().replace(f'"{__version__}"', "1e999"), "not finite"),
        (lambda: signed().replace("3.640625", "1" * 5000), "no valid JSON"),
        (lambda: signed().replace('"schema"', '"format": 1, "schema"', 1), "twice"),
        (lambda: "[" * 100_000, "nested too deeply"),
        (lambda: '{"a":' * 20_000 + "1" + "}" * 20_000, "nested too deeply"),
        (lambda: " " * (MAX_ENTRY_BYTES + 1), "over the limit"),
    ],
)
def test_a_damaged_entry_costs_one_warning(cache: PlanCache, content: Any, reason: str):
    cache.store(KEY, CHOICE)
    file = the_file(cache)
    file.write_text(content())
    with one_warning(file, "the plans are timed anew", reason):
        assert cache.find(KEY) is None
    # Once for each process and file.
    assert PlanCache(cache.path).find(KEY) is None
    (found,) = cache.files()
    assert found.entry is None
    assert reason in found.reason
    cache.store(KEY, choice(1))
    assert cache.find(KEY) == choice(1)


def test_an_entry_signed_anew_is_taken(cache: PlanCache):
    """What the tests above write differs from an entry in nothing but what they say."""
    cache.store(KEY, CHOICE)
    the_file(cache).write_text(signed(plans=[PLAN], dnnops="9.9"))
    assert cache.find(KEY) == CachedChoice((("engine0", 1.0, 0),))


def test_an_entry_under_another_name(cache: PlanCache):
    cache.store(key(1), choice(1))
    file = the_file(cache)
    cache.store(key(2), choice(2))
    (other,) = set(cache.path.iterdir()) - {file}
    os.replace(other, file)
    with one_warning(file, "does not fit its key"):
        assert cache.find(key(1)) is None


def test_a_symbolic_link_is_not_followed(cache: PlanCache, tmp_path: Path):
    cache.store(KEY, CHOICE)
    file = the_file(cache)
    elsewhere = tmp_path / "elsewhere"
    file.rename(elsewhere)
    before = elsewhere.read_bytes()
    file.symlink_to(elsewhere)
    with one_warning(file, "symbolic link"):
        assert cache.find(KEY) is None
    cache.store(KEY, choice(1))
    assert not file.is_symlink()
    assert elsewhere.read_bytes() == before
    assert cache.find(KEY) == choice(1)


def test_neither_directories_nor_pipes_are_read(cache: PlanCache):
    for number, make in enumerate((os.mkdir, os.mkfifo)):
        cache.store(key(number), CHOICE)
        (file,) = (f for f in cache.path.iterdir() if f.is_file())
        file.unlink()
        make(file)
        with one_warning(file, "no regular file"):
            assert cache.find(key(number)) is None


def test_an_entry_that_others_may_write_to(cache: PlanCache):
    cache.store(KEY, CHOICE)
    the_file(cache).chmod(0o666)
    with one_warning(the_file(cache), "others may write to it, its mode is 0666"):
        assert cache.find(KEY) is None


def test_an_unreadable_entry(cache: PlanCache, monkeypatch: pytest.MonkeyPatch):
    cache.store(KEY, CHOICE)
    file = the_file(cache)
    is_file = lambda path, *args: str(path) == file.name  # noqa: E731
    monkeypatch.setattr(os, "open", failing(os.open, errno.EACCES, is_file))
    with one_warning(file, "cannot be read: Permission denied"):
        assert cache.find(KEY) is None


def test_a_file_that_is_replaced_on_another_machine(
    cache: PlanCache, monkeypatch: pytest.MonkeyPatch
):
    cache.store(KEY, CHOICE)
    stale = iter([True, True, False, True, True, True])
    failing_open = failing(os.open, errno.ESTALE, lambda path, *a: "json" in path and next(stale))
    monkeypatch.setattr(os, "open", failing_open)
    assert cache.find(KEY) == CHOICE
    assert cache.find(KEY) is None  # it goes on vanishing, which is no damage
    assert cache.statistics["ignored"] == 0


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
    real = os.fstat

    def foreign(descriptor: int) -> Any:
        status = real(descriptor)
        fields = list(status)
        fields[stat.ST_UID] += stat.S_ISDIR(status.st_mode)
        return os.stat_result(fields)

    monkeypatch.setattr(os, "fstat", foreign)
    with one_warning(cache.path, "another user", os.geteuid() + 1):
        assert cache.find(KEY) is None
        cache.store(KEY, choice(1))
    for call in (cache.clear, lambda: list(cache.entries())):
        with pytest.raises(DnnCacheError, match="another user"):
            call()
    monkeypatch.undo()
    assert PlanCache(cache.path).find(KEY) == CHOICE


def test_an_entry_of_another_user(cache: PlanCache, monkeypatch: pytest.MonkeyPatch):
    cache.store(KEY, CHOICE)
    real = os.fstat

    def foreign(descriptor: int) -> Any:
        status = real(descriptor)
        fields = list(status)
        fields[stat.ST_UID] += stat.S_ISREG(status.st_mode)
        return os.stat_result(fields)

    monkeypatch.setattr(os, "fstat", foreign)
    with one_warning(the_file(cache), "another user"):
        assert cache.find(KEY) is None


def test_a_file_in_the_place_of_the_directory(tmp_path: Path):
    (tmp_path / "plans").write_text("")
    for path in (tmp_path / "plans", tmp_path / "plans" / "below"):
        cache = PlanCache(path)
        with one_warning(path, "cannot be used: ", "goes on"):
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
    """A real error in the middle of a file: the system allows no more bytes in one."""
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
    """As on a network file system."""
    from dnnops.runtime import private_files

    class Unclosable:
        def __init__(self, descriptor: int, mode: str):
            self.file = open(descriptor, mode)  # noqa: SIM115

        def __enter__(self) -> Any:
            return self.file

        def __exit__(self, *error: object) -> None:
            self.file.close()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    cache.store(KEY, CHOICE)
    monkeypatch.setattr(private_files, "open", Unclosable, raising=False)
    with one_warning("No space left on device"):
        cache.store(KEY, choice(1))
    monkeypatch.undo()
    assert cache.find(KEY) == CHOICE
    the_file(cache)


def test_the_directory_is_removed_meanwhile(cache: PlanCache, monkeypatch: pytest.MonkeyPatch):
    cache.store(KEY, CHOICE)
    real = os.replace
    removals = 0

    def remove_first(source: str, target: str, **directories: int) -> None:
        nonlocal removals
        removals += 1
        if removals == 1:
            for file in cache.path.iterdir():
                file.unlink()
            cache.path.rmdir()
        real(source, target, **directories)

    monkeypatch.setattr(os, "replace", remove_first)
    cache.store(KEY, choice(1))
    assert cache.find(KEY) == choice(1)
    assert removals == 2


# --- Interrupts and concurrency ------------------------------------------------------------------


@pytest.mark.parametrize("function", ["open", "replace", "close"])
def test_an_interrupt_leaves_the_old_entry(
    cache: PlanCache, monkeypatch: pytest.MonkeyPatch, function: str
):
    cache.store(KEY, CHOICE)
    real = getattr(os, function)

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        if function == "close" or ".tmp" in str(args[0]):
            if function == "close":
                real(*args)
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    monkeypatch.setattr(os, function, interrupted)
    with pytest.raises(KeyboardInterrupt):
        cache.store(KEY, choice(1))
    monkeypatch.undo()
    assert cache.find(KEY) == (choice(1) if function == "close" else CHOICE)
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
        os.kill(process.pid, number)
        process.join(10)
        assert process.exitcode == (0 if number == signal.SIGINT else -number)
        files = list(cache.files())
        assert all(file.entry is not None for file in files), [file.reason for file in files]
    assert numbers(cache) == set(range(5))
    leftovers = list(cache.path.glob(".dnnops-*"))
    assert number == signal.SIGKILL or not leftovers


def _share(path: Path, seed: int, results: Any) -> None:
    """Store, find and drop the same keys as others do; report what was wrong, and the hits."""
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


def numbers(cache: PlanCache) -> set[int]:
    return {entry.key["number"] for entry in cache.entries()}


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
    """Also where the clock of the file system says that it is the oldest."""
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
    assert scans <= 4


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
