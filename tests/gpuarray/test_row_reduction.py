"""The kernels for reductions of rows: on the host, by the GPU's compiler, and on a GPU."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import numpy as np
import pytensor
import pytensor.scalar as ps
import pytensor.tensor as pt
import pytest

from dnnops.gpuarray.dtypes import numpy_dtype
from dnnops.gpuarray.reduction import row_reduction
from dnnops.gpuarray.row_reduction import THREADS, plan_rows, row_source, rows_of
from dnnops.gpuarray.type import GpuArrayType
from tests.cudnn.device import on_gpu, poison, rounded
from tests.oracle import SEED, repeat_command

HEADERS = Path(__file__).parents[1] / "cudnn"
PROCESSORS = 132

#: Op, dtypes of operand, accumulator and result, and what is done to each element before.
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
    """Random values, as NumPy's dtype and as stored."""
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


@pytest.mark.parametrize("number", range(len(KINDS)), ids=lambda i: " ".join(map(str, KINDS[i])))
def test_on_the_host(host_kernels, number):
    """Rows that begin anywhere, of any length, in parts and whole."""
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


def test_plans():
    assert plan_rows(1, 100, 4, PROCESSORS) is None  # too short
    assert plan_rows(1, 1 << 26, 4, PROCESSORS) == (256, 528, 528)
    assert plan_rows(4096, 1000, 4, PROCESSORS) == (32, 1, 512)
    assert plan_rows(64 * 64, 112 * 112, 4, PROCESSORS) == (256, 1, 4096)
    assert plan_rows(128, 1000, 4, PROCESSORS) == (256, 1, 128)
    lanes, parts, blocks = plan_rows(200, 1 << 20, 4, PROCESSORS)
    assert (lanes, blocks) == (256, 200 * parts)
    assert parts > 1
    assert plan_rows(2**45, 128, 4, PROCESSORS) is None


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: " ".join(map(str, kind)))
def test_gpu_compiler(kind):
    """NVRTC compiles them, without a GPU: loads of 16 bytes, and nothing but registers."""
    nvrtc = pytest.importorskip("cupy.cuda").nvrtc
    source = row_source(row_reduction(*kind).arithmetic)
    for lanes in (32, THREADS):
        program = nvrtc.createProgram(source, "rows.cu", (), ())
        options = ("-arch=sm_90", "-std=c++17", f"-DLANES={lanes}", "-Xptxas=-v")
        try:
            nvrtc.compileProgram(program, options)
        except nvrtc.NVRTCError:
            pytest.fail(nvrtc.getProgramLog(program))
        log = nvrtc.getProgramLog(program)
        assert log.count("0 bytes spill stores, 0 bytes spill loads") == 1 + (lanes > 32), log
        assert log.count("0 bytes stack frame") == 1 + (lanes > 32), log
        assert "ld.global.nc.v4" in str(nvrtc.getPTX(program))


@pytest.mark.gpu
def test_on_a_gpu():
    """Sums, products and extrema of random shapes, axes and dtypes; one function for each kind."""
    import cupy

    functions = {
        "sum": lambda x, axis: x.sum(axis=axis),
        "max": lambda x, axis: x.max(axis=axis),
        "norm2": lambda x, axis: pt.sqrt(pt.sqr(x).sum(axis=axis)),
    }
    oracles = {
        "sum": lambda x, axis: x.sum(axis=axis),
        "max": lambda x, axis: x.max(axis=axis),
        "norm2": lambda x, axis: np.sqrt((x**2).sum(axis=axis)),
    }
    rng = np.random.default_rng(SEED)
    mode = pytensor.compile.get_mode("CVM").including("gpu")
    failures = []
    for name, make in functions.items():
        for dtype in ("float16", "float32", "float64"):
            for axis in ((0, 1, 2), (2,), (1, 2)):
                x = GpuArrayType(dtype, (None,) * 3)()
                f = pytensor.function([x], make(pt.as_tensor_variable(x), axis), mode=mode)
                for number in range(8):
                    shape = [int(n) for n in rng.integers(1, 40, 3)]
                    shape[rng.integers(3)] *= int(rng.integers(1, 400))
                    if number == 0 and axis != (2,):
                        shape = [3, 1 << 10, 1 << 11]
                    value = rounded(rng.standard_normal(shape), dtype)
                    given = on_gpu(value, dtype)
                    if number % 3 == 1:  # an address that is no multiple of 16 bytes
                        memory = cupy.empty(value.size + 3, given.dtype)
                        shifted = memory[number % 4 or 1 :][: value.size].reshape(shape)
                        shifted[...] = given
                        given = shifted
                    poison()
                    found = np.asarray(f(given), "float64")
                    expected = oracles[name](value, axis)
                    scale = np.abs(value).sum(axis=axis) * 0.1 if name == "sum" else abs(expected)
                    error = np.abs(found - expected) / (scale + 1e-3)
                    if not (error <= 2 * BOUNDS[dtype]).all():
                        failures.append(f"{name} {dtype}{shape} over {axis}: {error.max():.2g}")
    assert not failures, f"{len(failures)} fail; {repeat_command()}\n" + "\n".join(failures[:9])
