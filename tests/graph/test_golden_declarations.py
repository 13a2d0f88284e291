"""Signatures of the methods that declare graphs, and which parts of stored graphs are refused.

Both are as ``golden_declarations.txt`` has them; ``python -m tests.graph.test_golden_declarations
--write`` replaces that file. Read the difference before you commit it.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

import dnnops.graph
from dnnops.errors import DnnError
from tests.differences import asked_to_write, assert_as_golden
from tests.graph.options import OPTIONS
from tests.graph.planning import EVERY, new_graph
from tests.graph.stored import changed, read, without

GOLDEN = Path(__file__).with_name("golden_declarations.txt")
DECLARED = {**EVERY, **OPTIONS}
#: What stands in the place of each parameter.
VALUES = (None, True, -1, 0, 1, 0.5, 2.0, "x", [], [1], [1, 1], [2, 0])
#: Two axes of equal size would hide which of them a condition reads.
REPLACED_DIMS = ([1, 1, 1, 1], [2, 3, 4, 5], [2, 3, 4], [7])


def shown(value: Any) -> str:
    return value.name if isinstance(value, Enum) else repr(value)


def signatures() -> str:
    """Return the public methods of a graph, with the defaults of their parameters."""
    lines = ["## signatures"]
    for name, method in sorted(inspect.getmembers(dnnops.graph.pygraph, callable)):
        if name.startswith("_"):
            continue
        parameters = inspect.signature(method).parameters.values()
        texts = [
            p.name + ("" if p.default is p.empty else f"={shown(p.default)}") for p in parameters
        ]
        lines.append(f"{name}({', '.join(texts)})")
    return "\n".join(lines) + "\n"


def outcome(data: Any, use: Callable[[Any], Any] = str) -> str:
    """Return the class of the error of reading a stored graph and using it, or "ok"."""
    try:
        use(read(data))
    except DnnError as error:
        return type(error).__name__.removeprefix("Dnn").removesuffix("Error")
    return "ok"


def kind_of(node: dict[str, Any]) -> str:
    return f"{node['kind']} {node['parameters'].get('method', '')}".rstrip()


def refusals(name: str, seen: set[tuple[str, ...]]) -> Iterator[str]:
    """Yield a line for each operand and parameter, with the outcome of each change."""
    graph = new_graph(dnnops.graph)
    DECLARED[name](dnnops.graph, graph)
    graph.validate()
    data = json.loads(graph.serialize())
    yield f"as_op: {outcome(data, lambda graph: graph.as_op())}"
    for number, node in enumerate(data["nodes"]):
        where = ("nodes", number)
        kind = kind_of(node)
        if (kind, *node["inputs"]) in seen:
            continue
        for port in node["inputs"]:
            found = outcome(without(data, (*where, "inputs", port)))
            yield f"{kind}, {port}: missing {found}"
        for parameter in node["parameters"]:
            place = (*where, "parameters", parameter)
            found = [f"missing {outcome(without(data, place))}"]
            found += [f"{value!r} {outcome(changed(data, place, value))}" for value in VALUES]
            yield f"{kind}, {parameter}: {', '.join(found)}"
    seen |= {(kind_of(node), *node["inputs"]) for node in data["nodes"]}
    inputs = {port for node in data["nodes"] for port in node["inputs"].values()}
    for number, tensor in enumerate(data["tensors"]):
        if tensor["name"] not in inputs or len(data["nodes"]) > 4:
            continue
        found = []
        for dim in REPLACED_DIMS:
            strides = [1] * len(dim)
            new = changed(data, ("tensors", number, "dim"), dim)
            new = changed(new, ("tensors", number, "stride"), strides)
            found.append(f"{dim} {outcome(new)}")
        yield f"tensor {tensor['name']}: {', '.join(found)}"


def text() -> str:
    seen: set[tuple[str, ...]] = set()
    parts = [signatures()]
    for name in DECLARED:
        lines = list(refusals(name, seen))
        parts += ["\n".join([f"## {name}", *lines]) + "\n"] if lines else []
    return "".join(parts)


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
def test_as_golden():
    assert_as_golden(GOLDEN, text(), "tests.graph.test_golden_declarations")


if __name__ == "__main__":
    asked_to_write()
    GOLDEN.write_text(text(), encoding="utf-8")
