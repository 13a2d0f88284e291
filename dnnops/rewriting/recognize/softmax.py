"""Recognize softmax, log-softmax and their gradients, so that a library can compute them.

PyTensor writes the gradients as arithmetic: ``gz * sm - sm * sum(gz * sm)`` is the gradient of a
softmax ``sm``, and ``gz - sum(gz) * sm`` is the gradient of its logarithm. They are recognized
after PyTensor has simplified and stabilized the graph. Before that, the gradient of
``log(softmax(x))`` divides by the softmax, which is unstable.

Operands that broadcast are written out, since the Ops take arrays of one shape.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import NodeRewriter, copy_stack_trace, node_rewriter
from pytensor.scalar.basic import Exp, Mul
from pytensor.tensor.basic import cast, ones_like
from pytensor.tensor.math import mul, sub, true_div
from pytensor.tensor.rewriting.basic import register_stabilize
from pytensor.tensor.special import LogSoftmax, Softmax

from dnnops.cpu.softmax import neighboring_axes
from dnnops.nnet.activation.softmax import LogSoftmaxGrad, SoftmaxGrad, WholeSoftmax
from dnnops.rewriting.recognize.matching import Slot, match
from dnnops.rewriting.recognize.views import View, inputs_of, is_sum, kept_sum_of
from dnnops.runtime.op import MAX_NDIM

__all__ = [
    "LocalSoftmaxGrad",
    "LocalWholeSoftmax",
    "local_softmax_of_exponentials",
    "softmax_axes",
    "softmax_gradient_of",
]


def _is_softmax(view: View) -> bool:
    node = view.variable.owner
    return view.is_whole and node is not None and type(node.op) is Softmax


#: The sum is that of the minuend: ``gz * softmax``, or ``gz`` for the logarithm.
_GRADIENT = Slot("minuend") - Slot("softmax", _is_softmax) * Slot("sum", is_sum)


def softmax_axes(axis: tuple[int, ...] | None, ndim: int) -> tuple[int, ...] | None:
    """Return the axes of a softmax in ascending order, or None if no library supports them."""
    if ndim > MAX_NDIM:
        return None
    axes = tuple(range(ndim)) if axis is None else tuple(sorted(a % ndim for a in axis))
    return axes or None


def softmax_gradient_of(x: Any) -> tuple[Any, Any, tuple[int, ...]] | None:
    """Read the gradient of a softmax or of its logarithm.

    Returns
    -------
    tuple of Variable, Variable and tuple of int, or None
        The minuend, the softmax and its axes.
    """
    found = match(_GRADIENT, x)
    if found is None:
        return None
    minuend, sm = x.owner.inputs[0], found["softmax"].variable
    axis = softmax_axes(sm.owner.op.axis, sm.type.ndim)
    summand, summed = kept_sum_of(found["sum"]) or (None, None)
    return (minuend, sm, axis) if axis and summed == axis and summand is minuend else None


def _with_neighbors(
    op: Callable[[tuple[int, ...]], Any], axes: tuple[int, ...], *inputs: Any
) -> Variable:
    """Apply an Op over `axes`, which are moved to the end if they are not adjacent."""
    ndim = inputs[0].type.ndim
    if neighboring_axes(axes, ndim) is not None:
        return op(axes)(*inputs)
    order = [*(i for i in range(ndim) if i not in axes), *axes]
    moved = op(tuple(range(ndim - len(axes), ndim)))(*(x.dimshuffle(order) for x in inputs))
    return moved.dimshuffle([order.index(i) for i in range(ndim)])


class _OfDtypes(NodeRewriter):
    """Base of rewrites of some dtypes.

    Parameters
    ----------
    takes_dtype : callable
        Function that takes a dtype and returns whether to rewrite nodes of that dtype.
    """

    def __init__(self, takes_dtype: Callable[[str], bool]):
        super().__init__()
        self.takes_dtype = takes_dtype


class LocalSoftmaxGrad(_OfDtypes):
    """Replace the arithmetic of a softmax gradient with `SoftmaxGrad` or `LogSoftmaxGrad`."""

    def tracks(self) -> list[Any]:
        return [sub]

    def transform(
        self, fgraph: FunctionGraph, node: Apply, enforce_tracks: bool = False
    ) -> list[Variable] | None:
        if node.op != sub or not self.takes_dtype(node.outputs[0].type.dtype):
            return None
        found = softmax_gradient_of(node.outputs[0])
        if found is None:
            return None
        minuend, sm, axis = found
        if minuend.type.dtype != sm.type.dtype:
            return None
        result = self._grad(minuend, sm, axis)
        if result is None or result.type.dtype != node.outputs[0].type.dtype:
            return None
        copy_stack_trace(node.outputs[0], result)
        return [result]

    def _grad(self, minuend: Variable, sm: Variable, axis: tuple[int, ...]) -> Variable | None:
        others = inputs_of(minuend, Mul) or [minuend]
        if sm in others:
            others.remove(sm)
            gz: Any = mul(*others) if len(others) > 1 else others[0] if others else ones_like(sm)
            if gz.type.dtype != sm.type.dtype:  # a condition, as in the gradient of a maximum
                gz = cast(gz, sm.type.dtype)
            # The product broadcasts its factors before it is summed.
            return _with_neighbors(SoftmaxGrad, axis, *_broadcast(gz, sm))
        shape = _broadcast_type(minuend, sm)
        if any(minuend.type.broadcastable[i] != shape[i] for i in axis):
            return None  # broadcasting it would add its elements to the sum more than once
        log_sm = LogSoftmax(axis=axis)(sm.owner.inputs[0])
        return _with_neighbors(LogSoftmaxGrad, axis, *_broadcast(minuend, log_sm))


def _broadcast_type(*operands: Any) -> tuple[bool, ...]:
    """Return the axes on which all operands have size 1."""
    patterns = (x.type.broadcastable for x in operands)
    return tuple(all(of_axis) for of_axis in zip(*patterns, strict=True))


def _broadcast(x: Any, y: Any) -> list[Any]:
    """Return two operands with one shape, as arithmetic would broadcast them."""
    shape = _broadcast_type(x, y)
    pairs = ((x, y), (y, x))
    return [
        own if own.type.broadcastable == shape else own * ones_like(other) for own, other in pairs
    ]


class LocalWholeSoftmax(_OfDtypes):
    """Replace PyTensor's Softmax and LogSoftmax with `WholeSoftmax`, which is not inlined."""

    def tracks(self) -> list[Any]:
        return [Softmax, LogSoftmax]

    def transform(
        self, fgraph: FunctionGraph, node: Apply, enforce_tracks: bool = False
    ) -> list[Variable] | None:
        if type(node.op) not in (Softmax, LogSoftmax):
            return None
        (x,) = node.inputs
        axis = softmax_axes(node.op.axis, x.type.ndim)
        if axis is None or not self.takes_dtype(x.type.dtype):
            return None
        log = type(node.op) is LogSoftmax
        result = _with_neighbors(lambda axes: WholeSoftmax(axes, log), axis, x)
        copy_stack_trace(node.outputs[0], result)
        return [result]


@register_stabilize("symbolic_op_recognition")
@node_rewriter([true_div])
def local_softmax_of_exponentials(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
    """Replace ``exp(x) / sum(exp(x), keepdims=True)`` with a softmax, which cannot overflow.

    PyTensor's rewrite does not ask whether the axes of the sum are kept; see
    `dnnops.rewriting.faults`.
    """
    exponentials, total = node.inputs
    exponents = inputs_of(exponentials, Exp)
    summand, axes = kept_sum_of(View.of(total)) or (None, ())
    if exponents is None or summand is not exponentials or not axes:
        return None
    (x,) = exponents
    if x.type.dtype != node.outputs[0].type.dtype or not x.type.dtype.startswith("float"):
        return None
    result = Softmax(axis=axes)(x)
    copy_stack_trace(node.outputs[0], result)
    return [result]
