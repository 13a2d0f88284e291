"""Test ``python -m dnnops cache``: what it shows, writes and reads, and how it fails."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import tracemalloc
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pytensor import config

from dnnops.__main__ import main
from dnnops.cli import cache as command
from dnnops.cli.case_words import case_words, cudnn_words
from dnnops.plans.cache import CachedChoice, Entry, PlanCache
from dnnops.plans.entry import write_entry

CASE: dict[str, Any] = {
    "direction": "forward",
    "dtype": "float16",
    "compute": "float32",
    "groups": 1,
    "flip": 0,
    "stride": [1, 1],
    "dilation": [1, 1],
    "pad": [1, 1],
    "image": {"shape": [64, 128, 28, 28], "strides": [100352, 1, 3584, 128], "alignment": 16},
    "filters": {"shape": [128, 128, 3, 3], "strides": [1152, 1, 384, 128], "alignment": 16},
    "allow_tf32": 0,
    "deterministic": 0,
    "workspace_limit": -1,
    "beta": 0,
}
WORDS = "forward 64x128x28x28, 128 filters 3x3, pad 1, float16 channels_last"
CHOICE = CachedChoice((("engine7_k2=4", 0.0401234, 0), ("FFT_TILING", 3.64, 1024)))


def key(**changes: Any) -> dict[str, Any]:
    gpu = changes.pop("gpu", "NVIDIA H200")
    case = {**CASE, **changes}
    return {
        "schema": 1,
        "gpu": gpu,
        "driver": "580.1",
        "cudnn": 91900,
        "policy": "time",
        "case": case,
    }


def entry(days: float = 0, choice: CachedChoice = CHOICE, **changes: Any) -> Entry:
    date = (datetime.now(UTC) - timedelta(days=days)).replace(microsecond=0)
    return Entry(key(**changes), choice, date, "0.1.0")


def write(cache: PlanCache, *entries: Entry) -> None:
    """Put entries with given dates into a cache."""
    cache.path.mkdir(mode=0o700, exist_ok=True)
    for one in entries:
        (cache.path / one.name).write_text(write_entry(one))


@pytest.fixture
def cache(tmp_path: Path) -> PlanCache:
    return PlanCache(tmp_path / "plans")


class Result:
    """Return the command's output and exit status."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *arguments: object):
        self.status = main(["cache", *map(str, arguments)])
        self.out, self.err = capsys.readouterr()
        self.lines = self.out.splitlines()

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], cache: PlanCache):
    return lambda *arguments: Result(capsys, *arguments, "--path", cache.path)


# --- show ----------------------------------------------------------------------------------------


def test_show(run, cache: PlanCache):
    write(cache, entry(days=3.2), entry(days=0.1, gpu="Some GPU", beta=1))
    shown = run("show")
    assert shown.status == 0
    header, first, second, _, last = shown.lines
    columns = lambda line: re.split(r"\s{2,}", line)  # noqa: E731
    assert columns(header) == ["convolution", "GPU", "cuDNN", "best plan", "time", "plans", "age"]
    # Numbers are right-justified, and end where their header ends.
    assert columns(first)[:-1] == f"{WORDS}|NVIDIA H200|9.19.0|engine7_k2=4|0.04012 ms|2".split("|")
    assert first.endswith("3 days")
    assert columns(second)[0] == f"{WORDS}, beta 1"
    assert second.endswith("2 hours")
    size = sum(file.stat().st_size for file in cache.path.iterdir())
    assert last == f"2 entries in {cache.path}, {size / 1024:.1f} KiB of at most 64.0 MiB"


def test_show_is_sorted(run, cache: PlanCache):
    for beta in range(8, 0, -1):
        cache.store(key(beta=beta), CHOICE)
    cache.store(key(gpu="A GPU"), CHOICE)
    rows = run("show", "--json").json["entries"]
    assert [row["case"] for row in rows] == [WORDS, *(f"{WORDS}, beta {i}" for i in range(1, 9))]


def test_show_in_json(run, cache: PlanCache):
    cache.store(key(), CHOICE)
    (file,) = cache.path.iterdir()
    shown = run("show", "--json")
    assert shown.status == 0
    report = shown.json
    (row,) = report.pop("entries")
    assert report == {
        "path": str(cache.path),
        "number": 1,
        "size_bytes": file.stat().st_size,
        "capacity_bytes": 64 * 1024**2,
        "unusable": [],
    }
    assert row["case"] == WORDS
    assert row["key"] == key()
    assert row["plans"][0] == {
        "name": "engine7_k2=4",
        "time_ms": 0.0401234,
        "workspace_bytes": 0,
    }
    assert abs(datetime.now(UTC) - datetime.fromisoformat(row["date"])) < timedelta(minutes=1)


def test_show_what_cannot_be_used(run, cache: PlanCache):
    cache.store(key(), CHOICE)
    (file,) = cache.path.iterdir()
    file.write_text("{")
    cache.store(key(beta=1), CHOICE)
    shown = run("show")
    assert shown.status == 0
    assert any(line.startswith(f"{file} is ignored: it is not valid JSON") for line in shown.lines)
    assert "2 entries" in shown.lines[-1]
    assert run("show", "--json").json["unusable"][0]["file"] == str(file)


def test_nothing_to_show(run, cache: PlanCache):
    shown = run("show")
    assert shown.status == 0
    assert shown.lines == [
        f"0 entries in {cache.path}, which does not exist, 0 B of at most 64.0 MiB"
    ]
    assert not cache.path.exists()


def test_what_stands_in_a_file_is_no_markup(run, cache: PlanCache):
    cache.store(key(gpu="[bold]GPU[/bold]"), CHOICE)
    assert "[bold]GPU[/bold]" in run("show").out


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, WORDS),
        (
            {"direction": "grad_inputs", "pad": [1, 2], "stride": [2, 2], "dilation": [1, 3]},
            "backward_data 64x128x28x28, 128 filters 3x3, pad 1x2, stride 2, dilation 1x3,"
            " float16 channels_last",
        ),
        (
            {"direction": "grad_weights", "pad": [0, 0], "groups": 32, "flip": 1},
            "backward_filter 64x128x28x28, 128 filters 3x3, 32 groups, flipped,"
            " float16 channels_last",
        ),
        (
            {
                "dtype": "float32",
                "allow_tf32": 1,
                "deterministic": 1,
                "workspace_limit": 5 * 1024**2,
                "image": {"shape": [2, 3, 4, 5, 6], "strides": [360, 120, 30, 6, 1]},
                "filters": {"shape": [7, 3, 1, 2, 3]},
                "pad": [0, 0, 0],
            },
            "forward 2x3x4x5x6, 7 filters 1x2x3, float32 contiguous, TF32, deterministic,"
            " workspace up to 5.0 MiB",
        ),
        (
            {"compute": "float16", "image": {**CASE["image"], "strides": [1, 2, 3, 4]}},
            "forward 64x128x28x28, 128 filters 3x3, pad 1, float16 strided, computed in float16",
        ),
        ({"image": {"shape": [64, 128, 28, 28]}}, WORDS.replace(" channels_last", "")),
        ({"pad": "all", "stride": None, "dilation": {}}, WORDS.replace(", pad 1", "")),
    ],
)
def test_a_case_in_words(changes: dict, words: str):
    assert case_words(key(**changes)) == words


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"case": 7},
        {"case": {}},
        {"case": {"image": 1, "filters": 2}},
        {"case": {"image": {"shape": [1, 2, 3]}, "filters": {"shape": [1, 2]}}},
        {"case": {**CASE, "image": {"shape": "none"}}},
        {"case": {"a": "b" * 300}},
    ],
)
def test_a_case_that_is_none_is_shown_as_it_is(wrong: dict):
    words = case_words(wrong)
    assert words
    assert words[:-3] in json.dumps(wrong, sort_keys=True)
    assert len(words) <= 120


def test_words_for_versions_and_ages():
    assert cudnn_words(91900) == "9.19.0"
    assert cudnn_words(8904) == "8.9.4"
    assert cudnn_words("nine") == "nine"
    ages = {-5: "now", 1: "1 second", 59: "59 seconds", 3600: "1 hour", 200_000: "2 days"}
    assert {seconds: command._age_words(seconds) for seconds in ages} == ages


# --- clear ---------------------------------------------------------------------------------------


def test_clear(run, cache: PlanCache):
    for beta in range(3):
        cache.store(key(beta=beta), CHOICE)
    cleared = run("clear")
    assert (cleared.status, cleared.out) == (0, f"removed 3 entries from {cache.path}\n")
    assert list(cache.entries()) == []
    assert run("clear", "--json").json == {"path": str(cache.path), "removed": 0}


def test_what_is_said_of_a_folder_that_is_not_there(run, cache: PlanCache, tmp_path: Path):
    assert run("clear").out == f"removed 0 entries from {cache.path}, which does not exist\n"
    file = tmp_path / "plans.json"
    exported = run("export", file)
    assert exported.status == 0
    assert exported.lines == [
        f"{cache.path} does not exist",
        f"wrote 0 entries of {cache.path} to {file}",
    ]
    assert not cache.path.exists()


# --- export and import ---------------------------------------------------------------------------


def test_export_and_import(run, cache: PlanCache, tmp_path: Path, capsys):
    entries = [entry(days=days, beta=days) for days in range(4)]
    write(cache, *entries)
    file = tmp_path / "plans.json"
    exported = run("export", file)
    assert (exported.status, exported.out) == (0, f"wrote 4 entries of {cache.path} to {file}\n")

    other = PlanCache(tmp_path / "other")
    imported = Result(capsys, "import", file, "--path", other.path)
    assert imported.status == 0
    assert imported.out == (
        f"{file}: 4 entries imported into {other.path}, 0 not newer than those there, 0 refused\n"
    )
    assert list(other.entries()) == sorted(entries, key=lambda one: one.name)
    assert other.find(key(beta=2)) == CHOICE
    assert other.path.stat().st_mode & 0o777 == 0o700


def test_import_keeps_the_newer(run, cache: PlanCache, tmp_path: Path):
    ours, theirs = CachedChoice((("engine1", 1, 0),)), CachedChoice((("engine2", 2, 0),))
    there = PlanCache(tmp_path / "there")
    write(
        there,
        entry(5, theirs, beta=1),  # older than ours
        entry(1, theirs, beta=2),  # newer
        entry(1, theirs, beta=3),  # only there
        entry(1, theirs, beta=4),  # ours is damaged
    )
    write(cache, *(entry(3, ours, beta=beta) for beta in (1, 2, 4, 5)))
    same = entry(3, ours, beta=6)
    write(there, same)
    write(cache, same)
    (cache.path / entry(beta=4).name).write_text("{}")
    file = tmp_path / "plans.json"
    there.export(file)
    report = run("import", file, "--json").json
    assert (report["imported"], report["kept"], report["refused"]) == (3, 2, [])
    found = {one.key["case"]["beta"]: one.choice for one in cache.entries()}
    assert found == {1: ours, 2: theirs, 3: theirs, 4: theirs, 5: ours, 6: ours}


def test_of_two_in_one_file_the_newer_is_taken(run, cache: PlanCache, tmp_path: Path):
    old, new = CachedChoice((("engine1", 1, 0),)), CachedChoice((("engine2", 2, 0),))
    for number, order in enumerate(
        ([entry(3, old), entry(1, new)], [entry(1, new), entry(3, old)])
    ):
        file = tmp_path / f"{number}.json"
        write_lines(file, *(json.loads(write_entry(one)) for one in order))
        run("clear")
        assert run("import", file).status == 0
        assert cache.find(key()) == new


def write_lines(file: Path, *entries: Any) -> None:
    header = {"format": "dnnops-plans", "schema": 2, "entries": len(entries)}
    file.write_text("".join(f"{json.dumps(line)}\n" for line in (header, *entries)))


def test_import_refuses_entries_one_by_one(run, cache: PlanCache, tmp_path: Path):
    good = json.loads(write_entry(entry()))
    file = tmp_path / "plans.json"
    write_lines(
        file, 7, {**good, "schema": 0}, good, {**good, "date": "2026-01-01T00:00:00Z"}, {"a": "b"}
    )
    imported = run("import", file)
    assert imported.status == 1
    assert imported.lines[:4] == [
        "refused entry 1: its content must be an object, not 7",
        "refused entry 2: its schema must be 1, not 0",
        "refused entry 4: its checksum does not match its content",
        "refused entry 5: its member format is missing",
    ]
    assert ": 1 entry imported into " in imported.lines[4]
    assert imported.lines[4].endswith(", 0 not newer than those there, 4 refused")
    assert cache.find(key()) == CHOICE


HEADER = b'{"format": "dnnops-plans", "schema": 2, "entries": %b}\n'


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        (b"[]", "its content must be an object, not []"),
        (b"[" * 200_000, "too deeply"),
        (b'{"format": ' + b"[" * 500, "not valid JSON"),
        (b'{"format": "dnnops-plans", "schema": 1, "entries": [\n{},\n]}', "not valid JSON"),
        (b'{"format": "dnnops-plans", "schema": 1, "entries": []}', "schema must be 2, not 1"),
        (b'{"entries": 0, "schema": 2}', "its member format is missing"),
        (b'{"format": "' + b"a" * 2000 + b'"}', "its format must be 'dnnops-plans', not 'aaaa"),
        (b"{" + b" " * 200_000, "not valid JSON"),
        (b"{" + b" " * 300_000, "over the limit of 262144 bytes"),
        (b'{"format": "dnnops-plans", "schema": 9}', "its schema must be 2, not 9"),
        (b'{"format": "dnnops-plans", "schema": 2}', "its member entries is missing"),
        (HEADER % b"[]", "its entries must be a number of at most 65536, not []"),
        (HEADER % b"-1", "its entries must be a number of at most 65536, not -1"),
        (HEADER % b"65537", "its entries must be a number of at most 65536, not 65537"),
        (HEADER % b'0, "a": 1', "its member 'a' is unknown"),
        (HEADER % b"1", "its line of entry 1 is missing, incomplete, or over the limit"),
        (HEADER % b"1" + b"{}", "its line of entry 1 is missing, incomplete, or over the limit"),
        (HEADER % b"1" + b" " * 300_000 + b"\n", "its line of entry 1 is missing, incomplete"),
        (HEADER % b"1" + b"{}\n{}\n", "it has more than 1 entries"),
    ],
)
def test_import_of_something_else(
    run, cache: PlanCache, tmp_path: Path, content: bytes, reason: str
):
    file = tmp_path / "plans.json"
    file.write_bytes(content)
    failed = run("import", file)
    assert (failed.status, failed.out) == (1, "")
    assert failed.err.startswith(
        f"dnnops cache: {file} is not a file that `dnnops cache export` wrote: it"
    )
    assert reason in failed.err
    assert not cache.path.exists()


@pytest.mark.parametrize(
    "line",
    [
        b"{}\n",
        pytest.param(b"[" * 900 + b"]" * 900 + b"\n", marks=pytest.mark.slow),
        b"1," * 4,
    ],
    ids=len,
)
def test_import_of_megabytes_takes_little_memory(run, cache: PlanCache, tmp_path: Path, line):
    file = tmp_path / "plans.json"
    file.write_bytes(HEADER % b"65536" + line * (9_000_000 // len(line)))
    tracemalloc.start()
    try:
        failed = run("import", file)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (failed.status, failed.out) == (1, "")
    assert peak < 32 * 1024**2
    assert not cache.path.exists()


def test_of_many_refused_entries_some_are_shown(run, tmp_path: Path):
    file = tmp_path / "plans.json"
    write_lines(file, *[{}] * 100)
    imported = run("import", file)
    assert imported.lines[19:21] == [
        "refused entry 20: its member format is missing",
        "refused 80 more; --json lists all",
    ]
    assert imported.lines[21].endswith("0 not newer than those there, 100 refused")


DATE_RULE = "its date must be a date such as 2026-01-31T12:00:00Z, not before 2020"


@pytest.mark.parametrize(
    ("date", "reason"),
    [
        ("0001-01-01T00:00:00Z", f"{DATE_RULE}, not '0001-01-01T00:00:00Z'"),
        ("1-01-01T00:00:00Z", f"{DATE_RULE}, not '1-01-01T00:00:00Z'"),
        ("1970-01-01T00:00:00Z", f"{DATE_RULE}, not '1970-01-01T00:00:00Z'"),
        ("2025-1-1T0:0:0Z", f"{DATE_RULE}, not '2025-1-1T0:0:0Z'"),
        ("9999-12-31T23:59:59Z", "its date is in the future"),
    ],
)
def test_import_refuses_dates_that_cannot_be(
    run, cache: PlanCache, tmp_path: Path, date: str, reason: str
):
    file = tmp_path / "plans.json"
    write_lines(file, signed(date))
    imported = run("import", file)
    assert imported.lines[0] == f"refused entry 1: {reason}"
    assert not list(cache.files())


def signed(date: str) -> dict[str, Any]:
    content = {**json.loads(write_entry(entry())), "date": date}
    del content["sha256"]
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return {**content, "sha256": hashlib.sha256(text.encode()).hexdigest()}


def test_an_entry_of_the_future_is_shown_as_such_and_replaced(
    run, cache: PlanCache, tmp_path: Path
):
    write(cache, entry(days=-4000))
    assert "in the future" in run("show").out
    there = PlanCache(tmp_path / "there")
    write(there, entry(days=1))
    file = tmp_path / "plans.json"
    there.export(file)
    assert run("import", file, "--json").json["imported"] == 1
    (found,) = cache.entries()
    assert found.date < datetime.now(UTC)


def test_import_of_a_truncated_export(run, cache: PlanCache, tmp_path: Path):
    cache.store(key(), CHOICE)
    file = tmp_path / "plans.json"
    cache.export(file)
    content = file.read_bytes()
    for length in range(0, len(content) - 2, 37):
        file.write_bytes(content[:length])
        assert run("import", file).status == 1


def test_import_of_no_file(run, tmp_path: Path):
    assert run("import", tmp_path / "none").err == (
        f"dnnops cache: {tmp_path / 'none'} cannot be read: No such file or directory\n"
    )
    assert "Is a directory" in run("import", tmp_path).err


def test_a_large_import_evicts_the_oldest(cache: PlanCache, tmp_path: Path):
    file = tmp_path / "plans.json"
    write(cache, *(entry(days=beta, beta=beta) for beta in range(20)))
    cache.export(file)
    small = PlanCache(tmp_path / "small", capacity_entries=8)
    assert small.import_(file).imported == 20
    left = {one.key["case"]["beta"] for one in small.entries()}
    assert len(left) <= 8
    assert left == set(range(len(left)))


def test_export_replaces_a_file_only_if_told_to(run, cache: PlanCache, tmp_path: Path):
    cache.store(key(), CHOICE)
    file = tmp_path / "plans.json"
    file.write_text("mine")
    refused = run("export", file)
    assert refused.status == 1
    assert refused.err == f"dnnops cache: {file} already exists; force=True (--force) replaces it\n"
    assert file.read_text() == "mine"
    assert run("export", file, "--force", "--json").json == {
        "path": str(cache.path),
        "file": str(file),
        "exported": 1,
        "unusable": [],
    }
    assert "engine7_k2=4" in file.read_text()
    # Unlike the cache, others may read the file, as far as the umask allows.
    os.umask(mask := os.umask(0))
    assert file.stat().st_mode & 0o777 == 0o666 & ~mask
    assert set(tmp_path.iterdir()) == {file, cache.path}


def test_export_replaces_nothing_but_files(run, cache: PlanCache, tmp_path: Path):
    for target in (cache.path.parent, Path("/dev/full")):
        before = target.lstat()
        failed = run("export", target, "--force")
        assert failed.status == 1
        assert "is not a regular file" in failed.err
        assert target.lstat().st_ino == before.st_ino


def test_export_keeps_links_and_modes(run, cache: PlanCache, tmp_path: Path):
    link, file = tmp_path / "link", tmp_path / "elsewhere"
    link.symlink_to(file)
    assert run("export", link).status == 0
    file.chmod(0o600)
    assert "already exists" in run("export", link).err
    assert run("export", link, "--force").status == 0
    assert link.is_symlink()
    assert file.stat().st_mode & 0o777 == 0o600


def test_an_export_leaves_out_what_is_damaged(run, cache: PlanCache, tmp_path: Path):
    cache.store(key(), CHOICE)
    (file,) = cache.path.iterdir()
    file.write_text("")
    cache.store(key(beta=1), CHOICE)
    target = tmp_path / "plans.json"
    exported = run("export", target)
    reason = "it is not valid JSON: Expecting value: line 1 column 1 (char 0)"
    assert exported.lines == [
        f"left out {file}: {reason}",
        f"wrote 1 entry of {cache.path} to {target}",
    ]
    report = run("export", target, "--force", "--json").json
    assert report["exported"] == 1
    assert report["unusable"] == [{"file": str(file), "reason": reason}]


def test_an_interrupted_export_leaves_nothing(
    run, cache: PlanCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    cache.store(key(), CHOICE)

    def interrupted(*args: Any, **kwargs: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    assert run("export", tmp_path / "plans.json").status == 130
    assert list(tmp_path.iterdir()) == [cache.path]


# --- Paths that cannot be used -------------------------------------------------------------------


def test_an_export_that_cannot_be_written(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    failed = run("export", tmp_path / "none" / "plans.json")
    assert failed.status == 1
    assert failed.err.endswith("none/plans.json cannot be written: No such file or directory\n")

    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)
    failed = run("export", tmp_path / "plans.json")
    assert failed.err.endswith("plans.json cannot be written: No space left on device\n")
    assert list(tmp_path.iterdir()) == []


def test_a_cache_that_cannot_be_written_to(
    run, cache: PlanCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    cache.store(key(), CHOICE)
    run("export", tmp_path / "plans.json")

    def read_only(*args: Any, **kwargs: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "unlink", read_only)
    failed = run("clear")
    assert failed.status == 1
    assert failed.err == (
        f"dnnops cache: the directory {cache.path} cannot be written to: Read-only file system\n"
    )
    monkeypatch.undo()
    run("clear")
    monkeypatch.setattr(os, "replace", read_only)
    failed = run("import", tmp_path / "plans.json")
    assert failed.status == 1
    assert "cannot be written to: Read-only file system" in failed.err


def test_a_path_that_is_no_directory_of_ours(run, cache: PlanCache, tmp_path: Path):
    write_lines(tmp_path / "plans.json")
    arguments = (
        ["show"],
        ["clear"],
        ["export", tmp_path / "x"],
        ["import", tmp_path / "plans.json"],
    )
    cache.path.write_text("")
    for action in arguments:
        failed = run(*action)
        assert failed.status == 1
        assert failed.err.startswith(f"dnnops cache: the directory {cache.path} cannot be used: ")
    cache.path.unlink()
    cache.path.mkdir()
    cache.path.chmod(0o777)
    for action in arguments:
        failed = run(*action)
        assert failed.status == 1
        assert "others may write to it" in failed.err
    assert not (tmp_path / "x").exists()


def test_without_a_path_the_flag_holds(capsys, tmp_path: Path):
    with config.change_flags(dnn__conv__cache=str(tmp_path / "flagged")):
        assert Result(capsys, "clear", "--json").json["path"] == str(tmp_path / "flagged")
    with config.change_flags(dnn__conv__cache="off"):
        failed = Result(capsys, "show")
        assert failed.status == 1
        assert failed.err == (
            "dnnops cache: the flag dnn.conv.cache is off; specify a folder with --path\n"
        )
        assert Result(capsys, "show", "--path", tmp_path).status == 0


@pytest.mark.parametrize("arguments", [[], ["burn"], ["export"], ["import"], ["show", "--force"]])
def test_wrong_command_lines(arguments: list[str], capsys):
    with pytest.raises(SystemExit) as stop:
        main(["cache", *arguments])
    assert stop.value.code == 2
    assert "usage: dnnops cache" in capsys.readouterr().err or arguments == ["show", "--force"]
