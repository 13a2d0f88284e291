"""Format the output of ``python -m dnnops algos``."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from dnnops.config import flag_value
from dnnops.display import plain_console, plain_table, rendered, show_operations, show_size
from dnnops.plans import ConvPlan, Survey
from dnnops.plans.cases import DIRECTIONS, PlanCase

if TYPE_CHECKING:
    from rich.table import Table

#: Title, alignment and cells of a column.
_Column = tuple[str, str, list[str]]
#: Columns whose cells may be folded over several lines, with the largest minimum width.
_FOLDED = {"plan": 24, "notes": 20}
#: Columns to drop on a narrow terminal, in this order. Notes are long.
_FIRST_DROPPED = (
    *("no.", "math", "notes", "API", "x best", "determ."),
    *("GFLOP/s", "TFLOP/s", "workspace"),
)


def heading(case: PlanCase) -> str:
    """Return a line with the device and the library."""
    return f"{case.device}: {case.library()}"


def describe(case: PlanCase) -> str:
    """Describe the convolution in one line."""
    op = case.op

    def shown(shape: Iterable[int]) -> str:
        return "x".join(map(str, shape))

    parts = [
        f"{DIRECTIONS[case.direction]}: {case.dtype}",
        f"image {shown(case.input_shape)}",
        f"filters {shown(case.filter_shape)}",
        f"output {shown(case.output_shape)}",
    ]
    if op.border_mode != ((0, 0),) * op.ndim:
        parts.append(f"pad {_padding(op.border_mode)}")
    for name, values in (("stride", op.subsample), ("dilation", op.filter_dilation)):
        if set(values) != {1}:
            parts.append(f"{name} {_short(values)}")
    if op.num_groups != 1:
        parts.append(f"{op.num_groups} groups")
    if not op.filter_flip:
        parts.append("correlation")
    if case.memory_format != "contiguous":
        parts.append(case.memory_format)
    # Show only the cuDNN settings that differ from the flags' defaults.
    settings = _settings(case)
    if settings.get("precision", "as_input_f32") != "as_input_f32":
        parts.append(f"precision {settings['precision']}")
    if settings.get("allow_tf32"):
        parts.append("TF32 allowed")
    if settings.get("deterministic"):
        parts.append("deterministic plans only")
    if settings.get("workspace_limit", "auto") != "auto":
        parts.append(f"workspace up to {show_size(settings['workspace_limit'])}")
    return ", ".join([*parts, show_operations(case.flops)])


def as_json(surveys: list[Survey]) -> dict[str, Any]:
    """Return all results in a form that can be written as JSON.

    Returns
    -------
    dict
        Keys ``device``, ``library``, ``dtype``, ``memory_format``, the parameters of the
        convolution, cuDNN's ``settings`` (empty on the CPU) and ``directions``. Each direction has
        its cuDNN name, shapes, ``flops``, ``remark``, ``plans`` (the fields of `ConvPlan`, the time
        ``relative`` to the fastest plan, and ``tflops``), ``flag``, ``flag_value``, ``choices``
        (``plan``, which may be null, and ``reason``) and ``energy_reason``.
    """
    case = surveys[0].case
    parameters = {name: value for name, value in case.op.conv_params().items() if name != "ndim"}
    return {
        "device": case.device,
        "library": case.library(),
        "dtype": case.dtype,
        "memory_format": case.memory_format,
        **parameters,
        "settings": _settings(case),
        "directions": [_direction_as_json(survey) for survey in surveys],
    }


def _settings(case: PlanCase) -> dict[str, Any]:
    """Return the cuDNN settings of a convolution, which are empty on the CPU."""
    names = ("precision", "allow_tf32", "deterministic", "workspace_limit")
    settings = {name: getattr(case.op, name) for name in names if hasattr(case.op, name)}
    if settings.get("workspace_limit") == -1:
        settings["workspace_limit"] = "auto"
    return settings


def _direction_as_json(survey: Survey) -> dict[str, Any]:
    case, best = survey.case, _best(survey.plans)
    return {
        "direction": DIRECTIONS[case.direction],
        "input_shape": case.input_shape,
        "filter_shape": case.filter_shape,
        "output_shape": case.output_shape,
        "flops": case.flops,
        "remark": case.remark,
        "plans": [
            {
                **asdict(plan),
                "direction": DIRECTIONS[plan.direction],
                "relative": plan.time_ms and best and plan.time_ms / best,
                "tflops": plan.time_ms and case.flops / plan.time_ms / 1e9,
            }
            for plan in survey.plans
        ],
        "flag": case.flag,
        "flag_value": flag_value(case.flag),
        "choices": {
            value: {"plan": str(choice) or None, "reason": choice.reason}
            for value, choice in survey.choices.items()
        },
        "energy_reason": survey.energy_reason,
    }


def print_survey(survey: Survey) -> None:
    """Print the plans, refusals and flag choices for one direction."""
    console = plain_console()
    case = survey.case
    sections: list[Any] = ["", _text(describe(case), "bold")]
    if case.remark:
        sections.append(_text(case.remark, "yellow"))
    runnable = [plan for plan in survey.plans if not plan.reason]
    if runnable:
        table, dropped = _plan_table(case, runnable, console.width)
        sections += ["", table]
        if dropped:
            sections.append(_text(f"a wider terminal also shows: {', '.join(dropped)}", "dim"))
    else:
        sections += ["", _text("no plan can be run", "red")]
    if survey.energy_reason:
        sections.append(_text(f"no energy was measured: {survey.energy_reason}", "yellow"))
    refused = _by(survey.plans, lambda plan: plan.reason)
    if refused:
        count = sum(map(len, refused.values()))
        sections += ["", _text(f"cannot be run: {count}", "bold"), _refusal_table(refused)]
    if survey.choices:
        title = f"{case.flag} would choose (it is {flag_value(case.flag)} now)"
        sections += ["", _text(title, "bold"), _choice_table(survey)]
    print(rendered(console, *sections))


# -- tables --------------------------------------------------------------------------------


def _plan_table(case: PlanCase, plans: list[ConvPlan], width: int) -> tuple[Table, list[str]]:
    """Return the table of runnable plans and the titles of columns dropped for lack of space."""
    best = _best(plans)
    times = [plan.time_ms for plan in plans if plan.time_ms is not None]
    decimals = max(0, 3 - math.floor(math.log10(min(times)))) if times else 0
    fast = best is not None and case.flops / best >= 1e9
    unit, scale = ("T", 1e9) if fast else ("G", 1e6)
    columns: list[_Column] = [
        ("plan", "left", [plan.name for plan in plans]),
        ("no.", "right", ["" if plan.number is None else str(plan.number) for plan in plans]),
        ("API", "left", [plan.api for plan in plans]),
        ("ms", "right", [_number(plan.time_ms, decimals) for plan in plans]),
        ("x best", "right", [_number(plan.time_ms, 2, best) for plan in plans]),
        (f"{unit}FLOP/s", "right", [_rate(case, plan, scale) for plan in plans]),
        ("mJ", "right", [_significant(plan.energy_mj) for plan in plans]),
        ("workspace", "right", [_size(plan) for plan in plans]),
        ("determ.", "left", [_yes_or_no(plan.deterministic) for plan in plans]),
        ("math", "left", [plan.math_type for plan in plans]),
        ("notes", "left", ["; ".join(plan.notes).replace("_", " ") for plan in plans]),
    ]
    # Hide empty columns.
    shown = [column for column in columns if any(column[2])]
    dropped = []
    for title in _FIRST_DROPPED:
        if _least_width(shown) <= width:
            break
        dropped += [name for name, _, _ in shown if name == title]
        shown = [column for column in shown if column[0] != title]
    table = plain_table()
    for title, side, cells in shown:
        table.add_column(
            title,
            justify="right" if side == "right" else "left",
            no_wrap=title not in _FOLDED,
            overflow="fold",
            min_width=_least_width([(title, side, cells)]) if title in _FOLDED else None,
        )
    for index, row in enumerate(zip(*(column[2] for column in shown), strict=True)):
        fastest = index == 0 and plans[0].time_ms is not None
        table.add_row(*row, style="green" if fastest else None)
    return table, dropped


def _least_width(columns: list[_Column]) -> int:
    """Return the minimum width of a table, in characters, with its foldable columns folded."""
    widths = [
        min(max(map(len, [title, *cells])), _FOLDED.get(title, sys.maxsize))
        for title, _, cells in columns
    ]
    return sum(widths) + 2 * (len(widths) - 1)


def _refusal_table(refused: dict[str, list[ConvPlan]]) -> Table:
    table = plain_table(header=False)
    table.add_column(overflow="fold", ratio=2)
    table.add_column(overflow="fold", ratio=3)
    for reason, plans in sorted(refused.items(), key=lambda pair: -len(pair[1])):
        names = ", ".join(plan.name for plan in plans)
        table.add_row(names, " ".join(reason.split()), style="dim")
    return table


def _choice_table(survey: Survey) -> Table:
    table = plain_table(header=False)
    table.add_column(overflow="fold", min_width=12)
    table.add_column(overflow="fold")
    chosen = _by(survey.choices, lambda value: str(survey.choices[value]))
    order = {plan.name: index for index, plan in enumerate(survey.plans)}
    for name in sorted(chosen, key=lambda name: order.get(name, len(order))):
        table.add_row(name, ", ".join(chosen[name]))
    without = [value for value, choice in survey.choices.items() if not choice]
    for reason, values in _by(without, lambda value: survey.choices[value].reason).items():
        cells = f"{', '.join(values)}: {' '.join(reason.split())}"
        table.add_row("no plan", cells, style="dim")
    return table


def _text(words: str, style: str) -> Any:
    from rich.text import Text

    return Text(words, style)


# -- words ---------------------------------------------------------------------------------


def _by(items: Iterable[Any], key: Callable[[Any], str]) -> dict[str, list[Any]]:
    """Group items by a string key; skip items with an empty key."""
    groups: dict[str, list[Any]] = {}
    for item in items:
        if key(item):
            groups.setdefault(key(item), []).append(item)
    return groups


def _best(plans: list[ConvPlan]) -> float | None:
    return min((plan.time_ms for plan in plans if plan.time_ms is not None), default=None)


def _number(value: float | None, decimals: int, unit: float | None = 1.0) -> str:
    return "" if value is None or unit is None else f"{value / unit:.{decimals}f}"


def _significant(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def _rate(case: PlanCase, plan: ConvPlan, scale: float) -> str:
    return "" if plan.time_ms is None else _significant(case.flops / plan.time_ms / scale)


def _size(plan: ConvPlan) -> str:
    return "" if plan.workspace_bytes is None else show_size(plan.workspace_bytes)


def _yes_or_no(value: bool | None) -> str:
    return "?" if value is None else "yes" if value else "no"


def _padding(border_mode: Any) -> str:
    if isinstance(border_mode, str):
        return border_mode
    return _short([begin if begin == end else f"{begin}:{end}" for begin, end in border_mode])


def _short(values: Iterable[Any]) -> str:
    values = [str(value) for value in values]
    return values[0] if len(set(values)) == 1 else ",".join(values)
