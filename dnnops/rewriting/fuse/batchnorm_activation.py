"""Fuse batch normalization on the GPU with the relu and the residual sum that follow it.

The fused Ops save a pass over the arrays in each direction: elementwise relu reads the normalized
data, and writes its result and a mask; its gradient reads the mask and a gradient, and writes
another. The fused gradient computes the mask itself, from arrays that it reads anyway.

After a residual sum, the mask depends on the addend, too, and the shortcut needs the masked
gradient as well. So relu's gradient remains an elementwise node there, and takes the mask from the
result of relu, which the next Op keeps anyway. Reading it costs a little more than reading a mask,
but nothing has to write the mask.
"""

from __future__ import annotations

from typing import Any

from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import GraphRewriter, copy_stack_trace
from pytensor.scalar.basic import gt, le

from dnnops.gpu.batchnorm import GpuDnnBatchNorm, GpuDnnBatchNormGrad, GpuDnnBatchNormInference
from dnnops.gpu.fused.batchnorm_activation import (
    GpuDnnBatchNormActivation,
    GpuDnnBatchNormActivationGrad,
    GpuDnnBatchNormActivationInference,
)
from dnnops.gpuarray.elemwise import GpuElemwise
from dnnops.gpuarray.op import is_on_device
from dnnops.gpuarray.transfer import GpuCast
from dnnops.rewriting.fuse.scalar_graphs import Loop, uncast

__all__ = ["FuseBatchNormActivation"]

_FUSED: dict[type, Any] = {
    GpuDnnBatchNorm: GpuDnnBatchNormActivation,
    GpuDnnBatchNormInference: GpuDnnBatchNormActivationInference,
    # With a sum, but without relu.
    GpuDnnBatchNormActivation: GpuDnnBatchNormActivation,
    GpuDnnBatchNormActivationInference: GpuDnnBatchNormActivationInference,
}

#: ``slope_at_zero`` and ``slope_at_nan`` of relu by the comparison that selects slopes.
_SLOPES = {"<=": (False, True), "<": (True, True), ">=": (True, False), ">": (False, False)}

#: Comparisons that have the same result for relu's operand and for its result.
_OF_RESULT = {"<=": le, ">": gt}

#: With more users, the mask would cost more to compute than to write and read.
_MOST_MASKED = 2

Pairs = list[tuple[Variable, Variable]]


class _RefusedError(Exception):
    """A node cannot be fused, or that would not save anything."""


class FuseBatchNormActivation(GraphRewriter):
    """Fuse batch normalization with relu and residual sums, and the gradients of both."""

    def apply(self, fgraph: FunctionGraph) -> None:
        """Rewrite `fgraph`."""
        order = {node: i for i, node in enumerate(fgraph.toposort())}
        found = [node for node in order if type(node.op) in _FUSED]
        while found:
            node = found.pop(0)
            if node not in fgraph.apply_nodes or getattr(node.op, "relu", False):
                continue
            try:
                new, pairs = _Fusion(fgraph, node).result()
            except _RefusedError:
                continue
            for old, replacement in pairs:
                copy_stack_trace(old, replacement)
                order[replacement.owner] = order[old.owner]
            # New nodes have to be in the graph when their operands are replaced.
            pairs.sort(key=lambda pair: -order[pair[0].owner])
            fgraph.replace_all(pairs, reason="fuse_batchnorm_activation")
            found.insert(0, new)


class _Fusion:
    """What replaces a node of batch normalization and the elementwise node that follows it."""

    def __init__(self, fgraph: FunctionGraph, node: Apply):
        self.fgraph, self.node = fgraph, node
        self.y = node.outputs[0]
        users = [(user, i) for user, i in fgraph.clients[self.y]]
        if len({user for user, _ in users}) < len(users):
            raise _RefusedError
        if not users or not all(isinstance(user.op, GpuElemwise) for user, _ in users):
            raise _RefusedError
        loops = [Loop(user) for user, _ in users]
        found = [k for k, loop in enumerate(loops) if any(map(loop.is_relu_or_sum, loop.outputs))]
        if len(found) != 1:
            raise _RefusedError
        main = found[0]
        self.user, self.loop = users[main][0], loops[main]
        self.y_in = self.loop.inputs[users[main][1]]
        #: Other users of the normalized data, which may be gradients that compute the mask.
        self.others = [
            (user, loop, loop.inputs[i])
            for k, ((user, i), loop) in enumerate(zip(users, loops, strict=True))
            if k != main
        ]
        #: In the loop, the operand of relu, and the addend in it.
        self.subject: Any = self.y_in
        self.addend: Any = None

    def result(self) -> tuple[Apply, Pairs]:
        """Return the new node, and what it and others replace."""
        if len(self.loop.outputs) == 1 and self._take_sum(self.loop.outputs[0]):
            new = self._new(relu=False)
            return new, [*self._plain_pairs(new), *self._as_data(0, new.outputs[0])]
        relus = [k for k, x in enumerate(self.loop.outputs) if self._is_relu(x)]
        if len(relus) != 1:
            raise _RefusedError
        new = self._new(relu=True)
        pairs = self._plain_pairs(new) + self._as_data(relus[0], new.outputs[0])
        self.masked = 0
        for k, (old, x) in enumerate(zip(self.user.outputs, self.loop.outputs, strict=True)):
            if k != relus[0] and self.fgraph.clients[old]:
                pairs += self._gradient(new, self.loop, self.subject, old, x)
        for user, loop, y_in in self.others:
            for old, x in zip(user.outputs, loop.outputs, strict=True):
                pairs += self._gradient(new, loop, y_in, old, x)
        if self.masked > _MOST_MASKED:
            raise _RefusedError
        return new, pairs

    def _take_sum(self, x: Any) -> bool:
        """Find the addend of the normalized data in the sum `x`."""
        terms = self.loop.sum_of_two(x)
        if self.y_in not in terms or terms[0] is terms[1]:
            return False
        if self.others or hasattr(self.node.op, "addend"):
            return False
        addend = terms[1 - terms.index(self.y_in)]
        variable = self.loop.variables[addend]
        if not self._is_like_data(variable) or self._depends(variable):
            return False
        self.subject, self.addend = uncast(x), variable
        return True

    def _is_like_data(self, x: Any) -> bool:
        """Return whether `x` is an array on the device with the dtype and the shape of the data."""
        dtype, ones = self.y.type.dtype, self.y.type.broadcastable
        return is_on_device(x) and (x.type.dtype, x.type.broadcastable) == (dtype, ones)

    def _depends(self, x: Variable) -> bool:
        """Return whether `x` is computed from other results of the node."""
        seen: set[Apply] = set()
        waiting = [x.owner] if x.owner is not None else []
        while waiting:
            node = waiting.pop()
            if node is self.node:
                return True
            if node not in seen:
                seen.add(node)
                waiting += [v.owner for v in node.inputs if v.owner is not None]
        return False

    def _is_relu(self, x: Any) -> bool:
        of = self.loop.relu_of(x)
        return of is not None and (
            of is self.subject or (self.addend is None and self._take_sum(of))
        )

    def _new(self, relu: bool) -> Apply:
        op, addend = self.node.op, [] if self.addend is None else [self.addend]
        properties = {name: getattr(op, name) for name in op.__props__}
        properties |= {"relu": relu, "addend": bool(addend) or getattr(op, "addend", False)}
        return _FUSED[type(op)](**properties).make_node(*self.node.inputs, *addend)

    def _plain_pairs(self, new: Apply) -> Pairs:
        others = self.node.outputs[1:]
        return list(zip(others, new.outputs[1 : 1 + len(others)], strict=True))

    def _as_data(self, index: int, new: Variable) -> Pairs:
        """Replace a result of the elementwise node, which may be converted to the dtype of data."""
        old = self.user.outputs[index]
        return [(x, new) for x in self._converted(old)]

    def _converted(self, x: Variable) -> list[Variable]:
        """Return `x`, or its conversions to the dtype of the data."""
        dtype = self.y.type.dtype
        if x.type.dtype == dtype:
            return [x]
        users = [node for node, _ in self.fgraph.clients[x]]
        if not all(isinstance(n.op, GpuCast) and n.op.dtype == dtype for n in users):
            raise _RefusedError
        return [node.outputs[0] for node in users]

    def _gradient(self, new: Apply, loop: Loop, subject: Any, old: Any, x: Any) -> Pairs:
        """Replace a result of an elementwise node that is not relu's: a mask or a gradient."""

        def relation(v: Any) -> str | None:
            return loop.relation(v, lambda operand: operand is subject)

        how = relation(x)
        if how is not None:
            users = self.fgraph.clients[old]
            return [pair for user, i in users for pair in self._user_of_mask(new, user, i, how)]
        found = loop.masked(x, relation)
        y_in = self.y_in if loop is self.loop else subject
        if found is None or loop.uses(found[1], y_in):
            raise _RefusedError
        fused = self._masked_gradient(new, loop, old, *found)
        place = {subject: (new.outputs[0], lambda out: out)}
        return fused or self._from_result(loop, {old: x}, found[0], place)

    def _user_of_mask(self, new: Apply, user: Apply, index: int, how: str) -> Pairs:
        """Replace a node that takes a mask, which `how` describes."""
        if not isinstance(user.op, GpuElemwise):
            raise _RefusedError
        loop = Loop(user)
        mask = loop.inputs[index]
        if len(loop.outputs) == 1:
            found = loop.masked(
                loop.outputs[0],
                lambda v: how if uncast(v, between_floats=False) is mask else None,
            )
            if found is not None and not loop.uses(found[1], mask):
                fused = self._masked_gradient(new, loop, user.outputs[0], *found)
                if fused:
                    return fused

        def compare(out: Any) -> Any:
            return _OF_RESULT[how](out, out.type.make_constant(0))

        results = dict(zip(user.outputs, loop.outputs, strict=True))
        return self._from_result(loop, results, how, {mask: (new.outputs[0], compare)})

    def _masked_gradient(self, new: Apply, loop: Loop, old: Any, how: str, array: Any) -> Pairs:
        """Let the gradient of the normalization mask the gradient that is given to it."""
        if not isinstance(new.op, GpuDnnBatchNormActivation) or new.op.addend:
            return []
        try:
            (gradient,) = self._converted(old)
        except (_RefusedError, ValueError):
            return []
        users = self.fgraph.clients[gradient]
        if len(users) != 1 or type(users[0][0].op) is not GpuDnnBatchNormGrad:
            return []
        user = users[0][0]
        x, gout, scale, mean, invstd = user.inputs
        _, own_mean, own_invstd = self.node.outputs[:3]
        same = x is self.node.inputs[0] and scale is self.node.inputs[1] and gout is gradient
        same = same and user.op.axes == self.node.op.axes
        if not same or mean is not own_mean or invstd is not own_invstd:
            return []
        given = loop.array(array, x.type.dtype)
        if given is None or not self._is_like_data(given):
            return []
        at_zero, at_nan = _SLOPES[how]
        op = GpuDnnBatchNormActivationGrad(
            user.op.mode, axes=user.op.axes, slope_at_zero=at_zero, slope_at_nan=at_nan
        )
        _, new_mean, new_invstd, *_, offsets = new.outputs
        results = op.make_node(x, given, scale, new_mean, new_invstd, offsets).outputs
        return list(zip(user.outputs, results, strict=True))

    def _from_result(
        self, loop: Loop, results: dict[Variable, Any], how: str, replaced: dict[Any, Any]
    ) -> Pairs:
        """Compute elementwise results with the mask from the result of relu."""
        if how not in _OF_RESULT:
            raise _RefusedError
        self.masked += 1
        dtypes = [old.type.dtype for old in results]
        found = loop.applied(list(results.values()), replaced, dtypes)
        return list(zip(results, found, strict=True))
