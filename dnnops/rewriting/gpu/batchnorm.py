"""Lift batch normalization and its gradient to the GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import Op

from dnnops.cpu.batchnorm import has_neighboring_statistics
from dnnops.gpu.batchnorm import (
    GpuDnnBatchNorm,
    GpuDnnBatchNormGrad,
    GpuDnnBatchNormInference,
    parameter_dtype,
)
from dnnops.gpuarray.transfer import cast
from dnnops.nnet.norm.batchnorm import BatchNormInference, BatchNormTrain, BatchNormTrainGrad
from dnnops.rewriting.gpu.mechanism import Build, register_own
from dnnops.rewriting.inplace import register_gpu_inplace


def _build_batch_norm(make: Callable[[Any], Any]) -> Build:
    def build(op: Any, inputs: list[Any]) -> list[Variable] | None:
        x = inputs[0]
        if not has_neighboring_statistics(op.axes, x.type.ndim):
            return None
        given = dict(zip(op.operands, inputs, strict=True))
        dtype = given[op.parameter_operands[0]].type.dtype
        wanted = parameter_dtype(x.type.dtype)
        for operand in op.parameter_operands:
            given[operand] = cast(given[operand], wanted)
        results = make(op).make_node(*given.values()).outputs
        return [
            result if is_data else cast(result, dtype)
            for is_data, result in zip(op.data_results, results, strict=True)
        ]

    return build


def _arrays(node: Apply) -> list[int]:
    """Return the indices of the operands of batch normalization that are not scalars."""
    return [i for i, operand in enumerate(node.op.operands) if operand not in node.op.scalars]


for _abstract, _make in (
    (BatchNormTrain, lambda op: GpuDnnBatchNorm("spatial", op.running, axes=op.axes)),
    (BatchNormTrainGrad, lambda op: GpuDnnBatchNormGrad("spatial", axes=op.axes)),
    (BatchNormInference, lambda op: GpuDnnBatchNormInference("spatial", axes=op.axes)),
):
    register_own(_abstract, _build_batch_norm(_make), operands=_arrays)


@register_gpu_inplace(GpuDnnBatchNorm, GpuDnnBatchNormGrad, GpuDnnBatchNormInference)
def inplace_batch_norm(fgraph: FunctionGraph, node: Apply) -> Sequence[Op]:
    """Let batch normalization overwrite its running averages and its input."""
    return node.op.inplace_versions()
