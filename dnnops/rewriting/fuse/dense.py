"""Fuse matrix products on the GPU with the biases, residual sums and activations that follow.

An elementwise kernel would read the product and write the result, both of which the fused call
saves. The gradient computes relu's mask from relu's result, which the next layer keeps anyway. If
the gradient needs the operand of GELU, the fused call returns that, and GELU stays elementwise.

Products of stacked rows are products of matrices between two reshapes, which stay.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import GraphRewriter, copy_stack_trace

from dnnops.config import flag_value
from dnnops.gpu.fused.dense import GpuDense
from dnnops.gpu.library import kernels_usable
from dnnops.gpuarray.elemwise import GpuElemwise
from dnnops.gpuarray.products.calls import products_available
from dnnops.gpuarray.transfer import GpuCast
from dnnops.rewriting.fuse.dense_form import (
    Form,
    find_form,
    gelu_terms,
    relations,
    replaced_sum,
    terms_of,
)
from dnnops.rewriting.fuse.dense_form import expressions as expressions_of
from dnnops.rewriting.fuse.matrix_product import MatrixProduct, is_product
from dnnops.rewriting.fuse.scalar_graphs import Loop, depends_on, uncast

__all__ = ["FuseDense"]

Pairs = list[tuple[Variable, Variable]]


class _RefusedError(Exception):
    """A product cannot be fused, or that would not save anything."""


class FuseDense(GraphRewriter):
    """Fuse matrix products with the elementwise loops behind them."""

    def apply(self, fgraph: FunctionGraph) -> None:
        """Rewrite `fgraph`."""
        order = {node: i for i, node in enumerate(fgraph.toposort())}
        for node in list(order):
            if node not in fgraph.apply_nodes or not is_product(node):
                continue
            if not _is_usable(node.outputs[0].type.device):
                continue
            try:
                pairs = _Fusion(fgraph, node, order).pairs()
            except _RefusedError:
                continue
            for old, new in pairs:
                copy_stack_trace(old, new)
                order[new.owner] = order[old.owner]
            # New nodes have to be in the graph when their operands are replaced.
            pairs.sort(key=lambda pair: -order[pair[0].owner])
            fgraph.replace_all(pairs, reason="fuse_dense")


def _is_usable(device: int) -> bool:
    """Return whether the Op can run; without cuBLASLt, products go through CuPy."""
    if flag_value("dnn.enabled") == "no_check":
        return True
    return kernels_usable(device) and products_available()


class _Reader(NamedTuple):
    """A loop that reads a product.

    Attributes
    ----------
    node : Apply
    loop : Loop
    product : ScalarVariable
        Input of the loop for the product.
    """

    node: Apply
    loop: Loop
    product: Any


class _Fusion:
    """What replaces a product and the loops that follow it."""

    def __init__(self, fgraph: FunctionGraph, node: Apply, order: dict[Apply, int]):
        self.fgraph = fgraph
        self.product = product = MatrixProduct(fgraph, node)
        users = sorted(fgraph.clients[product.result], key=lambda pair: order.get(pair[0], -1))
        if not users or not all(isinstance(user.op, GpuElemwise) for user, _ in users):
            raise _RefusedError
        if len({user for user, _ in users}) < len(users):
            raise _RefusedError
        self.readers = [
            _Reader(user, loop, loop.inputs[i]) for (user, i) in users for loop in [Loop(user)]
        ]
        forms = [find_form(reader.loop, reader.product) for reader in self.readers]
        found = sorted((f for f in forms if f is not None), key=lambda f: not f.activation)
        if not found:
            raise _RefusedError
        self.form: Form = found[0]
        if self.form.terms.addend is not None and product.addend is not None:
            raise _RefusedError
        for x in self.form.terms:
            if len(users) > 1 and x is not None and depends_on(x, node):
                raise _RefusedError
        if self.form.activation == "gelu" and self._needs_operand():
            self.form = Form("", self.form.terms)
            if not any(x is not None for x in self.form.terms):
                raise _RefusedError
        #: Replacements in loops that read what becomes a function of the layer's result.
        self.deferred: dict[Apply, dict[int, Any]] = {}

    def pairs(self) -> Pairs:
        """Return what replaces what."""
        out = self.product.viewed(self._new())
        pairs = [pair for reader in self.readers for pair in self._replaced(reader, out)]
        for user, replaced in self.deferred.items():
            loop = Loop(user)
            found = loop.applied(
                loop.outputs,
                {loop.inputs[i]: new for i, new in replaced.items()},
                [z.type.dtype for z in user.outputs],
            )
            pairs += zip(user.outputs, found, strict=True)
        return pairs

    def _new(self) -> Variable:
        """Return the result of the layer, as a matrix."""
        product = self.product
        bias, addend = self.form.terms
        operands = [product.x, product.w]
        if bias is not None:
            operands.append(product.as_vector(bias))
        addend = product.addend if addend is None else product.as_matrix(addend)
        if addend is not None:
            operands.append(addend)
        op = GpuDense(
            self.form.activation,
            bias is not None,
            addend is not None,
            allow_tf32=product.op.allow_tf32,
            algo=product.op.algo,
        )
        return op.make_node(*operands).outputs[0]

    def _needs_operand(self) -> bool:
        """Return whether something other than GELU itself reads its operand."""
        return not all(
            gelu_terms(loop, p, uncast(out)) for _, loop, p in self.readers for out in loop.outputs
        )

    def _replaced(self, reader: _Reader, out: Any) -> Pairs:
        """Replace the results of a loop that reads the product."""
        user, loop, p = reader
        results = {
            old: x
            for old, x in zip(user.outputs, loop.outputs, strict=True)
            if self.fgraph.clients[old]
        }
        pairs: Pairs = []
        for old, x in list(results.items()):
            if self._is_layer(loop, p, x):
                pairs += [(y, out) for y in self._converted(old, out.type.dtype)]
                del results[old]
        left = list(results.values())
        if self.form.activation == "relu":
            replaced: Any = relations(loop, self.form, p, out)
        else:
            replaced = replaced_sum(loop, self.form, p, left, out)
        if replaced is None or any(_reads(x, p, set(replaced)) for x in left):
            raise _RefusedError
        for old, x in list(results.items()):
            if self._defer(loop, old, x, replaced):
                del results[old]
        # Outputs that do not read the product keep the terms of the sum, which are zeros in the
        # others.
        for reads_product in (True, False):
            part = {
                old: x for old, x in results.items() if (p in expressions_of([x])) == reads_product
            }
            if part:
                dtypes = [old.type.dtype for old in part]
                found = loop.applied(list(part.values()), replaced if reads_product else {}, dtypes)
                pairs += zip(part, found, strict=True)
        return pairs

    def _is_layer(self, loop: Loop, p: Any, x: Any) -> bool:
        """Return whether an output of a loop is the layer."""
        activation, terms = self.form
        if activation == "relu":
            of = loop.relu_of(x)
            return of is not None and terms_of(loop, p, of) == terms
        return (gelu_terms if activation else terms_of)(loop, p, uncast(x)) == terms

    def _defer(self, loop: Loop, old: Variable, x: Any, replaced: dict[Any, Any]) -> bool:
        """Let the loops that read a result compute it, if it follows from one array.

        Masks and the parts of an activation that its gradient needs are such results.
        """
        users = list(self.fgraph.clients[old])
        readers = {reader.node for reader in self.readers}
        if not all(isinstance(user.op, GpuElemwise) and user not in readers for user, _ in users):
            return False
        arrays = {replaced[y][0] for y in expressions_of([x]) if y in replaced} - {None}
        inputs = [y for y in expressions_of([x]) if y in loop.variables and y not in replaced]
        if len(arrays) != 1 or any(
            _reads(x, y, set(replaced)) and loop.number(y) is None for y in inputs
        ):
            return False
        (array,) = arrays
        for user, i in users:
            self.deferred.setdefault(user, {})[i] = (
                array,
                lambda y: loop.function_of(x, replaced, y),
            )
        return True

    def _converted(self, x: Variable, dtype: str) -> list[Variable]:
        """Return `x`, or its conversions to the dtype of the product."""
        if x.type.dtype == dtype:
            return [x]
        users = [node for node, _ in self.fgraph.clients[x]]
        if not all(isinstance(n.op, GpuCast) and n.op.dtype == dtype for n in users):
            raise _RefusedError
        return [node.outputs[0] for node in users]


def _reads(x: Any, leaf: Any, without: set[Any]) -> bool:
    """Return whether `x` depends on `leaf` other than through some expressions."""
    if x in without:
        return False
    if x is leaf:
        return True
    return x.owner is not None and any(_reads(y, leaf, without) for y in x.owner.inputs)
