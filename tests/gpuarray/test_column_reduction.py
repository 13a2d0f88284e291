"""Kernels for reductions of columns: on the host, compiled for a GPU, and on a GPU."""

from __future__ import annotations

import ctypes

import numpy as np
import pytensor.scalar as ps
import pytest

from dnnops.dtypes import numpy_dtype
from dnnops.gpuarray import reduction
from dnnops.gpuarray.column_reduction import MAX_WIDTH, column_config, columns_of
from dnnops.gpuarray.reduction import column_reduction
from dnnops.gpuarray.reduction_source import reduction_source
from tests.emulation.nvrtc import compile_cuda
from tests.gpu.device import poison, restrided
from tests.gpuarray.reductions import (
    BOUNDS,
    KINDS,
    PROCESSORS,
    check,
    compile_for_host,
    kind_param,
    values_of,
)
from tests.oracle import SEED, repeat_command

_ENTRIES = """
struct Launch {{
  const Stored *from;
  Result *to;
  Partial *partial;
  long long packs, inner, length;
  int lanes, parts;
}};
static void reduce(const Launch &l) {{
  reduce_columns(l.from, l.to, l.partial, l.packs, l.inner, l.length, l.lanes, l.parts);
}}
static void finish(const Launch &l) {{
  finish_columns(l.partial, l.to, l.packs * {width}, l.inner * {width}, l.parts, l.lanes);
}}
extern "C" int run_{number}_{width}(const Launch *launch, unsigned blocks, unsigned threads,
                                    unsigned seed) {{
  return run_grid(reduce, *launch, blocks, threads, 0, seed);
}}
extern "C" int finish_{number}_{width}(const Launch *launch, unsigned blocks, unsigned threads,
                                       unsigned seed) {{
  return run_grid(finish, *launch, blocks, threads, 0, seed);
}}
"""


def widths(dtype):
    """Return the smallest and the largest number of columns of a thread."""
    itemsize = 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize  # NumPy may lack bfloat16
    return (1, min(MAX_WIDTH, 16 // itemsize))


@pytest.fixture(scope="module")
def host_kernels(tmp_path_factory):
    variants = [
        (
            column_reduction(*kind).arithmetic,
            "WIDTH",
            width,
            _ENTRIES.format(number=number, width=width),
        )
        for number, kind in enumerate(KINDS)
        for width in widths(kind[1])
    ]
    folder = tmp_path_factory.mktemp("columns")
    return compile_for_host(folder, "column_reduction.cuh", variants)


class Launch(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("from_", "to", "partial")),
        *((name, ctypes.c_longlong) for name in ("packs", "inner", "length")),
        *((name, ctypes.c_int) for name in ("lanes", "parts")),
    ]


def _launch_dims(rng, packs, threads):
    """Return a number of lanes, the blocks for that many packs, and the threads of a block."""
    lanes = int(rng.integers(1, min(packs + 3, threads) + 1))
    return lanes, -(-packs // lanes), -(-lanes * (threads // lanes) // 32) * 32


#: A third of the cases is quick: each number of parts, and shapes that depend on the kind.
@pytest.mark.parametrize(
    "third", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("number", [kind_param(number) for number in range(len(KINDS))])
def test_on_the_host(host_kernels, number, third):
    """Any number of matrices, rows and columns, any tiles, as a whole and in parts."""
    kind = KINDS[number]
    _, dtype, _, out_dtype, _ = kind
    rng = np.random.default_rng([SEED, number, third])
    for width in widths(dtype):
        for case in range((number + third) % 3, 12, 3):
            parts = (1, 1, 2, 7)[case % 4]
            threads = (32, 128, 512, 1024)[int(rng.integers(4))]
            matrices, inner = (int(n) for n in rng.integers(1, ((5, 40), (60, 4))[case % 2]))
            rows = int(rng.integers(1, (4, 40, 700)[case % 3]))
            columns, packs = inner * width, matrices * inner
            memory = values_of(rng, dtype, matrices * rows * columns + 16)
            start = -memory.ctypes.data % 16 // memory.itemsize if width > 1 else int(case)
            stored = memory[start : start + matrices * rows * columns]
            stored = stored.reshape(matrices, rows, columns)
            if dtype in BOUNDS and rng.random() < 0.2:
                stored[0, rng.integers(rows), rng.integers(columns)] = np.nan
            out = np.full(matrices * columns + 1, 77, numpy_dtype(out_dtype))
            partial = np.full(matrices * columns * parts, np.nan)
            lanes, tiles, threads = _launch_dims(rng, packs, threads)
            addresses = (stored.ctypes.data, out.ctypes.data, partial.ctypes.data)
            launch = Launch(*addresses, packs, inner, rows, lanes, parts)
            run, finish = (
                getattr(host_kernels, f"{name}_{number}_{width}") for name in ("run", "finish")
            )
            seed = int(rng.integers(2**31))
            assert run(ctypes.byref(launch), tiles * parts, threads, seed) == 0
            words = f"{kind}, {matrices}x{rows}x{columns} by {width}, {lanes} lanes, {parts} parts"
            if parts > 1:
                assert (out == np.array(77).astype(out.dtype)).all(), words
                launch.lanes, tiles, threads = _launch_dims(rng, packs * width, 256)
                assert finish(ctypes.byref(launch), tiles, threads, seed) == 0
            assert out[-1] == np.array(77).astype(out.dtype), words
            found = out[:-1].reshape(matrices, columns)
            found = found.astype("float64") if dtype in BOUNDS else found
            check(kind, np.moveaxis(stored, 1, -1), found, f"{words}; {repeat_command()}")


def test_columns_of():
    assert columns_of((3, 1, 4, 5), (0,)) == (1, 3, 20, (1, 4, 5))
    assert columns_of((3, 1, 4, 5), (0, 2)) == (1, 12, 5, (1, 5))
    assert columns_of((3, 1, 4, 5), (2,)) == (3, 4, 5, (3, 1, 5))
    assert columns_of((3, 4, 5, 1), (1, 3)) == (3, 4, 5, (3, 5))
    for axes in ((3,), (0, 1, 2, 3), (0, 3)):  # rows, everything, and axes on both sides
        assert columns_of((3, 1, 4, 5), axes) is None
    assert columns_of((3, 4, 5), (0, 2)) is None
    assert columns_of((0, 4), (0,)) is None
    assert columns_of((4, 0), (0,)) is None
    assert columns_of((1, 4), (0,)) is None


def test_configurations():
    assert column_config(1024, 4096, 16, PROCESSORS) == (1024, 8, 128, 1)
    # Too few columns for all multiprocessors: parts, unless the array is small.
    assert column_config(64, 65536, 16, PROCESSORS) == (1024, 32, 2, 66)
    assert column_config(64, 128, 16, PROCESSORS) == (128, 4, 16, 1)
    assert column_config(3, 1 << 20, 4, PROCESSORS) == (1024, 3, 1, 132)
    # Few rows: a thread has all of them.
    assert column_config(1 << 20, 4, 16, PROCESSORS) == (256, 256, 1 << 12, 1)
    assert column_config(2**40, 4, 16, PROCESSORS) is None
    assert column_config(4, 2**40, 16, PROCESSORS) is None


@pytest.mark.parametrize("pack_bytes", [1, 2, 4, 8, 16])
def test_every_configuration_covers_the_array(pack_bytes):
    """Tiles have all columns, none is empty, and a block has at least one row of threads."""
    rng = np.random.default_rng(SEED)
    for _ in range(3000):
        packs, rows = (int(2 ** rng.uniform(0, 22)) for _ in range(2))
        threads, lanes, tiles, parts = column_config(packs, rows, pack_bytes, PROCESSORS)
        words = f"{packs} packs of {pack_bytes} bytes, {rows} rows"
        assert lanes <= threads <= 1024, words
        assert threads % 32 == 0, words
        assert (tiles - 1) * lanes < packs <= tiles * lanes, words
        assert 1 <= parts <= rows, words


@pytest.mark.needs("nvrtc")
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: " ".join(map(str, kind)))
def test_gpu_compiler(kind):
    """NVRTC compiles them without a GPU: threads load 8 or 16 bytes and use only registers."""
    source = reduction_source(column_reduction(*kind).arithmetic, "column_reduction.cuh")
    for width in widths(kind[1]):
        log, code = compile_cuda(source, "-std=c++17", f"-DWIDTH={width}", "-Xptxas=-v")
        assert log.count("0 bytes spill stores, 0 bytes spill loads") == 2, log
        assert log.count("0 bytes stack frame") == 2, log
    size = "v2" if numpy_dtype(kind[1]).itemsize == 1 else "v4"
    assert f"ld.global.nc.{size}" in code


#: Shape, and the axes to reduce.
SHAPES = (
    ((4096, 512), (0,)),  # in parts
    ((5000, 3), (0,)),
    ((20000, 8), (0,)),
    ((3, 300000), (0,)),
    ((700, 33), (0,)),
    ((6, 500, 7), (1,)),
    ((900, 5, 2), (1,)),
    ((5, 30, 40, 16), (0, 1, 2)),
    ((5, 30, 40, 16), (1, 2)),
    ((9, 4, 30, 600), (0, 3)),  # rows first
    ((9, 30, 4, 60), (0, 2)),  # neither rows nor columns
)


@pytest.mark.gpu
@pytest.mark.parametrize("number", [kind_param(number) for number in range(len(KINDS))])
def test_on_a_gpu(number):
    """Any shape, axes, address and memory order; the same bits again."""
    import cupy

    kind = KINDS[number]
    op, dtype, *_ = kind
    rng = np.random.default_rng([SEED, number])
    for shape, axes in SHAPES:
        if op is ps.mul:
            shape = tuple(min(n, 60) for n in shape)
        stored = values_of(rng, dtype, shape)
        start = int(rng.integers(0, 9))  # mostly an address that is no multiple of 16 bytes
        memory = cupy.empty(stored.size + start, stored.dtype)
        given = memory[start:].reshape(shape)
        given.set(stored)
        kept = [axis for axis in range(len(shape)) if axis not in axes]
        rows = stored.transpose(*kept, *axes).reshape(*(shape[a] for a in kept), -1)
        plain = dtype in BOUNDS and dtype != "bfloat16"
        for x in (given, restrided(rng, given) if plain else given):
            poison()
            found = reduction.reduce_array(x, axes, *kind)
            again = reduction.reduce_array(x, axes, *kind)
            assert found.get().tobytes() == again.get().tobytes()
            words = f"{kind}, {shape} over {axes}, strides {x.strides}, {start} elements in"
            found = found.get().astype("float64") if dtype in BOUNDS else found.get()
            check(kind, rows, found, f"{words}; {repeat_command()}")


def channels_last(x):
    return np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)


@pytest.mark.parametrize("axes", [(0, 2, 3), (1,), (0,), (2, 3), (0, 1, 2, 3)])
def test_memory_order(monkeypatch, axes):
    """Arrays are reduced in the order of their memory."""
    seen = []

    def kernels(*words):
        def reduce(x, axes):
            assert x.flags.c_contiguous
            seen.append(x.shape)
            return x.sum(axis=axes)

        return reduce

    monkeypatch.setattr(reduction, "row_reduction", kernels)
    x = np.random.default_rng(SEED).integers(0, 9, (3, 4, 5, 6)).astype("float64")
    found = reduction.reduce_array(channels_last(x), axes, *KINDS[0])
    np.testing.assert_array_equal(found, x.sum(axis=axes))
    assert seen == [(3, 5, 6, 4)]
