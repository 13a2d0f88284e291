"""Recognize attention that is written out, with its gradients: ``softmax(q @ k.T * s + mask) @ v``.

It is looked for right after the gradients of softmax were, when PyTensor has simplified the graph
and not yet made other Ops of products. What is found is taken with all that uses the weights, or
not at all: there would be an Op for the output, and the weights beside it. Of all gradients, that
by the keys alone isn't found: PyTensor then transposes what the gradient of softmax consists of.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pytensor.compile.mode import optdb
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.fg import FunctionGraph, Output
from pytensor.graph.rewriting.basic import GraphRewriter, copy_stack_trace
from pytensor.graph.rewriting.db import RewriteDatabase
from pytensor.scalar.basic import Add, Mul, TrueDiv
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.math import Dot
from pytensor.tensor.special import Softmax

from dnnops.cudnn.base import cudnn_usable
from dnnops.errors import DnnError
from dnnops.gpuarray.op import is_on_device
from dnnops.gpuarray.transfer import GpuCast, HostFromGpu
from dnnops.nnet.attention import Attention, AttentionGrad
from dnnops.nnet.softmax import SoftmaxGrad
from dnnops.onednn.base import onednn_available
from dnnops.rewriting.lifting import _graph_device

__all__ = ["RecognizeAttention"]

_TRANSPOSED = (0, 1, 3, 2)


def _operands(x: Any, kind: type) -> list[Any] | None:
    """The operands of an elementwise operation of two, if `x` is one."""
    node = x.owner
    if node is None or not isinstance(node.op, Elemwise) or len(node.inputs) != 2:
        return None
    return list(node.inputs) if isinstance(node.op.scalar_op, kind) else None


def _factors(x: Any) -> tuple[Any, Any] | None:
    """The two stacks of matrices whose product `x` is, if it is one."""
    node = x.owner
    if node is None or not isinstance(node.op, Blockwise) or not isinstance(node.op.core_op, Dot):
        return None
    first, second = node.inputs
    return (first, second) if first.type.ndim == second.type.ndim == 4 else None


def _transposed(x: Any) -> Any:
    """What `x` is the transpose of, or None."""
    node = x.owner
    is_transpose = node is not None and isinstance(node.op, DimShuffle)
    return node.inputs[0] if is_transpose and node.op.new_order == _TRANSPOSED else None


def _number(x: Any) -> float | None:
    return float(x.data.item()) if isinstance(x, Constant) and x.data.size == 1 else None


def _scaled(x: Any) -> tuple[float, Any]:
    """The number in a product, 1 if there is none, and what it is multiplied with."""
    if operands := _operands(x, Mul):
        for number, other in (operands, operands[::-1]):
            scale = _number(number)
            if scale is not None:
                return scale, other
    if operands := _operands(x, TrueDiv):
        divisor = _number(operands[1])
        if divisor:
            return 1 / divisor, operands[0]
    return 1.0, x


@dataclass
class _Found:
    """An attention in a graph: its operands, and what is to be replaced."""

    query: Any
    key: Any
    value: Any
    mask: Any
    scale: float
    out: Any
    gout: Any = None
    gradients: dict[str, Any] = field(default_factory=dict)

    def replacements(self) -> list[tuple[Variable, Variable]]:
        optional = () if self.mask is None else ("mask",)
        given = [self.query, self.key, self.value, *([] if self.mask is None else [self.mask])]
        node = Attention(self.scale, False, optional).make_node(*given)
        pairs = [(self.out, node.outputs[0])]
        if self.gradients:
            grad = AttentionGrad(self.scale, False, optional)
            results = grad.make_node(*given, *node.outputs, self.gout).outputs
            named = dict(zip(grad.results, results, strict=True))
            pairs += [(old, named[name]) for name, old in self.gradients.items()]
        for old, new in pairs:
            copy_stack_trace(old, new)
        return pairs


def _scores(x: Any) -> tuple[float, Any, Any, Any] | None:
    """Scale, query, key and mask of scores, if `x` are some."""
    for scores, mask in ((x, None), *(_both_ways(_operands(x, Add)))):
        scale, product = _scaled(scores)
        factors = _factors(product)
        if factors is None:
            continue
        query, turned = factors
        key = _transposed(turned)
        if key is not None:
            return scale, query, key, mask
    return None


def _both_ways(pair: list[Any] | None) -> list[tuple[Any, Any]]:
    return [] if pair is None else [(pair[0], pair[1]), (pair[1], pair[0])]


class _Search:
    """Of the attention whose weights are a softmax's result."""

    def __init__(self, fgraph: FunctionGraph):
        self.fgraph = fgraph

    def clients(self, x: Any) -> list[tuple[Apply, int]]:
        return self.fgraph.clients[x]

    def only(self, x: Any) -> Any:
        """The result of the only node that uses `x`, or None."""
        clients = self.clients(x)
        if len(clients) != 1 or isinstance(clients[0][0].op, Output):
            return None
        return clients[0][0].outputs[0]

    def find(self, node: Apply) -> _Found | None:
        weights = node.outputs[0]
        if weights.type.ndim != 4 or node.op.axis not in ((3,), (-1,)):
            return None
        parts = _scores(node.inputs[0])
        if parts is None:
            return None
        scale, query, key, mask = parts
        found = _Found(query, key, None, mask, scale, None)
        by_scores, by_value = None, None
        for client, place in self.clients(weights):
            if isinstance(client.op, Output):
                return None
            result = client.outputs[0]
            if isinstance(client.op, SoftmaxGrad) and place == 1 and by_scores is None:
                by_scores = client
            elif _transposed(result) is weights and by_value is None:
                by_value = result
            elif (factors := _factors(result)) and place == 0 and found.out is None:
                found.out, found.value = result, factors[1]
            else:
                return None
        if found.out is None or not self._fits(found):
            return None
        complete = self._add_value(found, by_value) and self._add_scores(found, by_scores)
        return found if complete else None

    @staticmethod
    def _fits(found: _Found) -> bool:
        """Whether no operand is broadcast, nor a mask that would make the scores larger."""
        arrays = [found.query, found.key, found.value]
        if any(x.type.broadcastable[:2] != found.query.type.broadcastable[:2] for x in arrays):
            return False
        dtypes = {x.type.dtype for x in arrays}
        if found.mask is not None:
            dtypes.add(found.mask.type.dtype)
            sizes = (*found.query.type.shape[:3], found.key.type.shape[2])
            larger = zip(found.mask.type.shape, sizes, strict=True)
            if any(size == 1 and mask != 1 for mask, size in larger):
                return False
        return len(dtypes) == 1

    def _add_value(self, found: _Found, turned: Any) -> bool:
        """The gradient by values: the product of transposed weights with the output's gradient."""
        if turned is None:
            return True
        result = self.only(turned)
        factors = None if result is None else _factors(result)
        if factors is None or factors[0] is not turned:
            return False
        found.gout, found.gradients["dvalue"] = factors[1], result
        return True

    def _add_scores(self, found: _Found, node: Apply | None) -> bool:
        """The gradients by query and key: products with the gradient by scores."""
        if node is None:
            return True
        factors = _factors(node.inputs[0])
        if factors is None or _transposed(factors[1]) is not found.value:
            return False
        if found.gout is not None and found.gout is not factors[0]:
            return False
        found.gout = factors[0]
        by_scores = node.outputs[0]
        if found.scale != 1.0:
            by_scores = self.only(by_scores)
            if by_scores is None or _scaled(by_scores) != (found.scale, node.outputs[0]):
                return False
        for client, place in self.clients(by_scores):
            if isinstance(client.op, Output):
                return False
            name, result, other = "dquery", client.outputs[0], found.key
            if _transposed(result) is by_scores:
                turned, name, other = result, "dkey", found.query
                result = self.only(turned)
                place = 0
            factors = None if result is None else _factors(result)
            if factors is None or place != 0 or factors[1] is not other or name in found.gradients:
                return False
            found.gradients[name] = result
        return True


def _is_wide(x: Any) -> bool:
    """Whether a host's float32 variable is a device's bfloat16 one."""
    node = x.owner
    if node is None or not isinstance(node.op, HostFromGpu):
        return False
    cast = node.inputs[0].owner
    return (
        cast is not None
        and isinstance(cast.op, GpuCast)
        and cast.inputs[0].type.dtype == "bfloat16"
    )


class RecognizeAttention(GraphRewriter):
    """Put `Attention` and `AttentionGrad` in the place of what they compute.

    Parameters
    ----------
    on_device : bool
        Whether for a GPU, where cuDNN takes float16 and bfloat16; else for the CPU, in float32.
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
            except DnnError:  # sizes that are known not to fit: the graph will tell its user
                continue
            fgraph.replace_all_validate(replacements, reason="recognize_attention")

    def _is_available(self, fgraph: FunctionGraph) -> bool:
        if self.on_device:
            return cudnn_usable(_graph_device(fgraph))[0]
        return onednn_available()[0] and not any(map(is_on_device, fgraph.variables))

    def _takes(self, found: _Found) -> bool:
        dtype = found.query.type.dtype
        if not self.on_device:
            return dtype == "float32"
        arrays = (found.query, found.key, found.value)
        return dtype == "float16" or (dtype == "float32" and all(map(_is_wide, arrays)))


class _Nothing(GraphRewriter):
    def apply(self, fgraph: FunctionGraph) -> None:
        pass


class RecognizeAttentionDB(RewriteDatabase):
    """The entry ``"onednn_attention"`` of PyTensor's database: nothing on the way to a GPU."""

    def query(self, *tags: Any, **kwtags: Any) -> GraphRewriter:
        """Make the rewriter for a query."""
        included = getattr(tags[0], "include", ()) if tags else ()
        return _Nothing() if "gpu" in included else RecognizeAttention(False)


# After the gradients of softmax (1.8), before products become other Ops (2).
optdb.register("onednn_attention", RecognizeAttentionDB(), "fast_run", "onednn", position=1.85)
optdb.register("cudnn_attention", RecognizeAttention(True), "gpu", "cudnn", position=1.85)
