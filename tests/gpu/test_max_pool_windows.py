"""Max pooling of images with any strides on a GPU: emulated, compiled, and on a GPU."""

from __future__ import annotations

import numpy as np
import pytest

from dnnops.dtypes import numpy_dtype
from dnnops.gpu.kernels import kernel_source
from dnnops.gpu.pool import GpuDnnPool, GpuDnnPoolGrad
from dnnops.nnet.pool.op import MaxPoolGrad, Pool
from tests.emulation.host_pool_windows import HostPoolWindows
from tests.emulation.nvrtc import compile_cuda
from tests.gpu.device import (
    DTYPES,
    apply_op,
    bits,
    host,
    on_gpu,
    poison,
    restrided,
    rounded,
    values,
)
from tests.needs import of_dtypes
from tests.oracle import SEED, PoolCase, repeat_command, run_op

#: Windows and strides: unrolled, in a loop, and shared by a warp.
WINDOWS = (
    ((2, 2), (2, 2)),
    ((3, 3), (1, 2)),
    ((7, 5), (3, 2)),
    ((5,), (2,)),
    ((9, 8), (4, 8)),
    ((2, 3, 2), (1, 3, 2)),
    ((5, 5, 5), (2, 5, 1)),
)


def case_of(rng: np.random.Generator, ws: tuple[int, ...], stride: tuple[int, ...]) -> PoolCase:
    return PoolCase(
        img_shape=(
            int(rng.integers(1, 4)),
            int(rng.integers(1, 6)),
            *(w + int(rng.integers(12 // len(ws))) for w in ws),
        ),
        ws=ws,
        stride=stride,
        pad=tuple(int(rng.integers(w)) for w in ws),
        mode="max",
        ignore_border=True,
        seed=int(rng.integers(2**31)),
    )


def image_of(rng: np.random.Generator, case: PoolCase, dtype: str) -> np.ndarray:
    """Return an image with whole windows of minus infinity, and some NaN."""
    x = rounded(case.arrays(ties=bool(rng.integers(2)))[0], dtype)
    x[rng.random(x.shape) < rng.choice([0, 0.9, 1])] = -np.inf
    x[rng.random(x.shape) < rng.choice([0, 0.05])] = np.nan
    x[rng.random(x.shape) < rng.choice([0, 0.05])] = np.inf
    return x


def strided(rng: np.random.Generator, x: np.ndarray) -> np.ndarray:
    """Return the array with its channels last, as a part of a larger array, or as it is."""
    kind = rng.integers(3)
    if kind == 0:
        return np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 1, -1)), -1, 1)
    if kind == 1:
        wide = np.full([n + 2 for n in x.shape], 99).astype(x.dtype)
        view = wide[tuple(slice(1, 1 + n) for n in x.shape)]
        view[...] = x
        return view
    return x


def expected(case: PoolCase, x: np.ndarray) -> np.ndarray:
    return run_op(Pool(case.ndim, "max", case.ignore_border), x, *case.vectors)


@pytest.mark.parametrize("dtype", of_dtypes(*DTYPES, quick="float32"))
def test_kernel_on_the_host(tmp_path, dtype):
    rng = np.random.default_rng(SEED)
    planned = []
    for number in range(6 * len(WINDOWS)):
        case = case_of(rng, *WINDOWS[number % len(WINDOWS)])
        x = image_of(rng, case, dtype)
        planned.append((case, x, strided(rng, bits(x, dtype)), bool(rng.integers(2))))
    launcher = HostPoolWindows(tmp_path)
    options = tuple(launcher.options(case, g, dtype, last) for case, _, g, last in planned)
    assert all(options)
    assert {word for option in options for word in option.split()} >= {"-DLANES=1", "-DLANES=32"}
    library = HostPoolWindows(tmp_path, options)
    for case, x, given, last in planned:
        found = values(library.run(case, given, dtype, last), dtype)
        message = f"{case}, {dtype}; {repeat_command()}"
        out = expected(case, x)
        np.testing.assert_array_equal(found, out, err_msg=message)
        gz = np.arange(1.0, 1 + out.size).reshape(out.shape) % 4
        operands = (bits(a, dtype) for a in (x, out, gz))
        gx = values(library.gradient(case, dtype, *operands), dtype)
        wanted = run_op(MaxPoolGrad(case.ndim, True), x, out, gz, *case.vectors)
        np.testing.assert_allclose(gx, rounded(wanted, dtype), 1e-2, err_msg=message)


def test_cases_for_cudnn(tmp_path):
    """Other modes, and sizes beyond 32 bits."""
    launcher = HostPoolWindows(tmp_path)
    case = PoolCase((2, 3, 8, 8), (2, 2), (2, 2), (0, 0), "sum", True, 0)
    assert not launcher.options(case, np.zeros(case.img_shape, "float32"), "float32", False)
    case = PoolCase((1, 1, 8, 2**31), (2, 2), (2, 2), (0, 0), "max", True, 0)
    x = np.broadcast_to(np.zeros((), "float32"), case.img_shape)
    assert not launcher.options(case, x, "float32", False)


@pytest.mark.needs("nvrtc")
@pytest.mark.parametrize("lanes", [1, 32])
def test_compiles_for_gpus(lanes):
    macros = {"DTYPE": 2, "INDEX": "size_t", "LANES": lanes, "CHANNELS_LAST": lanes // 32}
    macros["ADDS"] = lanes // 32
    macros |= {f"WINDOW_{axis}": int(lanes == 1) * (1 + axis) for axis in range(3)}
    options = (f"-D{name}={value}" for name, value in macros.items())
    code = compile_cuda(kernel_source("pool_windows"), "-std=c++17", *options).code
    assert "max_pool_windows" in code


@pytest.mark.gpu
@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_infinity_and_nan(dtype, memory_format):
    rng = np.random.default_rng(SEED)
    for number in range(4 * len(WINDOWS)):
        case = case_of(rng, *WINDOWS[number % len(WINDOWS)])
        x = image_of(rng, case, dtype)
        out = expected(case, x)
        gz = np.arange(1.0, 1 + out.size).reshape(out.shape) % 16
        given = on_gpu(x, dtype, memory_format)
        poison()
        op = GpuDnnPool("max", case.ndim, memory_format=memory_format)
        message = f"{case}, {dtype}; {repeat_command()}"
        for array in (given, restrided(rng, given)):
            found = host(apply_op(op, array, *case.vectors))
            np.testing.assert_array_equal(found, out, err_msg=message)
        grad = GpuDnnPoolGrad("max", case.ndim, memory_format=memory_format)
        pooled, top = (on_gpu(a, dtype, memory_format) for a in (out, gz))
        gx = host(apply_op(grad, given, pooled, top, *case.vectors))
        wanted = run_op(MaxPoolGrad(case.ndim, True), x, out, gz, *case.vectors)
        np.testing.assert_allclose(gx, wanted.astype(numpy_dtype(dtype)), 1e-2, err_msg=message)
