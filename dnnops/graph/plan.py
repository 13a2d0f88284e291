"""Plans of graphs, as cuDNN proposes them, and its reasons against others."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from dnnops.graph.constants import find_constant
from dnnops.graph.descriptors import Descriptor
from dnnops.graph.names import behavior_note, knob_type, numerical_note

__all__ = ["Knob", "Plan", "describe_config", "knob", "knobs_of", "reason_of", "reasons_by_engine"]

#: More than an engine has notes; cuDNN does not say how many there are.
_MAX_NOTES = 64


@dataclass(frozen=True)
class Knob:
    """A parameter of an engine.

    Attributes
    ----------
    type : knob_type or int
        What it sets; the number of one that dnnops has no name for.
    min_value, max_value, stride : int
        Range of its values.
    """

    type: Any
    min_value: int
    max_value: int
    stride: int


#: The name of the class in cuDNN's frontend.
knob = Knob


@dataclass
class Plan:
    """A way to run a graph: an engine with values of its knobs.

    Attributes
    ----------
    engine : int
        Number of the engine.
    knobs : dict of int to int
        Values of knobs by their numbers in C.
    numerical_notes, behavior_notes : list
        Notes of cuDNN about the engine.
    config : Descriptor
        cuDNN's descriptor of engine and knobs.
    descriptor : Descriptor or None
        The plan once it is built.
    workspace : int or None
        Bytes of memory that it needs, once it is built.
    time_ms : float or None
        Median time of a call in milliseconds, once it is timed.
    is_excluded : bool
        Whether it was deselected, or its results are known to be wrong.
    reason : str
        Why it cannot be built, or what is known to be wrong, if so.
    """

    engine: int
    knobs: dict[int, int]
    numerical_notes: list[Any]
    behavior_notes: list[Any]
    config: Descriptor | None
    descriptor: Descriptor | None = None
    workspace: int | None = None
    time_ms: float | None = None
    is_excluded: bool = False
    reason: str = field(default="", compare=False)
    #: What `execute` keeps for the next call.
    calls: Any = field(default=None, compare=False, repr=False)

    @property
    def name(self) -> str:
        """The engine and the values of its knobs, such as ``eng0_k2=1``."""
        return "_".join([f"eng{self.engine}", *(f"k{k}={v}" for k, v in self.knobs.items())])


@cache
def _members(kind: Any) -> dict[int, Any]:
    values = ((find_constant(member.value), member) for member in kind)
    return {int(value): member for value, member in values if value is not None}


def _enums(kind: Any, numbers: Iterable[Any]) -> list[Any]:
    """Return members of an enum for numbers in C, and those numbers that it has no name for."""
    return [_members(kind).get(int(n), int(n)) for n in numbers]


def describe_config(config: Descriptor) -> Plan:
    (engine,) = config.get_descriptors("ENGINECFG_ENGINE", "ENGINE", 1)
    (index,) = engine.get("ENGINE_GLOBAL_INDEX", "INT64")
    knobs = {}
    for choice in config.get_all("ENGINECFG_KNOB_CHOICES", "KNOB_CHOICE"):
        (type_,) = choice.get("KNOB_CHOICE_KNOB_TYPE", "KNOB_TYPE")
        (value,) = choice.get("KNOB_CHOICE_KNOB_VALUE", "INT64")
        knobs[int(type_)] = int(value)
    return Plan(
        int(index),
        knobs,
        _enums(numerical_note, engine.get("ENGINE_NUMERICAL_NOTE", "NUMERICAL_NOTE", _MAX_NOTES)),
        _enums(behavior_note, engine.get("ENGINE_BEHAVIOR_NOTE", "BEHAVIOR_NOTE", _MAX_NOTES)),
        config,
    )


def knobs_of(engine: Descriptor) -> list[Knob]:
    """Return the parameters of an engine."""
    knobs = []
    for info in engine.get_all("ENGINE_KNOB_INFO", "KNOB_INFO"):
        low, high, stride = (
            int(info.get(f"KNOB_INFO_{word}", "INT64")[0])
            for word in ("MINIMUM_VALUE", "MAXIMUM_VALUE", "STRIDE")
        )
        (type_,) = _enums(knob_type, info.get("KNOB_INFO_TYPE", "KNOB_TYPE"))
        knobs.append(Knob(type_, low, high, stride))
    return knobs


def reason_of(error: Exception) -> str:
    """Return cuDNN's reason in the message of an error, or its first line."""
    text = str(error)
    found = _REASON.search(text)
    return found[1] if found else text.partition("\n")[0]


_REASON = re.compile(r"Reason: (.*)")
_ENGINE = re.compile(r'"engineId":(\d+)')


def reasons_by_engine(text: str) -> list[str]:
    """Return the first reason that cuDNN's text about an error has for each engine."""
    reasons: dict[str, str] = {}
    engine = None
    for line in text.splitlines():
        if found := _ENGINE.search(line):
            engine = found[1]
        elif engine and (found := _REASON.search(line)):
            reasons.setdefault(engine, found[1])
    return [f"eng{number}: {reason}" for number, reason in reasons.items()]
