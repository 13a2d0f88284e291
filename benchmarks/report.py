"""Tables for the terminal, and the files in ``docs/benchmarks``."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dnnops.runtime import output

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "draw_bars",
    "draw_growth",
    "draw_ratios",
    "draw_times",
    "fastest_ratio",
    "print_table",
    "ratios",
    "write_benchmark",
]

Row = dict[str, Any]
_UNITS = {"s": "seconds", "ms": "milliseconds", "us": "microseconds"}


def times(row: Row) -> dict[str, float]:
    """Return the times of the libraries in a row, by name, dnnops first."""
    found = {}
    for unit in _UNITS:
        if f"dnnops_{unit}" in row:
            for key, value in row.items():
                name, _, suffix = key.rpartition("_")
                # The host's time of a launch is part of the time.
                if suffix == unit and not name.endswith("_host"):
                    found[name] = value
    return found


def ratios(row: Row) -> dict[str, float]:
    """Return each peer's time divided by that of dnnops, by the peer's name."""
    found = times(row)
    ours = found.pop("dnnops", None)
    return {name: value / ours for name, value in found.items()} if ours else {}


def first_ratio(row: Row) -> float:
    """Return the speed of dnnops relative to the first peer of a row."""
    return next(iter(ratios(row).values()))


def fastest_ratio(row: Row) -> float:
    """Return the speed of dnnops relative to the fastest peer of a row."""
    return min(ratios(row).values())


def print_table(title: str, rows: Sequence[Row]) -> None:
    """Print rows with their ratios, and highlight those below 1."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    heads = list(dict.fromkeys(key for row in rows for key in row))
    peers = list(dict.fromkeys(name for row in rows for name in ratios(row)))
    for head in heads:
        table.add_column(head, justify="left" if isinstance(rows[0].get(head), str) else "right")
    for peer in peers:
        table.add_column(f"{peer} / dnnops", justify="right")
    for row in rows:
        cells = [_show(row.get(head, "")) for head in heads]
        for peer in peers:
            ratio = ratios(row).get(peer)
            if ratio is None:
                cells.append("")
            else:
                color = "red" if ratio < 1 else "green"
                cells.append(f"[{color}]{ratio:.2f}[/]")
        table.add_row(*cells)
    console = Console()
    # Without a terminal, nothing is cut off.
    (console if console.is_terminal else Console(width=240)).print(table)


def _show(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def draw_ratios(
    title: str, rows: Sequence[Row], order: Callable[[Row], float] = first_ratio
) -> Figure:
    """Draw the speed of dnnops relative to each peer, the worst row at the top.

    Parameters
    ----------
    title : str
        Title of the picture.
    rows : sequence of dict
        Rows with times ``NAME_ms`` or ``NAME_us``.
    order : callable
        Ratio by which rows are sorted: that of the first peer by default, or `fastest_ratio`.

    Returns
    -------
    matplotlib.figure.Figure
    """
    words = "time of the other library / time of dnnops (above 1: dnnops is faster)"
    figure = draw_bars(title, sorted(rows, key=order), ratios, words)
    figure.axes[0].axvline(1, color="black", linewidth=1, zorder=0.5)
    return figure


def draw_times(title: str, rows: Sequence[Row]) -> Figure:
    """Draw the time of each library, the row where dnnops does worst at the top.

    `title`, `rows` and the result are those of `draw_ratios`. All times must have the same unit.
    """
    unit = next(unit for unit in _UNITS if f"dnnops_{unit}" in rows[0])
    return draw_bars(title, sorted(rows, key=first_ratio), times, _UNITS[unit])


#: With more rows than this, each row is a line with a point instead of a bar for each library.
_MOST_BARS = 60


def draw_bars(
    title: str, rows: Sequence[Row], values: Callable[[Row], dict[str, float]], words: str
) -> Figure:
    """Draw bars for each row, or points if there are many rows.

    Parameters
    ----------
    title : str
        Title of the picture.
    rows : sequence of dict
        Rows from top to bottom.
    values : callable
        Returns the lengths of a row's bars, by name.
    words : str
        What the lengths are.

    Returns
    -------
    matplotlib.figure.Figure
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator

    names = list(dict.fromkeys(name for row in rows for name in values(row)))
    has_bars = len(rows) * len(names) <= _MOST_BARS
    row_height = 0.3 * len(names) if has_bars else 0.17
    figure = Figure(figsize=(10, 1.6 + row_height * len(rows)), layout="constrained")
    axes = figure.subplots()
    height = 0.8 / len(names)
    for i, name in enumerate(names):
        lengths = [values(row).get(name, float("nan")) for row in rows]
        label = name.replace("_", " ")
        if has_bars:
            places = [j + (i - (len(names) - 1) / 2) * height for j in range(len(rows))]
            bars = axes.barh(places, lengths, height, label=label)
            axes.bar_label(bars, fmt="{:.2f}", padding=3, fontsize=8)
        else:
            axes.plot(lengths, range(len(rows)), "o", markersize=4, label=label)
    axes.set_yticks(range(len(rows)), [row["case"] for row in rows], fontsize=9 if has_bars else 7)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.margins(x=0.08)
    if has_bars:
        axes.set_xlim(left=0)
    else:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    axes.set(xlabel=words)
    axes.set_title(title, loc="left")
    figure.legend(loc="outside lower right", ncols=len(names), frameon=False)
    return figure


def draw_growth(title: str, rows: Sequence[Row]) -> Figure:
    """Draw how memory changes with the number of calls, relative to each function's first row.

    Parameters
    ----------
    title : str
        Title of the picture.
    rows : sequence of dict
        Rows with ``calls`` and quantities ``NAME_mib``. Rows of a function share ``case``.

    Returns
    -------
    matplotlib.figure.Figure
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    quantities = [key for key in rows[0] if key.endswith("_mib")]
    for case in dict.fromkeys(row["case"] for row in rows):
        own = [row for row in rows if row["case"] == case]
        for quantity in quantities:
            change = [row[quantity] - own[0][quantity] for row in own]
            name = quantity.removesuffix("_mib").replace("_", " ")
            label = f"{case}: {name}, {own[0][quantity]:.0f} MiB at first"
            axes.plot([row["calls"] for row in own], change, marker="o", label=label)
    axes.set(xscale="log", xlabel="calls", ylabel=f"change since call {rows[0]['calls']} (MiB)")
    bottom, top = axes.get_ylim()
    axes.set_ylim(min(bottom, -5), max(top, 5))
    axes.set_title(title, loc="left")
    axes.legend(frameon=False, fontsize=9)
    return figure


def write_benchmark(
    directory: Path,
    name: str,
    title: str,
    machine: dict[str, Any],
    rows: Sequence[Row],
    draw: Callable[[str, Sequence[Row]], Figure],
) -> Path:
    """Write ``NAME.json`` and ``NAME.png``, each atomically.

    Parameters
    ----------
    directory : Path
        Directory of the files; created if it does not exist.
    name : str
        Base name of the files.
    title : str
        Title of the picture.
    machine : dict
        Description of the machine.
    rows : sequence of dict
        Measured rows: words, numbers and raw medians.
    draw : callable
        `draw_ratios` or `draw_growth`.

    Returns
    -------
    Path
        The JSON file.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    directory.mkdir(parents=True, exist_ok=True)
    figure = draw(title, rows)
    FigureCanvasAgg(figure)
    text = json.dumps({"machine": machine, "rows": list(rows)}, indent=1, allow_nan=False)
    path = directory / f"{name}.json"
    picture = BytesIO()
    figure.savefig(picture, format="png", dpi=110)
    output.write(directory / f"{name}.png", picture.getvalue())
    output.write(path, f"{text}\n")
    return path
