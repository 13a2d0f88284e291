"""Operands of packed kernels, and their traversal, on the host."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from dnnops.gpuarray import packed
from tests.host_libraries import compile_once

RUN = """
extern "C" void repeat(const float *array, long long first, unsigned run, unsigned count, int n,
                       float *out) {
  auto walk = dnnops_repeat(array, first, run, count);
  for (int k = 0; k < n; ++k) out[k] = walk.next();
}
extern "C" void copy(const float *from, long long first, long long n, float *to) {
  dnnops_store<4>(to, first, n, dnnops_load<4>(from, first, n));
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("packed")
    (folder / "packed.cpp").write_text(f"#define __device__\n{packed._PACKS}{RUN}")
    command = ["g++", "-std=c++17", "-fPIC", "-shared", "-Wall", "-Werror", "packed.cpp"]
    compile_once([*command, "-o", "packed.so"], folder)
    return ctypes.CDLL(str(folder / "packed.so"))


def pointer(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


SHAPES = [
    ((3, 5, 2, 7), (1, 5, 1, 1), (14, 5)),
    ((3, 2, 7, 5), (1, 1, 1, 5), (1, 5)),
    ((3, 5, 2, 7), (3, 5, 1, 1), (14, 15)),
    ((3, 5, 2, 7), (1, 5, 2, 7), (1, 70)),
    ((3, 5), (3, 1), (5, 3)),
    ((3, 5), (1, 1), (15, 1)),
    ((3, 1, 5), (3, 1, 1), (5, 3)),
    ((3, 5, 2, 7), (3, 1, 2, 7), None),
    ((3, 5, 2, 7), (3, 1, 1, 7), None),
]


@pytest.mark.parametrize(("shape", "repeated", "expected"), SHAPES)
def test_repetition(library, shape, repeated, expected):
    """The traversal from any position gives the same as broadcasting."""
    x = np.random.default_rng(0).standard_normal(repeated).astype("float32")
    found = packed.repetition(x, shape)
    assert found == expected
    if found is None:
        return
    wanted = np.broadcast_to(x, shape).ravel()
    for first in range(wanted.size):
        out = np.empty(min(9, wanted.size - first), "float32")
        arguments = (*map(ctypes.c_uint, found), out.size, pointer(out))
        library.repeat(pointer(x), ctypes.c_longlong(first), *arguments)
        np.testing.assert_array_equal(out, wanted[first : first + out.size])


@pytest.mark.parametrize("size", [4, 8, 9, 11])
def test_nothing_behind_the_end_is_touched(library, size):
    source = np.arange(16, dtype="float32")
    # As on the device, at a multiple of the bytes that move at once.
    memory = np.full(32, -1, "float32")
    target = memory[-memory.ctypes.data // 4 % 4 :][:16]
    whole = np.empty(32, "float32")
    given = whole[-whole.ctypes.data // 4 % 4 :][:16]
    given[:] = source
    for first in range(0, size, 4):
        numbers = (ctypes.c_longlong(first), ctypes.c_longlong(size))
        library.copy(pointer(given), *numbers, pointer(target))
    np.testing.assert_array_equal(target[:size], source[:size])
    assert (target[size:] == -1).all()
