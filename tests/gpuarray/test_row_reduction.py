"""Kernels for reductions of rows: on the host, compiled for a GPU, and on a GPU."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import numpy as np
import pytensor.scalar as ps
import pytest
from pytensor.tensor.elemwise import CAReduce

from dnnops.dtypes import numpy_dtype
from dnnops.gpuarray import reduction
from dnnops.gpuarray.reduction import row_reduction
from dnnops.gpuarray.row_reduction import THREADS, launch_config, row_source, rows_of, split_axes
from dnnops.gpuarray.type import GpuArrayType
from tests.emulation.nvrtc import compile_cuda
from tests.gpu.device import poison
from tests.oracle import SEED, repeat_command

HEADERS = Path(__file__).parents[1] / "emulation"
PROCESSORS = 132

#: Op, dtypes of operand, accumulator and result, and the function applied to each element first.
KINDS = (
    (ps.add, "float32", "float64", "float32", None),
    (ps.add, "float32", "float32", "float32", "abs"),
    (ps.add, "float16", "float32", "float32", "sqr"),
    (ps.add, "bfloat16", "float64", "bfloat16", None),
    (ps.add, "float64", "float64", "float64", "sqr"),
    (ps.add, "int8", "int64", "int64", None),
    (ps.mul, "float64", "float64", "float64", None),
    (ps.maximum, "float32", "float32", "float32", None),
    (ps.maximum, "bfloat16", "float32", "bfloat16", "abs"),
    (ps.minimum, "uint8", "uint8", "uint8", None),
    (ps.minimum, "float16", "float32", "float16", None),
    (ps.and_, "bool", "bool", "bool", None),
    (ps.or_, "int16", "int16", "int16", None),
    (ps.xor, "uint32", "uint32", "uint32", None),
)
PREMAPPED = {None: lambda x: x, "abs": np.abs, "sqr": np.square}
REDUCE = {
    ps.add: np.add,
    ps.mul: np.multiply,
    ps.maximum: np.maximum,
    ps.minimum: np.minimum,
    ps.and_: np.bitwise_and,
    ps.or_: np.bitwise_or,
    ps.xor: np.bitwise_xor,
}
BOUNDS = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 3e-6, "float64": 1e-13}

_ENTRIES = """
struct Launch {{ const Stored *from; Result *to; Acc *partial; long long rows, length, parts; }};
static void reduce(const Launch &l) {{
  reduce_rows(l.from, l.to, l.partial, l.rows, l.length, l.parts);
}}
#if LANES > 32
static void finish(const Launch &l) {{ finish_rows(l.partial, l.to, l.parts); }}
#endif
extern "C" int run_{number}_{lanes}(const Launch *launch, unsigned blocks, unsigned seed) {{
  if (run_grid(reduce, *launch, blocks, {threads}, 0, seed)) return 1;
#if LANES > 32
  if (launch->parts > 1) return run_grid(finish, *launch, launch->rows, {threads}, 0, seed);
#endif
  return 0;
}}
"""


def values_of(rng, dtype, shape):
    """Return random values, in NumPy's dtype and as stored."""
    if dtype == "bool":
        stored = rng.random(shape) < 0.999
    elif dtype in BOUNDS:
        near_one = rng.uniform(0.99, 1.01, shape) * rng.choice([-1, 1], shape)
        stored = near_one.astype(numpy_dtype(dtype))
    else:
        limits = np.iinfo(dtype)
        stored = rng.integers(limits.min, limits.max, shape, dtype)
    return stored


def oracle(kind, stored):
    op, dtype, acc_dtype, _, premap = kind
    wide = "float64" if dtype in BOUNDS else acc_dtype if op in (ps.add, ps.mul) else dtype
    return REDUCE[op].reduce(PREMAPPED[premap](stored.astype(wide)), axis=-1)


def check(kind, stored, found, words):
    op, dtype, acc_dtype, out_dtype, premap = kind
    expected = oracle(kind, stored)
    if dtype not in BOUNDS:
        np.testing.assert_array_equal(found, expected, err_msg=words)
        return
    with np.errstate(invalid="ignore"):
        sizes = np.abs(PREMAPPED[premap](stored.astype("float64"))).sum(axis=-1)
    extremum = op in (ps.maximum, ps.minimum)
    scale = np.abs(expected) if extremum or op is ps.mul else 1 + 0.1 * sizes
    bound = max(BOUNDS[out_dtype], 1e-6 if acc_dtype == "float32" else 0)
    assert np.array_equal(np.isnan(found), np.isnan(expected)), words
    error = np.abs(found - expected)
    fine = (error <= bound * np.maximum(scale, np.abs(expected))) | np.isnan(expected)
    assert fine.all(), f"{words}: found {found}, expected {expected}"


@pytest.fixture(scope="module")
def host_kernels(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows")
    text = '#include "host_cuda.hpp"\n'
    for number, kind in enumerate(KINDS):
        source = row_source(row_reduction(*kind).arithmetic)
        for lanes in (32, THREADS):
            entry = _ENTRIES.format(number=number, lanes=lanes, threads=THREADS)
            text += (
                f"namespace of_{number}_{lanes} {{\n#define LANES {lanes}\n{source}\n{entry}}}\n"
            )
            text += "#undef LANES\n#undef IDENTITY\n"
    (folder / "rows.cpp").write_text(text)
    command = ["g++", "-std=c++17", "-O1", "-w", "-fPIC", "-shared", f"-I{HEADERS}"]
    subprocess.run([*command, "-o", "rows.so", "rows.cpp"], cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "rows.so"))


class Launch(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("from_", "to", "partial")),
        *((name, ctypes.c_longlong) for name in ("rows", "length", "parts")),
    ]


def _kind_param(number: int):
    kind = KINDS[number]
    marks = [pytest.mark.needs("ml_dtypes")] if "bfloat16" in kind else []
    return pytest.param(number, id=" ".join(map(str, kind)), marks=marks)


@pytest.mark.parametrize("number", [_kind_param(number) for number in range(len(KINDS))])
def test_on_the_host(host_kernels, number):
    """Rows start at any address and have any length, and are reduced in parts or as a whole."""
    kind = KINDS[number]
    _, dtype, _, out_dtype, _ = kind
    rng = np.random.default_rng([SEED, number])
    for lanes, parts in ((32, 1), (THREADS, 1), (THREADS, 2), (THREADS, 5)):
        for length in (1, 7, int(rng.integers(8, 300)), int(rng.integers(5000, 30000))):
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

    def by_cupy(op, dtype, acc, out, premap=None):
        def kernel(x, axis):
            others.append((x.shape, axis, dtype))
            return x.sum(axis=axis).astype(out)

        return kernel

    monkeypatch.setattr(reduction, "reduction_kernel", by_cupy)
    x = np.random.default_rng(SEED).standard_normal((4, 5, 128, 128)).astype("float32")
    node = reduction.GpuCAReduce(CAReduce(ps.add, (0, 2, 3), "float32", "float64"), "sqr")
    node = node.make_node(GpuArrayType("float32", (None,) * 4)())
    out = node.op.compute(node, x)
    np.testing.assert_allclose(out, (x.astype("float64") ** 2).sum((0, 2, 3)), rtol=1e-6)
    assert rows == [((4, 5, 128, 128), (2, 3), "float32", "float64")]
    assert others == [((4, 5), (0,), "float64")]
    assert out.dtype == "float32"


def test_plans():
    assert launch_config(1, 100, 4, PROCESSORS) is None  # too short
    assert launch_config(1, 1 << 26, 4, PROCESSORS) == (256, 528, 528)
    assert launch_config(4096, 1000, 4, PROCESSORS) == (32, 1, 512)
    assert launch_config(64 * 64, 112 * 112, 4, PROCESSORS) == (256, 1, 4096)
    assert launch_config(128, 1000, 4, PROCESSORS) == (256, 1, 128)
    lanes, parts, blocks = launch_config(200, 1 << 20, 4, PROCESSORS)
    assert (lanes, blocks) == (256, 200 * parts)
    assert parts > 1
    assert launch_config(2**45, 128, 4, PROCESSORS) is None


@pytest.mark.needs("nvrtc")
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: " ".join(map(str, kind)))
def test_gpu_compiler(kind):
    """NVRTC compiles them without a GPU: they load 16 bytes at once and use only registers."""
    source = row_source(row_reduction(*kind).arithmetic)
    for lanes in (32, THREADS):
        log, code = compile_cuda(source, "-std=c++17", f"-DLANES={lanes}", "-Xptxas=-v")
        assert log.count("0 bytes spill stores, 0 bytes spill loads") == 1 + (lanes > 32), log
        assert log.count("0 bytes stack frame") == 1 + (lanes > 32), log
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
