"""What declared graphs give cuDNN is as ``golden_descriptors.txt`` has it; no library is asked.

``python -m tests.graph.test_golden_descriptors --write`` replaces that file. Read the difference
before you commit it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import dnnops.graph
from dnnops.graph.descriptors import Descriptor
from dnnops.graph.names import CudnnEnum
from tests.differences import asked_to_write, assert_as_golden
from tests.graph.options import OPTIONS
from tests.graph.planning import EVERY, new_graph

GOLDEN = Path(__file__).with_name("golden_descriptors.txt")
DECLARED = {**EVERY, **OPTIONS}


class Handle:
    """A descriptor in place of cuDNN's: its kind, and the attributes that it was given."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.attributes: dict[str, str] = {}
        self.is_final = False

    def __str__(self) -> str:
        assert self.is_final, f"{self.kind} is used before it is finalized"
        if self.kind == "TENSOR":
            return f"{{{self.attributes['UNIQUE_ID']}}}"
        given = ", ".join(f"{name} {value}" for name, value in self.attributes.items())
        return f"{self.kind}({given})"


@contextmanager
def recorded() -> Iterator[list[Handle]]:
    """Yield the descriptors in the order in which they are finalized."""
    finalized: list[Handle] = []

    def init(own: Any, kind: str, **attributes: Any) -> None:
        own.kind, own.handle, own._kept = kind, Handle(kind), []
        for attribute, value in attributes.items():
            if value is not None:
                own.set(f"{kind}_{attribute}", value)

    def set_as(own: Any, attribute: str, kind: str, elements: Any) -> None:
        values = " ".join(map(str, elements))
        name = attribute.removeprefix(f"{own.kind}_")
        assert name not in own.handle.attributes, f"{attribute} is given twice"
        own.handle.attributes[name] = f"{kind}[{values}]"

    def finalize(own: Any) -> Any:
        assert not own.handle.is_final, f"{own.kind} is finalized twice"
        own.handle.is_final = True
        finalized.append(own.handle)
        return own

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Descriptor, "__init__", init)
        patch.setattr(Descriptor, "set_as", set_as)
        patch.setattr(Descriptor, "finalize", finalize)
        patch.setattr(CudnnEnum, "value_in_c", lambda own: own.name)
        yield finalized


def described(name: str) -> str:
    """Return the tensors, operations and numbers of a declared graph, a line each."""
    graph = new_graph(dnnops.graph)
    DECLARED[name](dnnops.graph, graph)
    graph._planning_handle = lambda: 7
    with recorded() as finalized:
        graph.build_operation_graph()
    lines = [f"## {name}"]
    for handle in finalized:
        if handle.kind == "TENSOR":
            lines.append(" ".join(f"{key} {value}" for key, value in handle.attributes.items()))
        elif handle.kind.startswith("OPERATION_"):
            lines.append(str(handle))
    (whole,) = (handle for handle in finalized if handle.kind == "OPERATIONGRAPH")
    operations = [str(handle) for handle in finalized if handle.kind.startswith("OPERATION_")]
    assert whole.attributes["OPS"] == f"BACKEND_DESCRIPTOR[{' '.join(operations)}]"
    lines.append(f"HANDLE {whole.attributes['HANDLE']}")
    numbers = [x for x in graph.tensors.values() if getattr(x, "value", None) is not None]
    lines += [f"{x.uid} is {x.value!r}, {x.name}" for x in numbers]
    return "\n".join(lines) + "\n"


def text() -> str:
    return "".join(map(described, DECLARED))


def test_as_golden():
    assert_as_golden(GOLDEN, text(), "tests.graph.test_golden_descriptors")


if __name__ == "__main__":
    asked_to_write()
    GOLDEN.write_text(text(), encoding="utf-8")
