"""Operands of packed kernels, and their traversal, on the host."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import numpy as np
import pytest

from dnnops.gpuarray.elementwise import packed, step
from dnnops.gpuarray.elementwise.step import copy_step
from dnnops.gpuarray.prepared.call import Address
from dnnops.gpuarray.prepared.placed import Placed
from dnnops.runtime.build import c_code_dir
from tests.host_libraries import compile_once

RUN = """
extern "C" void walk_repeated(const float *array, long long first, unsigned run, unsigned count,
                              int n, float *out) {
  auto walk = repeat(array, first, run, count);
  for (int k = 0; k < n; ++k) out[k] = walk.next();
}
extern "C" float at(const float *array, long long first, const long long *n) {
  const unsigned run = n[0], middle = n[1], inner = n[2];
  return *row_element(array, first, run, middle, inner, n[3], n[4], n[5]);
}
extern "C" void copy(const float *from, long long first, long long n, float *to) {
  store<4>(to, first, n, load<4>(from, first, n));
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("packed")
    cuda = (c_code_dir() / "gpu" / "elementwise" / "elementwise.cuh").read_text()
    (folder / "packed.cpp").write_text(f"#define DEVICE\n{cuda}{RUN}")
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
    found = packed.repetition(of_array(x), shape)
    assert found == expected
    if found is None:
        return
    wanted = np.broadcast_to(x, shape).ravel()
    for first in range(wanted.size):
        out = np.empty(min(9, wanted.size - first), "float32")
        arguments = (*map(ctypes.c_uint, found), out.size, pointer(out))
        library.walk_repeated(pointer(x), ctypes.c_longlong(first), *arguments)
        np.testing.assert_array_equal(out, wanted[first : first + out.size])


def strided(kind):
    """Return a view of an array of different numbers."""
    whole = np.arange(3 * 4 * 6 * 8, dtype="float32").reshape(3, 4, 6, 8)
    return {
        "some channels": whole[..., 2:6],
        "some rows": whole[:, :, 1:3],
        "heads": whole.transpose(0, 2, 1, 3),
        "one axis": whole.reshape(-1)[5:77],
        "repeated": np.broadcast_to(whole[:, :1], whole.shape),
        "steps": whole[::2, :, ::3],
        "dense": whole,
    }[kind]


KINDS = ["some channels", "some rows", "heads", "one axis", "repeated", "steps", "dense"]


@pytest.mark.parametrize("kind", KINDS)
def test_rows(library, kind):
    """Elements are found from the numbers of the rows as NumPy finds them."""
    x = strided(kind)
    rows = packed.dense_rows(x.shape, x.strides, x.itemsize)
    library.at.restype = ctypes.c_float
    numbers = (ctypes.c_longlong * 6)(*rows)
    found = [library.at(pointer(x), ctypes.c_longlong(i), numbers) for i in range(x.size)]
    np.testing.assert_array_equal(found, x.ravel())


@pytest.mark.parametrize(
    "x",
    [
        np.zeros((4, 6)).T,
        np.zeros((4, 6))[:, ::-1],
        np.zeros((3, 4, 5, 6, 7))[:2, :3, :4, :5, :6],
        np.zeros((4, 6))[:, ::2],
        np.zeros(()),
    ],
)
def test_arrays_without_rows(x):
    assert packed.dense_rows(x.shape, x.strides, x.itemsize) is None


def of_array(x):
    return placed(x.shape, x.strides)


def placed(shape, strides, remainder=0):
    return Placed(Address(0), shape, strides, 4, remainder)


DENSE = placed((2, 3, 16), (192, 64, 4))
HALF = placed((2, 3, 16), (384, 128, 4))


@pytest.mark.parametrize(
    ("operand", "result", "expected"),
    [
        (DENSE, DENSE, ("dense", "dense")),
        (HALF, DENSE, ("rows", "dense")),
        (DENSE, HALF, ("dense", "rows")),
        (placed((1, 1, 16), (64, 64, 4)), HALF, ("repeated", "rows")),
        # Threads would read from addresses that are not multiples of 16 bytes, or across rows.
        (replace(HALF, remainder=4), DENSE, None),
        (replace(HALF, strides=(408, 136, 4)), DENSE, None),
        (placed((2, 3, 18), (480, 160, 4)), placed((2, 3, 18), (216, 72, 4)), None),
    ],
)
def test_kinds(operand, result, expected):
    found = packed.packed_access([operand], [result], 4)
    if expected is None:
        assert found is None
        return
    assert (found.kinds, found.result_kinds) == ((expected[0],), (expected[1],))
    counts = {"dense": 0, "repeated": 2, "rows": 6}
    assert [len(numbers) for numbers in found.numbers] == [counts[kind] for kind in expected]


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


@pytest.mark.parametrize(
    "x",
    [
        replace(DENSE, remainder=2),
        replace(HALF, remainder=2),
        placed((2, 3, 16), (194, 64, 4)),
        placed((1, 1, 1), (4, 4, 4), remainder=2),
        placed((1, 1, 16), (64, 64, 4), remainder=2),
    ],
)
@pytest.mark.parametrize("least", [1, 1 << 20])
def test_elements_between_multiples_of_their_size(monkeypatch, x, least):
    """Kernels cannot access them, whatever the kind of the array."""
    monkeypatch.setattr(step, "LEAST_SIZE", least)
    assert copy_step("float32", x, DENSE) is None
    if x.shape == DENSE.shape:
        assert copy_step("float32", DENSE, x) is None
