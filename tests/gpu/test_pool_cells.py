"""The gradient of max pooling on channels-last images: emulated, compiled, and on a GPU."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from dnnops.dtypes import DTYPE_CODES, numpy_dtype
from dnnops.gpu.kernels import kernel_source
from dnnops.gpu.pool import GpuDnnPoolGrad
from dnnops.nnet.pool.op import MaxPoolGrad, Pool
from tests.emulation.host_ops import HostOp
from tests.emulation.host_pool_cells import HostPoolCells
from tests.emulation.nvrtc import compile_cuda
from tests.gpu.device import DTYPES, apply_op, bits, check, on_gpu, poison, rounded, values
from tests.needs import of_dtypes
from tests.oracle import SEED, PoolCase, repeat_command, run_op

#: Windows and strides for which the kernel is compiled.
WINDOWS = (
    ((2, 2), (2, 2)),
    ((3, 2), (4, 3)),
    ((1, 1), (2, 1)),
    ((4, 4), (4, 4)),
    ((3,), (3,)),
    ((2, 2, 2), (2, 2, 2)),
)
ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}


def case_of(
    rng: np.random.Generator,
    dtype: str,
    ws: tuple[int, ...],
    stride: tuple[int, ...],
    ignore_border: bool = True,
) -> PoolCase:
    """Return a case whose channels fill vectors."""
    pad = tuple(int(rng.integers(w)) if ignore_border else 0 for w in ws)
    vectors = int(rng.integers(1, 6))
    largest = {1: 60, 2: 16, 3: 6}[len(ws)]
    sizes = (w + int(rng.integers(largest)) for w in ws)
    return PoolCase(
        img_shape=(int(rng.integers(1, 4)), vectors * 16 // ITEM_BYTES[dtype], *sizes),
        ws=ws,
        stride=stride,
        pad=pad,
        mode="max",
        ignore_border=ignore_border,
        seed=int(rng.integers(2**31)),
    )


def reference(case: PoolCase, x: np.ndarray, gz: np.ndarray) -> np.ndarray:
    out = run_op(Pool(case.ndim, "max", case.ignore_border), x, *case.vectors)
    return run_op(MaxPoolGrad(case.ndim, case.ignore_border), x, out, gz, *case.vectors)


def options_of(dtype: str, ws: tuple[int, ...], stride: tuple[int, ...]) -> str:
    words = []
    units = (1,) * (3 - len(ws))
    for axis, (window, step) in enumerate(zip(units + ws, units + stride, strict=True)):
        words += [f"-DWINDOW_{axis}={window}", f"-DSTRIDE_{axis}={step}"]
    return " ".join((*words, f"-DDTYPE={DTYPE_CODES[dtype]}"))


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    options = [options_of("float32", *given) for given in WINDOWS]
    options += [options_of(dtype, *WINDOWS[0]) for dtype in DTYPES]
    return HostPoolCells(tmp_path_factory.mktemp("kernels"), options)


def channels_last(array: np.ndarray, dtype: str) -> np.ndarray:
    """Return the bits of an array in channels-last order, at a multiple of 16 bytes."""
    source = bits(np.moveaxis(array, 1, -1), dtype)
    memory = np.empty(source.nbytes + 16, "uint8")
    begin = -memory.ctypes.data % 16
    aligned = memory[begin : begin + source.nbytes].view(source.dtype).reshape(source.shape)
    aligned[...] = source
    return aligned


def compare(
    cells: HostPoolCells,
    case: PoolCase,
    dtype: str,
    change: Callable[[np.ndarray], None] = lambda x: None,
) -> None:
    """Compare the kernel with the abstract Op; both copy elements, so there is no rounding."""
    x, gz, _ = (rounded(a, dtype) for a in case.arrays(ties=True))
    change(x)
    out = channels_last(np.full(x.shape, 7.0), dtype)
    cells.run(case, dtype, channels_last(x, dtype), channels_last(gz, dtype), out, case.seed)
    found = np.moveaxis(values(out, dtype), -1, 1)
    message = f"{case}, {dtype}; {repeat_command()}"
    np.testing.assert_array_equal(found, reference(case, x, gz), err_msg=message)


@pytest.mark.parametrize(("ws", "stride"), WINDOWS)
@pytest.mark.parametrize("ignore_border", [True, False])
def test_windows(cells, ws, stride, ignore_border):
    """Windows in the padding, past the end, and pixels that no window contains."""
    rng = np.random.default_rng(SEED)
    for _ in range(12):
        compare(cells, case_of(rng, "float32", ws, stride, ignore_border), "float32")


@pytest.mark.parametrize("dtype", of_dtypes(*DTYPES))
def test_dtypes(cells, dtype):
    rng = np.random.default_rng(SEED)
    for _ in range(12):
        compare(cells, case_of(rng, dtype, *WINDOWS[0]), dtype)


@pytest.mark.parametrize("dtype", of_dtypes("float16", "float32"))
def test_nan_and_infinity(cells, dtype):
    """The first NaN of a window is its maximum; a window may consist of negative infinities."""
    rng = np.random.default_rng(SEED)

    def change(x: np.ndarray) -> None:
        x[rng.random(x.shape) < 0.1] = np.nan
        x[rng.random(x.shape) < 0.5] = -np.inf
        x[rng.random(x.shape) < 0.1] = np.inf

    for _ in range(12):
        compare(cells, case_of(rng, dtype, *WINDOWS[0]), dtype, change)


def test_single_windows_overlap_nothing(cells):
    """With one window along an axis, the stride does not matter."""
    case = PoolCase((2, 8, 3, 9), (3, 2), (1, 3), (0, 0), "max", True, SEED % 2**31)
    wide = replace(case, img_shape=(2, 8, 4, 9), stride=(4, 3))
    assert cells.describe(case, "float32")[1] == options_of("float32", (3, 2), (3, 3))
    assert cells.describe(wide, "float32")[1] == options_of("float32", (3, 2), (4, 3))


def test_cases_for_cudnn(cells):
    """Other modes, overlapping or large windows, and channels that do not fill vectors."""
    case = PoolCase((2, 8, 20, 20), (2, 2), (2, 2), (0, 0), "max", True, 0)
    assert cells.describe(case, "float32")[0] == 2
    for changes in (
        {"mode": "sum"},
        {"ws": (3, 3)},
        {"ws": (2, 3)},
        {"ws": (5, 5), "stride": (5, 5)},
        {"stride": (2, 9)},
        {"img_shape": (2, 6, 20, 20)},
        {"img_shape": (2**16, 2**9, 2**6, 2**6)},
    ):
        assert cells.describe(replace(case, **changes), "float32")[0] == 0, changes
    assert cells.describe(case, "float16")[0] == 1
    assert cells.describe(replace(case, img_shape=(2, 4, 20, 20)), "float16")[0] == 0


@pytest.fixture(scope="module")
def on_host(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pool")
    macros = {"WINDOW_0": 1, "STRIDE_0": 1}
    macros |= {f"{name}_{axis}": 2 for name in ("WINDOW", "STRIDE") for axis in (1, 2)}
    kernels = ("max_pool_cells_grad",)
    return HostOp(folder, "pool", "pool_cells", "PoolCellsParams", kernels, DTYPES, macros)


@pytest.mark.needs("cudnn")
@pytest.mark.parametrize("dtype", DTYPES)
def test_op_on_the_host(on_host, dtype):
    """The Op launches the kernel for channels-last arrays."""
    rng = np.random.default_rng(SEED)
    op = GpuDnnPoolGrad("max", 2, memory_format="channels_last")
    for _ in range(5):
        case = case_of(rng, dtype, *WINDOWS[0])
        x, gz, _ = (rounded(a, dtype) for a in case.arrays(ties=True))
        # The kernel does not read the pooled image.
        arrays = (x, np.full(gz.shape, np.nan), gz)
        operands = [channels_last(a, dtype).view(numpy_dtype(dtype)) for a in arrays]
        operands = [np.moveaxis(a, -1, 1) for a in operands]
        (result,) = on_host.run(op, *operands, *case.vectors)
        np.testing.assert_array_equal(result, reference(case, x, gz), err_msg=str(case))


@pytest.mark.needs("nvrtc")
@pytest.mark.parametrize(
    "given",
    [
        *(options_of(dtype, *WINDOWS[0]) for dtype in DTYPES),
        *(options_of("float32", *window) for window in WINDOWS[1:]),
        options_of("float16", (4, 4), (4, 4)),
    ],
)
def test_gpu_compiler(given):
    """NVRTC compiles the kernel, without a GPU, and keeps everything in registers."""
    log = compile_cuda(kernel_source("pool_cells"), "-Xptxas=-v", *given.split()).log
    (frame,) = re.findall(r"(\d+) bytes stack frame", log)
    assert frame == "0", log


@pytest.mark.gpu
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("ws", "stride"), WINDOWS)
def test_op(ws, stride, dtype, deterministic):
    rng = np.random.default_rng(SEED)
    op = GpuDnnPoolGrad("max", len(ws), True, deterministic, "channels_last")
    for has_nan in (False, True):
        case = case_of(rng, dtype, ws, stride)
        x, gz, _ = (rounded(a, dtype) for a in case.arrays(ties=True))
        if has_nan:
            x[rng.random(x.shape) < 0.1] = np.nan
        pooled = run_op(Pool(case.ndim, "max", True), x, *case.vectors)
        operands = [on_gpu(a, dtype, "channels_last") for a in (x, pooled, gz)]
        poison()
        result = apply_op(op, *operands, *case.vectors)
        check(result, reference(case, x, gz), dtype, bound=0)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("channels", [1, 3, 4, 8, 12, 64])
def test_channels(dtype, channels):
    """The Op also takes channels that do not fill vectors, and arrays of other alignment."""
    import cupy

    rng = np.random.default_rng(SEED)
    case = replace(case_of(rng, dtype, (2, 2), (2, 2)), img_shape=(2, channels, 9, 12))
    x, gz, _ = (rounded(a, dtype) for a in case.arrays())
    pooled = run_op(Pool(2, "max", True), x, *case.vectors)
    operands = [on_gpu(a, dtype, "channels_last") for a in (x, pooled, gz)]
    op = GpuDnnPoolGrad("max", 2, memory_format="channels_last")
    expected = reference(case, x, gz)
    check(apply_op(op, *operands, *case.vectors), expected, dtype, bound=0)
    memory = cupy.empty(operands[0].size + 1, operands[0].dtype)
    shifted = memory[1:].reshape(operands[0].transpose(0, 2, 3, 1).shape).transpose(0, 3, 1, 2)
    shifted[...] = operands[0]
    check(apply_op(op, shifted, *operands[1:], *case.vectors), expected, dtype, bound=0)
