"""Which variables of a graph are to be stored in 16 bits."""

from __future__ import annotations

from collections.abc import Sequence

from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.fg import FunctionGraph, Output

from dnnops.dtypes import FLOAT_DTYPES, HALF_DTYPES
from dnnops.gpu.rnn import GpuDnnRNNBase
from dnnops.gpuarray.transfer import HostFromGpu
from dnnops.rewriting.mixed_precision.roles import Kind, is_float32, is_half, role_of

__all__ = ["Demand", "all_products", "products_of_halves"]


def all_products(order: Sequence[Apply]) -> set[Apply]:
    """Return the nodes that multiply float32 arrays."""
    return {node for node in order if _is_float32_product(node)}


def _is_float32_product(node: Apply) -> bool:
    role = role_of(node)
    return role.kind is Kind.PRODUCT and all(is_float32(node.inputs[i]) for i in role.data)


def products_of_halves(order: Sequence[Apply]) -> set[Apply]:
    """Return the nodes whose operands a user has cast to 16 bits, or that follow from such arrays.

    Host variables cannot have the dtype bfloat16. An expression of bfloat16 arrays therefore
    consists of float32 Ops between casts. A product is meant in 16 bits if an operand is a 16-bit
    array, and the others are, too, or have been computed from some, or only from constants. The
    gradient that flows into a layer, for example, has passed through the loss, which is float32.

    Parameters
    ----------
    order : sequence of Apply
        Nodes in topological order.
    """
    half: set[Variable] = set()
    derived: set[Variable] = set()
    constant: set[Variable] = set()
    found: set[Apply] = set()
    for node in order:
        role = role_of(node)
        own = [x for x in node.inputs if is_half(x) or x in half]
        if own or any(x in derived for x in node.inputs):
            derived.update(node.outputs)
        elif all(_is_number(x) or x in constant for x in node.inputs):
            constant.update(node.outputs)
        data = [node.inputs[i] for i in role.data]
        first = data[:1] if role.kind in (Kind.DATA, Kind.VIEW, Kind.CAST) else data
        from_half = any(is_half(x) or x in half for x in first)
        if role.kind is Kind.PRODUCT:
            follows = all(
                is_half(x) or x in half or x in derived or x in constant or _is_number(x)
                for x in data
            )
            if _is_backward_rnn(node):
                # It reads the memory that the forward pass has written.
                from_half = node.inputs[-1].owner in found
            if not (from_half and follows and _is_float32_product(node)):
                continue
            found.add(node)
        if from_half:
            half.update(node.outputs[i] for i in role.results)
    return found


def _is_number(x: Variable) -> bool:
    """Return whether a variable is a constant, or not of a floating-point type."""
    return isinstance(x, Constant) or getattr(x.type, "dtype", None) not in FLOAT_DTYPES


def _is_backward_rnn(node: Apply) -> bool:
    op = node.op
    return isinstance(op, GpuDnnRNNBase) and getattr(op, "all_operands", ("",))[-1] == "reserve"


class Demand:
    """What the users of each variable make of it.

    Parameters
    ----------
    fgraph : FunctionGraph
    order : sequence of Apply
        Nodes in topological order.
    products : set of Apply
        Nodes that will run in 16 bits.

    Attributes
    ----------
    wanted : set of Variable
        float32 arrays that flow into a product, directly or through Ops that can keep 16 bits.
    narrowed : set of Variable
        Of these, the ones that all users would cast to 16 bits, or run on in any dtype.
    returned : set of Variable
        float32 arrays that are results of the graph, or go to the host.
    """

    def __init__(self, fgraph: FunctionGraph, order: Sequence[Apply], products: set[Apply]):
        self.products = products
        self.wanted: set[Variable] = set()
        self.narrowed: set[Variable] = set()
        self.returned: set[Variable] = set()
        for node in reversed(order):
            for x in node.outputs:
                self._decide(fgraph, x)

    def _decide(self, fgraph: FunctionGraph, x: Variable) -> None:
        if not is_float32(x):
            return
        users = fgraph.clients[x]
        if any(isinstance(user.op, Output | HostFromGpu) for user, _ in users):
            self.returned.add(x)
        if any(self._wants(user, i) for user, i in users):
            self.wanted.add(x)
            if all(self._narrows(user, i) for user, i in users):
                self.narrowed.add(x)

    def _wants(self, user: Apply, index: int) -> bool:
        role = role_of(user)
        if role.kind is Kind.PRODUCT:
            if user not in self.products:
                return False
            added = user.inputs[index].type.ndim == user.outputs[0].type.ndim
            return index in role.data or (added and self._has_wanted_result(user))
        if index not in role.data:
            return False
        if role.kind is Kind.CAST:
            return user.op.dtype in HALF_DTYPES
        if role.kind is Kind.DATA and index != role.data[0]:
            return True  # the first operand decides
        return self._has_wanted_result(user)

    def _has_wanted_result(self, user: Apply) -> bool:
        return any(user.outputs[i] in self.wanted for i in role_of(user).results)

    def _narrows(self, user: Apply, index: int) -> bool:
        role = role_of(user)
        if role.kind is Kind.VIEW:
            return index in role.data and all(z in self.narrowed for z in user.outputs)
        if role.kind in (Kind.DATA, Kind.LOSS, Kind.SHAPE):
            return index in role.data
        return role.kind in (Kind.PRODUCT, Kind.CAST) and self._wants(user, index)
