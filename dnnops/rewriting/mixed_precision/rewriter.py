"""The pass that makes a moved graph run in 16 bits.

The pass visits the nodes in topological order and decides how each result is stored. Products get
16-bit operands. The elementwise loops around them read and write 16-bit arrays directly, so that
few casts remain: those of the parameters and of the graph's inputs.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from pytensor.configdefaults import config
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import GraphRewriter, copy_stack_trace
from pytensor.scalar.basic import Add, Mul
from pytensor.tensor.math import Prod, Sum

from dnnops.config import flag_value
from dnnops.dtypes import HALF_DTYPES
from dnnops.errors import DnnWarning
from dnnops.gpuarray.elemwise import GpuElemwise
from dnnops.gpuarray.reduction import GpuCAReduce
from dnnops.rewriting.mixed_precision.demand import Demand, all_products, products_of_halves
from dnnops.rewriting.mixed_precision.products import in_halves
from dnnops.rewriting.mixed_precision.roles import (
    Kind,
    Role,
    is_float32,
    is_half,
    keeps_float32,
    role_of,
)
from dnnops.rewriting.mixed_precision.storage import Storage

__all__ = ["MixedPrecision"]


class MixedPrecision(GraphRewriter):
    """Run a float32 graph on a GPU in 16 bits, as the flag ``dnn.mixed_precision`` says.

    If the flag is off, only products of bfloat16 arrays run in 16 bits; see `products_of_halves`.
    """

    def apply(self, fgraph: FunctionGraph) -> None:
        """Rewrite `fgraph`."""
        order = fgraph.toposort()
        dtype = flag_value("dnn.mixed_precision")
        if dtype != "off":
            products = all_products(order)
        else:
            dtype = "bfloat16"
            used = any(getattr(x.type, "dtype", "") == dtype for x in fgraph.variables)
            products = products_of_halves(order) if used else set()
        if not products:
            return
        walk = _Walk(dtype, Demand(fgraph, order, products))
        for node in order:
            walk.visit(node)
        fgraph.replace_all_validate(
            [
                (old, new)
                for old in dict.fromkeys(fgraph.outputs)
                if (new := walk.storage.exact(old)) is not old
            ],
            reason="mixed_precision",
        )


def _report_failure(node: Apply, error: Exception) -> None:
    """Treat an unexpected error as the flag ``on_opt_error`` says; only this node stays float32."""
    if config.on_opt_error in ("raise", "pdb"):
        raise error
    if config.on_opt_error == "warn":
        warnings.warn(
            f"{node.op} stays float32, because it cannot be applied to 16-bit arrays: "
            f"{type(error).__name__}: {error}. Please report this.",
            DnnWarning,
            stacklevel=2,
        )


#: PyTensor's reductions by their scalar Ops, with a dtype that may differ from the operand's.
_WITH_DTYPE = {Add: Sum, Mul: Prod}


class _Walk:
    """One pass over a graph, which builds the new graph."""

    def __init__(self, dtype: str, demand: Demand):
        self.dtype = dtype
        self.demand = demand
        self.storage = Storage(dtype)
        self._rules: dict[Kind, Any] = {
            Kind.PRODUCT: self._product,
            Kind.DATA: self._data,
            Kind.ELEMENTWISE: self._elementwise,
            Kind.REDUCTION: self._reduction,
            Kind.VIEW: self._view,
            Kind.JOIN: self._join,
            Kind.CAST: self._cast,
            Kind.LOSS: self._loss,
            Kind.SHAPE: self._view,
        }

    def visit(self, node: Apply) -> None:
        """Set the new variables of a node's outputs."""
        try:
            role = role_of(node)
            rule = self._rules.get(role.kind)
            new = rule(node, role) if rule else None
        except Exception as error:
            _report_failure(node, error)
            new = None
        if new is None:
            new = self._unchanged(node)
        for old, z in zip(node.outputs, new, strict=True):
            if z is not old:
                copy_stack_trace(old, z)
        self.storage.update(node.outputs, new)

    def _unchanged(self, node: Apply) -> Sequence[Variable]:
        inputs = [self.storage.exact(x) for x in node.inputs]
        if all(new is old for new, old in zip(inputs, node.inputs, strict=True)):
            return node.outputs
        return node.clone_with_new_inputs(inputs, strict=False).outputs

    def _with_data(self, node: Apply, role: Role, dtype: str, op: Any = None) -> Sequence[Variable]:
        """Apply an Op, by default the node's, to data of another dtype."""
        inputs = [
            self.storage.narrow(x, dtype) if i in role.data else self.storage.exact(x)
            for i, x in enumerate(node.inputs)
        ]
        return (op or node.op).make_node(*inputs).outputs

    def lives_narrow(self, z: Variable, from_half: bool) -> bool:
        """Return whether an elementwise result is stored in 16 bits.

        Parameters
        ----------
        z : Variable
            float32 result.
        from_half : bool
            Whether it is computed from a 16-bit array. Otherwise, it may be a small statistic.
        """
        if not is_float32(z) or z in self.demand.returned:
            return False
        return z in self.demand.narrowed or (from_half and z in self.demand.wanted)

    def _product(self, node: Apply, role: Role) -> Sequence[Variable] | None:
        if node not in self.demand.products:
            return None
        (first, *_) = (node.outputs[i] for i in role.results)
        return in_halves(node, role, self.storage, self.lives_narrow(first, True))

    def _data(self, node: Apply, role: Role, op: Any = None) -> Sequence[Variable] | None:
        first = self.storage[node.inputs[role.data[0]]] if role.data else None
        if first is None or not is_half(first) or not is_float32(node.inputs[role.data[0]]):
            return None
        return self._with_data(node, role, first.type.dtype, op)

    def _loss(self, node: Apply, role: Role) -> Sequence[Variable] | None:
        op: Any = node.op
        return self._data(node, role, op.with_float32_costs())

    def _elementwise(self, node: Apply, role: Role) -> Sequence[Variable] | None:
        op: Any = node.op
        operands = [self.storage[x] for x in node.inputs]
        from_half = any(map(is_half, operands))
        dtypes = [z.type.dtype for z in node.outputs]
        for i, z in enumerate(node.outputs):
            if self.lives_narrow(z, from_half and not keeps_float32(op, i)):
                dtypes[i] = self.dtype
        if dtypes == [z.type.dtype for z in node.outputs] and operands == node.inputs:
            return None
        return GpuElemwise(op.scalar_op, out_dtypes=dtypes).make_node(*operands).outputs

    def _reduction(self, node: Apply, role: Role) -> Sequence[Variable] | None:
        x, *others = (self.storage[x] for x in node.inputs)
        if not is_half(x) or not is_float32(node.inputs[0]):
            return None
        op: Any = node.op
        is_fold = isinstance(op, GpuCAReduce)  # and not Argmax, which has no scalar Op
        own = _WITH_DTYPE.get(type(op.host_op.scalar_op)) if is_fold else None
        if is_float32(node.outputs[0]) and own is not None:
            # In float64, as PyTensor has it for float32, the digits would be lost anyway. Other
            # reductions than these two ignore the dtype that they are given.
            host_op = own(axis=op.host_op.axis, dtype="float32", acc_dtype="float32")
            op = op.with_host_op(host_op)
        return op.make_node(x, *others).outputs

    def _view(self, node: Apply, role: Role) -> Sequence[Variable] | None:
        x = self.storage[node.inputs[0]]
        if not is_half(x):
            return None
        others = [self.storage.exact(y) for y in node.inputs[1:]]
        if role.kind is Kind.SHAPE:
            # Not make_node, which would transfer the operand of Shape to the host.
            return Apply(node.op, [x], [z.type() for z in node.outputs]).outputs
        return node.op.make_node(x, *others).outputs

    def _join(self, node: Apply, role: Role) -> Sequence[Variable] | None:
        halves = [is_half(self.storage[node.inputs[i]]) for i in role.data]
        float32 = all(is_float32(node.inputs[i]) for i in role.data)
        wanted = node.outputs[0] in self.demand.wanted
        if not float32 or not (all(halves) or (wanted and any(halves))):
            return None
        return self._with_data(node, role, self.dtype)

    def _cast(self, node: Apply, role: Role) -> Sequence[Variable] | None:
        (old,) = node.inputs
        x, wanted = self.storage[old], node.op.dtype
        if x.type.dtype == wanted or (is_half(x) and wanted == "float32"):
            return [x]  # read as it is stored
        if wanted in HALF_DTYPES and is_float32(x):
            return [self.storage.narrow(old, wanted)]
        return None
