"""Lift spatial transformers and the CTC loss to dnnops kernels."""

from __future__ import annotations

from dnnops.gpu.ctc import GpuCTC
from dnnops.gpu.spatial_transformer import (
    GpuTransformerGradI,
    GpuTransformerGradT,
    GpuTransformerGrid,
    GpuTransformerSampler,
)
from dnnops.nnet.loss.ctc import CTC
from dnnops.nnet.resample.spatial_transformer import (
    SpatialTransformerGrid,
    SpatialTransformerGridGrad,
    SpatialTransformerSampler,
    SpatialTransformerSamplerGrad,
)
from dnnops.rewriting.gpu.mechanism import register_outputs

# These use dnnops kernels, which support cases that cuDNN does not: NaN, infinity, a single row or
# column, labels of any length, other dtypes, and labels that infinite activations rule out.

register_outputs(SpatialTransformerGrid, lambda op: GpuTransformerGrid(), (0,))
register_outputs(SpatialTransformerGridGrad, lambda op: GpuTransformerGradT())
register_outputs(SpatialTransformerSampler, lambda op: GpuTransformerSampler())
register_outputs(SpatialTransformerSamplerGrad, lambda op: GpuTransformerGradI())
register_outputs(CTC, lambda op: GpuCTC(op.with_gradients, op.with_label_lengths), (0,))
