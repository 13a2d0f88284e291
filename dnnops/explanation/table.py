"""Explanations as tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from dnnops.display import show_size
from dnnops.explanation.record import Node, Operand, Record
from dnnops.tables import Column, Table

__all__ = ["explanation_parts", "show_operand"]

#: Longest names that stay whole; those of plans can be much longer.
_LONGEST_NAME = 40
#: Columns to leave out on a narrow terminal, in this order.
_FIRST_DROPPED = ("live", "new", "results", "%", "device", "library")
_SHORT_DTYPES = {"float": "f", "bfloat": "bf", "int": "i", "uint": "u", "complex": "c"}


def explanation_parts(explanation: Record) -> Iterator[str | Table]:
    """Yield heading, table and notes."""
    yield from _heading(explanation)
    if explanation.nodes:
        yield _table(explanation)
    yield from _notes(explanation)


def _heading(explanation: Record) -> Iterator[str]:
    nodes, name = explanation.nodes, explanation.name or "function"
    parts = [f"{len(nodes)} node{'' if len(nodes) == 1 else 's'}"]
    if explanation.time_ms is not None:
        parts.append(f"{_show_time(explanation.time_ms)} ms a call (median of {explanation.calls})")
    if explanation.peak_bytes is not None:
        parts.append(f"peak memory {show_size(explanation.peak_bytes)}{_at(explanation)}")
    if explanation.input_bytes is not None:
        parts.append(f"inputs {show_size(explanation.input_bytes)}")
    yield f"{name}: {', '.join(parts)}"
    libraries = ", ".join(f"{name} {count}" for name, count in explanation.libraries.items())
    if libraries:
        yield f"run by {libraries}"


def _at(explanation: Record) -> str:
    node = explanation.peak_node
    return "" if node is None else f" at node {node.index} {node.op}"


def _table(explanation: Record) -> Table:
    nodes, total = explanation.nodes, explanation.time_ms
    columns = [
        Column("no.", [str(node.index) for node in nodes], right=True, whole=True),
        Column("Op", ["\n".join(_op_lines(node)) for node in nodes], fold=_LONGEST_NAME),
    ]
    if any(node.device != "cpu" for node in nodes):
        columns.append(Column("device", [node.device for node in nodes], whole=True))
    results = ["\n".join(map(show_operand, node.outputs)) for node in nodes]
    columns += [
        Column("library", [node.library for node in nodes], whole=True),
        Column("results", results),
        Column("new", [_memory(node) for node in nodes], right=True, whole=True),
        Column("live", [_size(node.live_bytes) for node in nodes], right=True, whole=True),
    ]
    if explanation.calls > 0:
        times = ["" if node.time_ms is None else _show_time(node.time_ms) for node in nodes]
        shares = [
            "" if node.time_ms is None else f"{100 * node.time_ms / total if total else 0:.0f}"
            for node in nodes
        ]
        columns.append(Column("ms", times, right=True, whole=True))
        columns.append(Column("%", shares, right=True, whole=True))
    return Table(columns, _FIRST_DROPPED)


def _op_lines(node: Node) -> Iterator[str]:
    yield f"{node.op} {node.outputs[0].name}".strip() if node.outputs else node.op
    if node.plan:
        yield f"  {node.plan}"
    if node.captured:
        yield "  CUDA graph"


def _memory(node: Node) -> str:
    """Return the new memory of a node, or why there is none."""
    if node.reuse and not node.bytes:
        return node.reuse
    return _size(node.bytes)


def _notes(explanation: Record) -> Iterator[str]:
    if explanation.note:
        yield f"{explanation.note}."
    if any(node.device != "cpu" for node in explanation.nodes):
        yield f"Transfers: {_listed(_transfer(node) for node in explanation.transfers)}"
        between = [f"{node.index} {node.op}" for node in explanation.between]
        yield f"On the host between nodes on a device: {_listed(between)}"
    reasons: dict[tuple[str, str], list[int]] = {}
    for node in explanation.nodes:
        if node.reason:
            reasons.setdefault((node.op, node.reason), []).append(node.index)
    for (op, reason), indices in reasons.items():
        yield f"{_numbers(indices)} {op}: {reason}"


def _transfer(node: Node) -> str:
    size = "" if node.moved_bytes is None else f" {show_size(node.moved_bytes)}"
    return f"{node.index} {node.transfer}{size}"


def _listed(parts: Iterable[str]) -> str:
    return "; ".join(parts) or "none"


def _numbers(indices: Sequence[int]) -> str:
    shown = ", ".join(map(str, indices[:8]))
    return shown if len(indices) <= 8 else f"{shown} and {len(indices) - 8} more"


def show_operand(operand: Operand) -> str:
    """Return the dtype and the shape of an operand, such as ``f32 8x3x?x?``."""
    if operand.shape is None:
        return operand.dtype.removesuffix("Type")
    sizes = "x".join("?" if size is None else str(size) for size in operand.shape)
    return f"{_short_dtype(operand.dtype)} {sizes or 'scalar'}"


def _short_dtype(dtype: str) -> str:
    word = dtype.rstrip("0123456789")
    return _SHORT_DTYPES.get(word, word) + dtype[len(word) :]


def _size(size: int | None) -> str:
    return "?" if size is None else "0" if size == 0 else show_size(size)


def _show_time(time_ms: float) -> str:
    return f"{time_ms:.3f}" if time_ms < 10 else f"{time_ms:.1f}"
