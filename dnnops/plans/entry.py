"""The entries of the plan cache, and their JSON format.

The table ``_ENTRY`` lists the members of an entry, a JSON object:

- ``format`` and ``schema`` identify the format and its version.
- ``key`` holds what the selection depends on: the convolution, settings, device and libraries.
- ``plans`` holds the ``name``, ``time_ms`` and ``workspace_bytes`` of each plan, fastest first.
- ``dnnops`` and ``date`` give the version of dnnops that wrote the entry, and when.
- ``sha256`` is a checksum of all other members.

An exported file has a line that gives its format, schema and number of entries, and then one line
for each entry, so that reading a file from anybody takes little memory. Everything is checked, and
nothing is executed: a plan's name is only looked up among the plans that cuDNN offers.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from numbers import Integral, Real
from pathlib import Path
from reprlib import repr as short_repr
from typing import Any, BinaryIO, NamedTuple

from dnnops.__about__ import __version__
from dnnops.errors import DnnTypeError, DnnValueError

__all__ = [
    "INVALID",
    "MAX_ENTRY_BYTES",
    "MAX_EXPORTED",
    "MAX_PLANS",
    "CacheFile",
    "CachedChoice",
    "CachedPlan",
    "Entry",
    "entry_name",
    "read_entry",
    "read_export",
    "write_entry",
    "write_export",
]

#: What is raised for data that is not valid; the message gives the reason.
INVALID = (DnnTypeError, DnnValueError)
#: Maximum number of plans in an entry; the fastest ones are kept.
MAX_PLANS = 256
#: Maximum size of an entry.
MAX_ENTRY_BYTES = 256 * 1024
#: Maximum number of entries in an exported file.
MAX_EXPORTED = 65536

# Changing the version of a schema makes existing files out of date.
_ENTRY_HEADER = {"format": "dnnops-plan", "schema": 1}
_EXPORT_HEADER = {"format": "dnnops-plans", "schema": 2}
_MAX_KEY_BYTES = 32 * 1024
_MAX_KEY_DEPTH = 8
_MAX_TEXT = 512
_DATE = "%Y-%m-%dT%H:%M:%SZ"
# Allowed difference between the clocks of two machines.
_CLOCK_TOLERANCE = timedelta(days=1)


class CachedPlan(NamedTuple):
    """A plan that was timed.

    Attributes
    ----------
    name : str
        Name of the plan, such as ``engine7_k2=4`` or ``FFT_TILING``.
    time_ms : float
        Time of one call in milliseconds.
    workspace_bytes : int
        Device memory in bytes that the plan needs besides its operands.
    """

    name: str
    time_ms: float
    workspace_bytes: int


@dataclass(frozen=True)
class CachedChoice:
    """The timed plans of one convolution.

    Attributes
    ----------
    plans : tuple of CachedPlan
        Plans ordered by time, fastest first. Tuples ``(name, time_ms, workspace_bytes)`` are also
        accepted.

    Raises
    ------
    DnnTypeError
        If a member has the wrong type.
    DnnValueError
        If there is no plan, a name has invalid characters, a time is not positive and finite, a
        size is negative, or the plans are not ordered by time.
    """

    plans: tuple[CachedPlan, ...]

    def __post_init__(self) -> None:
        plans = tuple(_read_plan(CachedPlan(*plan)._asdict()) for plan in self.plans)
        if not plans:
            raise DnnValueError("a selection needs at least one plan")
        if any(a.time_ms > b.time_ms for a, b in itertools.pairwise(plans)):
            raise DnnValueError("the plans of a selection must be ordered by time")
        object.__setattr__(self, "plans", plans)


@dataclass(frozen=True)
class Entry:
    """One file of the cache.

    Attributes
    ----------
    key : dict
        Key that the selection was made for.
    choice : CachedChoice
        Plans with their times.
    date : datetime
        Date of the timing, to the second, in UTC.
    version : str
        Version of dnnops that wrote the entry.
    """

    key: dict[str, Any]
    choice: CachedChoice
    date: datetime
    version: str

    @classmethod
    def of_today(cls, key: dict[str, Any], choice: CachedChoice) -> Entry:
        """Return an entry with the current date and version and the `MAX_PLANS` fastest plans."""
        date = datetime.now(UTC).replace(microsecond=0)
        return cls(key, CachedChoice(choice.plans[:MAX_PLANS]), date, __version__)

    @property
    def name(self) -> str:
        """The name of the entry's file, which is derived from the key."""
        return entry_name(self.key)

    @property
    def is_from_future(self) -> bool:
        """Whether the date is wrong, because it lies in the future."""
        return self.date > datetime.now(UTC) + _CLOCK_TOLERANCE


@dataclass(frozen=True)
class CacheFile:
    """A file of the cache, intact or damaged.

    Attributes
    ----------
    path : Path
        Path of the file.
    size : int
        Size in bytes.
    entry : Entry or None
        Contents of the file, or None if they can't be used.
    reason : str
        Reason why the contents can't be used; empty if they can.
    """

    path: Path
    size: int
    entry: Entry | None
    reason: str = ""


class _Member(NamedTuple):
    """What a member of a JSON object must be: its type, a test of its value, both in words."""

    type: type
    holds: Callable[[Any], object]
    rule: str


def _is_plain(value: Any, depth: int = _MAX_KEY_DEPTH) -> bool:
    """Return whether a value of a key is of JSON's types and within the limits."""
    match value:
        case dict():
            names = all(isinstance(name, str) and _is_plain(name) for name in value)
            return names and _is_plain([*value.values()], depth)
        case list() | tuple():
            return depth > 0 and all(_is_plain(member, depth - 1) for member in value)
        case str():
            return len(value) <= _MAX_TEXT and value.isprintable()
        case int():
            return -(2**63) <= value < 2**64
        case float():
            return math.isfinite(value)
    return value is None


def _is_key(key: dict[Any, Any]) -> bool:
    return _is_plain(key) and len(_canonical_json(key)) <= _MAX_KEY_BYTES


def _is_date(text: str) -> bool:
    try:
        date = datetime.strptime(text, _DATE)
    except ValueError:
        return False
    # strptime also accepts numbers without leading zeros.
    return date.year >= 2020 and date.strftime(_DATE) == text


def _header(values: dict[str, Any]) -> dict[str, _Member]:
    return {name: _Member(type(value), value.__eq__, repr(value)) for name, value in values.items()}


def _list_of(what: str, most: int) -> _Member:
    return _Member(list, lambda found: len(found) <= most, f"a list of at most {most} {what}")


_EXPORT = {
    **_header(_EXPORT_HEADER),
    "entries": _Member(
        int, lambda count: 0 <= count <= MAX_EXPORTED, f"a number of at most {MAX_EXPORTED}"
    ),
}
_ENTRY = {
    **_header(_ENTRY_HEADER),
    "key": _Member(
        dict,
        _is_key,
        f"an object of at most {_MAX_KEY_BYTES} bytes and {_MAX_KEY_DEPTH} levels, of printable"
        f" strings of at most {_MAX_TEXT} characters, finite numbers of 64 bits, booleans and null",
    ),
    "plans": _list_of("plans", MAX_PLANS),
    "dnnops": _Member(str, re.compile(r"[0-9A-Za-z.+!-]{1,64}").fullmatch, "a version of dnnops"),
    "date": _Member(str, _is_date, "a date such as 2026-01-31T12:00:00Z, not before 2020"),
    "sha256": _Member(str, str.isalnum, "a checksum"),
}
_PLAN = {
    # Longer than the names of cuDNN's algorithms and engines, to leave room for other libraries.
    "name": _Member(
        str, re.compile(r"[A-Za-z][A-Za-z0-9_:=.,+-]{0,511}").fullmatch, "a valid plan name"
    ),
    "time_ms": _Member(
        Real, lambda time: 0 < time <= sys.float_info.max, "a positive, finite number"
    ),
    "workspace_bytes": _Member(
        Integral, lambda size: 0 <= size < 2**63, "an integer from 0 to 2**63 - 1"
    ),
}


def _check(its: str, content: Any, members: dict[str, _Member]) -> None:
    """Check a JSON object; messages start with `its`, its possessive form."""
    if not isinstance(content, dict):
        raise DnnTypeError(f"{its} content must be an object, not {short_repr(content)}")
    # In this order: if a file has another format or version, this is the reason that is given.
    for name, (kind, holds, rule) in members.items():
        if name not in content:
            raise DnnValueError(f"{its} member {name} is missing")
        value = content[name]
        is_kind = isinstance(value, kind) and not isinstance(value, bool)
        if not is_kind or not holds(value):
            error = DnnValueError if is_kind else DnnTypeError
            raise error(f"{its} {name} must be {rule}, not {short_repr(value)}")
    if len(content) > len(members):
        unknown = next(name for name in content if name not in members)
        raise DnnValueError(f"{its} member {short_repr(unknown)} is unknown")


def entry_name(key: dict[str, Any]) -> str:
    """Check a key and return the name of its entry's file.

    Parameters
    ----------
    key : dict
        Key with members that are dicts with string keys, lists, tuples, strings, integers, finite
        floats, booleans or None.

    Returns
    -------
    str

    Raises
    ------
    DnnTypeError
        If the key is not a dict.
    DnnValueError
        If a member has another type, a number is not finite, a string is not printable, or the key
        is too large or nested too deeply.
    """
    _check("an entry's", {"key": key}, {"key": _ENTRY["key"]})
    return f"{_sha256(key)}.json"


def _canonical_json(value: Any) -> str:
    """Return the canonical text of a JSON value: members sorted, no spaces, ASCII only."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _sha256(value: Any) -> str:
    return hashlib.sha256(_canonical_json(value).encode()).hexdigest()


def _parse_json(text: bytes) -> Any:
    if len(text) > MAX_ENTRY_BYTES:
        raise DnnValueError(f"it is over the limit of {MAX_ENTRY_BYTES} bytes")
    try:
        return json.loads(text)
    except RecursionError:
        raise DnnValueError("it is nested too deeply") from None
    except ValueError as error:
        raise DnnValueError(f"it is not valid JSON: {error}") from None


def write_entry(entry: Entry) -> str:
    """Return an entry as a line of JSON."""
    content = {
        **_ENTRY_HEADER,
        "key": entry.key,
        "plans": [plan._asdict() for plan in entry.choice.plans],
        "dnnops": entry.version,
        "date": entry.date.strftime(_DATE),
    }
    return _canonical_json({**content, "sha256": _sha256(content)}) + "\n"


def read_entry(text: bytes) -> Entry:
    """Return the entry in a JSON text; the inverse of `write_entry`."""
    content = _parse_json(text)
    _check("its", content, _ENTRY)
    choice = CachedChoice(tuple(_read_plan(plan) for plan in content["plans"]))
    if content.pop("sha256") != _sha256(content):
        raise DnnValueError("its checksum does not match its content")
    date = datetime.strptime(content["date"], _DATE).replace(tzinfo=UTC)
    return Entry(content["key"], choice, date, content["dnnops"])


def _read_plan(content: Any) -> CachedPlan:
    _check("a plan's", content, _PLAN)
    return CachedPlan(content["name"], float(content["time_ms"]), int(content["workspace_bytes"]))


def write_export(entries: Sequence[Entry]) -> str:
    """Return the text of an exported file."""
    header = _canonical_json({**_EXPORT_HEADER, "entries": len(entries)})
    return "".join((header, "\n", *map(write_entry, entries)))


def read_export(file: BinaryIO) -> tuple[list[Entry], list[str]]:
    """Return the intact entries of an export, and the reasons why the others are refused."""
    header = _parse_json(file.readline(MAX_ENTRY_BYTES + 1))
    _check("its", header, _EXPORT)
    entries, refused = [], []
    for number in range(1, header["entries"] + 1):
        line = file.readline(MAX_ENTRY_BYTES + 1)
        if not line.endswith(b"\n"):
            raise DnnValueError(
                f"its line of entry {number} is missing, incomplete, or over the limit of"
                f" {MAX_ENTRY_BYTES} bytes"
            )
        try:
            entry = read_entry(line)
            if entry.is_from_future:
                raise DnnValueError("its date is in the future")
            entries.append(entry)
        except INVALID as reason:
            refused.append(f"entry {number}: {reason}")
    if file.read(1):
        raise DnnValueError(f"it has more than {header['entries']} entries")
    return entries, refused
