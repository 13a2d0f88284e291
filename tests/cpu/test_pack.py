"""Copies of arrays with any strides and dtype, compiled separately."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytensor
import pytest

from dnnops.dtypes import DTYPE_CODES
from dnnops.runtime.build import c_code_dir
from dnnops.runtime.headers import structure
from tests.host_libraries import compile_once

SOURCE = """
#include "cpu/base/pack.hpp"
extern "C" void run_pack(const dnnops_tensor *from, void *to, int flip) {
  dnnops::pack(*from, to, flip);
}
extern "C" void run_unpack(const void *from, const dnnops_tensor *to, int flip) {
  dnnops::unpack(from, *to, flip);
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder: Path = tmp_path_factory.mktemp("pack")
    (folder / "run_pack.cpp").write_text(SOURCE)
    runtime = c_code_dir()
    compile_once(
        [
            *(pytensor.config.cxx, "-std=c++17", "-O1", "-shared", "-fPIC", "-fopenmp"),
            *(f"-I{runtime}", "-o", "pack.so", "run_pack.cpp"),
            str(runtime / "cpu" / "base" / "pack.cpp"),
        ],
        folder,
    )
    return ctypes.CDLL(str(folder / "pack.so"))


def describe(array: np.ndarray, dtype: str) -> Any:
    tensor = structure("dnnops_tensor")(array.ctypes.data, DTYPE_CODES[dtype], array.ndim)
    tensor.shape[: array.ndim] = array.shape
    tensor.strides[: array.ndim] = array.strides
    return tensor


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("dtype", DTYPE_CODES)
def test_every_dtype(library, dtype, flip):
    rng = np.random.default_rng(0)
    bits = "uint16" if dtype == "bfloat16" else dtype
    for shape in ((7,), (3, 5), (4, 3, 6), (2, 3, 4, 5), (2, 1, 3, 2, 4), (3, 0, 2)):
        plain = rng.integers(0, 2 if dtype == "bool" else 100, shape).astype(bits)
        apart = np.repeat(plain, 2, axis=-1)[..., ::2]
        for array in (plain, apart, np.flip(plain), plain.T.copy().T):
            # Memory behind the copy must not change.
            guarded = np.full(array.size * array.itemsize + 64, 0xA5, "uint8")
            to = guarded[: array.size * array.itemsize].view(bits).reshape(shape)
            library.run_pack(
                ctypes.byref(describe(array, dtype)), ctypes.c_void_p(to.ctypes.data), flip
            )
            spatial = tuple(range(2, array.ndim))
            expected = np.flip(array, spatial) if flip and spatial else array
            np.testing.assert_array_equal(to, expected)
            assert (guarded[array.size * array.itemsize :] == 0xA5).all()
            found = np.zeros_like(array) if array is plain else np.flip(np.zeros_like(array))
            described = ctypes.byref(describe(found, dtype))
            library.run_unpack(ctypes.c_void_p(to.ctypes.data), described, flip)
            np.testing.assert_array_equal(found, array)
