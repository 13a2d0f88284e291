"""Format the output of ``python -m dnnops algos``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

from dnnops.config import flag_value
from dnnops.display import plain_console, rendered, show_operations, show_size
from dnnops.plans import ConvPlan, Survey
from dnnops.plans.cases import DIRECTIONS, PlanCase
from dnnops.plans.table import plan_table
from dnnops.tables import Column, Table

#: Longest words that stay whole, in the columns of tables with names and explanations.
_NAME_WIDTH, _TEXT_WIDTH = 24, 14


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
        sections += ["", plan_table(runnable, case.flops)]
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


def _refusal_table(refused: dict[str, list[ConvPlan]]) -> Table:
    ordered = sorted(refused.items(), key=lambda pair: -len(pair[1]))
    names = [", ".join(plan.name for plan in plans) for _, plans in ordered]
    reasons = [" ".join(reason.split()) for reason, _ in ordered]
    return _dim_table(names, reasons, range(len(names)))


def _choice_table(survey: Survey) -> Table:
    chosen = _by(survey.choices, lambda value: str(survey.choices[value]))
    order = {plan.name: index for index, plan in enumerate(survey.plans)}
    names = sorted(chosen, key=lambda name: order.get(name, len(order)))
    texts = [", ".join(chosen[name]) for name in names]
    without = [value for value, choice in survey.choices.items() if not choice]
    for reason, values in _by(without, lambda value: survey.choices[value].reason).items():
        names.append("no plan")
        texts.append(f"{', '.join(values)}: {' '.join(reason.split())}")
    return _dim_table(names, texts, range(len(chosen), len(names)))


def _dim_table(names: list[str], texts: list[str], dim: Iterable[int]) -> Table:
    columns = [Column("", names, fold=_NAME_WIDTH), Column("", texts, fold=_TEXT_WIDTH)]
    return Table(columns, header=False, row_styles=dict.fromkeys(dim, "dim"))


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


def _padding(border_mode: Any) -> str:
    if isinstance(border_mode, str):
        return border_mode
    return _short([begin if begin == end else f"{begin}:{end}" for begin, end in border_mode])


def _short(values: Iterable[Any]) -> str:
    values = [str(value) for value in values]
    return values[0] if len(set(values)) == 1 else ",".join(values)
