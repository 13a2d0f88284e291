"""Recognize written-out attention, ``softmax(q @ k.T * s + mask) @ v``, and its gradients.

This runs right after the gradients of softmax have been recognized: PyTensor has then simplified
the graph but has not yet replaced products with other Ops. Attention is replaced only together with
every use of its weights, since otherwise the weights would be computed a second time. A graph with
the gradient with respect to the keys alone is not recognized, because PyTensor then transposes the
terms of the softmax gradient.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import Any

import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph, Output
from pytensor.graph.rewriting.basic import GraphRewriter, copy_stack_trace
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.shape import SpecifyShape
from pytensor.tensor.special import Softmax

from dnnops.compat import inferred_size
from dnnops.cpu.base import onednn_available
from dnnops.errors import DnnError
from dnnops.gpu.base import cudnn_usable
from dnnops.gpuarray.basic import GpuDimShuffle
from dnnops.gpuarray.op import is_on_device
from dnnops.gpuarray.transfer import GpuCast, HostFromGpu, host_from_gpu
from dnnops.nnet.activation.softmax import SoftmaxGrad
from dnnops.nnet.attention.op import Attention, AttentionGrad
from dnnops.rewriting.move.lifting import graph_device
from dnnops.rewriting.recognize.attention_form import (
    Condition,
    Scale,
    View,
    array_of,
    factors_of,
    terms_of,
    unhidden,
    unscaled,
    view_of,
)

__all__ = ["RecognizeAttention"]

#: The Ops copy keys and values whose rows are not contiguous. On two CPU cores, without gradients,
#: this does not pay off for fewer queries (32x512 keys of depth 64: with 8 queries, the Op took
#: 1.8 ms and the products 1.0 ms; with 32 queries, 2.8 ms and 8.5 ms).
FEWEST_QUERIES = 16


@dataclass
class _Use:
    """A product with a given matrix `x` as a factor: ``x @ factor`` or ``x.T @ factor``.

    If `x` is the right factor, the product is transposed so that `x` is on the left.
    """

    result: Any
    factor: View
    of_transpose: bool
    is_swapped: bool

    def replacement(self, new: Any) -> Any:
        return array_of(view_of(new, True)) if self.is_swapped else new


@dataclass
class _Found:
    """Attention in a graph: its operands and the variables to replace."""

    query: Any
    key: Any
    scale: Scale
    mask: Any
    condition: Condition | None
    value: Any = None
    out: Any = None
    gout: Any = None
    has_default_scale: bool = False
    gradients: dict[str, _Use] = field(default_factory=dict)

    def full_mask(self) -> Any:
        """Return the mask operand of the Op: a boolean condition or an added array."""
        if self.condition is None:
            return self.mask
        seen, is_seen = self.condition
        seen = seen if is_seen else pt.invert(seen)
        if self.mask is None:
            return seen
        return pt.switch(seen, self.mask, pt.constant(-inf, dtype=self.mask.type.dtype))

    def scaled(self, x: Any) -> Any:
        """Scale `x` by the variables that the Op cannot take as a parameter."""
        return x if self.has_default_scale else self.scale.without_number(x)

    def replacements(self) -> list[tuple[Variable, Variable]]:
        mask = self.full_mask()
        optional = () if mask is None else ("mask",)
        given = [self.scaled(self.query), self.key, self.value, *([] if mask is None else [mask])]
        given = [_operand(x) for x in given]
        scale = None if self.has_default_scale else self.scale.number
        node = Attention(scale, False, optional).make_node(*given)
        named = {"out": node.outputs[0]}
        if self.gradients:
            grad = AttentionGrad(scale, False, optional)
            results = grad.make_node(*given, *node.outputs, _operand(self.gout)).outputs
            named |= zip(grad.results, results, strict=True)
        pairs = []
        for name, use in {"out": self.out, **self.gradients}.items():
            new = named[name] if use.result.type.ndim == 4 else named[name].dimshuffle(0, 2, 3)
            new = use.replacement(self.scaled(new) if name == "dquery" else new)
            copy_stack_trace(use.result, new)
            pairs.append((use.result, new))
        return pairs


def _narrow(x: Any) -> Any:
    """Return the bfloat16 device variable that `x` is a float32 host copy of, or None."""
    node = x.owner
    cast = node.inputs[0].owner if node is not None and isinstance(node.op, HostFromGpu) else None
    if cast is None or not isinstance(cast.op, GpuCast):
        return None
    return cast.inputs[0] if cast.inputs[0].type.dtype == "bfloat16" else None


def _operand(x: Any) -> Any:
    """Convert `x` to an operand of the Op with four axes, undoing a cast from bfloat16."""
    root, order = view_of(x)
    if len(order) == 3:
        x = root.dimshuffle(order[0], "x", *order[1:])
    narrow = _narrow(root)
    return x if narrow is None or x is root else host_from_gpu(GpuDimShuffle(x.owner.op)(narrow))


class _Search:
    """Search for attention whose weights are the result of a given softmax."""

    def __init__(self, fgraph: FunctionGraph):
        self.fgraph = fgraph

    def clients(self, x: Any) -> list[tuple[Apply, int]]:
        return self.fgraph.clients[x]

    def find(self, node: Apply) -> _Found | None:
        weights = node.outputs[0]
        last = weights.type.ndim - 1
        found = self._scores(node.inputs[0]) if node.op.axis in ((last,), (-1,)) else None
        if found is None:
            return None
        grads = [
            (client, place)
            for client, place in self.clients(weights)
            if isinstance(client.op, SoftmaxGrad) and place == 1
        ]
        uses = self._uses(weights, grads)
        by_op = {use.of_transpose: use for use in uses or []}
        if uses is None or len(grads) > 1 or len(by_op) != len(uses) or False not in by_op:
            return None
        found.out = by_op[False]
        found.value = array_of(found.out.factor)
        if True in by_op:
            found.gradients["dvalue"] = by_op[True]
            found.gout = array_of(by_op[True].factor)
        if grads and not self._add_scores(found, grads[0][0]):
            return None
        return found if self._fits(found, weights) else None

    def _scores(self, x: Any) -> _Found | None:
        """Return the operands of `x` if it holds attention scores, else None."""
        x, condition = unhidden(x, -inf)
        for term, mask in terms_of(x):
            scale = Scale()
            factors = factors_of(unscaled(term, scale))
            if factors is None:
                continue
            query, turned = factors
            found = _Found(query, array_of(view_of(turned, True)), scale, mask, condition)
            depths = [inferred_size(self.fgraph, query, -1), inferred_size(self.fgraph, turned, -2)]
            found.has_default_scale = scale.is_root_of([x for x in depths if x is not None])
            return found
        return None

    def _uses(self, x: Any, others: Any = ()) -> list[_Use] | None:
        """Return the products of `x` or its transpose.

        Return None if `x` has a use that is neither a product nor in `others`.
        """
        uses = []
        for client, place in self.clients(x):
            if (client, place) in others:
                continue
            result = None if isinstance(client.op, Output) else client.outputs[0]
            is_array = result is not None and result.type.ndim == x.type.ndim
            is_transpose = is_array and view_of(result, True) == view_of(x)
            products = self.clients(result) if is_transpose else [(client, place)]
            for product, side in products:
                use = self._use(x, product, side, is_transpose)
                if use is None:
                    return None
                uses.append(use)
        return uses

    @staticmethod
    def _use(x: Any, node: Apply, side: int, is_transpose: bool) -> _Use | None:
        result = None if isinstance(node.op, Output) else node.outputs[0]
        factors = None if result is None else factors_of(result)
        if factors is None:
            return None
        on_right = side == 1
        factor = view_of(factors[1 - side], on_right)
        if factor[0] is x:
            return None
        return _Use(result, factor, is_transpose != on_right, on_right)

    def _add_scores(self, found: _Found, node: Apply) -> bool:
        """Add the gradients with respect to query and key to `found`.

        These gradients are products with the gradient of the scores. Return False if they are not
        found.
        """
        gradient = node.inputs[0]
        if gradient.owner is not None and isinstance(gradient.owner.op, SpecifyShape):
            gradient = gradient.owner.inputs[0]  # inserted where the softmax knows more sizes
        factors = factors_of(gradient)
        if factors is None or view_of(factors[1], True) != view_of(found.value):
            return False
        if found.gout is not None and view_of(found.gout) != view_of(factors[0]):
            return False
        found.gout = factors[0]
        by_scores = self._by_scores(found, node.outputs[0])
        uses = None if by_scores is None else self._uses(by_scores)
        for use in uses or ():
            name, other = ("dkey", found.query) if use.of_transpose else ("dquery", found.key)
            if use.factor != view_of(other) or name in found.gradients:
                return False
            found.gradients[name] = use
        return uses is not None

    def _by_scores(self, found: _Found, gradient: Any) -> Any:
        """Return `gradient`, scaled and masked like the scores, or None if it isn't found."""
        result = gradient
        while len(self.clients(result)) == 1:
            node = self.clients(result)[0][0]
            if not isinstance(node.op, Elemwise):
                break
            result = node.outputs[0]
        before, x, scale, conditions = None, result, Scale(), set()
        while x is not before:
            before = x
            x, condition = unhidden(unscaled(x, scale), 0.0)
            conditions |= set() if condition is None else {condition}
        fits = x is gradient and scale.is_same(found.scale) and conditions <= {found.condition}
        return result if fits else None

    @staticmethod
    def _fits(found: _Found, weights: Any) -> bool:
        """Return whether the operands of an attention fit the Op.

        They must have one dtype, and only the mask may be broadcast. The mask must not be larger
        than the scores.
        """
        arrays = [found.scaled(found.query), found.key, found.value, weights, found.out.result]
        if found.gout is not None:
            arrays.append(found.gout)
        stacks = {x.type.broadcastable[:-2] for x in arrays}
        dtypes = {x.type.dtype for x in arrays}
        sizes = (*found.query.type.shape[:-1], found.key.type.shape[-2])
        for mask in (found.mask, None if found.condition is None else found.condition[0]):
            if mask is None:
                continue
            if mask is found.mask:
                dtypes.add(mask.type.dtype)
            larger = zip(mask.type.shape, sizes, strict=True)
            if any(size == 1 and extent != 1 for extent, size in larger):
                return False
        if len(stacks) > 1 or len(dtypes) > 1:
            return False
        if found.gradients or sizes[-2] is None or sizes[-2] >= FEWEST_QUERIES:
            return True
        roots = (view_of(x) for x in (found.key, found.value))
        return all(order[-1] == root.type.ndim - 1 for root, order in roots)


class RecognizeAttention(GraphRewriter):
    """Replace written-out attention and its gradients with `Attention` and `AttentionGrad`.

    Parameters
    ----------
    on_device : bool
        Whether to rewrite for a GPU, where cuDNN supports float16 and bfloat16, or for the CPU,
        which uses float32.
    """

    def __init__(self, on_device: bool):
        super().__init__()
        self.on_device = on_device

    def apply(self, fgraph: FunctionGraph) -> None:
        """Rewrite `fgraph`."""
        nodes = [node for node in fgraph.toposort() if isinstance(node.op, Softmax)]
        if not nodes or not self._is_available(fgraph):
            return
        for node in nodes:
            found = _Search(fgraph).find(node)
            if found is None or not self._takes(found):
                continue
            try:
                replacements = found.replacements()
            except DnnError:  # static sizes do not match; the graph itself raises when run
                continue
            fgraph.replace_all_validate(replacements, reason="recognize_attention")

    def _is_available(self, fgraph: FunctionGraph) -> bool:
        if self.on_device:
            return cudnn_usable(graph_device(fgraph))[0]
        return onednn_available()[0] and not any(map(is_on_device, fgraph.variables))

    def _takes(self, found: _Found) -> bool:
        dtype = found.query.type.dtype
        if not self.on_device:
            return dtype == "float32"
        if dtype == "float16":
            return True
        arrays = [view_of(x)[0] for x in (found.scaled(found.query), found.key, found.value)]
        return dtype == "float32" and all(_narrow(x) is not None for x in arrays)
