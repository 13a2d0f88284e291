"""Convolutions on a GPU and on the oracle: operands of any direction, dtype and memory format."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dnnops.gpu.conv import GpuDnnConv, GpuDnnConvGradI, GpuDnnConvGradW
from dnnops.nnet.conv.op import Conv, ConvGradInputs, ConvGradWeights
from tests.gpu.device import on_gpu, rounded
from tests.oracle import ConvCase, run_op

#: The Ops on cuDNN with the abstract ones, by direction.
PAIRS = (
    (GpuDnnConv, Conv),
    (GpuDnnConvGradI, ConvGradInputs),
    (GpuDnnConvGradW, ConvGradWeights),
)
NAMES = [pair[0].__name__ for pair in PAIRS]
every_op = pytest.mark.parametrize("index", range(3), ids=NAMES)


def operands(case: ConvCase, index: int, integers: bool = False) -> tuple:
    """The Op's arrays, in float64, and sizes."""
    img, kern, top = case.arrays("float64", integers)
    return (
        (img, kern),
        (kern, top, np.array(case.img_shape[2:])),
        (img, top, np.array(case.kern_shape[2:])),
    )[index]


def result_shape(case: ConvCase, index: int) -> tuple[int, ...]:
    """The shape of what the Op computes."""
    return (case.top_shape, case.img_shape, case.kern_shape)[index]


def in_dtype(arrays: tuple, dtype: str) -> list[np.ndarray]:
    """The arrays' values in a dtype, as float64; sizes as they are."""
    return [rounded(a, dtype) if a.dtype.kind == "f" else a for a in arrays]


def moved(arrays: Any, dtype: str, memory_format: str = "contiguous") -> list:
    """The arrays on the device; sizes as they are."""
    return [on_gpu(a, dtype, memory_format) if a.dtype.kind == "f" else a for a in arrays]


def reference(case: ConvCase, index: int, arrays: Any) -> np.ndarray:
    """The oracle's result."""
    return run_op(PAIRS[index][1](**case.params), *arrays)


def large_case(**params: Any) -> ConvCase:
    """A convolution of which algorithms differ in workspace and speed."""
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
