"""Report the plans selected by the convolutions of a compiled function, also in its profile."""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from pytensor.compile import Function, ProfileStats
from pytensor.graph.basic import Apply

from dnnops.arguments import switch
from dnnops.display import show_size
from dnnops.dtypes import DTYPE_NAMES
from dnnops.errors import DnnTypeError
from dnnops.nnet.conv.base import ConvBase
from dnnops.runtime.headers import CHOSEN, structure
from dnnops.runtime.nodes import node_number
from dnnops.runtime.op import RuntimeOp
from dnnops.tables import Column, Shown, Table

__all__ = ["ChosenPlan", "ChosenPlans", "chosen_plans", "plan_of"]

#: In the order of ``ConvDirection``.
_DIRECTIONS = ("forward", "grad_inputs", "grad_weights")
#: Positions of the image, the filters and the convolution's result among a node's two inputs (0 and
#: 1) and its output (2).
_ROLES = {"forward": (0, 1, 2), "grad_inputs": (2, 0, 1), "grad_weights": (0, 2, 1)}


@dataclass(frozen=True)
class ChosenPlan:
    """The latest selection of one convolution in a compiled function.

    Attributes
    ----------
    op : str
        Class name of the Op.
    output : str
        Name of the output variable, or empty if it has none.
    direction : {'forward', 'grad_inputs', 'grad_weights'}
        Forward convolution or one of its gradients.
    input_shape, filter_shape, output_shape : tuple of int or None
        Shapes of the image, the filters and the convolution's result, for every direction. If the
        node has not run, they hold the sizes known from the graph.
    dtype : str
        Dtype of these arrays.
    memory_format : {'contiguous', 'channels_last', 'mixed'}
        Memory format of the image and the result, or ``mixed`` if only one of them is channels
        last. If the node has not run, the format that its Op gives the output.
    algo : str
        Algorithm requested by the Op's ``algo``, which defaults to the flag's value.
    plan : str
        Name of the plan as in `dnnops.conv_plans`, or empty if the node has not run.
    workspace_bytes : int or None
        Memory needed in addition to the operands, or None if unknown.
    time_ms : float or None
        Milliseconds per call, measured when the plan was selected, or None if not measured.
    source : {'timed', 'cache', 'guessed', 'given', ''}
        How the plan was selected: by timing in this process, from the timings of another process,
        by a heuristic, or by the user. Empty if the node has not run.
    remark : str
        Reason why the plan is unknown even if the node has run, for example with Numba.
    """

    op: str
    output: str
    direction: str
    input_shape: tuple[int | None, ...]
    filter_shape: tuple[int | None, ...]
    output_shape: tuple[int | None, ...]
    dtype: str
    memory_format: str
    algo: str
    plan: str = ""
    workspace_bytes: int | None = None
    time_ms: float | None = None
    source: str = ""
    remark: str = ""


#: The `remark` of nodes that Numba or Python runs, and the explanation below a table.
_NO_C_CODE = "not C code, plan unknown"
_UNKNOWN_PLAN_HINT = (
    "Only C code reports its plan. Compile with mode='DNN' or another mode with the CVM linker, or"
    " set the flag dnn.verbose=True, which also works with Numba, PyTensor's default linker."
)


class ChosenPlans(Shown, list[ChosenPlan]):
    """A list of `ChosenPlan` that shows itself as a table."""

    file_width = 160

    def display_parts(self) -> Iterator[str | Table]:
        """Yield the table, and why plans are unknown."""
        yield _table(self) if self else "no convolutions"
        if any(row.remark for row in self):
            yield _UNKNOWN_PLAN_HINT


def chosen_plans(f: Any, time: bool = False) -> ChosenPlans:
    """Report the plan that each convolution of a compiled function uses.

    A node keeps its plan until it runs on other shapes. If a node has not run, `plan` is empty.
    Convolutions inside ``scan`` and ``OpFromGraph`` are listed at the position of the enclosing
    node. Copies of a function share these inner convolutions, but no others. Only nodes that run as
    C code report a plan: with Numba's linker, PyTensor's default on the CPU, the `remark` of each
    row says that the plan is unknown. Compile with ``mode="DNN"`` or another mode with the CVM
    linker.

    Parameters
    ----------
    f : pytensor.compile.Function
        Function compiled by ``pytensor.function``.
    time : bool
        Whether to time plans whose time is unknown, on random operands of the same shapes.

    Returns
    -------
    ChosenPlans
        List of `ChosenPlan` in the order of execution, which shows itself as a table.

    Raises
    ------
    DnnTypeError
        If `f` is not a compiled function.
    DnnError
        If a plan cannot be timed.
    """
    time = switch("chosen_plans", "time", time)
    if not isinstance(f, Function):
        raise DnnTypeError(
            "chosen_plans takes a function compiled by pytensor.function, but got"
            f" {f!r} of type {type(f).__name__}"
        )
    nodes = list(_convolutions(f.maker.fgraph))
    rows = [_chosen(node) for node in nodes]
    if time:
        measured = cache(_measure)
        for i, (node, row) in enumerate(zip(nodes, rows, strict=True)):
            if row.plan and row.time_ms is None:
                anonymous = replace(row, output="", source="")
                rows[i] = replace(row, time_ms=measured(node.op, _device(node), anonymous))
    return ChosenPlans(rows)


def plan_of(node: Apply) -> ChosenPlan | None:
    """Return the latest selection of a node, or None if its Op reports no plan.

    Parameters
    ----------
    node : Apply
        Node of a compiled function.
    """
    return _chosen(node) if _reports_plan(node) else None


def _reports_plan(node: Apply) -> bool:
    return isinstance(node.op, RuntimeOp) and isinstance(node.op, ConvBase)


def _convolutions(fgraph: Any) -> Iterator[Apply]:
    """Yield the convolutions of a graph and of its inner compiled graphs that report a plan."""
    for node in fgraph.toposort():
        if _reports_plan(node):
            yield node
        # Not `fn`, which would compile a function for linkers that do not use it.
        elif isinstance(inner := getattr(node.op, "_fn", None), Function):
            yield from _convolutions(inner.maker.fgraph)


def _chosen(node: Apply) -> ChosenPlan:
    op: Any = node.op
    direction = op.direction if isinstance(op.direction, str) else _DIRECTIONS[op.direction]
    operands = (*node.inputs[:2], node.outputs[0])
    image, filters, top = (operands[i].type.shape for i in _ROLES[direction])
    chosen = ChosenPlan(
        op=type(op).__name__,
        output=node.outputs[0].name or "",
        direction=direction,
        input_shape=image,
        filter_shape=filters,
        output_shape=top,
        dtype=node.outputs[0].type.dtype,
        memory_format=op.memory_format,
        algo=str(op.algo),
    )
    row = structure("dnnops_chosen_row", CHOSEN)()
    number = node_number(node)
    if not number:
        return replace(chosen, remark=_NO_C_CODE)
    # If the library is not loaded, nothing has run.
    if not (op.library.is_loaded and op.library.library.dnnops_chosen(number, ctypes.byref(row))):
        return chosen
    formats = bool(row.channels_last & 1), bool(row.channels_last & 4)
    return replace(
        chosen,
        input_shape=tuple(row.image[: row.ndim]),
        filter_shape=tuple(row.filters[: row.ndim]),
        output_shape=tuple(row.top[: row.ndim]),
        dtype=DTYPE_NAMES[row.dtype],
        memory_format={0: "contiguous", 1: "mixed", 2: "channels_last"}[sum(formats)],
        plan=row.plan.decode(errors="replace"),
        workspace_bytes=None if row.workspace < 0 else row.workspace,
        time_ms=None if math.isnan(row.time_ms) else row.time_ms,
        source=row.source.decode(errors="replace"),
    )


def _device(node: Apply) -> str:
    op: Any = node.op
    return f"cuda{op.node_device(node)}" if hasattr(op, "node_device") else "cpu"


def _measure(op: Any, device: str, row: ChosenPlan) -> float | None:
    """Time a row's plan; return milliseconds, or None if no memory format offers the plan."""
    from dnnops.plans.listing import conv_plans

    if row.memory_format == "mixed":
        return None
    named = ("precision", "allow_tf32", "deterministic", "workspace_limit")
    settings: dict[str, Any] = {name: getattr(op, name) for name in named if hasattr(op, name)}
    if settings.get("workspace_limit") == -1:
        settings["workspace_limit"] = "auto"
    settings |= {name: value for name, value in op.conv_params().items() if name != "ndim"}
    settings |= {"input_shape": row.input_shape, "filter_shape": row.filter_shape}
    plans = conv_plans(
        **settings,
        direction=row.direction,
        dtype=row.dtype,
        memory_format=row.memory_format,
        device=device,
        time=True,
    )
    return next((plan.time_ms for plan in plans if plan.name == row.plan), None)


# -- tables --------------------------------------------------------------------------------

#: Columns to leave out on a narrow terminal, in this order.
_FIRST_DROPPED = ("asked for", "chosen", "workspace", "dtype", "time", "image * filters")
#: Longest names of Ops, and of plans, that stay whole.
_LONGEST_NAME = 24


def _show_shape(shape: tuple[int | None, ...]) -> str:
    return "x".join("?" if size is None else str(size) for size in shape)


def _show_time(time_ms: float | None) -> str:
    return "" if time_ms is None else f"{time_ms:.3g} ms" if time_ms < 100 else f"{time_ms:.0f} ms"


def _table(rows: list[ChosenPlan], shares: list[str] | None = None) -> Table:
    shapes = [f"{_show_shape(row.input_shape)} * {_show_shape(row.filter_shape)}" for row in rows]
    dtypes = [
        row.dtype + ("" if row.memory_format == "contiguous" else f" {row.memory_format}")
        for row in rows
    ]
    plans = [row.plan or f"({row.remark or 'has not run'})" for row in rows]
    sizes = ["" if row.workspace_bytes is None else show_size(row.workspace_bytes) for row in rows]
    return Table(
        [
            *([] if shares is None else [Column("% time", shares, right=True, whole=True)]),
            Column("convolution", [f"{x.op} {x.output}".strip() for x in rows], fold=_LONGEST_NAME),
            Column("image * filters", shapes),
            Column("dtype", dtypes),
            Column("asked for", [row.algo for row in rows], fold=_LONGEST_NAME),
            Column("plan", plans, fold=_LONGEST_NAME),
            Column("workspace", sizes, right=True, whole=True),
            Column("time", [_show_time(row.time_ms) for row in rows], right=True, whole=True),
            Column("chosen", [row.source for row in rows], whole=True),
        ],
        _FIRST_DROPPED,
    )


# -- PyTensor's profile --------------------------------------------------------------------


def print_profile(
    message: Any,
    compile_time: Any,
    call_time: Any,
    apply_time: dict[tuple[Any, Apply], float],
    *others: Any,
    file: Any,
) -> None:
    """Add the plan of each convolution to a profile's summary; called by PyTensor.

    Parameters
    ----------
    message, compile_time, call_time, *others
        Ignored.
    apply_time : dict
        Seconds spent in each node, keyed by graph and node.
    file : file
        File to print to.
    """
    nodes: list[Apply] = []
    for fgraph in dict.fromkeys(fgraph for fgraph, _ in apply_time):
        nodes += _convolutions(fgraph)
    if not nodes:
        return
    seconds = {node: time for (_, node), time in apply_time.items()}
    total = sum(apply_time.values())
    shares = [f"{100 * seconds[x] / total:.1f}" if x in seconds and total else "" for x in nodes]
    table = _table([_chosen(node) for node in nodes], shares)
    print("Convolutions", "---", sep="\n", file=file)
    print(table.text(ChosenPlans.file_width), file=file)
    print(file=file)


# PyTensor has moved this function between modules, but always together with the class.
_register = getattr(sys.modules[ProfileStats.__module__], "register_profiler_printer", None)
if _register is not None:
    _register(print_profile)
