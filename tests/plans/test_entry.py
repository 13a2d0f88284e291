"""Entries of plans on disk: their format, and that damaged and foreign ones are ignored."""

from __future__ import annotations

import calendar
import copy
import errno
import hashlib
import json
import os
import random
import stat
import time
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from dnnops import __version__
from dnnops.errors import DnnTypeError, DnnValueError, DnnWarning
from dnnops.plans import cache as module
from dnnops.plans.cache import CachedChoice, PlanCache
from dnnops.plans.entry import MAX_ENTRY_BYTES, MAX_PLANS, Entry, write_entry
from tests.plans.cached_plans import (
    CHOICE,
    KEY,
    cache_fixture,  # noqa: F401  by its fixture's name, cache
    choice,
    failing,
    key,
    one_warning,
    the_file,
    warnings_are_errors,  # noqa: F401  every test runs with it
)

# --- Form ----------------------------------------------------------------------------------------


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
        (DnnValueError, {"a": {1}}),
        (DnnValueError, {"a": {1: 2}}),
        (DnnValueError, {"a": b"b"}),
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
    """Whichever bits are changed, a file yields what was stored or nothing."""
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
    """Return an entry with other members and a valid checksum."""
    content = json.loads(write_entry(Entry.of_today(KEY, CHOICE))) | changes
    del content["sha256"]
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    content["sha256"] = hashlib.sha256(text.encode()).hexdigest()
    return json.dumps(content)


PLAN = {"name": "engine0", "time_ms": 1.0, "workspace_bytes": 0}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (lambda: "", "not valid JSON"),
        (lambda: "\0" * 100, "not valid JSON"),
        (lambda: "[]", "its content must be an object, not []"),
        (lambda: signed(format="pickle"), "its format must be 'dnnops-plan', not 'pickle'"),
        (lambda: signed(schema=0), "its schema must be 1, not 0"),
        (lambda: signed(schema=2, more=1), "its schema must be 1, not 2"),
        (lambda: signed(schema=True), "its schema must be 1, not True"),
        (lambda: signed(schema="1"), "its schema must be 1, not '1'"),
        (lambda: signed(more=1), "its member 'more' is unknown"),
        (lambda: signed().replace('"dnnops":', '"more":'), "its member dnnops is missing"),
        (lambda: signed(key=key(7)), "name does not match its key"),
        (lambda: signed(key=[1]), "its key must be an object"),
        (lambda: signed(key={"a": "\x1b[2J"}), "its key must be an object"),
        (lambda: signed(plans={}), "its plans must be a list of at most 256 plans, not {}"),
        (lambda: signed(plans=[]), "at least one plan"),
        (lambda: signed(plans=[PLAN] * (MAX_PLANS + 1)), "must be a list of at most 256 plans"),
        (lambda: signed(plans=[[1]]), "a plan's content must be an object, not [1]"),
        (lambda: signed(plans=[{**PLAN, "more": 1}]), "a plan's member 'more' is unknown"),
        (lambda: signed(plans=[{"name": "engine0"}]), "a plan's member time_ms is missing"),
        (lambda: signed(plans=[{**PLAN, "name": "a b"}]), "must be a valid plan name, not 'a b'"),
        (lambda: signed(plans=[{**PLAN, "name": 1}]), "must be a valid plan name, not 1"),
        (
            lambda: signed(plans=[{**PLAN, "time_ms": "1"}]),
            "a positive, finite number, not '1'",
        ),
        (lambda: signed(plans=[{**PLAN, "time_ms": True}]), "positive, finite number, not True"),
        (lambda: signed(plans=[{**PLAN, "time_ms": -1}]), "positive, finite number, not -1"),
        (lambda: signed(plans=[{**PLAN, "time_ms": 10**400}]), "positive, finite number, not 1000"),
        (lambda: signed(plans=[{**PLAN, "workspace_bytes": 0.5}]), "2**63 - 1, not 0.5"),
        (lambda: signed(plans=[{**PLAN, "workspace_bytes": -1}]), "2**63 - 1, not -1"),
        (lambda: signed(plans=[{**PLAN, "time_ms": 2}, PLAN]), "ordered by time"),
        (lambda: signed(date="yesterday"), "its date must be a date such as"),
        (lambda: signed(date=20261103), "its date must be a date such as"),
        (
            lambda: signed(dnnops="\x1b[2J"),
            "dnnops must be a version of dnnops, not '\\x1b[2J'",
        ),
        (lambda: signed().replace('"sha256"', '"sha"'), "its member sha256 is missing"),
        (lambda: signed().replace("91900", "91901"), "checksum does not match"),
        (lambda: signed().replace("3.640625", "NaN"), "positive, finite number, not nan"),
        (lambda: signed().replace("3.640625", "-Infinity"), "positive, finite number, not -inf"),
        (lambda: signed().replace("3.640625", "1e999"), "positive, finite number, not inf"),
        (
            lambda: signed().replace(f'"{__version__}"', "1e999"),
            "a version of dnnops, not inf",
        ),
        (lambda: signed().replace("91900", "1e999"), "its key must be an object"),
        (lambda: signed().replace("3.640625", "1" * 5000), "not valid JSON"),
        (lambda: "[" * 100_000, "nested too deeply"),
        (lambda: '{"a":' * 20_000 + "1" + "}" * 20_000, "nested too deeply"),
        (lambda: " " * (MAX_ENTRY_BYTES + 1), "over the limit"),
    ],
)
def test_a_damaged_entry_costs_one_warning(cache: PlanCache, content: Any, reason: str):
    cache.store(KEY, CHOICE)
    file = the_file(cache)
    file.write_text(content())
    with one_warning(file, "plans are timed again", reason):
        assert cache.find(KEY) is None
    # Once for each process and file.
    assert PlanCache(cache.path).find(KEY) is None
    (found,) = cache.files()
    assert found.entry is None
    assert reason in found.reason
    cache.store(KEY, choice(1))
    assert cache.find(KEY) == choice(1)


def test_an_entry_signed_anew_is_taken(cache: PlanCache):
    """The invalid entries of these tests differ from a valid one only as they say."""
    cache.store(KEY, CHOICE)
    the_file(cache).write_text(signed(plans=[PLAN], dnnops="9.9"))
    assert cache.find(KEY) == CachedChoice((("engine0", 1.0, 0),))


def test_an_entry_under_another_name(cache: PlanCache):
    cache.store(key(1), choice(1))
    file = the_file(cache)
    cache.store(key(2), choice(2))
    (other,) = set(cache.path.iterdir()) - {file}
    os.replace(other, file)
    with one_warning(file, "does not match its key"):
        assert cache.find(key(1)) is None


def test_an_unreadable_entry(cache: PlanCache, monkeypatch: pytest.MonkeyPatch):
    cache.store(KEY, CHOICE)
    monkeypatch.setattr(module, "open", failing(open, errno.EACCES), raising=False)
    with one_warning(the_file(cache), "cannot be read: Permission denied"):
        assert cache.find(KEY) is None


def test_a_file_that_is_replaced_on_another_machine(
    cache: PlanCache, monkeypatch: pytest.MonkeyPatch
):
    cache.store(KEY, CHOICE)
    monkeypatch.setattr(module, "open", failing(open, errno.ESTALE), raising=False)
    assert cache.find(KEY) is None  # which is no damage
    assert cache.statistics["ignored"] == 0
    monkeypatch.undo()
    assert cache.find(KEY) == CHOICE
