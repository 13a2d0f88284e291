"""Stabilize logarithms of cuDNN softmaxes."""

from __future__ import annotations

from typing import Any

from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import copy_stack_trace, node_rewriter
from pytensor.scalar.basic import Reciprocal, TrueDiv
from pytensor.tensor.basic import ones_like
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.math import log

from dnnops.gpu.softmax import GpuDnnSoftmax, GpuDnnSoftmaxGrad
from dnnops.gpuarray.transfer import GpuFromHost, HostFromGpu, host_from_gpu, to_device

# PyTensor does the same for its own softmax. Without it, the logarithm of a softmax that underflows
# to zero would be infinite, and its gradient NaN.


def _softmax_of(x: Any) -> Any:
    """Return the cuDNN softmax node that `x` is a host copy of, or None."""
    if x.owner is None or not isinstance(x.owner.op, HostFromGpu):
        return None
    node = x.owner.inputs[0].owner
    is_one = node is not None and type(node.op) is GpuDnnSoftmax and node.op.algo != "log"
    return node if is_one else None


def _log_softmax(node: Apply) -> Any:
    op: Any = GpuDnnSoftmax("log", node.op.mode, node.op.axis)
    return op(*node.inputs)


@node_rewriter([log])
def local_log_of_softmax(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
    """Replace ``log(GpuDnnSoftmax('accurate')(x))`` with ``GpuDnnSoftmax('log')(x)``."""
    softmax = _softmax_of(node.inputs[0])
    if softmax is None or node.outputs[0].type.dtype != node.inputs[0].type.dtype:
        return None
    result = host_from_gpu(_log_softmax(softmax))
    copy_stack_trace(node.outputs[0], result)
    return [result]


@node_rewriter([GpuDnnSoftmaxGrad])
def local_gradient_of_log_of_softmax(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
    """Replace a softmax gradient applied to ``gz / softmax`` with a log-softmax gradient."""
    gradient, out = node.inputs
    transfer = gradient.owner
    if node.op.algo == "log" or transfer is None or not isinstance(transfer.op, GpuFromHost):
        return None
    quotient = transfer.inputs[0].owner
    if quotient is None or not isinstance(quotient.op, Elemwise):
        return None
    if not isinstance(quotient.op.scalar_op, TrueDiv | Reciprocal):
        return None
    divisor = quotient.inputs[-1]
    softmax = _softmax_of(divisor)
    if softmax is None or softmax.outputs[0] is not out:
        return None
    dividend = quotient.inputs[0] if len(quotient.inputs) == 2 else None
    if dividend is None:
        dividend = ones_like(divisor)
    elif dividend.type.broadcastable != divisor.type.broadcastable:
        dividend = dividend * ones_like(divisor)
    op: Any = GpuDnnSoftmaxGrad("log", node.op.mode, node.op.axis)
    result = op(to_device(dividend, out.type.device), _log_softmax(softmax))
    copy_stack_trace(node.outputs[0], result)
    return [result] if result.type.dtype == node.outputs[0].type.dtype else None
