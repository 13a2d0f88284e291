"""The entries of the plan cache, and their JSON format.

An entry is a JSON object with exactly these members:

- ``format`` and ``schema`` identify the format and its version.
- ``key`` holds what the selection depends on: the convolution, settings, device and libraries.
- ``plans`` holds the ``name``, ``time_ms`` and ``workspace_bytes`` of each plan, fastest first.
- ``dnnops`` and ``date`` give the version of dnnops that wrote the entry, and when.
- ``sha256`` is a checksum of all other members.

Everything is checked on reading, and nothing is executed: a plan's name is only looked up among the
plans that cuDNN offers.
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

from dnnops.__about__ import __version__
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

#: Version of the entry format. Changing it makes existing entries out of date.
SCHEMA = 1
#: Maximum number of plans in an entry; the fastest ones are kept.
MAX_PLANS = 256
#: Upper bound of the size of an entry.
MAX_ENTRY_BYTES = 256 * 1024

_FORMAT = "dnnops-plan"
_MEMBERS = {"format", "schema", "key", "plans", "dnnops", "date", "sha256"}
_PLAN_MEMBERS = {"name", "time_ms", "workspace_bytes"}
# Allows more than the names of cuDNN's algorithms and engines, to leave room for other libraries.
_PLAN_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_:=.,+-]{0,511}")
_VERSION = re.compile(r"[0-9A-Za-z.+!-]{1,64}")
_DATE = "%Y-%m-%dT%H:%M:%SZ"
_MAX_KEY_BYTES = 32 * 1024
_MAX_KEY_DEPTH = 8
_MAX_TEXT = 512
_INT64_END = 2**63
_FIRST_DATE = datetime(2020, 1, 1, tzinfo=UTC)
#: Allowed difference between the clocks of two machines.
CLOCK_TOLERANCE = timedelta(days=1)


class DamageError(Exception):
    """Raised when data is not an entry that this version writes; the message says why."""


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
        plans = tuple(_checked_plan(*plan) for plan in self.plans)
        if not plans:
            raise DnnValueError("a selection needs at least one plan")
        if any(a.time_ms > b.time_ms for a, b in itertools.pairwise(plans)):
            raise DnnValueError("the plans of a selection must be ordered by time")
        object.__setattr__(self, "plans", plans)


def _checked_plan(name: Any, time_ms: Any, workspace_bytes: Any) -> CachedPlan:
    if not isinstance(name, str):
        raise DnnTypeError(f"a plan's name must be a string, not {name!r}")
    if _PLAN_NAME.fullmatch(name) is None:
        raise DnnValueError(f"{name!r} is not a valid plan name")
    if isinstance(time_ms, bool) or isinstance(workspace_bytes, bool):
        raise DnnTypeError(f"plan {name}: time and workspace must be numbers, not booleans")
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

    @property
    def name(self) -> str:
        """The name of the entry's file, which is derived from the key."""
        return entry_name(canonical_json(self.key))


def entry_name(key_text: str) -> str:
    """Return the name of the file for a key, given as `canonical_json`."""
    return f"{_sha256(key_text)}.json"


def new_entry(key: dict[str, Any], choice: CachedChoice) -> Entry:
    """Return an entry with the current date and version and the `MAX_PLANS` fastest plans."""
    if len(choice.plans) > MAX_PLANS:
        choice = CachedChoice(choice.plans[:MAX_PLANS])
    return Entry(key, choice, datetime.now(UTC).replace(microsecond=0), __version__)


def canonical_json(value: Any) -> str:
    """Return the canonical text of a JSON value: members sorted, no spaces, ASCII only."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def check_key(key: Any) -> str:
    """Check that a key consists of JSON types and isn't too large.

    Parameters
    ----------
    key : dict
        Key with members that are dicts with string keys, lists, tuples, strings, integers, finite
        floats, booleans or None.

    Returns
    -------
    str
        Canonical JSON of the key.

    Raises
    ------
    DnnTypeError
        If the key or a member has another type.
    DnnValueError
        If a number is not finite, a string is not printable, or the key is too large or nested too
        deeply.
    """
    if not isinstance(key, dict):
        raise DnnTypeError(f"a key must be a dict, not {type(key).__name__}")
    _check_value(key, _MAX_KEY_DEPTH)
    text = canonical_json(key)
    if len(text) > _MAX_KEY_BYTES:
        raise DnnValueError(f"a key of {len(text)} bytes is over the limit of {_MAX_KEY_BYTES}")
    return text


def _check_value(value: Any, depth: int) -> None:
    if isinstance(value, str):
        if len(value) > _MAX_TEXT or not value.isprintable():
            raise DnnValueError(f"a string is too long or not printable: {value[:40]!a}")
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
                    raise DnnTypeError(f"a member's name is not a string: {name!r}")
                _check_value(name, depth)
                _check_value(member, depth - 1)
        else:
            for member in value:
                _check_value(member, depth - 1)
    elif value is not None:
        raise DnnTypeError(f"a key cannot contain a value of type {type(value).__name__}")


def write_entry(entry: Entry) -> dict[str, Any]:
    """Return an entry as a JSON object."""
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
    """Return the entry in a JSON object; the inverse of `write_entry`.

    Parameters
    ----------
    content : object
        Result of `parse_json`.

    Returns
    -------
    Entry

    Raises
    ------
    DamageError
        If `write_entry` can't have written the object.
    """
    check_header(content, _FORMAT, SCHEMA, _MEMBERS)
    try:
        check_key(content["key"])
        _check_value(content["plans"], 2)
        unsigned = {name: value for name, value in content.items() if name != "sha256"}
        if content["sha256"] != _sha256(canonical_json(unsigned)):
            raise DamageError("its checksum does not match its content")
        choice = CachedChoice(_read_plans(content["plans"]))
        date, version = _read_date(content["date"]), content["dnnops"]
    except (DnnTypeError, DnnValueError, RecursionError) as error:
        raise DamageError(str(error)) from None
    if not isinstance(version, str) or _VERSION.fullmatch(version) is None:
        raise DamageError("its version of dnnops is invalid")
    return Entry(content["key"], choice, date, version)


def check_header(content: Any, form: str, schema: int, members: Iterable[str]) -> None:
    """Check the format, version and members of a JSON object.

    Parameters
    ----------
    content : object
        Result of `parse_json`.
    form : str
        Expected value of the member ``format``.
    schema : int
        Expected value of the member ``schema``.
    members : iterable of str
        Names of all members.

    Raises
    ------
    DamageError
        If the format, the version or the members differ.
    """
    if not isinstance(content, dict) or content.get("format") != form:
        raise DamageError(f"its format is not {form}")
    found = content.get("schema")
    if isinstance(found, bool) or not isinstance(found, int):
        raise DamageError("its schema is not a number")
    if found != schema:
        age = "an older" if found < schema else "a newer"
        raise DamageError(f"it is of {age} version: its schema is {found}, not {schema}")
    if set(content) != set(members):
        names = ", ".join(sorted(set(content) ^ set(members)))
        raise DamageError(f"it has missing or unknown members: {names[:_MAX_TEXT]!a}")


def _read_plans(plans: Any) -> tuple[CachedPlan, ...]:
    if not isinstance(plans, list) or len(plans) > MAX_PLANS:
        raise DamageError(f"its plans are not a list of at most {MAX_PLANS}")
    for plan in plans:
        if not isinstance(plan, dict) or set(plan) != _PLAN_MEMBERS:
            raise DamageError(
                f"a plan must have exactly the members {', '.join(sorted(_PLAN_MEMBERS))}"
            )
        if not isinstance(plan["time_ms"], int | float):
            raise DamageError("a plan's time is not a number")
    return tuple(CachedPlan(**plan) for plan in plans)


def _read_date(text: Any) -> datetime:
    try:
        date = datetime.strptime(text, _DATE).replace(tzinfo=UTC)
    except (TypeError, ValueError):
        raise DamageError("its date is invalid") from None
    # strftime and strptime disagree about years before 1000.
    if date < _FIRST_DATE or date.strftime(_DATE) != text:
        raise DamageError(f"its date {text!a} is invalid")
    return date


def parse_json(content: bytes) -> Any:
    """Parse standard JSON, without the extensions of Python's parser.

    Parameters
    ----------
    content : bytes
        Text in UTF-8; the caller checks its size.

    Returns
    -------
    object

    Raises
    ------
    DamageError
        If the text is not JSON, repeats a member, has a number that is not finite, or is nested too
        deeply.
    """
    try:
        return DECODER.decode(content.decode())
    except RecursionError:
        raise DamageError("it is nested too deeply") from None
    except ValueError as error:
        raise DamageError(f"it is not valid JSON: {error}") from None


def _unique_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a member is given twice")
    return members


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a valid number")


def _finite_float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number is not finite")
    return number


#: Accepts standard JSON only, and no repeated members.
DECODER = json.JSONDecoder(
    object_pairs_hook=_unique_members, parse_constant=_refuse_constant, parse_float=_finite_float
)
