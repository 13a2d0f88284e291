"""A library in place of cuDNN that plans graphs as a test describes, in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

import dnnops.graph
from dnnops.graph import engines, plans
from dnnops.graph.constants import find_constant
from dnnops.graph.names import heur_mode


@dataclass(frozen=True)
class Engine:
    """An engine: its notes, what its plans need, and the error of building one."""

    numerical_notes: tuple[Any, ...] = ()
    behavior_notes: tuple[Any, ...] = ()
    workspace: int = 0
    error: Exception | None = None


@dataclass
class Library:
    """Engines, and for each heuristic its proposals, engines with knobs, or its error."""

    engines: Sequence[Engine]
    proposals: Mapping[heur_mode, Sequence[tuple[int, dict[int, int]]] | Exception]
    last_error: str = ""
    handles: list[Any] = field(default_factory=list)


class Descriptor:
    """A descriptor with the methods that plans call."""

    library: Library

    def __init__(self, kind: str, **attributes: Any) -> None:
        self.kind = kind
        self.given = attributes
        self.is_final = False

    def set(self, name: str, value: Any) -> None:
        self.given[name.removeprefix(f"{self.kind}_")] = value

    def set_as(self, name: str, kind: str, values: Sequence[Any]) -> None:
        self.set(name, (kind, list(values)))

    def finalize(self) -> Descriptor:
        found = None
        if self.kind == "ENGINEHEUR":
            found = self.library.proposals[self.given["MODE"]]
        elif self.kind == "EXECUTION_PLAN":
            found = self.engine.error
            self.library.handles.append(self.given.get("HANDLE"))
        if isinstance(found, Exception):
            raise found
        self.is_final = True
        return self

    @property
    def engine(self) -> Engine:
        config = self.given["ENGINE_CONFIG"]
        return self.library.engines[config.given["ENGINE"].given["GLOBAL_INDEX"]]

    def count(self, name: str, kind: str) -> int:
        return len(self.library.proposals[self.given["MODE"]])

    def get_descriptors(self, name: str, kind: str, count: int) -> list[Any]:
        assert self.is_final
        if name == "ENGINECFG_ENGINE":
            return [self.given["ENGINE"]]
        assert name == "ENGINEHEUR_RESULTS"
        made = []
        for number, knobs in self.library.proposals[self.given["MODE"]][:count]:
            config = Descriptor("ENGINECFG", ENGINE=Descriptor("ENGINE", GLOBAL_INDEX=number))
            choices = []
            for key, value in knobs.items():
                choices.append(Descriptor("KNOB_CHOICE", KNOB_VALUE=value))
                choices[-1].given["KNOB_TYPE"] = ("KNOB_TYPE", [key])
            config.given["KNOB_CHOICES"] = choices
            made.append(config.finalize())
        return made

    def get_all(self, name: str, kind: str) -> list[Any]:
        assert self.is_final
        return self.given.get("KNOB_CHOICES", [])

    def get(self, name: str, kind: str, most: int = 1) -> list[Any]:
        if name == "OPERATIONGRAPH_ENGINE_GLOBAL_COUNT":
            return [len(self.library.engines)]
        if name == "EXECUTION_PLAN_WORKSPACE_SIZE":
            return [self.engine.workspace]
        if name == "KNOB_CHOICE_KNOB_TYPE":
            return self.given["KNOB_TYPE"][1]
        value = self.given.get(name.removeprefix(f"{self.kind}_"))
        if name.endswith("_NOTE"):
            engine = self.library.engines[self.given["GLOBAL_INDEX"]]
            notes = engine.numerical_notes if "NUMERICAL" in name else engine.behavior_notes
            return [find_constant(note.value) for note in notes][:most]
        assert value is not None, name
        return [value]


def planned(library: Library, patch: pytest.MonkeyPatch) -> Any:
    """Return a graph that a library plans."""
    used = type("Descriptor", (Descriptor,), {"library": library})
    Descriptor.library = library
    for module in (engines, plans):
        patch.setattr(module, "Descriptor", used)
    patch.setattr(engines, "default_handle", lambda: "handle")
    patch.setattr(engines, "current_device", lambda: 3)
    patch.setattr(plans, "get_last_error_string", lambda: library.last_error)
    graph = dnnops.graph.pygraph()
    graph._graph = used("OPERATIONGRAPH")
    return graph
