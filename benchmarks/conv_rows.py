"""Store, summarize and draw the rows of the convolution suite."""

from __future__ import annotations

import json
import math
import re
import statistics
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.conv_cases import DIRECTIONS, LAYOUTS, PRECISIONS, README_CASE, row_key
from benchmarks.report import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "draw_suite",
    "geometric_mean",
    "losses",
    "merge",
    "misses",
    "plan_kind",
    "ratio",
    "read_rows",
    "summary",
    "why",
]

PEERS = ("torch_ms", "jax_ms")

# Goals.
TIME_GOAL = 1.1
GUESS_GOAL = 0.95
LOSS = 0.95
README_GOALS = {"torch_ms": 8.0, "jax_ms": 1.9}
#: XLA is taken to compute with less precision if its difference from PyTorch's result is more than
#: `LESS_PRECISE` times that of dnnops, or than `LESS_PRECISE` times `SMALL_ERROR` if that is more.
LESS_PRECISE, SMALL_ERROR = 5.0, 5e-5
#: Largest relative difference from PyTorch's result; both are rounded.
TOLERANCES = {"float32": 1e-4, "tf32": 2e-3, "float16": 4e-3, "bfloat16": 1.5e-2}

#: Known reasons for losses: a condition on a row, and the reason. The first match is taken; if none
#: matches, `why` describes the row. `plan_kind` classifies plans.
NOTES: tuple[tuple[Callable[[Row], bool], str], ...] = ()

_FORMATS = {
    "_channels_last": "channels last",
    "_contiguous": "contiguous",
    "_as_forward": "a forward convolution",
}
_KINDS = {
    "engine": "an engine of cuDNN's graph API",
    "gemm": "cuBLASLt",
    "depthwise": "dnnops' depthwise kernels",
}
_LEGACY = "an algorithm of cuDNN's legacy API"

_SHOWN_LOSSES = 40
_SHOWN_CHARACTERS = 60


def read_rows(paths: Iterable[Path]) -> tuple[dict[str, Any], list[Row]]:
    """Read rows from files of JSON lines or from a finished benchmark.

    Parameters
    ----------
    paths : iterable of Path
        Files. If several have the same row, the last one counts.

    Returns
    -------
    machine : dict
        Description of the machine.
    rows : list of dict
        Rows as returned by `merge`.
    """
    machine: dict[str, Any] = {}
    rows: list[Row] = []
    for path in paths:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".json":
            found = json.loads(text)
            machine |= found["machine"]
            rows += found["rows"]
            continue
        for line in text.splitlines():
            try:
                entry = json.loads(line)
            except json.JSONDecodeError:
                continue  # the process ended while it wrote this line
            if "machine" in entry:
                machine |= entry["machine"]
            else:
                rows.append(entry)
    return machine, merge(rows)


def merge(rows: Iterable[Row]) -> list[Row]:
    """Keep one row for each key, in the order of cases and of their combinations.

    The last row counts, except that a first measurement never replaces a second. So the faster of
    two is never picked.
    """
    found: dict[tuple[str, ...], Row] = {}
    for row in rows:
        before = found.get(row_key(row))
        if before is None or row.get("remeasured") or not before.get("remeasured"):
            found[row_key(row)] = row

    def place(row: Row) -> tuple[Any, ...]:
        return (
            row["case"],
            DIRECTIONS.index(row["direction"]),
            PRECISIONS.index(row["precision"]),
            LAYOUTS.index(row["layout"]),
        )

    return sorted(found.values(), key=place)


def ratio(row: Row, ours: str = "time_ms", peers: Sequence[str] = PEERS) -> float | None:
    """Return the fastest peer's time divided by that of dnnops; None if one has no time."""
    theirs = [row[peer] for peer in peers if row.get(peer)]
    return min(theirs) / row[ours] if theirs and row.get(ours) else None


def ratios(rows: Iterable[Row], ours: str = "time_ms", peers: Sequence[str] = PEERS) -> list[float]:
    """Return the ratios of all rows that have one."""
    return [found for row in rows if (found := ratio(row, ours, peers)) is not None]


def geometric_mean(numbers: Sequence[float]) -> float:
    """Return the geometric mean, or NaN if there are no numbers."""
    if not numbers:
        return math.nan
    return math.exp(statistics.fmean(math.log(number) for number in numbers))


def losses(rows: Iterable[Row]) -> list[Row]:
    """Return rows whose ratio to the faster peer is below `LOSS`, or without a time of dnnops."""
    lost = []
    for row in rows:
        found = ratio(row)
        if found is None and not row.get("time_ms") and _has_peer(row):
            found = 0.0
        if found is not None and found < LOSS:
            lost.append((found, row))
    return [row for _, row in sorted(lost, key=lambda pair: pair[0])]


def _has_peer(row: Row) -> bool:
    return any(row.get(peer) for peer in PEERS)


def plan_kind(plan: str | None) -> tuple[str, str, str]:
    """Split a plan's name into its parts.

    Returns
    -------
    kind : str
        Description of the library or API; empty if there is no plan.
    name : str
        The name without the suffix for copies.
    format : str
        Memory format to which arrays are copied first; empty if there is no copy.
    """
    name, words = plan or "", ""
    for suffix, meaning in _FORMATS.items():
        if name.endswith(suffix):
            name, words = name.removesuffix(suffix), meaning
    if not name:
        return "", "", ""
    numbered = re.match(r"[a-z]+(?=\d)", name)
    return _KINDS.get(numbered[0], numbered[0]) if numbered else _LEGACY, name, words


def why(row: Row) -> str:
    """Return the reason why a row is lost, as far as it is known."""
    for applies, words in NOTES:
        if applies(row):
            return words
    if not row.get("time_ms"):
        return row.get("reasons", {}).get("time", "dnnops has no time")
    torch_ms, jax_ms, guess_ms = row.get("torch_ms"), row.get("jax_ms"), row.get("guess_ms")
    if guess_ms and (ratio(row, "guess_ms") or 0) >= LOSS and row.get("guess_plan"):
        return f"{row['guess_plan']}, which guess_* takes, is faster than the plan chosen by timing"
    if torch_ms and (not jax_ms or torch_ms <= jax_ms):
        backend = row.get("torch_backend") or ""
        if backend and not backend.startswith(("Cudnn", "Overrideable")):
            return f"PyTorch's own kernel ({backend})"
        return "PyTorch runs another plan of cuDNN, or the same one in less time"
    theirs = row.get("jax_plan") or ""
    if not theirs:
        return "XLA's own kernel, no convolution of cuDNN"
    _, name, transposed = plan_kind(row.get("plan"))
    # Per convolution.
    others = row.get("jax_others") or 0
    beside = f" with {others:g} kernels of its own beside it, as transpositions" if others else ""
    same = theirs == name and bool(others) == bool(transposed)
    words = f"XLA runs {'the same plan in less time' if same else theirs}{beside}"
    ours, xlas = row.get("error"), row.get("jax_error")
    numbers = isinstance(ours, float) and isinstance(xlas, float)
    if numbers and xlas > LESS_PRECISE * max(ours, SMALL_ERROR):
        words += f"; its result differs from PyTorch's by {xlas:.1e}, dnnops' by {ours:.1e}"
    return words


def summary(rows: Sequence[Row]) -> list[tuple[str, int, str]]:
    """Summarize rows as (description, number of rows, figure)."""
    lines: list[tuple[str, int, str]] = []

    def mean(words: str, chosen: Sequence[Row], ours: str, peers: Sequence[str]) -> None:
        found = ratios(chosen, ours, peers)
        if found:
            lines.append((words, len(found), f"{geometric_mean(found):.3f}"))

    mean(f"time_*, times as fast as the faster peer ({TIME_GOAL} wanted)", rows, "time_ms", PEERS)
    mean("time_*, times as fast as PyTorch", rows, "time_ms", ["torch_ms"])
    mean("time_*, times as fast as JAX", rows, "time_ms", ["jax_ms"])
    guess = f"guess_*, times as fast as PyTorch ({GUESS_GOAL} wanted)"
    mean(guess, rows, "guess_ms", ["torch_ms"])
    mean("guess_*, times as fast as time_*", rows, "guess_ms", ["time_ms"])
    for key, values in (("precision", PRECISIONS), ("layout", LAYOUTS), ("direction", DIRECTIONS)):
        for value in values:
            own = [row for row in rows if row[key] == value]
            mean(f"time_* beside the faster peer, {value}", own, "time_ms", PEERS)
    for row in _readme_rows(rows):
        for peer, name in (("torch_ms", "PyTorch"), ("jax_ms", "JAX")):
            if (found := ratio(row, "time_ms", [peer])) is not None:
                wanted = f" ({README_GOALS[peer]:g} wanted)" if _has_goal(row) else ""
                words = f"{README_CASE.words}, {row['layout']}, float32: times as fast as {name}"
                lines.append((words + wanted, 1, f"{found:.2f}"))
    words = f"rows below {LOSS} of the faster peer (0 wanted)"
    lines.append((words, len(rows), str(len(losses(rows)))))
    again = sum(bool(row.get("remeasured")) for row in rows)
    lines.append(("rows measured a second time", len(rows), str(again)))
    kinds = Counter(plan_kind(row.get("plan"))[0] for row in rows)
    for kind, count in kinds.most_common():
        if kind:
            lines.append((f"rows for which time_* takes {kind}", len(rows), str(count)))
    transposed = sum(bool(plan_kind(row.get("plan"))[2]) for row in rows)
    lines.append(("rows for which time_* copies arrays first", len(rows), str(transposed)))
    seconds = [row["choose_s"] for row in rows if row.get("choose_s")]
    if seconds:
        median, most = statistics.median(seconds), max(seconds)
        lines.append(("seconds of a choice by time_*", len(seconds), f"{median:.2f} to {most:.2f}"))
    for name, words in (("time", "dnnops"), ("torch", "PyTorch"), ("jax", "JAX")):
        missing = sum(not row.get(f"{name}_ms") for row in rows)
        lines.append((f"without a time of {words}", len(rows), str(missing)))
    return lines


def _readme_rows(rows: Iterable[Row]) -> list[Row]:
    """Return the rows of the README's convolution, forward in float32, contiguous first."""
    found = [
        row
        for row in rows
        if row["case"] == README_CASE.words
        and row["precision"] == "float32"
        and row["direction"] == "forward"
    ]
    return sorted(found, key=lambda row: row["layout"] != "contiguous")


def _has_goal(row: Row) -> bool:
    """Return whether `README_GOALS` apply to a row of `_readme_rows`, by its layout."""
    return row["layout"] == "contiguous"


def misses(rows: Sequence[Row]) -> list[str]:
    """Return a message for each goal that the rows miss."""
    found = []
    mean = geometric_mean(ratios(rows))
    if not mean >= TIME_GOAL:
        found.append(f"time_*: {mean:.3f} times as fast as the faster peer, not {TIME_GOAL} times")
    mean = geometric_mean(ratios(rows, "guess_ms", ["torch_ms"]))
    if not mean >= GUESS_GOAL:
        found.append(f"guess_*: {mean:.3f} times as fast as PyTorch, not {GUESS_GOAL} times")
    if lost := losses(rows):
        found.append(f"{len(lost)} rows are below {LOSS} times the faster peer")
    for row in filter(_has_goal, _readme_rows(rows)):
        for peer, goal in README_GOALS.items():
            speed = ratio(row, "time_ms", [peer])
            if speed is not None and speed < goal:
                found.append(f"{row['case']}: {speed:.2f} times {peer.split('_')[0]}, not {goal:g}")
    for row in rows:
        for key in ("error", "guess_error"):
            error = row.get(key)
            if error is not None and (
                error == "not finite" or error > TOLERANCES[row["precision"]]
            ):
                found.append(f"{', '.join(row_key(row))}: {key} {error}")
    return found


# -- the picture -----------------------------------------------------------------------------


def draw_suite(title: str, rows: Sequence[Row]) -> Figure:
    """Draw the losses, worst first, and below them the distribution of all ratios.

    Parameters
    ----------
    title : str
        Title of the picture.
    rows : sequence of dict
        Rows of the suite.

    Returns
    -------
    matplotlib.figure.Figure
    """
    from matplotlib.figure import Figure

    lost = losses(rows)
    shown = lost[:_SHOWN_LOSSES]
    upper = 0.6 + 0.22 * len(shown) if shown else 0.0
    lower = 5.5
    figure = Figure(figsize=(12, upper + lower + 1), layout="constrained")
    below: Any = figure
    if shown:
        # Separate subfigures, so that the long labels of losses do not narrow the other plot.
        above, below = figure.subfigures(2, 1, height_ratios=[upper, lower])
        _draw_losses(above.subplots(), shown, len(lost), len(rows))
    _draw_distribution(below.subplots(), rows, len(lost))
    figure.suptitle(title, x=0.01, ha="left", fontsize=12)
    return figure


def _shorter(reason: str) -> str:
    """Return the reason of a loss without knob values, which the documentation shows."""
    reason = re.sub(r"(?:_k\d+=-?\d+)+", "", reason)
    return textwrap.shorten(reason, _SHOWN_CHARACTERS, placeholder=" ...")


def _draw_losses(axes: Any, shown: Sequence[Row], count: int, total: int) -> None:
    values = [ratio(row) or 0.0 for row in shown]
    bars = axes.barh(range(len(shown)), values, color="#c44e52")
    axes.bar_label(
        bars,
        [f"{v:.2f}  {_shorter(why(r))}" for v, r in zip(values, shown, strict=True)],
        padding=3,
        fontsize=7,
        backgroundcolor="white",
    )
    names = [", ".join(row_key(row)).replace("_", " ") for row in shown]
    axes.set_yticks(range(len(shown)), names, fontsize=7)
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.set_xlim(0, 2.2)
    axes.axvline(1, color="black", linewidth=1, zorder=0.5)
    more = f"; the worst {len(shown)}" if count > len(shown) else ""
    axes.set_title(
        f"Below {LOSS} of the faster peer: {count} of {total} rows{more}", loc="left", fontsize=10
    )


def _draw_distribution(axes: Any, rows: Sequence[Row], lost: int) -> None:
    colors = ("#4c72b0", "#dd8452", "#55a868")
    ticks, labels = [], []
    for place, (precision, layout) in enumerate((p, f) for p in PRECISIONS for f in LAYOUTS):
        group = [r for r in rows if r["precision"] == precision and r["layout"] == layout]
        for number, (direction, color) in enumerate(zip(DIRECTIONS, colors, strict=True)):
            values = ratios(r for r in group if r["direction"] == direction)
            at = place + (number - 1) * 0.26
            if not values:
                continue
            # Spread the points horizontally; their order has no meaning.
            spread = [at + 0.18 * ((i * 0.618) % 1 - 0.5) for i in range(len(values))]
            axes.scatter(spread, values, s=5, color=color, alpha=0.45, linewidths=0)
            mean = geometric_mean(values)
            axes.plot([at - 0.12, at + 0.12], [mean, mean], color="black", linewidth=1.6)
            axes.annotate(
                f"{mean:.2f}",
                (at, mean),
                (0, 3),
                textcoords="offset points",
                ha="center",
                fontsize=7,
            )
        ticks.append(place)
        labels.append(f"{precision}\n{layout}".replace("_", " "))
    for direction, color in zip(DIRECTIONS, colors, strict=True):
        axes.scatter([], [], s=14, color=color, label=direction.replace("_", " "))
    axes.set_yscale("log", base=2)
    axes.set_yticks([0.5, 0.7, 1, 1.4, 2, 4, 8], ["0.5", "0.7", "1", "1.4", "2", "4", "8"])
    axes.axhline(1, color="black", linewidth=1, zorder=0.5)
    axes.axhline(LOSS, color="#c44e52", linewidth=1, linestyle="--", zorder=0.5)
    axes.set_xticks(ticks, labels, fontsize=8)
    axes.set_ylabel("time of the faster peer / time of dnnops")
    axes.set_title(
        f"All {len(rows)} rows, {lost} of them below {LOSS}; lines are geometric means",
        loc="left",
        fontsize=10,
    )
    axes.legend(frameon=False, fontsize=8, loc="upper right", ncols=3)
