"""Run convolutions on a GPU and with the oracle, in any direction, dtype and memory format."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dnnops.gpu.conv import GpuDnnConv, GpuDnnConvGradI, GpuDnnConvGradW
from dnnops.nnet.conv.op import Conv, ConvGradInputs, ConvGradWeights
from tests.gpu.device import on_gpu, rounded
from tests.oracle import ConvCase, run_op

#: The cuDNN Ops with the corresponding abstract Ops, by direction.
PAIRS = (
    (GpuDnnConv, Conv),
    (GpuDnnConvGradI, ConvGradInputs),
    (GpuDnnConvGradW, ConvGradWeights),
)
NAMES = [pair[0].__name__ for pair in PAIRS]
every_op = pytest.mark.parametrize("index", range(3), ids=NAMES)


def operands(case: ConvCase, index: int, integers: bool = False) -> tuple:
    """Return the Op's arrays, in float64, and its sizes."""
    img, kern, top = case.arrays("float64", integers)
    return (
        (img, kern),
        (kern, top, np.array(case.img_shape[2:])),
        (img, top, np.array(case.kern_shape[2:])),
    )[index]


def result_shape(case: ConvCase, index: int) -> tuple[int, ...]:
    """Return the shape of the Op's result."""
    return (case.top_shape, case.img_shape, case.kern_shape)[index]


def in_dtype(arrays: tuple, dtype: str) -> list[np.ndarray]:
    """Round the arrays' values to a dtype and return them as float64; sizes stay as they are."""
    return [rounded(a, dtype) if a.dtype.kind == "f" else a for a in arrays]


def moved(arrays: Any, dtype: str, memory_format: str = "contiguous") -> list:
    """Copy the arrays to the device; sizes stay as they are."""
    return [on_gpu(a, dtype, memory_format) if a.dtype.kind == "f" else a for a in arrays]


def reference(case: ConvCase, index: int, arrays: Any) -> np.ndarray:
    """Return the oracle's result."""
    return run_op(PAIRS[index][1](**case.params), *arrays)


def large_case(**params: Any) -> ConvCase:
    """Return a convolution whose algorithms differ in workspace and speed."""
    return ConvCase(
        **{
            "img_shape": (8, 32, 30, 30),
            "kern_shape": (16, 32, 5, 5),
            "border_mode": ((2, 2), (2, 2)),
            "subsample": (1, 1),
            "filter_flip": True,
            "filter_dilation": (1, 1),
            "num_groups": 1,
            "seed": 1,
            **params,
        }
    )
