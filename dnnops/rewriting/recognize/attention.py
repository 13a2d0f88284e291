"""Recognize written-out attention, ``softmax(q @ k.T * s + mask) @ v``, and its gradients.

This runs right after the gradients of softmax have been recognized: PyTensor has then simplified
the graph but has not yet replaced products with other Ops. Attention is replaced only together with
every use of its weights, since otherwise the weights would be computed a second time. A graph with
the gradient with respect to the keys alone is not recognized, because PyTensor then transposes the
terms of the softmax gradient.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from math import inf, isclose
from typing import Any

import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable, equal_computations
from pytensor.graph.fg import FunctionGraph, Output
from pytensor.graph.rewriting.basic import GraphRewriter, copy_stack_trace
from pytensor.scalar.basic import Cast, Switch
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.shape import SpecifyShape
from pytensor.tensor.special import Softmax

from dnnops.compat import inferred_size
from dnnops.config import flag_value
from dnnops.cpu.base import onednn_available
from dnnops.errors import DnnError
from dnnops.gpu.library import cudnn_usable
from dnnops.gpuarray.basic import GpuDimShuffle
from dnnops.gpuarray.op import is_on_device
from dnnops.gpuarray.transfer import GpuCast, HostFromGpu, host_from_gpu
from dnnops.nnet.activation.softmax import SoftmaxGrad
from dnnops.nnet.attention.op import Attention, AttentionGrad
from dnnops.rewriting.move.lifting import graph_device
from dnnops.rewriting.recognize.matching import Call, Match, Pattern, Rest, Slot, match
from dnnops.rewriting.recognize.views import Product, View, matrices_of, powers_of

__all__ = ["RecognizeAttention"]

#: The Ops copy keys and values whose rows are not contiguous. On two CPU cores, without gradients,
#: this does not pay off for fewer queries (32x512 keys of depth 64: with 8 queries, the Op took
#: 1.8 ms and the products 1.0 ms; with 32 queries, 2.8 ms and 8.5 ms).
FEWEST_QUERIES = 16


#: "seen" or "hidden", and the condition for scores to be so.
Condition = tuple[str, View]


def _factors(x: Any) -> tuple[Any, Any] | None:
    """Return the two stacks of matrices whose product is `x`, or None if it is not a product."""
    factors = matrices_of(x)
    ndims = {y.type.ndim for y in (x, *factors)} if factors else None
    return factors if ndims in ({3}, {4}) else None


def _is_product(view: View) -> bool:
    return view.is_whole and _factors(view.variable) is not None


def _is_scalar(view: View) -> bool:
    return all(view.is_one_on(axis) for axis in range(len(view.order)))


def _is_bool(view: View) -> bool:
    return bool(view.variable.type.dtype == "bool")


def _visible(x: Pattern, filler: float) -> Pattern:
    """Match a choice between `x` and a number that hides it."""
    seen = Call(Switch, Slot("seen", _is_bool), x, filler)
    hidden = Call(Switch, Slot("hidden", _is_bool), filler, x)
    # PyTensor computes gradients of float16 switches in float32 and casts them.
    return seen | hidden | Call(Cast, seen | hidden)


_SCORES = Slot("product", _is_product) * Rest("scale", _is_scalar) + Rest("mask")
_MASKED_SCORES = _visible(_SCORES, -inf) | _SCORES
_GRADIENT = Slot("gradient", lambda view: not _is_scalar(view))
_SCALED_GRADIENT = _GRADIENT * Rest("scale", _is_scalar)
_MASKED_GRADIENT = _visible(_GRADIENT, 0.0)


def _is_same(a: Product, b: Product) -> bool:
    (number, variables), (other_number, others) = a.split(), b.split()
    is_close = isclose(number, other_number, rel_tol=1e-6)
    return is_close and Counter(variables.parts) == Counter(others.parts)


def _conditions(found: Match) -> set[Condition]:
    return {(name, found[name]) for name in ("seen", "hidden") if name in found}


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
        return View.of(new).mT.build() if self.is_swapped else new


@dataclass
class _Found:
    """Attention in a graph: its operands and the variables to replace."""

    query: Any
    key: Any
    scale: Product
    mask: Any
    conditions: set[Condition]
    value: Any = None
    out: Any = None
    gout: Any = None
    has_default_scale: bool = False
    gradients: dict[str, _Use] = field(default_factory=dict)

    def full_mask(self) -> Any:
        """Return the mask operand of the Op: a boolean condition or an added array."""
        if not self.conditions:
            return self.mask
        ((name, view),) = self.conditions
        seen = view.build() if name == "seen" else pt.invert(view.build())
        if self.mask is None:
            return seen
        return pt.switch(seen, self.mask, pt.constant(-inf, dtype=self.mask.type.dtype))

    def scaled(self, x: Any) -> Any:
        """Scale `x` by the variables that the Op cannot take as a parameter."""
        return x if self.has_default_scale else self.scale.split()[1].build(start=x)

    def replacements(self) -> list[tuple[Variable, Variable]]:
        mask = self.full_mask()
        optional = () if mask is None else ("mask",)
        given = [self.scaled(self.query), self.key, self.value, *([] if mask is None else [mask])]
        given = [_operand(x) for x in given]
        scale = None if self.has_default_scale else self.scale.split()[0]
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
    view = View.of(x)
    root, order = view.variable, view.order
    x = root.dimshuffle(order[0], "x", *order[1:]) if len(order) == 3 else view.build()
    narrow = _narrow(root)
    return x if narrow is None or x is root else host_from_gpu(GpuDimShuffle(x.owner.op)(narrow))


class _Search:
    """Search for attention whose weights are the result of a given softmax."""

    def __init__(self, fgraph: FunctionGraph):
        self.fgraph = fgraph

    def find(self, node: Apply) -> _Found | None:
        weights = node.outputs[0]
        last = weights.type.ndim - 1
        found = self._scores(node.inputs[0]) if node.op.axis in ((last,), (-1,)) else None
        if found is None:
            return None
        grads = [
            (client, place)
            for client, place in self.fgraph.clients[weights]
            if isinstance(client.op, SoftmaxGrad) and place == 1
        ]
        uses = self._uses(weights, grads)
        by_op = {use.of_transpose: use for use in uses or []}
        if uses is None or len(grads) > 1 or len(by_op) != len(uses) or False not in by_op:
            return None
        found.out = by_op[False]
        found.value = found.out.factor.build()
        if True in by_op:
            found.gradients["dvalue"] = by_op[True]
            found.gout = by_op[True].factor.build()
        if grads and not self._add_scores(found, grads[0][0]):
            return None
        return found if self._fits(found, weights) else None

    def _scores(self, x: Any) -> _Found | None:
        """Return the operands of `x` if it holds attention scores, else None."""
        found = match(_MASKED_SCORES, x)
        if found is None:
            return None
        query, keys = _factors(found["product"].variable) or ()
        mask = [-term.build() if sign < 0 else term.build() for sign, term in found["mask"]]
        return _Found(
            query,
            View.of(keys).mT.build(),
            found["scale"],
            pt.add(*mask) if len(mask) > 1 else mask[0] if mask else None,
            _conditions(found),
            has_default_scale=self._is_default(found["scale"], query, keys),
        )

    def _is_default(self, scale: Product, query: Any, keys: Any) -> bool:
        """Return whether the scale is the inverse square root of the depth."""
        number, variables = scale.split()
        if number != 1.0 or len(variables.parts) != 1:
            return False
        ((sign, view),) = variables.parts
        sizes = [inferred_size(self.fgraph, query, -1), inferred_size(self.fgraph, keys, -2)]
        depths = [x for x in sizes if x is not None]
        return any(
            sign * exponent == -0.5
            and any(equal_computations([base.variable], [depth]) for depth in depths)
            for base, exponent in powers_of(view, through_casts=True)
        )

    def _uses(self, x: Any, others: Any = ()) -> list[_Use] | None:
        """Return the products of `x` or its transpose.

        Return None if `x` has a use that is neither a product nor in `others`.
        """
        uses = []
        for client, place in self.fgraph.clients[x]:
            if (client, place) in others:
                continue
            result: Any = None if isinstance(client.op, Output) else client.outputs[0]
            is_array = result is not None and result.type.ndim == x.type.ndim
            is_transpose = is_array and View.of(result).mT == View.of(x)
            products = self.fgraph.clients[result] if is_transpose else [(client, place)]
            for product, side in products:
                use = self._use(x, product, side, is_transpose)
                if use is None:
                    return None
                uses.append(use)
        return uses

    @staticmethod
    def _use(x: Any, node: Apply, side: int, is_transpose: bool) -> _Use | None:
        result = None if isinstance(node.op, Output) else node.outputs[0]
        factors = None if result is None else _factors(result)
        if factors is None:
            return None
        on_right = side == 1
        factor = View.of(factors[1 - side])
        if factor.variable is x:
            return None
        factor = factor.mT if on_right else factor
        return _Use(result, factor, is_transpose != on_right, on_right)

    def _add_scores(self, found: _Found, node: Apply) -> bool:
        """Add the gradients with respect to query and key to `found`.

        These gradients are products with the gradient of the scores. Return False if they are not
        found.
        """
        gradient = node.inputs[0]
        if gradient.owner is not None and isinstance(gradient.owner.op, SpecifyShape):
            gradient = gradient.owner.inputs[0]  # inserted where the softmax knows more sizes
        factors = _factors(gradient)
        if factors is None or View.of(factors[1]).mT != View.of(found.value):
            return False
        if found.gout is not None and View.of(found.gout) != View.of(factors[0]):
            return False
        found.gout = factors[0]
        by_scores = self._by_scores(found, node.outputs[0])
        uses = None if by_scores is None else self._uses(by_scores)
        for use in uses or ():
            name, other = ("dkey", found.query) if use.of_transpose else ("dquery", found.key)
            if use.factor != View.of(other) or name in found.gradients:
                return False
            found.gradients[name] = use
        return uses is not None

    def _by_scores(self, found: _Found, gradient: Any) -> Any:
        """Return `gradient`, scaled and masked like the scores, or None if it isn't found."""
        result = gradient
        while len(self.fgraph.clients[result]) == 1:
            node = self.fgraph.clients[result][0][0]
            if not isinstance(node.op, Elemwise):
                break
            result = node.outputs[0]
        left, scale, conditions = result, Product(1, []), set[Condition]()
        while left is not gradient:
            step = match(_MASKED_GRADIENT, left) or match(_SCALED_GRADIENT, left)
            if step is None or step["gradient"].build() is left:
                return None
            left = step["gradient"].build()
            conditions |= _conditions(step)
            scale = scale.times(step["scale"]) if "scale" in step else scale
        fits = result.type.dtype == gradient.type.dtype and _is_same(scale, found.scale)
        return result if fits and conditions <= found.conditions else None

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
        for mask in (found.mask, *(view.build() for _, view in found.conditions)):
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
        views = (View.of(x) for x in (found.key, found.value))
        return all(view.order[-1] == view.variable.type.ndim - 1 for view in views)


class RecognizeAttention(GraphRewriter):
    """Replace written-out attention and its gradients with `Attention` and `AttentionGrad`.

    Parameters
    ----------
    on_device : bool
        Whether to rewrite for a GPU, where cuDNN supports float16 and bfloat16, or for the CPU,
        which uses float32. With ``dnn.mixed_precision``, float32 attention on a GPU runs in 16
        bits.
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
        if found.scale.split()[0] < 0:  # cuDNN would need a negated copy of the query
            return False
        if dtype == "float16":
            return True
        if dtype == "float32" and flag_value("dnn.mixed_precision") != "off":
            return True
        arrays = [View.of(x).variable for x in (found.scaled(found.query), found.key, found.value)]
        return dtype == "float32" and all(_narrow(x) is not None for x in arrays)
