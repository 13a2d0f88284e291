"""Cases and plans in the form in which the runtime library passes them to Python."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from dnnops.gpu.algorithms import parse_algorithm
from dnnops.plans import stored as stored_choices

#: Other conditions on which choices depend, besides the convolution.
DEVICE = {"gpu": "a GPU", "driver": "1.2.3", "cudnn": 91900}


def case_of(**changes: Any) -> Any:
    """Return a convolution as the runtime library describes it."""
    case = stored_choices._ConvCase(
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
    words = parse_algorithm(name, direction).spec()
    spec = stored_choices._PlanSpec.from_buffer_copy((ctypes.c_int64 * len(words))(*words))
    return stored_choices._StoredPlan(spec, milliseconds, workspace, name.encode())
