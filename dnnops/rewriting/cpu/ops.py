"""Replace abstract Ops that stay on the CPU with oneDNN Ops."""

from __future__ import annotations

import warnings
from typing import Any

from pytensor import config
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import (
    GraphRewriter,
    copy_stack_trace,
    dfs_rewriter,
    node_rewriter,
)
from pytensor.tensor import subtensor as indexing
from pytensor.tensor.basic import AllocEmpty, cast
from pytensor.tensor.blas import Dot22, Dot22Scalar, Gemm
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.math import Dot, Sum
from pytensor.tensor.shape import shape_i
from pytensor.tensor.subtensor import AdvancedIncSubtensor
from pytensor.tensor.type import integer_dtypes

from dnnops.compat import existing
from dnnops.cpu.add_rows import DTYPES as ADDED_DTYPES
from dnnops.cpu.add_rows import CpuAddRows
from dnnops.cpu.base import OneDnnOp, onednn_available
from dnnops.cpu.elemwise import CpuElemwise, is_supported
from dnnops.cpu.gemm import OneDnnDot, OneDnnGemm
from dnnops.cpu.sum import CpuSum, kept_axes
from dnnops.errors import DnnRequiredError
from dnnops.rewriting.cpu.activation import local_elemwise_activation
from dnnops.rewriting.registry import cpu_implementation, cpu_implementations
from dnnops.runtime.implementations import BuildContext
from dnnops.runtime.op import MAX_NDIM

__all__ = ["local_to_onednn"]


@node_rewriter(list(cpu_implementations()))
def local_to_onednn(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
    """Replace an abstract Op with its CPU implementation.

    float16 is computed in float32.
    """
    implementation = cpu_implementation(node)
    if implementation is None:
        return None
    inputs: list[Any] = [
        cast(x, "float32") if x.type.dtype == "float16" else x for x in node.inputs
    ]
    outputs = implementation.build(node.op, inputs, BuildContext())
    if outputs is None:
        return None
    outputs = [cast(new, old.type.dtype) for new, old in zip(outputs, node.outputs, strict=True)]
    copy_stack_trace(node.outputs, outputs)
    return outputs


@node_rewriter([Dot, Dot22, Dot22Scalar, Gemm, Sum])
def local_dense_to_onednn(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
    """Replace a float32 matrix product or sum with an Op that uses oneDNN's threads."""
    if any(x.type.dtype != "float32" for x in (*node.inputs, *node.outputs)):
        return None
    if isinstance(node.op, Sum):
        ndim = node.inputs[0].type.ndim
        kept = kept_axes(ndim, node.op.axis)
        if ndim > MAX_NDIM or kept is None or kept == (0, ndim):
            return None
        output = CpuSum(*kept)(*node.inputs)
    elif isinstance(node.op, Gemm):
        output = OneDnnGemm(node.op.inplace)(*node.inputs)
    elif isinstance(node.op, Dot22Scalar):
        x, y, scale = node.inputs
        result = AllocEmpty("float32")(shape_i(x, 0, fgraph), shape_i(y, 1, fgraph))
        output = OneDnnGemm()(result, scale, x, y, 0.0)
    elif all(x.type.ndim == 2 for x in node.inputs):
        output = OneDnnDot()(*node.inputs)
    else:
        return None
    copy_stack_trace(node.outputs[0], output)
    return [output]


@node_rewriter([AdvancedIncSubtensor, *existing(indexing, "AdvancedIncSubtensor1")])
def local_add_rows(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
    """Replace an addition to rows that a vector of indices selects.

    PyTensor calls NumPy for arrays of more than one axis.
    """
    op: Any = node.op
    x, rows, *indices = node.inputs
    if (
        op.set_instead_of_inc
        or getattr(op, "ignore_duplicates", False)
        or getattr(op, "idx_list", (0,)) != (0,)
        or indices[0].type.ndim != 1
        or indices[0].type.dtype not in integer_dtypes
        or not 1 < x.type.ndim <= MAX_NDIM
        or rows.type.ndim != x.type.ndim
        or {x.type.dtype, rows.type.dtype} not in ({dtype} for dtype in ADDED_DTYPES)
        # Rows that are broadcast.
        or any(
            own == 1 and other != 1
            for own, other in zip(
                rows.type.shape, (*indices[0].type.shape, *x.type.shape[1:]), strict=True
            )
        )
    ):
        return None
    output = CpuAddRows(op.inplace)(x, rows, indices[0])
    copy_stack_trace(node.outputs[0], output)
    return [output]


@node_rewriter([Elemwise])
def local_elemwise_to_cpu(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
    """Replace an elementwise Op with one that uses all cores."""
    if not is_supported(node):
        return None
    outputs = (
        CpuElemwise(node.op.scalar_op, node.op.inplace_pattern).make_node(*node.inputs).outputs
    )
    copy_stack_trace(node.outputs, outputs)
    return outputs


class ElemwiseToCpu(GraphRewriter):
    """Apply `local_elemwise_to_cpu` to graphs with Ops of oneDNN."""

    def __init__(self) -> None:
        super().__init__()
        self._substitute = dfs_rewriter(local_elemwise_to_cpu)

    def apply(self, fgraph: FunctionGraph) -> None:
        """Rewrite `fgraph`."""
        if any(isinstance(node.op, OneDnnOp) for node in fgraph.apply_nodes):
            self._substitute.apply(fgraph)


class ToOneDnn(GraphRewriter):
    """Apply this module's rewrites to graphs with Ops that they replace, if oneDNN is available."""

    def __init__(self) -> None:
        super().__init__()
        self._substitute = dfs_rewriter(local_to_onednn)
        self._substitute_beside = dfs_rewriter(
            local_dense_to_onednn, local_add_rows, local_elemwise_activation
        )
        self._warned = False

    def apply(self, fgraph: FunctionGraph) -> None:
        if not any(cpu_implementation(node) for node in fgraph.apply_nodes):
            return
        available, reason = onednn_available()
        if available:
            self._substitute.apply(fgraph)
            # Only next to other oneDNN Ops: on its own, PyTensor's BLAS is as fast, and graphs that
            # are not neural networks stay unchanged.
            if any(isinstance(node.op, OneDnnOp) for node in fgraph.apply_nodes):
                self._substitute_beside.apply(fgraph)
            return
        if "onednn" in config.optimizer_including.split(":"):
            raise DnnRequiredError(
                f"optimizer_including=onednn, but oneDNN cannot be used: {reason}"
            )
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"oneDNN cannot be used: neural-network Ops run as plain NumPy, slowly. {reason}",
                stacklevel=2,
            )


@node_rewriter(None)
def local_onednn_inplace(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
    """Let an Op overwrite one of its operands."""
    if not isinstance(node.op, OneDnnOp) or node.op.destroy_map:
        return None
    for op in node.op.inplace_versions():
        outputs = op.make_node(*node.inputs).outputs
        copy_stack_trace(node.outputs, outputs)
        return outputs
    return None
