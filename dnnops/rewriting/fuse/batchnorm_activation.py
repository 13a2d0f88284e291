"""Fuse batch normalization on the GPU with the relu and the residual sum that follow it.

The fused Ops save a pass over the arrays in each direction: elementwise relu reads the normalized
data, and writes its result and a mask; its gradient reads the mask and a gradient, and writes
another. The fused gradient computes the mask itself, from arrays that it reads anyway.

After a residual sum, the mask depends on the addend, too, and the shortcut needs the masked
gradient as well. So the fused gradient takes the mask from the result of relu, which the next Op
keeps anyway, and returns the masked gradient, too. If something is in between, relu's gradient
remains an elementwise node that does the same. Reading the result costs a little more than reading
a mask, but nothing has to write the mask.
"""

from __future__ import annotations

from typing import Any

from pytensor.graph.basic import Apply
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import GraphRewriter, copy_stack_trace

from dnnops.gpu.batchnorm import GpuDnnBatchNorm, GpuDnnBatchNormGrad, GpuDnnBatchNormInference
from dnnops.gpu.fused.batchnorm_activation import (
    GpuDnnBatchNormActivation,
    GpuDnnBatchNormActivationGrad,
    GpuDnnBatchNormActivationInference,
)
from dnnops.gpuarray.elemwise import GpuElemwise
from dnnops.gpuarray.op import is_on_device
from dnnops.rewriting.fuse.relu_mask import (
    MOST_MASKED,
    OF_RESULT,
    FollowedByRelu,
    Pairs,
    RefusedError,
)
from dnnops.rewriting.fuse.scalar_graphs import Loop, depends_on, uncast

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
            except RefusedError:
                continue
            for old, replacement in pairs:
                copy_stack_trace(old, replacement)
                order[replacement.owner] = order[old.owner]
            # New nodes have to be in the graph when their operands are replaced.
            pairs.sort(key=lambda pair: -order[pair[0].owner])
            fgraph.replace_all(pairs, reason="fuse_batchnorm_activation")
            found.insert(0, new)


class _Fusion(FollowedByRelu):
    """What replaces a node of batch normalization and the elementwise node that follows it."""

    def __init__(self, fgraph: FunctionGraph, node: Apply):
        super().__init__(fgraph, node)
        users = [(user, i) for user, i in fgraph.clients[self.y]]
        if len({user for user, _ in users}) < len(users):
            raise RefusedError
        if not users or not all(isinstance(user.op, GpuElemwise) for user, _ in users):
            raise RefusedError
        loops = [Loop(user) for user, _ in users]
        found = [k for k, loop in enumerate(loops) if any(map(loop.is_relu_or_sum, loop.outputs))]
        if len(found) != 1:
            raise RefusedError
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
            return new, [*self._plain_pairs(new), *self.as_data(0, new.outputs[0])]
        relus = [k for k, x in enumerate(self.loop.outputs) if self._is_relu(x)]
        if len(relus) != 1:
            raise RefusedError
        new = self._new(relu=True)
        pairs = self._plain_pairs(new) + self.as_data(relus[0], new.outputs[0])
        for k, (old, x) in enumerate(zip(self.user.outputs, self.loop.outputs, strict=True)):
            if k != relus[0] and self.fgraph.clients[old]:
                pairs += self.gradient(new, self.loop, self.subject, old, x)
        for user, loop, y_in in self.others:
            for old, x in zip(user.outputs, loop.outputs, strict=True):
                pairs += self.gradient(new, loop, y_in, old, x)
        if self.masked > MOST_MASKED:
            raise RefusedError
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
        if not self._is_like_data(variable) or depends_on(variable, self.node):
            return False
        self.subject, self.addend = uncast(x), variable
        return True

    def _is_like_data(self, x: Any) -> bool:
        """Return whether `x` is an array on the device with the dtype and the shape of the data."""
        dtype, ones = self.y.type.dtype, self.y.type.broadcastable
        return is_on_device(x) and (x.type.dtype, x.type.broadcastable) == (dtype, ones)

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

    def masked_gradient(self, new: Apply, loop: Loop, old: Any, how: str, array: Any) -> Pairs:
        """Let the gradient of the normalization mask the gradient that is given to it."""
        if not isinstance(new.op, GpuDnnBatchNormActivation):
            return []
        addend = new.op.addend
        if addend and how not in OF_RESULT:
            return []
        try:
            (gradient,) = self.converted(old)
        except (RefusedError, ValueError):
            return []
        users = [user for user, _ in self.fgraph.clients[gradient]]
        given = loop.array(array, self.y.type.dtype)
        if given is None or not self._is_like_data(given) or (len(users) > 1 and not addend):
            return []
        for user in filter(self._is_own_gradient, users):
            x, gout, scale, _, _ = user.inputs
            if gout is not gradient:
                continue
            at_zero, at_nan = _SLOPES[how]
            op = GpuDnnBatchNormActivationGrad(
                user.op.mode,
                axes=user.op.axes,
                slope_at_zero=at_zero,
                slope_at_nan=at_nan,
                addend=addend,
            )
            out, mean, invstd, *others = new.outputs
            last = out if addend else others[-1]
            results = op.make_node(x, given, scale, mean, invstd, last).outputs
            # The gradient with respect to the addend is the masked one.
            olds = [*user.outputs, gradient] if addend else user.outputs
            return list(zip(olds, results, strict=True))
        return []

    def _is_own_gradient(self, user: Apply) -> bool:
        """Return whether a node is the gradient of the normalization."""
        if type(user.op) is not GpuDnnBatchNormGrad or user.op.axes != self.node.op.axes:
            return False
        x, scale, *_ = self.node.inputs
        _, mean, invstd, *_ = self.node.outputs
        own = zip(user.inputs, (x, None, scale, mean, invstd), strict=True)
        return all(a is b for a, b in own if b is not None)
