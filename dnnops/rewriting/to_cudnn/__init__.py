"""Put Ops on cuDNN in the place of abstract ones whose graph moves to the GPU.

Each file registers functions of one operation. They are asked by the pass of
`dnnops.rewriting.lifting`, which hands them operands on the device and deals with transfers.
"""

from __future__ import annotations

from dnnops.rewriting.to_cudnn import (
    attention,
    batchnorm,
    conv,
    elementwise,
    own_kernels,
    pool,
    rnn,
    softmax,
    window_norm,
)
from dnnops.rewriting.to_cudnn.required import RequireCudnn

__all__ = [
    "RequireCudnn",
    "attention",
    "batchnorm",
    "conv",
    "elementwise",
    "own_kernels",
    "pool",
    "rnn",
    "softmax",
    "window_norm",
]
