"""Draw explanations with matplotlib."""

from __future__ import annotations

from io import BytesIO
from os import PathLike
from pathlib import PurePath
from typing import Any

from dnnops.errors import DnnUnavailableError, DnnValueError
from dnnops.explanation.record import Node, Record
from dnnops.runtime import output

__all__ = ["can_draw", "draw", "obstacle", "require_matplotlib", "save"]

#: Most bars in the picture; the fastest nodes share the last one.
_BARS = 30
#: Colors of what runs nodes; matplotlib's default cycle for others.
_COLORS = {
    "oneDNN": "tab:blue",
    "cuDNN": "tab:green",
    "dnnops": "tab:cyan",
    "CuPy": "tab:olive",
    "C": "tab:gray",
    "Python": "tab:orange",
    "transfer": "tab:red",
}
_OTHER = "tab:purple"


def draw(explanation: Record, path: str | PathLike[str]) -> None:
    """Draw the time per node and the memory over the order of execution to a file.

    Parameters
    ----------
    explanation : Record
        What to draw. At least its times or its memory must be known.
    path : str or path-like
        File to write.

    Raises
    ------
    DnnUnavailableError
        If matplotlib is missing.
    DnnValueError
        If there is nothing to draw, or matplotlib does not know the format.
    OSError
        If the file cannot be written.
    """
    if not can_draw(explanation):
        raise DnnValueError(
            "there is nothing to draw: neither times nor memory are known; pass the function's"
            " arguments to explain"
        )
    require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    has_times, has_memory = _has_times(explanation), _has_memory(explanation)
    bars = min(len(explanation.nodes), _BARS) if has_times else 0
    heights = [0.22 * bars + 0.8] * has_times + [2.6] * has_memory
    figure = Figure(figsize=(8, sum(heights) + 0.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = list(figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0])
    figure.suptitle(explanation.name or "function")
    if has_times:
        _draw_times(axes.pop(0), explanation.nodes)
    if has_memory:
        _draw_memory(axes.pop(0), explanation.nodes)
    save(figure, path)


def save(figure: Any, path: str | PathLike[str]) -> None:
    """Write a figure to a file, as `dnnops.runtime.output.write` does.

    Parameters
    ----------
    figure : matplotlib.figure.Figure
    path : str or path-like
        File to write, in the format of its suffix; without one, PNG.

    Raises
    ------
    DnnValueError
        If matplotlib does not know the format, or there is a folder, a device or a socket.
    OSError
        If the file cannot be written.
    """
    content = BytesIO()
    try:
        figure.savefig(content, format=_format(path), dpi=120)
    except ValueError as error:
        raise DnnValueError(f"{path}: {error}") from error
    output.write(path, content.getvalue())


def obstacle(path: str | PathLike[str]) -> str:
    """Return why a picture cannot be written, as far as can be known before it is drawn.

    Parameters
    ----------
    path : str or path-like

    Returns
    -------
    str
        Empty if nothing is in the way.

    Raises
    ------
    DnnUnavailableError
        If matplotlib is missing.
    """
    require_matplotlib()
    from matplotlib.backend_bases import FigureCanvasBase

    known = FigureCanvasBase.get_supported_filetypes()
    if _format(path) not in known:
        return f"matplotlib cannot write the format {_format(path)}, but {', '.join(sorted(known))}"
    return output.obstacle(path)


def _format(path: str | PathLike[str]) -> str:
    return PurePath(path).suffix[1:].lower() or "png"


def can_draw(explanation: Record) -> bool:
    """Return whether times or memory are known."""
    return _has_times(explanation) or _has_memory(explanation)


def _has_times(explanation: Record) -> bool:
    return any(node.time_ms is not None for node in explanation.nodes)


def _has_memory(explanation: Record) -> bool:
    return any(node.peak_bytes is not None for node in explanation.nodes)


def require_matplotlib() -> None:
    """Raise `DnnUnavailableError` if matplotlib cannot be imported."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise DnnUnavailableError(
            f"a picture needs matplotlib: {error}; install it with: pip install 'dnnops[demo]'"
        ) from error


def _draw_times(axis: Any, nodes: tuple[Node, ...]) -> None:
    timed = [node for node in nodes if node.time_ms is not None]
    slowest = sorted(timed, key=lambda node: -(node.time_ms or 0))
    if len(slowest) > _BARS:
        slowest = slowest[: _BARS - 1]
    # In the order of execution, from the top.
    shown = sorted(slowest, key=lambda node: node.index)
    names = [f"{node.index} {node.op}" for node in shown]
    times = [node.time_ms or 0 for node in shown]
    kinds = [_kind(node) for node in shown]
    if len(shown) < len(timed):
        names.append(f"{len(timed) - len(shown)} other nodes")
        times.append(sum(node.time_ms or 0 for node in timed) - sum(times))
        kinds.append("others")
    for kind in dict.fromkeys(kinds):
        places = [i for i, name in enumerate(kinds) if name == kind]
        color = "lightgray" if kind == "others" else _COLORS.get(kind, _OTHER)
        axis.barh(places, [times[i] for i in places], color=color, label=kind)
    axis.set_yticks(range(len(names)), names, fontsize=7)
    axis.set_ylim(len(names) - 0.5, -0.5)
    axis.set_xlabel("milliseconds per call")
    axis.legend(fontsize=7)


def _kind(node: Node) -> str:
    return "transfer" if node.transfer else node.library


def _draw_memory(axis: Any, nodes: tuple[Node, ...]) -> None:
    run = [node for node in nodes if node.peak_bytes is not None]
    unit, name = _unit(max(node.peak_bytes or 0 for node in run))
    peaks = [(node.peak_bytes or 0) / unit for node in run]
    live = [(node.live_bytes or 0) / unit for node in run]
    indices = [node.index for node in run]
    axis.bar(indices, peaks, width=1, color="lightsteelblue", label="while the node runs")
    axis.step(indices, live, where="mid", color="tab:blue", label="kept after it")
    most = max(run, key=lambda node: node.peak_bytes or 0)
    label = f"peak {max(peaks):.4g} {name} at node {most.index} {most.op}"
    axis.plot(most.index, max(peaks), "v", color="tab:red", label=label)
    axis.set_xlabel("node, in the order of execution")
    axis.set_ylabel(f"memory of results, {name}")
    axis.legend(fontsize=7)


def _unit(most: int) -> tuple[int, str]:
    for power, name in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if most >= 1024**power:
            return 1024**power, name
    return 1, "B"
