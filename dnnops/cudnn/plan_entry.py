"""What is kept of a choice among a convolution's plans, and its form in files: JSON, all checked.

An entry is a JSON object with exactly these members: ``format`` and ``schema`` say what it is,
``key`` what the choice depends on: convolution, settings, device and library. ``plans`` has the
``name``, ``time_ms`` and ``workspace_bytes`` of each, fastest first; ``dnnops`` and ``date`` say
who wrote it and when; ``sha256`` is a checksum of all others. Nothing in it is executed: a plan's
name is looked up among the plans that cuDNN offers.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import operator
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from dnnops.errors import DnnTypeError, DnnValueError

__all__ = [
    "CLOCK_TOLERANCE",
    "DECODER",
    "MAX_ENTRY_BYTES",
    "MAX_PLANS",
    "SCHEMA",
    "CachedChoice",
    "CachedPlan",
    "DamageError",
    "Entry",
    "canonical_json",
    "check_header",
    "check_key",
    "entry_name",
    "new_entry",
    "parse_json",
    "read_entry",
    "write_entry",
]

#: Version of the form of entries; a change makes those on disk count as old.
SCHEMA = 1
#: The fastest plans of a choice, that many at most, are kept.
MAX_PLANS = 256
#: Larger than any entry that can be written.
MAX_ENTRY_BYTES = 256 * 1024

_FORMAT = "dnnops-plan"
_MEMBERS = {"format", "schema", "key", "plans", "dnnops", "date", "sha256"}
_PLAN_MEMBERS = {"name", "time_ms", "workspace_bytes"}
# Names of cuDNN's algorithms and engines, and room for other libraries'.
_PLAN_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_:=.,+-]{0,511}")
_VERSION = re.compile(r"[0-9A-Za-z.+!-]{1,64}")
_DATE = "%Y-%m-%dT%H:%M:%SZ"
_MAX_KEY_BYTES = 32 * 1024
_MAX_KEY_DEPTH = 8
_MAX_TEXT = 512
_INT64_END = 2**63
_FIRST_DATE = datetime(2020, 1, 1, tzinfo=UTC)
#: By how much the clocks of two machines may differ.
CLOCK_TOLERANCE = timedelta(days=1)


class DamageError(Exception):
    """What was read is no entry as this version writes it; the message says why."""


class CachedPlan(NamedTuple):
    """A plan that was timed.

    Attributes
    ----------
    name : str
        Its name, as ``engine7_k2=4`` or ``FFT_TILING``.
    time_ms : float
        Milliseconds of one call.
    workspace_bytes : int
        Device memory that it takes beside its operands.
    """

    name: str
    time_ms: float
    workspace_bytes: int


@dataclass(frozen=True)
class CachedChoice:
    """The plans of one convolution that were timed.

    Attributes
    ----------
    plans : tuple of CachedPlan
        Fastest first. Tuples ``(name, time_ms, workspace_bytes)`` are taken, too.

    Raises
    ------
    DnnTypeError
        If a member is of another type.
    DnnValueError
        If there is no plan, a name has characters that no plan's name has, a time is not positive
        and finite, a size is negative, or the plans are not ordered by time.
    """

    plans: tuple[CachedPlan, ...]

    def __post_init__(self) -> None:
        plans = tuple(_checked_plan(*plan) for plan in self.plans)
        if not plans:
            raise DnnValueError("a choice needs one plan at least")
        if any(a.time_ms > b.time_ms for a, b in itertools.pairwise(plans)):
            raise DnnValueError("the plans of a choice have to be ordered by time")
        object.__setattr__(self, "plans", plans)


def _checked_plan(name: Any, time_ms: Any, workspace_bytes: Any) -> CachedPlan:
    if not isinstance(name, str):
        raise DnnTypeError(f"a plan's name has to be a string, not {name!r}")
    if _PLAN_NAME.fullmatch(name) is None:
        raise DnnValueError(f"{name!r} cannot be the name of a plan")
    if isinstance(time_ms, bool) or isinstance(workspace_bytes, bool):
        raise DnnTypeError(f"plan {name}: time and workspace have to be numbers, not booleans")
    try:
        time_ms, workspace_bytes = float(time_ms), operator.index(workspace_bytes)
    except (TypeError, ValueError, OverflowError) as error:
        raise DnnTypeError(f"plan {name}: {error}") from None
    if not (math.isfinite(time_ms) and time_ms > 0):
        raise DnnValueError(f"plan {name}: a time of {time_ms} ms is not positive and finite")
    if not 0 <= workspace_bytes < _INT64_END:
        raise DnnValueError(f"plan {name}: a workspace cannot have {workspace_bytes} bytes")
    return CachedPlan(name, time_ms, workspace_bytes)


@dataclass(frozen=True)
class Entry:
    """One file of the cache.

    Attributes
    ----------
    key : dict
        What the choice was made for.
    choice : CachedChoice
        The plans and their times.
    date : datetime
        When they were timed, to the second, in UTC.
    version : str
        The version of dnnops that wrote the entry.
    """

    key: dict[str, Any]
    choice: CachedChoice
    date: datetime
    version: str

    @property
    def name(self) -> str:
        """Name of its file, which follows from the key."""
        return entry_name(canonical_json(self.key))


def entry_name(key_text: str) -> str:
    """Name of the file that holds the entry of a key, given as `canonical_json`."""
    return f"{_sha256(key_text)}.json"


def new_entry(key: dict[str, Any], choice: CachedChoice) -> Entry:
    """Make an entry of now and of this version; of very many plans the fastest are kept."""
    from dnnops import __version__

    if len(choice.plans) > MAX_PLANS:
        choice = CachedChoice(choice.plans[:MAX_PLANS])
    return Entry(key, choice, datetime.now(UTC).replace(microsecond=0), __version__)


def canonical_json(value: Any) -> str:
    """The one text that stands for a JSON value: members sorted, no spaces, ASCII only."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def check_key(key: Any) -> str:
    """Check that a key is made of JSON's types and of a sensible size.

    Parameters
    ----------
    key : dict
        Members are dicts with string keys, lists, tuples, strings, integers, finite floats,
        booleans and None.

    Returns
    -------
    str
        Its canonical JSON.

    Raises
    ------
    DnnTypeError
        If it or a member is of another type.
    DnnValueError
        If a number is not finite, a string cannot be printed, or the key is too large or nested
        too deeply.
    """
    if not isinstance(key, dict):
        raise DnnTypeError(f"a key has to be a dict, not {type(key).__name__}")
    _check_value(key, _MAX_KEY_DEPTH)
    text = canonical_json(key)
    if len(text) > _MAX_KEY_BYTES:
        raise DnnValueError(f"a key of {len(text)} bytes is over the limit of {_MAX_KEY_BYTES}")
    return text


def _check_value(value: Any, depth: int) -> None:
    if isinstance(value, str):
        if len(value) > _MAX_TEXT or not value.isprintable():
            raise DnnValueError(f"a string is too long or cannot be printed: {value[:40]!a}")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise DnnValueError(f"a number is not finite: {value}")
    elif isinstance(value, int):
        if not -_INT64_END <= value < 2 * _INT64_END:
            raise DnnValueError("an integer has more than 64 bits")
    elif isinstance(value, dict | list | tuple):
        if depth == 0:
            raise DnnValueError("it is nested too deeply")
        if isinstance(value, dict):
            for name, member in value.items():
                if not isinstance(name, str):
                    raise DnnTypeError(f"a member's name is no string: {name!r}")
                _check_value(name, depth)
                _check_value(member, depth - 1)
        else:
            for member in value:
                _check_value(member, depth - 1)
    elif value is not None:
        raise DnnTypeError(f"a key cannot hold a {type(value).__name__}")


def write_entry(entry: Entry) -> dict[str, Any]:
    """The JSON object that stands for an entry."""
    content = {
        "format": _FORMAT,
        "schema": SCHEMA,
        "key": entry.key,
        "plans": [plan._asdict() for plan in entry.choice.plans],
        "dnnops": entry.version,
        "date": entry.date.strftime(_DATE),
    }
    return {**content, "sha256": _sha256(canonical_json(content))}


def read_entry(content: Any) -> Entry:
    """Take an entry from a JSON object; the inverse of `write_entry`.

    Parameters
    ----------
    content : object
        What `parse_json` gave.

    Returns
    -------
    Entry

    Raises
    ------
    DamageError
        If it is not exactly what `write_entry` makes.
    """
    check_header(content, _FORMAT, SCHEMA, _MEMBERS)
    try:
        check_key(content["key"])
        _check_value(content["plans"], 2)
        unsigned = {name: value for name, value in content.items() if name != "sha256"}
        if content["sha256"] != _sha256(canonical_json(unsigned)):
            raise DamageError("its checksum does not fit its content")
        choice = CachedChoice(_read_plans(content["plans"]))
        date, version = _read_date(content["date"]), content["dnnops"]
    except (DnnTypeError, DnnValueError, RecursionError) as error:
        raise DamageError(str(error)) from None
    if not isinstance(version, str) or _VERSION.fullmatch(version) is None:
        raise DamageError("the version of dnnops is none")
    return Entry(content["key"], choice, date, version)


def check_header(content: Any, form: str, schema: int, members: Iterable[str]) -> None:
    """Check that a JSON object is what its members ``format`` and ``schema`` have to say.

    Parameters
    ----------
    content : object
        What `parse_json` gave.
    form : str
        The format that is wanted.
    schema : int
        Its version.
    members : iterable of str
        Names of all members.

    Raises
    ------
    DamageError
        If it is something else, of another version, or has other members.
    """
    if not isinstance(content, dict) or content.get("format") != form:
        raise DamageError(f"it is no {form}")
    found = content.get("schema")
    if isinstance(found, bool) or not isinstance(found, int):
        raise DamageError("its schema is no number")
    if found != schema:
        age = "an older" if found < schema else "a newer"
        raise DamageError(f"it is of {age} version: its schema is {found}, not {schema}")
    if set(content) != set(members):
        names = ", ".join(sorted(set(content) ^ set(members)))
        raise DamageError(f"it has missing or unknown members: {names[:_MAX_TEXT]!a}")


def _read_plans(plans: Any) -> tuple[CachedPlan, ...]:
    if not isinstance(plans, list) or len(plans) > MAX_PLANS:
        raise DamageError(f"its plans are no list of at most {MAX_PLANS}")
    for plan in plans:
        if not isinstance(plan, dict) or set(plan) != _PLAN_MEMBERS:
            raise DamageError(f"a plan has other members than {', '.join(sorted(_PLAN_MEMBERS))}")
        if not isinstance(plan["time_ms"], int | float):
            raise DamageError("a plan's time is no number")
    return tuple(CachedPlan(**plan) for plan in plans)


def _read_date(text: Any) -> datetime:
    try:
        date = datetime.strptime(text, _DATE).replace(tzinfo=UTC)
    except (TypeError, ValueError):
        raise DamageError("its date is none") from None
    # Of a year before 1000, strftime does not write what strptime reads.
    if date < _FIRST_DATE or date.strftime(_DATE) != text:
        raise DamageError(f"its date {text!a} cannot be right")
    return date


def parse_json(content: bytes) -> Any:
    """Parse JSON as its standard has it.

    Parameters
    ----------
    content : bytes
        Text in UTF-8, of a size that was checked.

    Returns
    -------
    object

    Raises
    ------
    DamageError
        If it is no JSON, has a member twice, a number that is not finite, or is nested too deeply.
    """
    try:
        return DECODER.decode(content.decode())
    except RecursionError:
        raise DamageError("it is nested too deeply") from None
    except ValueError as error:
        raise DamageError(f"it is no valid JSON: {error}") from None


def _unique_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a member is there twice")
    return members


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


def _finite_float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number is not finite")
    return number


#: Takes what the standard of JSON has, and no member twice.
DECODER = json.JSONDecoder(
    object_pairs_hook=_unique_members, parse_constant=_refuse_constant, parse_float=_finite_float
)
