"""Predict which nodes of a graph will move to the device."""

from __future__ import annotations

import itertools
from contextlib import suppress

from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.fg import FunctionGraph, Output
from pytensor.graph.rewriting.basic import GraphRewriter
from pytensor.tensor.shape import Shape, Shape_i

from dnnops.dtypes import FLOAT_DTYPES
from dnnops.gpuarray.op import is_on_device
from dnnops.gpuarray.transfer import GpuFromHost, HostFromGpu
from dnnops.rewriting.move.lifters import expansion_of, lifters_of


class ForecastRewriter(GraphRewriter):
    """Base class of passes that must know which nodes will move to the device.

    Parameters
    ----------
    excluded_tags : frozenset of str
        Tags whose lifters are disabled.
    everything : bool
        Whether every node with a lifter moves.
    """

    def __init__(self, excluded_tags: frozenset[str] = frozenset(), everything: bool = False):
        super().__init__()
        self.excluded_tags = excluded_tags
        self.everything = everything

    def forecast(self, fgraph: FunctionGraph, order: list[Apply]) -> Forecast:
        """Predict what moves in a graph, whose nodes are given in topological order."""
        return Forecast(fgraph, order, self.excluded_tags, self.everything)


class Forecast:
    """The nodes that will move to the device, predicted from the declarations of their lifters.

    Parameters
    ----------
    fgraph : FunctionGraph
    order : list of Apply
        Nodes of the graph in topological order.
    excluded_tags : frozenset of str
        Tags whose lifters are disabled.
    everything : bool
        Whether every node with a lifter and a floating-point array moves, even if no array is on
        the device yet.

    Attributes
    ----------
    devices : dict of Variable to int
        Device of each variable that will be on one: that of the operands that it is computed from,
        or else of its users. Variables of which neither tells are missing.
    pulled : set of Apply, or None
        Nodes that move because all their users move, or because of `everything`. None if no node
        moves.
    """

    def __init__(
        self,
        fgraph: FunctionGraph,
        order: list[Apply],
        excluded_tags: frozenset[str],
        everything: bool = False,
    ):
        self.sent = {node for node in order if _has_arrays(node)} if everything else set()
        self.lifters = {node: lifters_of(node, excluded_tags) for node in order}
        self.devices = {x: x.type.device for x in fgraph.variables if is_on_device(x)}
        self.on_device: set[Variable] = set(self.devices)
        self.moved: set[Apply] = set()
        # Arrays computed from numbers and constants only: moving them transfers no array.
        self.made: set[Variable] = set()
        self.pulled: set[Apply] | None = None
        for node in order:
            # A lifter that fails here fails again when the node is lifted, which reports it.
            with suppress(Exception):
                self._move(node)
        if not self.on_device:
            return
        pulled = set()
        for node in reversed(order):
            with suppress(Exception):
                if self._is_pulled(fgraph, node):
                    pulled.add(node)
                if node in self.moved and self.devices.keys().isdisjoint(node.outputs):
                    self._take_device_of_users(fgraph, node)
        self.pulled = pulled | (self.sent & self.moved)

    def _move(self, node: Apply) -> None:
        if isinstance(node.op, HostFromGpu):
            self._set_on_device(node)
        if self._is_made(node) and not all(map(self._is_number, (*node.inputs, *node.outputs))):
            self.made.update(node.outputs)
        sent = node in self.sent
        expands = expansion_of(node.op) is not None
        moves = expands and (sent or not self.on_device.isdisjoint(node.inputs))
        moves = moves or any(
            sent
            or lifter.is_heavy(node)
            or any(node.inputs[i] in self.on_device for i in lifter.operand_indices(node))
            for lifter in self.lifters[node]
        )
        if moves:
            self.moved.add(node)
            # The shape of an array on the device is on the host, and what is computed from it.
            if not isinstance(node.op, Shape | Shape_i):
                self._set_on_device(node)

    def _set_on_device(self, node: Apply) -> None:
        self.on_device.update(node.outputs)
        device = next((self.devices[x] for x in node.inputs if x in self.devices), None)
        if device is not None:
            for z in node.outputs:
                self.devices.setdefault(z, device)

    def _take_device_of_users(self, fgraph: FunctionGraph, node: Apply) -> None:
        """Let a node without operands on a device run on the device of its first user on one."""
        for client, _ in itertools.chain.from_iterable(fgraph.clients[z] for z in node.outputs):
            device = next((self.devices[z] for z in client.outputs if z in self.devices), None)
            if device is not None:
                self.devices.update(dict.fromkeys(node.outputs, device))
                return

    def _is_number(self, x: Variable) -> bool:
        return isinstance(x, Constant) or all(getattr(x.type, "broadcastable", ()))

    def _is_made(self, node: Apply) -> bool:
        return bool(self.lifters[node]) and all(
            x in self.made or self._is_number(x) for x in node.inputs
        )

    def _can_be_pulled(self, node: Apply) -> bool:
        if any(lifter.can_be_pulled(node) for lifter in self.lifters[node]):
            return True
        return not self.made.isdisjoint(node.outputs)

    def _is_pulled(self, fgraph: FunctionGraph, node: Apply) -> bool:
        if node in self.moved or not self._can_be_pulled(node):
            return False
        clients = list(itertools.chain.from_iterable(fgraph.clients[z] for z in node.outputs))
        pulled = bool(clients) and all(map(self._takes_on_device, clients))
        if pulled:
            self.moved.add(node)
        return pulled

    def _takes_on_device(self, client: tuple[Apply, int]) -> bool:
        node, index = client
        if isinstance(node.op, Output):
            return False
        if isinstance(node.op, GpuFromHost):
            return True
        # Of what an expansion takes, integers may stay on the host, such as the state of dropout.
        is_float = getattr(node.inputs[index].type, "dtype", None) in FLOAT_DTYPES
        return node in self.moved and (
            (is_float and expansion_of(node.op) is not None)
            or any(lifter.takes_on_device(node, index) for lifter in self.lifters[node])
        )


def _has_arrays(node: Apply) -> bool:
    """Return whether a node computes floating-point numbers from a floating-point array."""
    return any(getattr(z.type, "dtype", None) in FLOAT_DTYPES for z in node.outputs) and any(
        getattr(x.type, "dtype", None) in FLOAT_DTYPES
        and not all(getattr(x.type, "broadcastable", ()))  # scalars have none
        for x in node.inputs
    )
