"""The pooling kernels without a GPU: emulated on the host, and compiled for a GPU."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest

from dnnops.dtypes import DTYPE_CODES
from dnnops.gpu.kernels import kernel_source
from dnnops.gpu.pool_kernels import PoolLaunch, pool_launch
from dnnops.nnet.pool.op import AveragePoolGrad, MaxPoolGrad, MaxPoolGradGrad, Pool
from tests.emulation.host_pool import HostKernels
from tests.emulation.nvrtc import compile_cuda
from tests.gpu.device import DTYPES, bits, rounded, values
from tests.needs import of_dtypes
from tests.oracle import (
    POOL_MODES,
    RELATIVE_ERROR,
    SEED,
    PoolCase,
    fuzz,
    pool_cases,
    repeat_command,
    run_op,
)


def options(
    dtype: str, axes: int, window: int, offset: str = "int", chunked: bool = False
) -> tuple[str, ...]:
    return (
        f"-DDTYPE={DTYPE_CODES[dtype]}",
        f"-DAXES={axes}",
        f"-DWINDOW={window}",
        f"-DOFFSET={offset}",
        f"-DCHUNKED={int(chunked)}",
    )


@pytest.fixture(scope="module")
def host_kernels(tmp_path_factory):
    some = [options("float64", axes, window) for axes, window in product((1, 2, 3), (0, 2, 3))]
    some += [options(dtype, 2, 3) for dtype in DTYPES]
    some += [options("float64", 1, window, "long long") for window in (0, 2, 3)]
    some.append(options("float64", 3, 2, "long long"))
    some += [options("float64", axes, 0, chunked=True) for axes in (1, 2)]
    some.append(options("float64", 1, 0, "long long", chunked=True))
    return HostKernels(tmp_path_factory.mktemp("kernels"), some)


def launch_of(kernel: str, case: PoolCase, dtype: str = "float64") -> PoolLaunch:
    kind = "max" if case.mode == "max" else "average"
    shapes = case.img_shape, case.out_shape
    return pool_launch(
        f"{kind}_{kernel}", case.mode, dtype, *shapes, case.ws, case.stride, case.pad
    )


def reference(kernel: str, case: PoolCase, x: np.ndarray, other: np.ndarray) -> np.ndarray:
    out = run_op(Pool(case.ndim, case.mode, case.ignore_border), x, *case.vectors)
    if kernel == "pool":
        return out
    if case.mode != "max":
        op = AveragePoolGrad(case.ndim, case.mode, case.ignore_border)
        return run_op(op, x, other, *case.vectors)
    op = MaxPoolGrad if kernel == "pool_grad" else MaxPoolGradGrad
    return run_op(op(case.ndim, case.ignore_border), x, out, other, *case.vectors)


def compare(
    kernels: HostKernels,
    case: PoolCase,
    dtype: str = "float64",
    change: Callable[[np.ndarray], None] = lambda x: None,
    altered: Callable[[PoolLaunch], PoolLaunch] = lambda launch: launch,
) -> None:
    """Compare all kernels with the abstract Ops."""
    x, gz, ggx = (rounded(a, dtype) for a in case.arrays(ties=True))
    change(x)
    if not x.size:
        return
    operands = {"pool": x, "pool_grad": gz, "pool_grad_grad": ggx}
    if case.mode != "max":
        del operands["pool_grad_grad"]
    for kernel, other in operands.items():
        expected = reference(kernel, case, x, other)
        if not expected.size:
            continue
        out = bits(np.full(expected.shape, 7.0), dtype)
        launch = altered(launch_of(kernel, case, dtype))
        kernels.run(launch, bits(x, dtype), bits(other, dtype), out, case.seed % 2**32)
        bound = 1e-12 if dtype == "float64" else RELATIVE_ERROR[dtype]
        message = f"{kernel}, {dtype}, {case}"
        found = values(out, dtype)
        np.testing.assert_allclose(found, expected, rtol=bound, atol=bound, err_msg=message)


def test_random_cases(host_kernels):
    @fuzz(max_examples=200, case=pool_cases(max_size=8, empty=True))
    def check(case: PoolCase) -> None:
        compare(host_kernels, case)

    check()


def larger_case(rng: np.random.Generator, axes: int, mode: str, window: int = 0) -> PoolCase:
    """Return a case with many tiles."""
    ignore_border = bool(rng.integers(2))
    ws = rng.integers(1, 6, axes) if not window else np.full(axes, window)
    pad = rng.integers(0, ws) if ignore_border else np.zeros(axes, int)
    sizes = rng.integers(1, {1: 400, 2: 70, 3: 20}[axes], axes) + ws
    return PoolCase(
        img_shape=(*map(int, rng.integers(1, 5, 2)), *map(int, sizes)),
        ws=tuple(map(int, ws)),
        stride=tuple(map(int, rng.integers(1, 6, axes))),
        pad=tuple(map(int, pad)),
        mode=mode,
        ignore_border=ignore_border,
        seed=int(rng.integers(2**31)),
    )


def test_many_tiles(host_kernels):
    rng = np.random.default_rng(SEED)
    blocks = []
    for axes, mode, window in product((1, 2, 3), POOL_MODES, (0, 2, 3)):
        case = larger_case(rng, axes, mode, window)
        blocks.append(launch_of("pool_grad", case).blocks)
        compare(host_kernels, case)
    assert max(blocks) > 20, f"{blocks}: {repeat_command()}"


@pytest.mark.parametrize("dtype", of_dtypes(*DTYPES))
def test_dtypes(host_kernels, dtype):
    rng = np.random.default_rng(SEED)
    for mode in POOL_MODES:
        compare(host_kernels, larger_case(rng, 2, mode, 3), dtype)


@pytest.mark.parametrize("window", [0, 2, 3])
def test_nan_and_infinity(host_kernels, window):
    """The first NaN of a window is its maximum; a window may consist of negative infinities."""
    rng = np.random.default_rng(SEED)

    def change(x: np.ndarray) -> None:
        x[rng.random(x.shape) < 0.1] = np.nan
        x[rng.random(x.shape) < 0.4] = -np.inf
        x[rng.random(x.shape) < 0.1] = np.inf

    for axes in (1, 2, 3):
        compare(host_kernels, larger_case(rng, axes, "max", window), change=change)


@pytest.mark.parametrize("mode", POOL_MODES)
@pytest.mark.parametrize(
    ("img_shape", "ws", "pad"),
    [((2, 1, 2100), (2100,), (2099,)), ((1, 2, 50, 52), (50, 51), (49, 50))],
)
def test_windows_that_overlap_much(host_kernels, mode, img_shape, ws, pad):
    """The windows of a tile don't fit in shared memory."""
    stride = (1,) * len(ws)
    case = PoolCase(img_shape, ws, stride, pad, mode, ignore_border=True, seed=SEED % 2**31)
    launch = launch_of("pool_grad", case)
    assert "-DCHUNKED=1" in launch.options
    kernel = "pool_grad"
    x, gz, _ = case.arrays(ties=True)
    out = np.full(x.shape, np.nan)
    host_kernels.run(launch, x, gz, out, case.seed)
    expected = reference(kernel, case, x, gz)
    np.testing.assert_allclose(out, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("axes", "window"), [(1, 0), (3, 2)])
def test_wide_offsets(host_kernels, axes, window):
    """The kernels for arrays of 2**30 or more elements."""
    rng = np.random.default_rng(SEED)

    def altered(launch: PoolLaunch) -> PoolLaunch:
        wide = [option.replace("=int", "=long long") for option in launch.options]
        return launch._replace(options=tuple(wide))

    for mode in POOL_MODES:
        compare(host_kernels, larger_case(rng, axes, mode, window), altered=altered)


def test_sizes_of_large_arrays():
    """Every element has a tile, and offsets are wide if 32 bits could overflow."""
    shape, top = (64, 1024, 224, 224), (64, 1024, 112, 112)
    for kernel, items in (("max_pool", top), ("max_pool_grad", shape)):
        launch = pool_launch(kernel, "max", "float16", shape, top, (3, 3), (2, 2), (0, 0))
        assert "-DOFFSET=long long" in launch.options
        assert np.prod(items) / 4096 <= launch.blocks < np.prod(items) / 500
    small = (64, 1024, 8, 8), (64, 1024, 4, 4)
    launch = pool_launch("max_pool", "max", "float32", *small, (2, 2), (2, 2), (0, 0))
    assert "-DOFFSET=int" in launch.options


@pytest.mark.needs("nvrtc")
@pytest.mark.parametrize(
    "given",
    [
        *(options(dtype, 2, window) for dtype in DTYPES for window in (0, 3)),
        options("float32", 1, 2),
        options("float32", 3, 3),
        options("float16", 3, 0, "long long", chunked=True),
    ],
    ids=" ".join,
)
def test_gpu_compiler(given):
    """NVRTC compiles the kernels, without a GPU, and keeps everything in registers."""
    log = compile_cuda(kernel_source("pool"), "-Xptxas=-v", *given).log
    spilled = list(map(int, re.findall(r"(\d+) bytes spill stores", log)))
    assert spilled == [0] * 5, log
