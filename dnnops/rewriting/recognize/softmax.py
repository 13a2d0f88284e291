"""Recognize softmax, log-softmax and their gradients, so that a library can compute them.

PyTensor writes the gradients as arithmetic: ``gz * sm - sm * sum(gz * sm)`` is the gradient of a
softmax ``sm``, and ``gz - sum(gz) * sm`` is the gradient of its logarithm. They are recognized
after PyTensor has simplified and stabilized the graph. Before that, the gradient of
``log(softmax(x))`` divides by the softmax, which is unstable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import NodeRewriter, copy_stack_trace
from pytensor.scalar.basic import Mul
from pytensor.tensor.basic import cast, ones_like
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.math import Sum, mul, sub
from pytensor.tensor.special import LogSoftmax, Softmax

from dnnops.cpu.softmax import neighboring_axes
from dnnops.nnet.activation.softmax import LogSoftmaxGrad, SoftmaxGrad, WholeSoftmax
from dnnops.runtime.op import MAX_NDIM

__all__ = ["LocalSoftmaxGrad", "LocalWholeSoftmax"]


def _factors(x: Variable) -> list[Variable]:
    """Return the factors of a product, or the variable itself if it is not a product."""
    if (
        x.owner is not None
        and isinstance(x.owner.op, Elemwise)
        and isinstance(x.owner.op.scalar_op, Mul)
    ):
        return list(x.owner.inputs)
    return [x]


def _summed(x: Variable, axis: tuple[int, ...]) -> Variable | None:
    """Return the summand if `x` is a sum over `axis` with the axes kept, else None."""
    if x.owner is None or not isinstance(x.owner.op, DimShuffle):
        return None
    total = x.owner.inputs[0]
    if total.owner is None or not isinstance(total.owner.op, Sum):
        return None
    summand = total.owner.inputs[0]
    ndim = summand.type.ndim
    summed = total.owner.op.axis
    summed = tuple(range(ndim)) if summed is None else tuple(sorted(summed))
    kept = iter(range(total.type.ndim))
    order = tuple("x" if i in summed else next(kept) for i in range(ndim))
    return summand if summed == axis and x.owner.op.new_order == order else None


def _axes(axis: tuple[int, ...] | None, ndim: int) -> tuple[int, ...] | None:
    """Return the axes of a softmax in ascending order, or None if no library supports them."""
    if ndim > MAX_NDIM:
        return None
    axes = tuple(range(ndim)) if axis is None else tuple(sorted(a % ndim for a in axis))
    return axes or None


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


def _product(factors: list[Variable]) -> Variable:
    return factors[0] if len(factors) == 1 else mul(*factors)


class LocalSoftmaxGrad(NodeRewriter):
    """Replace the arithmetic of a softmax gradient with `SoftmaxGrad` or `LogSoftmaxGrad`.

    Parameters
    ----------
    takes_dtype : callable
        Function that takes a dtype and returns whether to replace gradients of that dtype.
    """

    def __init__(self, takes_dtype: Callable[[str], bool]):
        super().__init__()
        self.takes_dtype = takes_dtype

    def tracks(self) -> list[Any]:
        return [sub]

    def transform(
        self, fgraph: FunctionGraph, node: Apply, enforce_tracks: bool = False
    ) -> list[Variable] | None:
        if node.op != sub or not self.takes_dtype(node.outputs[0].type.dtype):
            return None
        minuend, subtrahend = node.inputs
        factors = _factors(subtrahend)
        if len(factors) != 2:
            return None
        for sm, kept_sum in (factors, factors[::-1]):
            if sm.owner is None or type(sm.owner.op) is not Softmax:
                continue
            axis = _axes(sm.owner.op.axis, sm.type.ndim)
            if axis is None or _summed(kept_sum, axis) is not minuend:
                continue
            if minuend.type.dtype != sm.type.dtype:
                return None
            result = self._grad(minuend, sm, axis)
            if result.type.dtype != node.outputs[0].type.dtype:
                return None
            copy_stack_trace(node.outputs[0], result)
            return [result]
        return None

    def _grad(self, minuend: Variable, sm: Variable, axis: tuple[int, ...]) -> Variable:
        others = _factors(minuend)
        if sm in others:
            others.remove(sm)
            gz = _product(others) if others else ones_like(sm)
            if gz.type.dtype != sm.type.dtype:  # a condition, as in the gradient of a maximum
                gz = cast(gz, sm.type.dtype)
            if gz.type.broadcastable != sm.type.broadcastable:
                # The product with the softmax broadcasts gz.
                gz = gz * ones_like(sm)
            return _with_neighbors(SoftmaxGrad, axis, gz, sm)
        log_sm = LogSoftmax(axis=axis)(sm.owner.inputs[0])
        return _with_neighbors(LogSoftmaxGrad, axis, minuend, log_sm)


class LocalWholeSoftmax(NodeRewriter):
    """Replace PyTensor's Softmax and LogSoftmax with `WholeSoftmax`, which is not inlined.

    Parameters
    ----------
    takes_dtype : callable
        Function that takes a dtype and returns whether to replace softmaxes of that dtype.
    """

    def __init__(self, takes_dtype: Callable[[str], bool]):
        super().__init__()
        self.takes_dtype = takes_dtype

    def tracks(self) -> list[Any]:
        return [Softmax, LogSoftmax]

    def transform(
        self, fgraph: FunctionGraph, node: Apply, enforce_tracks: bool = False
    ) -> list[Variable] | None:
        if type(node.op) not in (Softmax, LogSoftmax):
            return None
        (x,) = node.inputs
        axis = _axes(node.op.axis, x.type.ndim)
        if axis is None or not self.takes_dtype(x.type.dtype):
            return None
        log = type(node.op) is LogSoftmax
        result = _with_neighbors(lambda axes: WholeSoftmax(axes, log), axis, x)
        copy_stack_trace(node.outputs[0], result)
        return [result]
