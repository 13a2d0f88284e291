"""The pass that moves a graph to the GPU.

A *lifter* is a function that returns the device version of a node. The pass decides which nodes
move, calls lifters with operands that are already on the device, and inserts transfers between host
and device, one per variable and direction.
"""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from pytensor.configdefaults import config
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import GraphRewriter, copy_stack_trace
from pytensor.graph.traversal import toposort

from dnnops.config import flag_value
from dnnops.dtypes import FLOAT_DTYPES
from dnnops.errors import (
    DnnNotSupportedError,
    DnnRequiredError,
    DnnUnavailableError,
    DnnWarning,
)
from dnnops.gpuarray.device import device_from_target
from dnnops.gpuarray.op import is_on_device
from dnnops.gpuarray.transfer import (
    GpuCast,
    GpuFromHost,
    HostFromGpu,
)
from dnnops.rewriting.move.context import LiftContext
from dnnops.rewriting.move.forecast import Forecast
from dnnops.rewriting.move.lifters import (
    Lifter,
    LiftFunction,
    expansion_of,
    lifters_of,
    note_failure,
    register_expansion,
    register_lifter,
)

__all__ = [
    "EVERYTHING",
    "GraphToGpu",
    "LiftContext",
    "LiftFunction",
    "Lifter",
    "graph_device",
    "register_expansion",
    "register_lifter",
]


class GraphToGpu(GraphRewriter):
    """Move the nodes of a graph to a GPU that use device arrays or are worth the transfer.

    Shapes, random generators and Ops without a lifter stay on the host.

    Parameters
    ----------
    excluded_tags : collection of str
        Tags whose lifters are disabled.
    everything : bool
        Whether every node with a lifter moves, even if it is not worth the transfer.
    """

    def __init__(self, excluded_tags: Iterable[str] = (), everything: bool = False):
        super().__init__()
        self.excluded_tags = frozenset(excluded_tags)
        self.everything = everything

    def apply(self, fgraph: FunctionGraph) -> None:
        """Rewrite `fgraph`."""
        order = fgraph.toposort()
        forecast = Forecast(fgraph, order, self.excluded_tags, self.everything)
        if forecast.pulled is None:
            return
        lifting = _Lifting(self, LiftContext(graph_device(fgraph)), forecast)
        for node in order:
            lifting.visit(node)
        replacements = [
            (old, lifting.final(old)) for old in dict.fromkeys(fgraph.outputs) if old.owner
        ]
        fgraph.replace_all_validate(
            [(old, new) for old, new in replacements if old is not new], reason="to_gpu"
        )


def graph_device(fgraph: FunctionGraph) -> int:
    """Return the device of the graph's device variables, else the device of the flag, else 0."""
    devices = {x.type.device for x in fgraph.variables if is_on_device(x)}
    wanted = device_from_target(str(getattr(config, "device", "cpu")))
    if len(devices) == 1:
        return devices.pop()
    return wanted if wanted is not None else min(devices, default=0)


def report_failure(node: Apply, error: Exception) -> None:
    """Treat an unexpected error of a lifter as the flag ``on_opt_error`` says.

    Parameters
    ----------
    node : Apply
        Node that stays on the host.
    error : Exception
        Error that occurred when the node was about to move.
    """
    match config.on_opt_error:
        case "raise" | "pdb":
            raise error
        case "warn":
            where = traceback.extract_tb(error.__traceback__)[-1]
            warnings.warn(
                f"{node.op} stays on the host, because its GPU version cannot be made: "
                f"{type(error).__name__}: {error} ({where.filename}, line {where.lineno}). "
                "Please report this.",
                DnnWarning,
                stacklevel=2,
            )


class _Lifting:
    """The second half of the pass, which builds the new graph."""

    def __init__(self, rewriter: GraphToGpu, context: LiftContext, forecast: Forecast):
        self.rewriter = rewriter
        self.context = context
        self.pulled = set(forecast.pulled or ())
        self.devices = forecast.devices
        # Not imported with this module, since most processes move nothing to a GPU.
        from dnnops.rewriting.move.expressions import Expressions

        self.expressions = Expressions(rewriter.excluded_tags)
        # Maps each old variable to its new one, on the device if it was computed there.
        self.new: dict[Variable, Any] = {}

    def value(self, old: Variable) -> Any:
        return self.new.get(old, old)

    def final(self, old: Variable) -> Any:
        """Return the new variable for `old`, transferred to where `old` was."""
        new = self.value(old)
        if is_on_device(old):
            return self.context.to_device(new, old.type.device)
        return self.context.to_host(new)

    def visit(self, node: Apply) -> None:
        """Set the new variables of a node's outputs."""
        if isinstance(node.op, HostFromGpu):
            new = [self.final(node.inputs[0])]
        elif isinstance(node.op, GpuFromHost):
            new = [self.context.to_device(self.value(node.inputs[0]), node.op.device)]
        elif (origin := self._narrow_origin(node)) is not None:
            new = [origin]
        else:
            new = self._moved(node) or self.rebuilt(node)
        self.new.update(zip(node.outputs, new, strict=True))

    def _moved(self, node: Apply) -> list[Any] | None:
        """Return the outputs of a node that moves, or None.

        If an error occurs, only this node stays on the host. Its outputs are transferred, so that
        the nodes after it move as if it had.
        """
        failed: Exception | None = None
        lifters = lifters_of(node, self.rewriter.excluded_tags)
        for move in (*(partial(self.lifted, lifter) for lifter in lifters), self.expanded):
            try:
                outputs = move(node)
            except Exception as error:
                if isinstance(error, DnnUnavailableError) and flag_value("dnn.enabled") == "True":
                    raise DnnRequiredError(str(error)) from error
                report_failure(node, error)
                failed = error
            else:
                if outputs is not None:
                    return self._labeled(node, outputs)
        if failed is None:
            return None
        device = self._device(node, map(self.value, node.inputs))
        outputs = self.rebuilt(node)
        note_failure(outputs[0].owner, failed)
        return [
            self.context.to_device(z, device)
            if getattr(z.type, "dtype", None) in FLOAT_DTYPES
            else z
            for z in outputs
        ]

    def _narrow_origin(self, node: Apply) -> Any:
        """Return the bfloat16 array that was widened to float32 before this cast, or None."""
        if not isinstance(node.op, GpuCast) or node.op.dtype != "bfloat16":
            return None
        wide = self.final(node.inputs[0]).owner
        if wide is None or not isinstance(wide.op, GpuCast) or wide.op.dtype != "float32":
            return None
        (origin,) = wide.inputs
        return origin if origin.type.dtype == "bfloat16" else None

    def rebuilt(self, node: Apply) -> list[Any]:
        """Apply the unchanged Op to the new inputs."""
        inputs = [self.final(x) for x in node.inputs]
        if all(new is old for new, old in zip(inputs, node.inputs, strict=True)):
            return list(node.outputs)
        outputs = node.clone_with_new_inputs(inputs, strict=False).outputs
        return self._labeled(node, outputs)

    def lifted(self, lifter: Lifter, node: Apply) -> Sequence[Variable] | None:
        """Return the outputs from a lifter if it moves the node, or None."""
        indices = lifter.operand_indices(node)
        operands = [self.value(node.inputs[i]) for i in indices]
        resident = any(map(is_on_device, operands))
        if not (resident or node in self.pulled or lifter.is_heavy(node)):
            return None
        return self._ask(lifter, node, indices, self._device(node, operands))

    def _device(self, node: Apply, values: Iterable[Any]) -> int:
        """Return the device that a node with these operands moves to."""
        first = next((x.type.device for x in values if is_on_device(x)), None)
        return self.devices.get(node.outputs[0], self.context.device) if first is None else first

    def _ask(
        self, lifter: Lifter, node: Apply, indices: tuple[int, ...], device: int
    ) -> Sequence[Variable] | None:
        context = self.context.on(device)
        inputs = [self.value(x) for x in node.inputs]
        if lifter.convert:
            inputs = [
                context.to_device(x, device) if i in indices else context.to_host(x)
                for i, x in enumerate(inputs)
            ]
        try:
            outputs = lifter.lift(node, inputs, context)
        except DnnNotSupportedError:
            # For example, a scalar Op without CUDA code, which the host runs.
            return None
        if outputs is not None:
            for old, z in zip(node.outputs, outputs, strict=True):
                if (z.type.dtype, z.type.ndim) != (old.type.dtype, old.type.ndim):
                    raise TypeError(f"the lifter of {node.op} returned {z.type} for {old.type}")
        return outputs

    @staticmethod
    def _labeled(node: Apply, outputs: Sequence[Variable]) -> list[Any]:
        for old, new in zip(node.outputs, outputs, strict=True):
            if new.owner is not None:
                copy_stack_trace(old, new)
                new.name = new.name or old.name
        return list(outputs)

    def _makes_array(self, node: Apply) -> bool:
        """Return whether a node makes an array from numbers only, and can do so on the device."""
        from_numbers = all(getattr(x.type, "ndim", 0) == 0 for x in node.inputs)
        if not from_numbers or not any(z.type.ndim for z in node.outputs):
            return False
        lifters = lifters_of(node, self.rewriter.excluded_tags)
        return any(lifter.can_be_pulled(node) for lifter in lifters)

    def expanded(self, node: Apply) -> Sequence[Variable] | None:
        """Expand a node that no lifter accepted, and lift its expression."""
        values = [self.value(x) for x in node.inputs]
        expand = expansion_of(node.op)
        # A subclass of an abstract Op on the device was placed there on purpose.
        stays = expand is None or any(map(is_on_device, node.outputs))
        if stays or not (node in self.pulled or any(map(is_on_device, values))):
            return None
        device = self._device(node, values)
        # Arrays are moved before several Ops of the expression read them, or make larger ones.
        moves = _is_floating if node in self.pulled else _is_array
        values = [self.context.to_device(x, device) if moves(x) else x for x in values]
        hosts = [self.context.to_host(x) for x in values]
        # The nodes of the expression use the device values. Unused transfers do not become part
        # of the graph.
        self.new.update(zip(hosts, values, strict=True))
        outputs = self.expressions.of(node, expand, hosts)
        for inner in toposort(outputs, blockers=hosts):
            if self._makes_array(inner):
                self.pulled.add(inner)
                self.devices.update(dict.fromkeys(inner.outputs, device))
            self.visit(inner)
        return [self.value(z) for z in outputs]


def _is_floating(x: Variable) -> bool:
    return getattr(x.type, "dtype", "") in FLOAT_DTYPES


def _is_array(x: Variable) -> bool:
    """Return whether an operand is an array to compute with; integers may be sizes."""
    return bool(getattr(x.type, "ndim", 0)) and (_is_floating(x) or x.type.dtype == "bool")


#: The tag of modes that move every node with a lifter to the GPU.
EVERYTHING = "everything_on_gpu"
