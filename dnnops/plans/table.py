"""Tables of the plans of a convolution."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from dnnops.display import show_size
from dnnops.plans.plan import ConvPlan
from dnnops.tables import Column, Shown, Table

__all__ = ["ConvPlans", "plan_table"]

#: Longest names that stay whole.
_LONGEST_NAME = 24
_NOTES_WIDTH = 20
#: Columns to leave out on a narrow terminal, in this order. Notes are long.
_FIRST_DROPPED = (
    *("no.", "math", "notes", "API", "x best", "determ."),
    *("GFLOP/s", "TFLOP/s", "workspace"),
)


class ConvPlans(Shown, list[ConvPlan]):
    """A list of `ConvPlan` that shows itself as a table.

    Parameters
    ----------
    plans : sequence of ConvPlan
        Plans in the order of the table.
    flops : int
        Operations of the convolution.

    Attributes
    ----------
    flops : int
        Operations of the convolution; see `dnnops.plans.conv_flops`.
    """

    file_width = 160

    def __init__(self, plans: Sequence[ConvPlan], flops: int):
        super().__init__(plans)
        self.flops = flops

    def display_parts(self) -> Iterator[str | Table]:
        """Yield the table."""
        yield plan_table(self, self.flops) if self else "no plans"


def plan_table(plans: Sequence[ConvPlan], flops: int) -> Table:
    """Return a table of plans; the reason why one cannot be run is a note.

    Parameters
    ----------
    plans : sequence of ConvPlan
        Plans of one convolution, the fastest first if they are timed.
    flops : int
        Operations of the convolution.

    Returns
    -------
    Table
    """
    times = [plan.time_ms for plan in plans if plan.time_ms is not None]
    best = min(times, default=None)
    decimals = max(0, 3 - math.floor(math.log10(best))) if best else 0
    fast = best is not None and flops / best >= 1e9
    unit, scale = ("T", 1e9) if fast else ("G", 1e6)
    columns = [
        Column("plan", [plan.name for plan in plans], fold=_LONGEST_NAME),
        _whole("no.", ["" if plan.number is None else str(plan.number) for plan in plans]),
        Column("API", [plan.api for plan in plans], whole=True),
        _whole("ms", [_number(plan.time_ms, decimals) for plan in plans]),
        _whole("x best", [_number(plan.time_ms, 2, best) for plan in plans]),
        _whole(f"{unit}FLOP/s", [_rate(flops, plan, scale) for plan in plans]),
        _whole("mJ", [_significant(plan.energy_mj) for plan in plans]),
        _whole("workspace", [_size(plan) for plan in plans]),
        Column("determ.", [_yes_or_no(plan.deterministic) for plan in plans], whole=True),
        Column("math", [plan.math_type for plan in plans], whole=True),
        Column("notes", [_notes(plan) for plan in plans], at_least=_NOTES_WIDTH),
    ]
    # Hide empty columns.
    shown = [column for column in columns if any(column.cells)]
    fastest = plans and plans[0].time_ms is not None
    return Table(shown, _FIRST_DROPPED, row_styles={0: "green"} if fastest else {})


def _whole(title: str, cells: list[str]) -> Column:
    return Column(title, cells, right=True, whole=True)


def _notes(plan: ConvPlan) -> str:
    notes = "; ".join(plan.notes).replace("_", " ")
    reason = f"cannot be run: {' '.join(plan.reason.split())}" if plan.reason else ""
    return "; ".join(filter(None, (reason, notes)))


def _number(value: float | None, decimals: int, unit: float | None = 1.0) -> str:
    return "" if value is None or unit is None else f"{value / unit:.{decimals}f}"


def _significant(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}" if value < 999.5 else f"{value:.0f}"


def _rate(flops: int, plan: ConvPlan, scale: float) -> str:
    return "" if plan.time_ms is None else _significant(flops / plan.time_ms / scale)


def _size(plan: ConvPlan) -> str:
    return "" if plan.workspace_bytes is None else show_size(plan.workspace_bytes)


def _yes_or_no(value: bool | None) -> str:
    return "?" if value is None else "yes" if value else "no"
