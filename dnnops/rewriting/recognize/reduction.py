"""Recognize norms on the GPU: sums of squares, sums and maxima of absolute values.

PyTensor does not fuse elementwise operations with GPU reductions, so a sum of squares would write
the squares to memory and read them back. Here they become part of the reduction. The square root of
a norm is left to elementwise fusion.
"""

from __future__ import annotations

from typing import Any

from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import copy_stack_trace, node_rewriter
from pytensor.scalar.basic import Abs, Add, ScalarMaximum, Sqr

from dnnops.dtypes import FLOAT_DTYPES
from dnnops.gpu.library import cudnn_usable
from dnnops.gpu.reduction import GpuDnnReduction
from dnnops.gpuarray.elemwise import GpuElemwise
from dnnops.gpuarray.reduction import GpuCAReduce

__all__ = ["CUDNN_REDUCTIONS", "cudnn_reduction", "local_gpu_norm"]

#: Pairs of a cuDNN reduction and a kind of axes ('all', 'first', 'last' or 'other') for which it is
#: faster than the dnnops kernel, as measured by ``benchmarks/small_ops.py``.
CUDNN_REDUCTIONS: frozenset[tuple[str, str]] = frozenset()

_PREMAPS = {(Add, Abs): "abs", (ScalarMaximum, Abs): "abs", (Add, Sqr): "sqr"}
_NAMES = {(Add, "abs"): "norm1", (ScalarMaximum, "abs"): "absmax"}


def axes_kind(axes: tuple[int, ...], ndim: int) -> str:
    """Return where the reduced axes are: 'all', 'first', 'last' or 'other'."""
    if len(axes) == ndim:
        return "all"
    if axes == tuple(range(len(axes))):
        return "first"
    return "last" if axes == tuple(range(ndim - len(axes), ndim)) else "other"


def cudnn_reduction(op: GpuCAReduce, x: Any, out: Any) -> GpuDnnReduction | None:
    """Return the equivalent cuDNN reduction if it is faster.

    Parameters
    ----------
    op : GpuCAReduce
        Norm.
    x, out : GpuArrayVariable
        Operand and result of the norm.

    Returns
    -------
    GpuDnnReduction or None
        None if the reduction is not faster, or if cuDNN does not support the accumulator dtype of
        the graph.
    """
    host, ndim, dtype = op.host_op, x.type.ndim, x.type.dtype
    name = _NAMES.get((type(host.scalar_op), op.premap))
    axes = tuple(range(ndim)) if host.axis is None else tuple(sorted(host.axis))
    if name is None or (name, axes_kind(axes, ndim)) not in CUDNN_REDUCTIONS:
        return None
    own = "float64" if dtype == "float64" else "float32"
    accumulates = name != "absmax" and (host.acc_dtype or out.type.dtype) != own
    if dtype == "bfloat16" or ndim > 8 or accumulates or out.type.dtype != dtype:
        return None
    return GpuDnnReduction(name, axes) if cudnn_usable(x.type.device)[0] else None


@node_rewriter([GpuCAReduce])
def local_gpu_norm(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
    """Fuse squares and absolute values with the reduction that uses them."""
    op = node.op
    if op.premap is not None:
        return None
    (mapped,) = node.inputs
    inner = mapped.owner
    if inner is None or not isinstance(inner.op, GpuElemwise) or len(inner.inputs) != 1:
        return None
    premap = _PREMAPS.get((type(op.host_op.scalar_op), type(inner.op.scalar_op)))
    (x,) = inner.inputs
    if (
        premap is None
        or x.type.dtype not in FLOAT_DTYPES
        or mapped.type.dtype != ("float32" if x.type.dtype == "bfloat16" else x.type.dtype)
        # If the mapped array is needed anyway, reading it costs nothing extra.
        or len(fgraph.clients[mapped]) > 1
    ):
        return None
    new = GpuCAReduce(op.host_op, premap)
    (old,) = node.outputs
    faster = cudnn_reduction(new, x, old)
    result = faster(x) if faster is not None else new.make_node(x).outputs[0]
    if result.type.dtype != old.type.dtype:
        return None
    copy_stack_trace(old, result)
    return [result]
