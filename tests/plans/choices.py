"""Cases and plans in the form in which the runtime library passes them to Python."""

from __future__ import annotations

from typing import Any

import numpy as np

from dnnops.gpu.algorithms import parse_algorithm
from dnnops.plans import stored
from dnnops.plans.cache import CachedPlan
from dnnops.runtime.headers import GPU, structure

#: Other conditions on which choices depend, besides the convolution.
DEVICE = {"gpu": "a GPU", "driver": "1.2.3", "cudnn": 91900}


def case_of(**changes: Any) -> Any:
    """Return a convolution as the runtime library describes it."""
    case = structure("dnnops_conv_case", GPU)(
        direction=0, spatial_ndim=2, groups=1, workspace_limit=-1, fixed_scalars=1, alpha=1
    )
    for pairs in (case.stride, case.dilation):
        pairs[:] = [1, 1, 0]
    shapes = ((2, 3, 8, 8), (4, 3, 3, 3), (2, 4, 6, 6))
    for tensor, shape in zip(case.tensors, shapes, strict=True):
        tensor.ndim = 4
        tensor.shape[:4] = shape
        tensor.strides[:4] = [int(np.prod(shape[i + 1 :])) for i in range(4)]
        tensor.alignment = 16
    for name, value in changes.items():
        setattr(case, name, value)
    return case


def stored_plan(name: str, direction: str, milliseconds: float, workspace: int = 0) -> Any:
    plan = CachedPlan(name, milliseconds, workspace)
    return stored.stored_plan(parse_algorithm(name, direction), plan)


def plan_array(length: int) -> Any:
    """Return an array of plans for the runtime library to read or to fill in."""
    return (structure("dnnops_stored_plan", GPU) * length)()
