"""Kernels for reductions of rows: on the host, compiled for a GPU, and on a GPU."""

from __future__ import annotations

import ctypes

import numpy as np
import pytensor.scalar as ps
import pytest
from pytensor.tensor.elemwise import CAReduce

from dnnops.dtypes import numpy_dtype
from dnnops.gpuarray import reduction
from dnnops.gpuarray.reduction import row_reduction
from dnnops.gpuarray.reduction_source import reduction_source
from dnnops.gpuarray.row_reduction import THREADS, launch_config, rows_of, split_axes
from dnnops.gpuarray.type import GpuArrayType
from tests.emulation.nvrtc import compile_cuda
from tests.gpu.device import poison
from tests.gpuarray.reductions import (
    BOUNDS,
    KINDS,
    PREMAPPED,
    PROCESSORS,
    check,
    compile_for_host,
    kind_param,
    values_of,
)
from tests.oracle import SEED, repeat_command

LANES = (32, 64, 128, THREADS)

_ENTRIES = """
struct Launch {{ const Stored *from; Result *to; Acc *partial; long long rows, length, parts; }};
static void reduce(const Launch &l) {{
  reduce_rows(l.from, l.to, l.partial, l.rows, l.length, l.parts);
}}
#if LANES == 256
static void finish(const Launch &l) {{ finish_rows(l.partial, l.to, l.parts); }}
#endif
extern "C" int run_{number}_{lanes}(const Launch *launch, unsigned blocks, unsigned seed) {{
  if (run_grid(reduce, *launch, blocks, {threads}, 0, seed)) return 1;
#if LANES == 256
  if (launch->parts > 1) return run_grid(finish, *launch, launch->rows, {threads}, 0, seed);
#endif
  return 0;
}}
"""


@pytest.fixture(scope="module")
def host_kernels(tmp_path_factory):
    variants = [
        (
            row_reduction(*kind).arithmetic,
            "LANES",
            lanes,
            _ENTRIES.format(number=number, lanes=lanes, threads=THREADS),
        )
        for number, kind in enumerate(KINDS)
        for lanes in LANES
    ]
    return compile_for_host(tmp_path_factory.mktemp("rows"), "row_reduction.cuh", variants)


class Launch(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("from_", "to", "partial")),
        *((name, ctypes.c_longlong) for name in ("rows", "length")),
        ("parts", ctypes.c_int),
    ]


@pytest.mark.parametrize("long", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("number", [kind_param(number) for number in range(len(KINDS))])
def test_on_the_host(host_kernels, number, long):
    """Rows start at any address and have any length, and are reduced in parts or as a whole."""
    kind = KINDS[number]
    _, dtype, _, out_dtype, _ = kind
    rng = np.random.default_rng([SEED, number, long])
    for lanes, parts in (*((lanes, 1) for lanes in LANES), (THREADS, 2), (THREADS, 5)):
        short = (1, 7, int(rng.integers(8, 300)))
        for length in (int(rng.integers(5000, 30000)),) if long else short:
            rows = int(rng.integers(1, 12)) if length < 300 else int(rng.integers(1, 3))
            memory = values_of(rng, dtype, rows * length + 16)
            start = int(rng.integers(0, 16))
            stored = memory[start : start + rows * length].reshape(rows, length)
            if dtype in BOUNDS and rng.random() < 0.2:
                stored[0, rng.integers(length)] = np.nan
            out = np.full(rows + 1, 77, numpy_dtype(out_dtype))
            partial = np.full(rows * parts, np.nan)
            launch = Launch(
                stored.ctypes.data, out.ctypes.data, partial.ctypes.data, rows, length, parts
            )
            blocks = -(-rows // (THREADS // lanes)) * parts
            run = getattr(host_kernels, f"run_{number}_{lanes}")
            assert run(ctypes.byref(launch), blocks, int(rng.integers(2**31))) == 0
            words = f"{kind}, {rows} rows of {length} from {start}, {lanes} lanes, {parts} parts"
            assert out[rows] == np.array(77).astype(out.dtype), words
            found = out[:rows].astype("float64") if dtype in BOUNDS else out[:rows]
            check(kind, stored, found, f"{words}; {repeat_command()}")


def test_rows_of():
    x = np.empty((3, 1, 4, 5), "float32")
    assert rows_of(x, (0, 1, 2, 3)) == (1, 60)
    assert rows_of(x, (3,)) == (12, 5)
    assert rows_of(x, (1, 3)) == (12, 5)
    assert rows_of(x, (2, 3)) == (3, 20)
    assert rows_of(x, (1, 2, 3)) == (3, 20)
    assert rows_of(x[:, :, :, :1], (2, 3)) is None  # not contiguous
    assert rows_of(np.empty((3, 4, 1)), (1,)) == (3, 4)
    for axes in ((0,), (2,), (0, 3)):
        assert rows_of(x, axes) is None
    assert rows_of(np.empty((3, 0)), (1,)) is None


def test_split_axes():
    assert split_axes((3, 4, 5), (0, 1, 2)) == ((0, 1, 2), ())
    assert split_axes((3, 4, 5, 6), (0, 2, 3)) == ((2, 3), (0,))
    assert split_axes((3, 4, 5, 1), (0, 2)) == ((2,), (0,))
    assert split_axes((3, 4, 5), (0, 1)) == ((), (0, 1))


class Recorded:
    """A substitute for kernels that reduces with NumPy and records its calls."""

    def __init__(self, calls, premap=None, out_dtype=None):
        self.calls, self.premap, self.out_dtype = calls, premap, out_dtype

    def __call__(self, x, axes=None, axis=None):
        axes = axis if axes is None else axes
        if any(a not in axes for a in range(min(axes), x.ndim)):
            return None
        self.calls.append((x.shape, axes, x.dtype.name, self.out_dtype))
        return PREMAPPED[self.premap](x.astype(self.out_dtype)).sum(axis=axes)


def test_last_axes_and_then_others(monkeypatch):
    """Compute the sum over batch and pixels of each channel."""
    rows, others = [], []
    monkeypatch.setattr(
        reduction, "row_reduction", lambda op, i, acc, out, pre: Recorded(rows, pre, out)
    )

    def by_columns(op, dtype, acc, out, premap):
        def kernels(x, axes):
            if axes != (0,):
                return None
            others.append((x.shape, axes, dtype, premap))
            return x.sum(axis=axes).astype(out)

        return kernels

    monkeypatch.setattr(reduction, "column_reduction", by_columns)
    x = np.random.default_rng(SEED).standard_normal((4, 5, 128, 128)).astype("float32")
    node = reduction.GpuCAReduce(CAReduce(ps.add, (0, 2, 3), "float32", "float64"), "sqr")
    node = node.make_node(GpuArrayType("float32", (None,) * 4)())
    out = node.op.compute(node, x)
    np.testing.assert_allclose(out, (x.astype("float64") ** 2).sum((0, 2, 3)), rtol=1e-6)
    assert rows == [((4, 5, 128, 128), (2, 3), "float32", "float64")]
    assert others == [((4, 5), (0,), "float64", None)]
    assert out.dtype == "float32"


def test_plans():
    assert launch_config(1, 100, 4, PROCESSORS) is None  # too short
    assert launch_config(1, 1 << 26, 4, PROCESSORS) == (256, 528, 528)
    # One wave of blocks, or several waves that are full.
    assert launch_config(4096, 1000, 4, PROCESSORS) == (32, 1, 512)
    assert launch_config(4096, 4096, 4, PROCESSORS) == (32, 1, 512)
    assert launch_config(5000, 4096, 4, PROCESSORS) == (64, 1, 1250)
    assert launch_config(700, 8192, 4, PROCESSORS) == (128, 1, 350)
    assert launch_config(128, 1000, 4, PROCESSORS) == (256, 1, 128)
    assert launch_config(528, 1 << 16, 4, PROCESSORS) == (256, 1, 528)
    lanes, parts, blocks = launch_config(200, 1 << 20, 4, PROCESSORS)
    assert (lanes, blocks) == (256, 200 * parts)
    assert parts > 1
    assert launch_config(2**45, 128, 4, PROCESSORS) is None


@pytest.mark.needs("nvrtc")
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: " ".join(map(str, kind)))
def test_gpu_compiler(kind):
    """NVRTC compiles them without a GPU: they load 16 bytes at once and use only registers."""
    source = reduction_source(row_reduction(*kind).arithmetic, "row_reduction.cuh")
    for lanes in LANES:
        log, code = compile_cuda(source, "-std=c++17", f"-DLANES={lanes}", "-Xptxas=-v")
        assert log.count("0 bytes spill stores, 0 bytes spill loads") == 1 + (lanes == THREADS), log
        assert log.count("0 bytes stack frame") == 1 + (lanes == THREADS), log
        assert "ld.global.nc.v4" in code


@pytest.mark.gpu
def test_on_a_gpu():
    """Random shapes, axes and addresses, in kernels for rows and where rows are reduced first."""
    import cupy

    rng = np.random.default_rng(SEED)
    failures = []
    for kind in KINDS[::2]:
        op, dtype, *_ = kind
        for number in range(24):
            shape = [int(n) for n in rng.integers(1, 12, 2)] + [int(rng.integers(600, 9000))]
            axes = ((2,), (1, 2), (0, 1, 2))[number % 3]
            if op is ps.mul:
                shape = [3, 2, 700]
            elif number < 2:  # in parts, and in two steps
                shape, axes = [3, 1 << 8, 1 << 11], ((0, 1, 2), (0, 2))[number]
            elif number < 4:
                shape, axes = [1500, 2, 700], (2,)
            stored = values_of(rng, dtype, shape)
            start = int(rng.integers(0, 9))  # mostly an address that is no multiple of 16 bytes
            memory = cupy.empty(stored.size + start, stored.dtype)
            given = memory[start:].reshape(shape)
            given.set(stored)
            words = f"{kind}, {shape} over {axes}, {start} elements after a multiple of 16 bytes"
            poison()
            found = reduction.reduce_array(given, axes, *kind).get()
            kept = [axis for axis in range(3) if axis not in axes]
            rows = stored.transpose(*kept, *axes).reshape(*(shape[a] for a in kept), -1)
            found = found.astype("float64") if dtype in BOUNDS else found
            try:
                check(kind, rows, found, words)
            except AssertionError as error:
                failures.append(str(error)[:400])
    assert not failures, f"{len(failures)} fail; {repeat_command()}\n" + "\n".join(failures[:9])
