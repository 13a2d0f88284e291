"""Table of the plans of a graph."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dnnops.display import plain_console, rendered, show_size
from dnnops.graph.names import numerical_note
from dnnops.graph.plan import Plan
from dnnops.tables import Column, Table

__all__ = ["plan_table"]

#: Notes that have a column of their own, or that nearly all engines have.
_OTHER_COLUMNS = (numerical_note.NONDETERMINISTIC,)
#: Longest names that stay whole.
_LONGEST_NAME = 24
#: Columns to leave out on a narrow terminal, in this order.
_FIRST_DROPPED = ("notes", "x best", "determ.", "workspace")


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
        Characters in a line; by default, ``COLUMNS`` or those of the terminal.

    Returns
    -------
    str
    """
    rows = sorted(plans, key=lambda p: (bool(p.reason), p.time_ms is None, p.time_ms or 0.0))
    best = next((plan.time_ms for plan in rows if plan.time_ms), None)
    times = ["" if plan.time_ms is None else f"{1000 * plan.time_ms:.2f}" for plan in rows]
    ratios = [f"{plan.time_ms / best:.2f}" if plan.time_ms and best else "" for plan in rows]
    sizes = ["" if plan.workspace is None else show_size(plan.workspace) for plan in rows]
    nondeterministic = numerical_note.NONDETERMINISTIC
    table = Table(
        [
            Column("plan", [plan.name for plan in rows], fold=_LONGEST_NAME),
            Column("time us", times, right=True, whole=True),
            Column("x best", ratios, right=True, whole=True),
            Column("workspace", sizes, right=True, whole=True),
            Column(
                "determ.",
                ["no" if nondeterministic in plan.numerical_notes else "yes" for plan in rows],
                whole=True,
            ),
            Column("notes", [_notes(plan) for plan in rows]),
        ],
        _FIRST_DROPPED,
    )
    return rendered(plain_console(width), table)


def _notes(plan: Plan) -> str:
    if plan.reason or plan.is_excluded:
        return plan.reason or "deselected"
    return _words([*plan.numerical_notes, *plan.behavior_notes])
