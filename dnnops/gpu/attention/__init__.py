"""Attention on a GPU: with cuDNN's fused engines, tiled dnnops kernels, or matrix products."""

from dnnops.gpu.attention.cudnn import GpuDnnAttention, GpuDnnAttentionGrad
from dnnops.gpu.attention.tiled import GpuTiledAttention, GpuTiledAttentionGrad
from dnnops.gpu.attention.weights import GpuAttentionWeights, GpuAttentionWeightsGrad

__all__ = [
    "GpuAttentionWeights",
    "GpuAttentionWeightsGrad",
    "GpuDnnAttention",
    "GpuDnnAttentionGrad",
    "GpuTiledAttention",
    "GpuTiledAttentionGrad",
]
