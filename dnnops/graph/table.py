"""Table of the plans of a graph."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dnnops.display import plain_console, plain_table, rendered, show_size
from dnnops.graph.names import numerical_note
from dnnops.graph.plan import Plan

__all__ = ["plan_table"]

#: Notes that have a column of their own, or that nearly all engines have.
_OTHER_COLUMNS = (numerical_note.NONDETERMINISTIC,)


def _words(notes: Iterable[Any]) -> str:
    names = [getattr(note, "name", f"note {note}") for note in notes if note not in _OTHER_COLUMNS]
    return ", ".join(name.lower().replace("_", " ") for name in names)


def plan_table(plans: Iterable[Plan], width: int | None = None) -> str:
    """Return a table of plans, the fastest first and those that cannot be built at the end.

    Parameters
    ----------
    plans : iterable of Plan
        Plans, timed or not.
    width : int, optional
        Characters in a line; by default, those of the terminal.

    Returns
    -------
    str
    """
    rows = sorted(plans, key=lambda p: (bool(p.reason), p.time_ms is None, p.time_ms or 0.0))
    best = next((plan.time_ms for plan in rows if plan.time_ms), None)
    table = plain_table()
    for title, justify in (
        ("plan", "left"),
        ("time us", "right"),
        ("x best", "right"),
        ("workspace", "right"),
        ("determ.", "left"),
        ("notes", "left"),
    ):
        table.add_column(title, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for plan in rows:
        timed = plan.time_ms is not None
        notes = _words([*plan.numerical_notes, *plan.behavior_notes])
        if plan.reason or plan.is_excluded:
            notes = plan.reason or "deselected"
        table.add_row(
            plan.name,
            f"{1000 * plan.time_ms:.2f}" if plan.time_ms is not None else "",
            f"{plan.time_ms / best:.2f}" if timed and plan.time_ms and best else "",
            "" if plan.workspace is None else show_size(plan.workspace),
            "no" if numerical_note.NONDETERMINISTIC in plan.numerical_notes else "yes",
            notes,
        )
    return rendered(plain_console(width), table)
