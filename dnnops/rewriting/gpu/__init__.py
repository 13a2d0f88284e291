"""Replace abstract Ops with cuDNN Ops in graphs that move to the GPU.

Each file registers the lifters of one operation. The pass in `dnnops.rewriting.move.lifting` calls
them with operands on the device and handles transfers.
"""

from __future__ import annotations

from dnnops.rewriting.gpu import (
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
from dnnops.rewriting.gpu.required import RequireCudnn

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
