"""Group normalization and its gradient on the CPU, computed by dnnops loops."""

from __future__ import annotations

import numpy as np

from dnnops.cpu.base import CPU, OneDnnOp
from dnnops.nnet.norm.group_norm import GroupNorm, GroupNormGrad
from dnnops.runtime.implementations import implements

__all__ = ["OneDnnGroupNorm", "OneDnnGroupNormGrad"]


class _OneDnnGroupNormOp(OneDnnOp):
    num_groups: int
    epsilon: float

    def parameters(self) -> list[int]:
        # The order is that of Params in c_code/cpu/norm/group_norm.cpp.
        return [self.num_groups, int(np.float64(self.epsilon).view(np.int64))]


@implements(GroupNorm, on=CPU)
class OneDnnGroupNorm(_OneDnnGroupNormOp, GroupNorm):
    """`GroupNorm` on the CPU, in float32 or float64, with statistics computed in float64."""

    function = "dnnops_onednn_group_norm"


@implements(GroupNormGrad, on=CPU)
class OneDnnGroupNormGrad(_OneDnnGroupNormOp, GroupNormGrad):
    """`GroupNormGrad` on the CPU, in float32 or float64, with sums in float64."""

    function = "dnnops_onednn_group_norm_grad"
