"""Stabilize logarithms of cuDNN softmaxes."""

from __future__ import annotations

from typing import Any

import numpy as np
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import copy_stack_trace, node_rewriter
from pytensor.scalar.basic import Cast
from pytensor.tensor.basic import cast, constant, ones_like
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.shape import Reshape

from dnnops.gpu.softmax import GpuDnnSoftmax, GpuDnnSoftmaxGrad
from dnnops.gpuarray.transfer import GpuFromHost, HostFromGpu, host_from_gpu, to_device
from dnnops.rewriting.recognize.quotients import READS, quotient_of, uncast
from dnnops.rewriting.recognize.stable_logarithms import LOGARITHMS
from dnnops.rewriting.recognize.views import inputs_of, kind_of

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


def _log_on_host(x: Any, dtype: str) -> Any:
    node = _softmax_of(x)
    return None if node is None else cast(host_from_gpu(_log_softmax(node)), dtype)


def _logarithm(x: Any, dtype: str) -> Any:
    """Return the logarithm of a cuDNN softmax, or of elements of one, else None."""
    result = None if x.owner is None else _log_on_host(x, dtype)
    if x.owner is None or result is not None:
        return result
    operand = x.owner.inputs[0] if x.owner.inputs else None
    if inputs_of(x, Cast):
        return _logarithm(operand, dtype) if operand.type.dtype.startswith("float") else None
    if type(x.owner.op) in (DimShuffle, Reshape, *READS):
        inner = _logarithm(operand, dtype)
        return None if inner is None else x.owner.op(inner, *x.owner.inputs[1:])
    return None


@node_rewriter([Elemwise])
def local_log_of_softmax(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
    """Replace ``log(GpuDnnSoftmax('accurate')(x))`` with ``GpuDnnSoftmax('log')(x)``."""
    (old,) = node.outputs if len(node.outputs) == 1 else (None,)
    base = LOGARITHMS.get(kind_of(old)) if old is not None else None
    if base is None or old.type.dtype != node.inputs[0].type.dtype:
        return None
    result = _logarithm(node.inputs[0], old.type.dtype)
    if result is None:
        return None
    if base != 1:
        result = result / constant(np.asarray(base, old.type.dtype))
    copy_stack_trace(old, result)
    return [result]


@node_rewriter([GpuDnnSoftmaxGrad])
def local_gradient_of_log_of_softmax(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
    """Replace a softmax gradient applied to ``gz / softmax`` with a log-softmax gradient.

    What else is added to the quotient keeps its softmax gradient.
    """
    gradient, out = node.inputs
    softmax, transfer = out.owner, gradient.owner
    if node.op.algo == "log" or transfer is None or not isinstance(transfer.op, GpuFromHost):
        return None

    def is_softmax(x: Any, is_complement: bool) -> bool:
        return not is_complement and _softmax_of(uncast(x)) is softmax is not None

    found = quotient_of(transfer.inputs[0], is_softmax)
    if found.dividend is None:
        return None
    host = host_from_gpu(out)

    def on_device(x: Any) -> Any:
        if x.type.broadcastable != host.type.broadcastable:
            x = x * ones_like(host)
        return to_device(x, out.type.device)

    op: Any = GpuDnnSoftmaxGrad("log", node.op.mode, node.op.axis)
    result = op(on_device(found.dividend), _log_softmax(softmax))
    if found.rest is not None:
        rest = node.op(on_device(found.rest), out)
        result = to_device(host_from_gpu(result) + host_from_gpu(rest), out.type.device)
    copy_stack_trace(node.outputs[0], result)
    return [result] if result.type.dtype == node.outputs[0].type.dtype else None
