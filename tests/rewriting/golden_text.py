"""Graphs and registries as text that does not depend on the release of PyTensor."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import Any

from pytensor.compile.aliasing import Supervisor
from pytensor.gradient import DisconnectedType
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.replace import _vectorize_node

import dnnops.gpu.fused.batchnorm_activation
from dnnops.cpu.activation import FASTER
from dnnops.cpu.base import OneDnnOp
from dnnops.gpu.base import CudnnOp
from dnnops.gpuarray.op import MirrorOp
from dnnops.gpuarray.transfer import GpuFromHost, HostFromGpu
from dnnops.nnet.expressions import ExpandableOp
from dnnops.rewriting.move import lifters
from dnnops.rewriting.registry import cpu_implementations
from dnnops.runtime.op import RuntimeOp

#: These Ops do what PyTensor's do, in the forms that PyTensor's rewrites leave.
_PLAIN = ("dnnops.cpu.elemwise", "dnnops.gpuarray.")
#: Ops that newer releases of PyTensor do not have.
_NOT_IN_EVERY_RELEASE = {"AdvancedIncSubtensor1", "AdvancedSubtensor1", "Ger"}


def rewritten(inputs: list[Any], outputs: list[Any], optimizer: Any) -> FunctionGraph:
    """Rewrite a graph as the compilation of a function would; needs no device."""
    fgraph = FunctionGraph(inputs, outputs, clone=True)
    fgraph.attach_feature(Supervisor(fgraph.inputs))
    optimizer.rewrite(fgraph)
    return fgraph


# -- graphs --------------------------------------------------------------------------------


def is_shown(node: Apply) -> bool:
    module = type(node.op).__module__
    is_transfer = isinstance(node.op, GpuFromHost | HostFromGpu)
    return module.startswith("dnnops.") and (is_transfer or not module.startswith(_PLAIN))


def _op_text(op: Any) -> str:
    def value(name: str) -> str:
        prop = getattr(op, name)
        return prop.__name__ if isinstance(prop, type) else repr(prop)

    props = ", ".join(f"{name}={value(name)}" for name in getattr(op, "__props__", None) or ())
    destroys = f" overwriting {op.destroy_map}" if op.destroy_map else ""
    return f"{type(op).__name__}({props}){destroys}"


class _Text:
    """The lines of a graph, in an order that does not depend on that of its nodes.

    Each line is an Op of dnnops with its operands. An expression of other Ops is written as the
    outputs of dnnops nodes and the inputs that it depends on, in braces.
    """

    def __init__(self) -> None:
        self.signatures: dict[Variable, str] = {}
        self.numbers: dict[Apply, int] = {}
        self.lines: list[str] = []

    def sources(self, x: Variable) -> list[Variable]:
        """Return the nearest inputs and outputs of dnnops nodes that `x` is computed from."""
        found: dict[str, Variable] = {}
        stack, seen = [x], set()
        while stack:
            y = stack.pop()
            if y in seen or isinstance(y, Constant):
                continue
            seen.add(y)
            if y.owner is None or is_shown(y.owner):
                found[self.signature(y)] = y
            else:
                stack += y.owner.inputs
        return [found[key] for key in sorted(found)]

    def signature(self, x: Variable) -> str:
        """Return a text that is the same for the same expression: a name, or a hash."""
        if x not in self.signatures:
            if x.owner is None:
                text = _leaf(x)
            else:
                shown = is_shown(x.owner)
                operands = x.owner.inputs if shown else self.sources(x)
                parts = [_op_text(x.owner.op), str(x.index)] if shown else []
                parts += map(self.signature, operands)
                text = "~" + sha256("; ".join(parts).encode()).hexdigest()
            self.signatures[x] = text
        return self.signatures[x]

    def value(self, x: Variable) -> str:
        node = x.owner
        if node is None:
            return _leaf(x)
        if not is_shown(node):
            found = [self.value(y) for y in self.sources(x)]
            return "{" + ", ".join(sorted(found, key=_names_first)) + "}"
        if node not in self.numbers:
            operands = ", ".join(map(self.value, node.inputs))
            number = self.numbers[node] = len(self.numbers) + 1
            dtypes = ", ".join(str(getattr(z.type, "dtype", z.type)) for z in node.outputs)
            self.lines.append(f"%{number} = {_op_text(node.op)} of ({operands}) -> {dtypes}")
        return f"%{self.numbers[node]}" + (f".{x.index}" if len(node.outputs) > 1 else "")


def _names_first(value: str) -> tuple[int, str]:
    number = value.removeprefix("%").split(".")[0]
    return (int(number), value) if value.startswith("%") else (0, value)


def _leaf(x: Variable) -> str:
    # An expression of constants may or may not have been folded.
    return "{}" if isinstance(x, Constant) else x.name or str(x.type)


def graph_text(outputs: Iterable[Variable]) -> list[str]:
    """Write the Ops of dnnops in a graph and what each of them takes, one a line."""
    text = _Text()
    last = [f"output {i} = {text.value(z)}" for i, z in enumerate(outputs)]
    return [*text.lines, *last]


# -- derivatives ---------------------------------------------------------------------------


def derivatives_text(node: Apply, omitted: Iterable[str] = ()) -> list[str]:
    """Write what a node's ``pullback`` and ``pushforward`` return, before any rewriting."""
    op: Any = node.op
    inputs = [x if isinstance(x, Constant) else x.type(f"x{i}") for i, x in enumerate(node.inputs)]
    outputs = op.make_node(*inputs).outputs
    lines = []
    for name, given, letter in (("pullback", outputs, "g"), ("pushforward", inputs, "t")):
        if name in omitted:
            continue
        moving = [
            x.type(f"{letter}{i}") if "float" in getattr(x.type, "dtype", "") else _none()
            for i, x in enumerate(given)
        ]
        try:
            results = getattr(op, name)(inputs, outputs, moving)
        except Exception as error:  # whatever Ops without this derivative raise
            lines.append(f"{name}: {type(error).__name__}")
            continue
        lines.append(f"{name}:")
        text = _Text()
        last = [
            f"{i}: {text.value(z) if _has_value(z) else type(z.type).__name__}"
            for i, z in enumerate(results)
        ]
        lines += [f"  {line}" for line in (*text.lines, *last)]
    return lines


def _none() -> Variable:
    return DisconnectedType()()


def _has_value(x: Any) -> bool:
    return hasattr(x.type, "dtype")


# -- registries ----------------------------------------------------------------------------
#
# These functions read the registries. Whoever replaces a registry changes its function here, but
# not the golden file.


def registries_text(abstract_ops: Iterable[type], nodes: Iterable[Apply]) -> list[str]:
    """Write what is registered for which Op, in which order and with which tags.

    Parameters
    ----------
    abstract_ops : iterable of type
        The abstract Ops.
    nodes : iterable of Apply
        Nodes of these Ops, to ask callable declarations about.
    """
    by_op: dict[type, list[Apply]] = {op: [] for op in abstract_ops}
    for node in nodes:
        if type(node.op) in by_op:
            by_op[type(node.op)].append(node)
    sections: dict[str, Iterable[str]] = {
        "lifters of abstract Ops, in the order of asking": (
            line for op, examples in by_op.items() for line in _lifters_of(op, examples)
        ),
        "lifters of other Ops, in the order of asking": _other_lifters(set(by_op)),
        "expansions on the GPU": _expansions(set(by_op)),
        "conversions on the CPU": _conversions(set(by_op)),
        "in-place variants on the CPU": _with_inplace_versions(OneDnnOp),
        "in-place variants on the GPU": _with_inplace_versions(CudnnOp, MirrorOp),
        "vectorization": (f"{op.__name__}: {_vectorization(op)}" for op in by_op),
    }
    return [line for title, lines in sections.items() for line in (f"## {title}", *lines)]


def _lifters_of(op_class: type, examples: list[Apply]) -> Iterator[str]:
    registered = next((c for c in op_class.__mro__ if c in lifters.registry), None)
    if registered is None:
        yield f"{op_class.__name__}: none"
        return
    for lifter in lifters.registry[registered]:
        operands = sorted({lifter.operand_indices(node) for node in examples})
        heavy = sorted({node.outputs[0].type.dtype for node in examples if lifter.is_heavy(node)})
        pulled = any(lifter.can_be_pulled(node) for node in examples)
        yield (
            f"{op_class.__name__}: {_tags(lifter)}, priority {lifter.priority},"
            f" operands {' or '.join(map(str, operands))},"
            f" {'heavy in ' + ', '.join(heavy) if heavy else 'not heavy'}"
            f"{', pulled' if pulled else ''}{'' if lifter.convert else ', converts itself'}"
        )


def _tags(lifter: Any) -> str:
    return f"tags {', '.join(lifter.tags)}" if lifter.tags else "no tags"


def _other_lifters(abstract_ops: set[type]) -> Iterator[str]:
    def shown(value: Any) -> str:
        return "by node" if callable(value) else str(value)

    for op_class in sorted(lifters.registry, key=_name):
        if op_class in abstract_ops or not _is_registered_by_dnnops(op_class):
            continue
        if _name(op_class) in _NOT_IN_EVERY_RELEASE:
            continue
        for lifter in lifters.registry[op_class]:
            yield (
                f"{_name(op_class)}: {_tags(lifter)}, priority {lifter.priority},"
                f" operands {shown(lifter.operands)}, heavy {shown(lifter.heavy)},"
                f" pulled {shown(lifter.pulled)}, convert {lifter.convert},"
                f" takes {shown(lifter.takes)}"
            )


def _name(op_class: type) -> str:
    return op_class.__name__


def _is_registered_by_dnnops(op_class: type) -> bool:
    """Tests register lifters of their own Ops."""
    return op_class.__module__.startswith(("dnnops.", "pytensor."))


def _expansions(abstract_ops: set[type]) -> Iterator[str]:
    registered = filter(_is_registered_by_dnnops, lifters.expansions)
    expandable = (op for op in abstract_ops if issubclass(op, ExpandableOp))
    for op_class in sorted({*registered, *expandable}, key=_name):
        is_first = getattr(op_class, "expands_elementwise", False)
        yield f"{op_class.__name__}: {'before' if is_first else 'after'} fusion"


def _conversions(abstract_ops: set[type]) -> Iterator[str]:
    converted = cpu_implementations()
    for op_class in sorted(abstract_ops, key=_name):
        if op_class in FASTER:
            backend = converted[op_class].op_class
            yield f"{op_class.__name__}: {backend.__name__} for {', '.join(FASTER[op_class])}"
        else:
            yield f"{op_class.__name__}: {'yes' if op_class in converted else 'none'}"


def _with_inplace_versions(*bases: type) -> list[str]:
    """Return the names of the Ops derived from `bases` that may have in-place versions."""
    names, stack = set(), list(bases)
    while stack:
        op_class: Any = stack.pop()
        derived = op_class.__subclasses__()
        stack += derived
        is_base = any(not c.__module__.startswith(dnnops.gpu.fused.__name__) for c in derived)
        if is_base or not _is_registered_by_dnnops(op_class):
            continue
        own = op_class.inplace_versions not in (
            RuntimeOp.inplace_versions,
            MirrorOp.inplace_versions,
        )
        has_parameter = "inplace" in op_class.__props__ or getattr(
            op_class, "inplace_parameter", None
        )
        if own or has_parameter:
            names.add(op_class.__name__)
    return sorted(names)


def _vectorization(op_class: type) -> str:
    function: Any = _vectorize_node.dispatch(op_class)
    is_ours = function.__module__.startswith("dnnops.")
    return function.__name__ if is_ours else "PyTensor's loop"
