"""Compile the kernels of the spatial transformer for the host, and run them on NumPy arrays."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np

from dnnops.gpuarray.dtypes import numpy_dtype
from tests.cudnn.host_ctc import build, host_source

KERNELS = (
    *("make_grid", "grid_gradient", "take_samples", "image_gradient", "image_gradient_in_order"),
    *("round_gradient", "points_gradient"),
)
_POINTERS = (
    *("image", "grid", "top", "samples", "by_image", "by_grid", "sums", "theta", "by_theta"),
)
_SIZES = ("batch", "channels", "rows", "columns", "top_rows", "top_columns", "group")


class Params(ctypes.Structure):
    """``SamplerParams``."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in _POINTERS),
        *((name, ctypes.c_longlong) for name in _SIZES),
    ]


def build_sampler(folder: Path, dtypes: tuple[str, ...]) -> ctypes.CDLL:
    """The kernels for some dtypes."""
    sources = [host_source("sampler", "SamplerParams", KERNELS, dtype) for dtype in dtypes]
    return build(folder, "sampler_params.hpp", sources)


class Runner:
    """Runs kernels on arrays of one dtype, as ``spatial_transformer.cpp`` does."""

    def __init__(self, library: ctypes.CDLL, dtype: str):
        self._library = library
        self._name = dtype
        self.dtype = numpy_dtype(dtype)

    def _launch(
        self, kernel: str, threads: int, arrays: dict, block: int = 8, **sizes: int
    ) -> None:
        pointers = {name: array.ctypes.data for name, array in arrays.items()}
        defaults = dict.fromkeys(_SIZES, 1)
        params = Params(**pointers, **{**defaults, **sizes})
        function = getattr(self._library, f"{kernel}_{self._name}")
        shared = 6 * 8 * block if kernel == "grid_gradient" else 0
        assert function(ctypes.byref(params), -(-threads // block), block, shared, 0) == 0, kernel

    def grid(self, theta: np.ndarray, rows: int, columns: int) -> np.ndarray:
        """``make_grid``."""
        out = np.full((len(theta), rows, columns, 2), 7, self.dtype)
        arrays = {"theta": theta.astype(self.dtype), "by_grid": out}
        sizes = {"batch": len(theta), "top_rows": rows, "top_columns": columns}
        self._launch("make_grid", out.size // 2, arrays, **sizes)
        return out

    def grid_gradient(self, dgrid: np.ndarray) -> np.ndarray:
        """``grid_gradient``."""
        out = np.full((len(dgrid), 2, 3), 7, self.dtype)
        arrays = {"grid": np.ascontiguousarray(dgrid.astype(self.dtype)), "by_theta": out}
        batch, rows, columns, _ = dgrid.shape
        sizes = {"batch": batch, "top_rows": rows, "top_columns": columns}
        self._launch("grid_gradient", 8 * batch, arrays, **sizes)
        return out

    def _sizes(self, img: np.ndarray, grid: np.ndarray) -> dict:
        values = (*img.shape, *grid.shape[1:3], 2)
        return dict(zip(_SIZES, values, strict=True))

    def samples(self, img: np.ndarray, grid: np.ndarray) -> np.ndarray:
        """``take_samples``."""
        out = np.full((*img.shape[:2], *grid.shape[1:3]), 7, self.dtype)
        arrays = {"image": img.astype(self.dtype), "grid": grid.astype(self.dtype), "samples": out}
        sizes = self._sizes(img, grid)
        threads = grid.size // 2 * -(-img.shape[1] // 2)
        self._launch("take_samples", threads, arrays, **sizes)
        return out

    def gradients(
        self, img: np.ndarray, grid: np.ndarray, top: np.ndarray, in_order: bool
    ) -> list[np.ndarray]:
        """The gradients by image and grid."""
        wide = "float64" if self._name == "float64" else "float32"
        arrays = {
            "image": img.astype(self.dtype),
            "grid": grid.astype(self.dtype),
            "top": top.astype(self.dtype),
            "by_image": np.full(img.shape, 7, self.dtype),
            "by_grid": np.full(grid.shape, 7, self.dtype),
            "sums": np.zeros(img.shape, wide),
        }
        sizes = self._sizes(img, grid)
        if in_order:
            self._launch("image_gradient_in_order", img.shape[0] * img.shape[1], arrays, **sizes)
        else:
            threads = grid.size // 2 * -(-img.shape[1] // 2)
            self._launch("image_gradient", threads, arrays, **sizes)
        self._launch("round_gradient", img.size, arrays, **sizes)
        self._launch("points_gradient", grid.size // 2, arrays, **sizes)
        return [arrays["by_image"], arrays["by_grid"]]
