"""What the convolutions of a compiled function use: asked for, or shown in its profile."""

from __future__ import annotations

import ctypes
import math
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from io import StringIO
from textwrap import wrap
from typing import Any

from pytensor.compile import Function, ProfileStats
from pytensor.graph.basic import Apply

from dnnops.arguments import switch
from dnnops.errors import DnnTypeError
from dnnops.nnet.conv_base import ConvBase
from dnnops.runtime.nodes import node_number
from dnnops.runtime.op import DTYPE_CODES, RuntimeOp

__all__ = ["ChosenPlan", "ChosenPlans", "chosen_plans"]

#: In the order of ``ConvDirection``.
_DIRECTIONS = ("forward", "grad_inputs", "grad_weights")
#: Which of a node's inputs and its output is image, filters, and result of the convolution; 2 is
#: the output.
_ROLES = {"forward": (0, 1, 2), "grad_inputs": (2, 0, 1), "grad_weights": (0, 2, 1)}
_DTYPES = {code: name for name, code in DTYPE_CODES.items()}


class _Row(ctypes.Structure):
    """``Chosen`` in ``c_code/runtime/common/chosen.hpp``."""

    _fields_ = [
        ("plan", ctypes.c_char * 256),
        ("source", ctypes.c_char * 16),
        ("workspace", ctypes.c_int64),
        ("time_ms", ctypes.c_double),
        ("direction", ctypes.c_int64),
        ("dtype", ctypes.c_int64),
        ("channels_last", ctypes.c_int64),
        ("ndim", ctypes.c_int64),
        *((name, ctypes.c_int64 * 5) for name in ("image", "filters", "top")),
    ]


@dataclass(frozen=True)
class ChosenPlan:
    """What one convolution of a compiled function used when it last chose.

    Attributes
    ----------
    op : str
        The Op's class.
    output : str
        The name of its output's variable; empty if that has none.
    direction : {'forward', 'grad_inputs', 'grad_weights'}
        What is computed.
    input_shape, filter_shape, output_shape : tuple of int or None
        Of the image, the filters and the convolution's result, in whichever direction. Of a node
        that hasn't run, as far as the graph tells.
    dtype : str
        Of these arrays.
    memory_format : {'contiguous', 'channels_last', 'mixed'}
        That of the image and of the result; mixed if only one of them is channels last. Of a node
        that hasn't run, what its Op gives its output.
    algo : str
        What the node was asked for: its Op's ``algo``, which by default is the flag's value.
    plan : str
        The plan's name, as `dnnops.conv_plans` has it; empty for a node that hasn't run.
    workspace_bytes : int or None
        Memory that it takes besides the operands; None if it can't be told.
    time_ms : float or None
        Milliseconds of one call, measured when the plan was chosen; None if nothing was.
    source : {'timed', 'cache', 'guessed', 'given', ''}
        How it was chosen: by measuring in this process, by what another one measured, by a
        heuristic, or by the user. Empty for a node that hasn't run.
    remark : str
        Why it isn't known what a node uses that may well have run: it is not C code that runs it.
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


#: The `remark` of what Numba or Python runs, and what is said of it below a table.
_NO_C_CODE = "not C code, tells nothing"
_WHAT_TELLS = (
    "Only C code tells what it uses. Compile with mode='DNN' or another mode of linker CVM, or set"
    " the flag dnn.verbose=True, which works with Numba, PyTensor's default linker, too."
)


class ChosenPlans(list[ChosenPlan]):
    """A list of `ChosenPlan` that prints as a table."""

    def __rich__(self) -> Any:
        """The table, for ``rich.print``."""
        return _table(self)

    def __str__(self) -> str:
        width = shutil.get_terminal_size((_WIDTH, 0)).columns
        if not self:
            return "no convolutions"
        text = _text(_table(self), width)
        if any(row.remark for row in self):
            text += "\n\n" + "\n".join(wrap(_WHAT_TELLS, width))
        return text


def chosen_plans(f: Any, time: bool = False) -> ChosenPlans:
    """Tell what each convolution of a compiled function uses.

    A node's choice stands until it runs on other shapes; of a node that hasn't run, `plan` is
    empty. Convolutions inside of ``scan`` and ``OpFromGraph`` are listed where these run, and
    functions that were copied from one another share those; all others are each copy's own. Only
    nodes that run as C code tell something: with Numba's linker, which is PyTensor's default on the
    CPU, each row's `remark` says that nothing is known. Compile with ``mode="DNN"`` or another mode
    of linker CVM.

    Parameters
    ----------
    f : pytensor.compile.Function
        What ``pytensor.function`` gave.
    time : bool
        Whether to measure the plans whose time isn't known, on random operands of the same shapes.

    Returns
    -------
    ChosenPlans
        A list of `ChosenPlan`, in the order of execution. Printed, it is a table.

    Raises
    ------
    DnnTypeError
        If `f` is no compiled function.
    DnnError
        From measuring.
    """
    time = switch("chosen_plans", "time", time)
    if not isinstance(f, Function):
        raise DnnTypeError(
            "chosen_plans takes a compiled function, which pytensor.function gives, but got"
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


def _convolutions(fgraph: Any) -> Iterator[Apply]:
    """The nodes of a graph, and of the compiled graphs inside, that know what they have chosen."""
    for node in fgraph.toposort():
        if isinstance(node.op, RuntimeOp) and isinstance(node.op, ConvBase):
            yield node
        # Not `fn`: that would compile one for linkers that have no use for it.
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
    row = _Row()
    number = node_number(node)
    if not number:
        return replace(chosen, remark=_NO_C_CODE)
    # A library that isn't loaded has run nothing.
    if not (
        op.library.is_loaded
        and op.library.library.dnnops_chosen(ctypes.c_int64(number), ctypes.byref(row))
    ):
        return chosen
    formats = bool(row.channels_last & 1), bool(row.channels_last & 4)
    return replace(
        chosen,
        input_shape=tuple(row.image[: row.ndim]),
        filter_shape=tuple(row.filters[: row.ndim]),
        output_shape=tuple(row.top[: row.ndim]),
        dtype=_DTYPES[row.dtype],
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
    """Milliseconds of a row's plan; None if it isn't offered for contiguous or channels last."""
    from dnnops.plans import conv_plans

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

#: How wide a table may be in a file.
_WIDTH = 160
_UNITS = ("B", "KiB", "MiB", "GiB")


def _show_shape(shape: tuple[int | None, ...]) -> str:
    return "x".join("?" if size is None else str(size) for size in shape)


def _show_size(size: int | None) -> str:
    if size is None:
        return ""
    unit = min((max(size, 1).bit_length() - 1) // 10, len(_UNITS) - 1)
    return f"{size / 1024**unit:.{1 if unit else 0}f} {_UNITS[unit]}"


def _show_time(time_ms: float | None) -> str:
    return "" if time_ms is None else f"{time_ms:.3g} ms" if time_ms < 100 else f"{time_ms:.0f} ms"


def _table(rows: list[ChosenPlan], shares: list[str] | None = None) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    if shares is not None:
        table.add_column("% time", justify="right")
    for title in ("convolution", "image * filters", "dtype", "asked for", "plan"):
        table.add_column(title, overflow="fold")
    for title in ("workspace", "time"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("chosen")
    for i, row in enumerate(rows):
        name = f"{row.op} {row.output}".strip()
        table.add_row(
            *([] if shares is None else [shares[i]]),
            name,
            f"{_show_shape(row.input_shape)} * {_show_shape(row.filter_shape)}",
            row.dtype + ("" if row.memory_format == "contiguous" else f" {row.memory_format}"),
            row.algo,
            row.plan or f"({row.remark or 'has not run'})",
            _show_size(row.workspace_bytes),
            _show_time(row.time_ms),
            row.source,
        )
    return table


def _text(table: Any, width: int) -> str:
    from rich.console import Console

    output = StringIO()
    Console(file=output, width=width, color_system=None, markup=False).print(table)
    return "\n".join(line.rstrip() for line in output.getvalue().splitlines())


# -- PyTensor's profile --------------------------------------------------------------------


def print_profile(
    message: Any,
    compile_time: Any,
    call_time: Any,
    apply_time: dict[tuple[Any, Apply], float],
    *others: Any,
    file: Any,
) -> None:
    """Add to a profile's summary what each convolution uses; PyTensor calls this.

    Parameters
    ----------
    message, compile_time, call_time, *others
        Are not looked at.
    apply_time : dict
        Seconds in each node, by graph and node.
    file : file
        Where to print.
    """
    nodes: list[Apply] = []
    for fgraph in dict.fromkeys(fgraph for fgraph, _ in apply_time):
        nodes += _convolutions(fgraph)
    if not nodes:
        return
    seconds = {node: time for (_, node), time in apply_time.items()}
    total = sum(apply_time.values())
    shares = [f"{100 * seconds[x] / total:.1f}" if x in seconds and total else "" for x in nodes]
    print("Convolutions", "---", sep="\n", file=file)
    print(_text(_table([_chosen(node) for node in nodes], shares), _WIDTH), file=file)
    print(file=file)


# PyTensor has moved the function between modules: it is where the class is.
_register = getattr(sys.modules[ProfileStats.__module__], "register_profiler_printer", None)
if _register is not None:
    _register(print_profile)
