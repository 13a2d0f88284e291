"""Cases of batch normalization and pooling with their data; needs only NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = [
    "EPSILON",
    "gpu_cases",
    "norm_arrays",
    "norm_cases",
    "pool_arrays",
    "pool_cases",
    "pooled_size",
]

SEED = 30
EPSILON = 1e-4

#: Shapes of images, and of the outputs of a dense layer.
NORMALIZED = ((64, 64, 56, 56), (32, 256, 14, 14), (32, 16, 112, 112), (4096, 256), (128, 1024))
SMALL_NORMALIZED = ((4, 3, 8, 8), (16, 5))
#: Kinds of measurements: with the Ops, or of an expression written out.
NORM_KINDS = ("training", "training, written out", "inference", "inference, written out")

#: Shapes for training on a GPU.
GPU_SHAPE, SMALL_GPU_SHAPE = (64, 256, 56, 56), (4, 16, 8, 8)

# mode, shape, window, stride, pad
POOLED = (
    ("max", (32, 64, 112, 112), 3, 2, 1),
    ("max", (32, 64, 56, 56), 2, 2, 0),
    ("average", (32, 64, 56, 56), 2, 2, 0),
    ("average", (32, 192, 28, 28), 3, 1, 1),
    ("average", (32, 512, 7, 7), 7, 1, 0),
)
SMALL_POOLED = (("max", (2, 3, 9, 9), 3, 2, 1), ("average", (2, 3, 8, 8), 2, 2, 0))


def _by(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def norm_cases(small: bool = False) -> list[dict[str, Any]]:
    """Return cases of batch normalization over all axes but the second."""
    return [
        {
            "kind": "normalization",
            "case": f"batch normalization {_by(shape)}, {kind}",
            "shape": shape,
            "training": kind.startswith("training"),
            "written_out": kind.endswith("written out"),
        }
        for shape in (SMALL_NORMALIZED if small else NORMALIZED)
        for kind in NORM_KINDS
    ]


def gpu_cases(small: bool = False) -> list[dict[str, Any]]:
    """Return cases of training on a GPU, in all training dtypes and both memory formats."""
    shape = SMALL_GPU_SHAPE if small else GPU_SHAPE
    return [
        {
            "kind": "normalization",
            "case": f"{_by(shape)}, {dtype}, {memory_format.replace('_', ' ')}",
            "shape": shape,
            "dtype": dtype,
            "memory_format": memory_format,
        }
        for dtype in ("float32", "float16", "bfloat16")
        for memory_format in ("contiguous", "channels_last")
    ]


def pool_cases(small: bool = False) -> list[dict[str, Any]]:
    """Return cases of two-dimensional pooling, alone and with its gradient."""
    return [
        {
            "kind": "pooling",
            "case": f"{mode} pooling {_by(shape)}, {window}x{window}/{stride}, {what}",
            "mode": mode,
            "shape": shape,
            "window": window,
            "stride": stride,
            "pad": pad,
            "training": what == "training",
        }
        for mode, shape, window, stride, pad in (SMALL_POOLED if small else POOLED)
        for what in ("forward", "training")
    ]


def norm_arrays(case: dict[str, Any]) -> dict[str, np.ndarray]:
    """Draw the operands of a normalization: ``x``, ``top``, and the parameters of the channels."""
    rng = np.random.default_rng(SEED)
    shape = case["shape"]
    channels = shape[1]
    return {
        "x": 1 + 2 * rng.standard_normal(shape, dtype="float32"),
        "top": rng.standard_normal(shape, dtype="float32"),
        "gamma": rng.uniform(0.5, 1.5, channels).astype("float32"),
        "beta": rng.standard_normal(channels, dtype="float32"),
        "mean": rng.standard_normal(channels, dtype="float32"),
        "var": rng.uniform(0.5, 1.5, channels).astype("float32"),
    }


def pooled_size(case: dict[str, Any]) -> int:
    """Return the size of the image after pooling."""
    return (case["shape"][-1] + 2 * case["pad"] - case["window"]) // case["stride"] + 1


def pool_arrays(case: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Draw an image, and a gradient with respect to the pooled image."""
    rng = np.random.default_rng(SEED + 1)
    size = pooled_size(case)
    top = rng.standard_normal((*case["shape"][:2], size, size), dtype="float32")
    return rng.standard_normal(case["shape"], dtype="float32"), top
