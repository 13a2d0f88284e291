"""Explanations as tables."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence
from textwrap import wrap
from typing import Any

from dnnops.display import plain_console, plain_table, rendered, show_size
from dnnops.explanation.record import Node, Operand, Record

__all__ = ["as_group", "as_text"]

#: Width of a table that is not printed on a terminal.
_WIDTH = 80
_SHORT_DTYPES = {"float": "f", "bfloat": "bf", "int": "i", "uint": "u", "complex": "c"}


def as_text(explanation: Record, width: int | None = None) -> str:
    """Return heading, table and notes as text.

    Parameters
    ----------
    explanation : Record
        What to show.
    width : int, optional
        Characters in a line. Default: those of the terminal, or 80.
    """
    if width is None:
        width = shutil.get_terminal_size((_WIDTH, 0)).columns
    lines = [line for text in _heading(explanation) for line in wrap(text, width)]
    if explanation.nodes:
        lines += ["", rendered(plain_console(width, colors=False), _table(explanation))]
    notes = [line for text in _notes(explanation) for line in wrap(text, width)]
    return "\n".join([*lines, *([""] if notes else []), *notes])


def as_group(explanation: Record) -> Any:
    """Return heading, table and notes for ``rich.print``."""
    from rich.console import Group
    from rich.text import Text

    table = [_table(explanation)] if explanation.nodes else []
    return Group(
        *map(Text, _heading(explanation)), Text(), *table, Text(), *map(Text, _notes(explanation))
    )


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


def _table(explanation: Record) -> Any:
    nodes = explanation.nodes
    has_devices = any(node.device != "cpu" for node in nodes)
    is_measured, total = explanation.calls > 0, explanation.time_ms
    table = plain_table()
    table.add_column("no.", justify="right", no_wrap=True)
    table.add_column("Op", overflow="fold")
    if has_devices:
        table.add_column("device", no_wrap=True)
    table.add_column("library", no_wrap=True)
    table.add_column("results", overflow="fold")
    for title in ("new", "live"):
        table.add_column(title, justify="right", no_wrap=True)
    if is_measured:
        for title in ("ms", "%"):
            table.add_column(title, justify="right", no_wrap=True)
    for node in nodes:
        cells = [str(node.index), "\n".join(_op_lines(node))]
        if has_devices:
            cells.append(node.device)
        cells += [node.library, "\n".join(map(show_operand, node.outputs))]
        cells += [_memory(node), _size(node.live_bytes)]
        if is_measured:
            share = 100 * (node.time_ms or 0) / total if total else 0
            cells += (
                ["", ""] if node.time_ms is None else [_show_time(node.time_ms), f"{share:.0f}"]
            )
        table.add_row(*cells)
    return table


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
