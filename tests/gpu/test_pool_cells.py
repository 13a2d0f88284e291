"""Max pooling of channels-last images and its gradient: emulated, compiled, and on a GPU."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from dnnops.dtypes import DTYPE_CODES, numpy_dtype
from dnnops.errors import DnnValueError
from dnnops.gpu.fused.pool_sum import GpuDnnPoolGradSum, has_kernel
from dnnops.gpu.kernels import kernel_source
from dnnops.gpu.pool import GpuDnnPool, GpuDnnPoolGrad
from dnnops.gpuarray.type import GpuArrayType
from dnnops.nnet.pool.op import MaxPoolGrad, Pool
from tests.emulation.host_ops import HostOp
from tests.emulation.host_pool_cells import (
    ADDEND_OF_ELEMENTS,
    ADDEND_OF_VECTORS,
    KERNELS,
    NO_ADDEND,
    Configuration,
    HostPoolCells,
)
from tests.emulation.nvrtc import compile_cuda
from tests.gpu.device import DTYPES, apply_op, bits, check, host, on_gpu, poison, rounded, values
from tests.needs import of_dtypes
from tests.oracle import SEED, PoolCase, repeat_command, run_op

#: Windows that do not overlap, and their strides; the kernels are compiled for these and the next.
APART = (
    ((2, 2), (2, 2)),
    ((3, 2), (4, 3)),
    ((1, 1), (2, 1)),
    ((4, 4), (4, 4)),
    ((3,), (3,)),
    ((2, 2, 2), (2, 2, 2)),
)
#: Windows that overlap along an axis, and their strides.
OVERLAPPING = (
    ((3, 3), (2, 2)),
    ((2, 2), (1, 1)),
    ((3, 3), (1, 1)),
    ((3, 2), (2, 4)),
    ((2, 5), (3, 2)),
    ((7,), (3,)),
    ((2, 3, 2), (1, 4, 1)),
)
WINDOWS = APART + OVERLAPPING
#: Cases of each dtype.
COMMON = APART[0], OVERLAPPING[0], OVERLAPPING[1]
ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
PARAMS = "pool_cells_params.hpp"


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
    # Two windows along each axis: with one, the strides would not matter.
    sizes = (w + s + int(rng.integers(largest)) for w, s in zip(ws, stride, strict=True))
    return PoolCase(
        img_shape=(int(rng.integers(1, 4)), vectors * 16 // ITEM_BYTES[dtype], *sizes),
        ws=ws,
        stride=stride,
        pad=pad,
        mode="max",
        ignore_border=ignore_border,
        seed=int(rng.integers(2**31)),
    )


def reference(case: PoolCase, x: np.ndarray, gz: np.ndarray | None = None) -> np.ndarray:
    """Return the pooled image or, given `gz`, the gradient."""
    out = run_op(Pool(case.ndim, "max", case.ignore_border), x, *case.vectors)
    if gz is None:
        return out
    return run_op(MaxPoolGrad(case.ndim, case.ignore_border), x, out, gz, *case.vectors)


def configuration_of(
    dtype: str,
    ws: tuple[int, ...],
    stride: tuple[int, ...],
    gradient: bool = True,
    addend: int = NO_ADDEND,
) -> Configuration:
    words = []
    units = (1,) * (3 - len(ws))
    steps = list(zip(units + ws, units + stride, strict=True))
    for axis, (window, step) in enumerate(steps):
        words += [f"-DWINDOW_{axis}={window}", f"-DSTRIDE_{axis}={step}"]
        if axis == 1:
            words.append(f"-DSTRIP={4 if step < window else 1}")
    overlap = any(step < window for window, step in steps)
    program = "overlap" if overlap else "grad"
    if gradient:
        words.append(f"-DADDEND={addend}")
    words.append(f"-DDTYPE={DTYPE_CODES[dtype]}")
    return Configuration(f"pool_cells_{program if gradient else 'forward'}", " ".join(words))


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    given = [("float32", *windows) for windows in WINDOWS]
    given += [(dtype, *windows) for dtype in DTYPES for windows in COMMON]
    configurations = [configuration_of(*g, gradient) for g in given for gradient in (False, True)]
    configurations += [configuration_of(*g, addend=ADDEND_OF_VECTORS) for g in given]
    configurations += [
        configuration_of(dtype, *windows, addend=ADDEND_OF_ELEMENTS)
        for dtype in DTYPES
        for windows in COMMON
    ]
    return HostPoolCells(tmp_path_factory.mktemp("kernels"), configurations)


def channels_last(array: np.ndarray, dtype: str) -> np.ndarray:
    """Return the bits of an array in channels-last order, at a multiple of 16 bytes."""
    source = bits(np.moveaxis(array, 1, -1), dtype)
    memory = np.empty(source.nbytes + 16, "uint8")
    begin = -memory.ctypes.data % 16
    aligned = memory[begin : begin + source.nbytes].view(source.dtype).reshape(source.shape)
    aligned[...] = source
    return aligned


def arrays_of(case: PoolCase, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Return an image with many equal pixels, and a gradient whose sums are exact."""
    x, gz, _ = case.arrays(ties=True)
    # A pixel gets the gradients of few windows: it is the maximum of all of them.
    return rounded(x, dtype), np.rint(8 * gz) / 8


def addend_of(rng: np.random.Generator, case: PoolCase, dtype: str) -> np.ndarray:
    """Return an array to add, so that float32 holds the sums with gradients of `arrays_of`."""
    return rounded(np.rint(64 * rng.standard_normal(case.img_shape)) / 64, dtype)


def joined(array: np.ndarray, before: int, after: int) -> tuple[np.ndarray, slice]:
    """Return an array with more channels, NaN, and where those of `array` are."""
    sides = [(0, 0), (before, after), *[(0, 0)] * (array.ndim - 2)]
    wide = np.pad(array, sides, constant_values=np.nan)
    return wide, slice(before, before + array.shape[1])


def run(
    cells: HostPoolCells,
    case: PoolCase,
    dtype: str,
    x: np.ndarray,
    gz: np.ndarray | None = None,
    addend: np.ndarray | None = None,
    channels: tuple[int, int] = (0, 0),
) -> np.ndarray:
    """Return the pooled image or, given `gz`, the gradient.

    An addend has other channels before and after it in memory, in these numbers.
    """
    shape = case.out_shape if gz is None else x.shape
    out = channels_last(np.full(shape, 7.0), dtype)
    operands = (a if a is None else channels_last(a, dtype) for a in (x, gz))
    if addend is not None:
        wide, part = joined(addend, *channels)
        addend = channels_last(wide, dtype)[..., part]
    cells.run(case, dtype, *operands, out, case.seed, addend)
    return np.moveaxis(values(out, dtype), -1, 1)


def compare(
    cells: HostPoolCells,
    case: PoolCase,
    dtype: str,
    change: Callable[[np.ndarray], None] = lambda x: None,
) -> None:
    """Compare the kernels with the abstract Ops; there is no rounding."""
    x, gz = arrays_of(case, dtype)
    change(x)
    message = f"{case}, {dtype}; {repeat_command()}"
    for given in (None, gz):
        found = run(cells, case, dtype, x, given)
        np.testing.assert_array_equal(found, reference(case, x, given), err_msg=message)


@pytest.mark.parametrize(("ws", "stride"), WINDOWS)
@pytest.mark.parametrize("ignore_border", [True, False])
def test_windows(cells, ws, stride, ignore_border):
    """Windows in the padding, past the end, and pixels that no window contains."""
    rng = np.random.default_rng(SEED)
    for _ in range(12):
        compare(cells, case_of(rng, "float32", ws, stride, ignore_border), "float32")


@pytest.mark.parametrize("dtype", of_dtypes(*DTYPES))
@pytest.mark.parametrize(("ws", "stride"), COMMON)
def test_dtypes(cells, dtype, ws, stride):
    rng = np.random.default_rng(SEED)
    for _ in range(12):
        compare(cells, case_of(rng, dtype, ws, stride), dtype)


@pytest.mark.parametrize("dtype", of_dtypes(*DTYPES))
@pytest.mark.parametrize(("ws", "stride"), COMMON)
def test_nan_and_infinity(cells, dtype, ws, stride):
    """The first NaN of a window is its maximum; a window may consist of negative infinities."""
    rng = np.random.default_rng(SEED)

    def change(x: np.ndarray) -> None:
        x[rng.random(x.shape) < 0.05] = np.nan
        x[rng.random(x.shape) < 0.6] = -np.inf
        x[rng.random(x.shape) < 0.05] = np.inf
        x[rng.random(x.shape) < 0.1] = -0.0

    for _ in range(12):
        compare(cells, case_of(rng, dtype, ws, stride), dtype, change)


@pytest.mark.parametrize("dtype", of_dtypes(*DTYPES))
def test_windows_of_negative_infinities(cells, dtype):
    """The gradient goes to the first pixel inside the image."""
    rng = np.random.default_rng(SEED)
    for ws, stride in COMMON:
        compare(cells, case_of(rng, dtype, ws, stride), dtype, lambda x: x.fill(-np.inf))


@pytest.mark.parametrize("dtype", of_dtypes(*DTYPES))
def test_sums_of_gradients(cells, dtype):
    """Sums are rounded once, to the dtype."""
    rng = np.random.default_rng(SEED)
    for _ in range(6):
        case = case_of(rng, dtype, *OVERLAPPING[0])
        x, gz, _ = (rounded(a, dtype) for a in case.arrays())
        out = run(cells, case, dtype, x, gz)
        exact = reference(case, x, gz)
        # Terms may cancel, so the last digit of float32 and float64 is that of the terms.
        error = 0 if ITEM_BYTES[dtype] == 2 else 8 * np.finfo(dtype).eps
        np.testing.assert_allclose(out, rounded(exact, dtype), rtol=0, atol=error)


@pytest.mark.parametrize("dtype", of_dtypes(*DTYPES))
@pytest.mark.parametrize(("ws", "stride"), COMMON)
def test_addends(cells, dtype, ws, stride):
    """An array of its own, and channels of a larger one, which may begin anywhere."""
    rng = np.random.default_rng(SEED)
    vector = 16 // ITEM_BYTES[dtype]
    for channels in ((0, 0), (2 * vector, vector), (1, 2), (vector, 1), (1, vector - 1)):
        for _ in range(3):
            case = case_of(rng, dtype, ws, stride)
            x, gz = arrays_of(case, dtype)
            addend = addend_of(rng, case, dtype)
            found = run(cells, case, dtype, x, gz, addend, channels)
            expected = rounded(reference(case, x, gz) + addend, dtype)
            message = f"{case}, {dtype}, {channels}; {repeat_command()}"
            np.testing.assert_array_equal(found, expected, err_msg=message)


@pytest.mark.parametrize(("ws", "stride"), WINDOWS)
@pytest.mark.parametrize("ignore_border", [True, False])
def test_addends_of_windows(cells, ws, stride, ignore_border):
    """Each pixel inside the image gets its addend, also those that no window contains."""
    rng = np.random.default_rng(SEED)
    for _ in range(6):
        case = case_of(rng, "float32", ws, stride, ignore_border)
        x, gz = arrays_of(case, "float32")
        addend = addend_of(rng, case, "float32")
        found = run(cells, case, "float32", x, gz, addend, (4, 8))
        message = f"{case}; {repeat_command()}"
        np.testing.assert_array_equal(found, reference(case, x, gz) + addend, err_msg=message)


@pytest.mark.parametrize("dtype", of_dtypes(*DTYPES))
def test_sums_with_addends_are_rounded_once(cells, dtype):
    rng = np.random.default_rng(SEED)
    for windows in COMMON:
        case = case_of(rng, dtype, *windows)
        x, gz, addend = (rounded(a, dtype) for a in case.arrays())
        found = run(cells, case, dtype, x, gz, addend)
        exact = reference(case, x, gz) + addend
        if ITEM_BYTES[dtype] == 2:
            # Sums in float32 round to a neighbor of the exact sum only if it is next to a tie.
            wide = reference(case, x, gz).astype("float32") + addend.astype("float32")
            np.testing.assert_array_equal(found, rounded(wide, dtype))
        else:
            np.testing.assert_allclose(found, exact, rtol=0, atol=16 * np.finfo(dtype).eps)


def test_where_a_kernel_adds(cells):
    """The rewrite and the Op have the same limits, if types tell shapes."""
    rng = np.random.default_rng(SEED)
    counts = [0, 0]
    for _ in range(200):
        ndim = int(rng.integers(1, 4))
        ws, stride = (tuple(map(int, rng.integers(1, 5, ndim))) for _ in range(2))
        dtype = str(rng.choice(DTYPES))
        sizes = (w + 3 * s for w, s in zip(ws, stride, strict=True))
        shape = (2, int(rng.integers(1, 9)), *sizes)
        case = PoolCase(shape, ws, stride, (0,) * ndim, "max", True, 0)
        x, top = (GpuArrayType(dtype, s)() for s in (shape, case.out_shape))
        op = GpuDnnPoolGrad("max", ndim, memory_format="channels_last")
        expected = cells.describe(case, dtype)[0] > 0
        assert has_kernel(op.make_node(x, top, top, *case.vectors)) == expected, (case, dtype)
        counts[expected] += 1
    assert min(counts) > 20


def test_single_windows_overlap_nothing(cells):
    """With one window along an axis, the stride does not matter."""
    case = PoolCase((2, 8, 3, 9), (3, 2), (1, 3), (0, 0), "max", True, SEED % 2**31)
    wide = replace(case, img_shape=(2, 8, 4, 9), stride=(4, 3))
    for gradient in (False, True):
        for given, stride in ((case, (3, 3)), (wide, (4, 3))):
            found = cells.describe(given, "float32", gradient)[1]
            assert found == configuration_of("float32", (3, 2), stride, gradient)


def test_cases_for_cudnn(cells):
    """Other modes, large windows, and channels that do not fill vectors."""
    case = PoolCase((2, 8, 20, 20), (2, 2), (2, 2), (0, 0), "max", True, 0)
    assert cells.describe(case, "float32")[0] == 2
    assert cells.describe(case, "float32", False)[0] == 2
    for changes in (
        {"mode": "sum"},
        {"ws": (4, 7)},
        {"img_shape": (2, 6, 20, 20)},
        {"img_shape": (2**16, 2**9, 2**6, 2**6)},
        # 2**30 vectors of pixels, but four times as many windows.
        {"img_shape": (2**30, 4, 1, 1), "stride": (1, 1), "pad": (1, 1)},
    ):
        for gradient in (False, True):
            given = replace(case, **changes)
            assert cells.describe(given, "float32", gradient)[0] == 0, changes
    # The kernel that pools handles these.
    for changes in (
        {"ws": (5, 5), "stride": (5, 5)},
        {"stride": (2, 9)},
        {"ws": (4, 4), "stride": (2, 2)},
        {"ws": (2, 9), "stride": (1, 1)},
    ):
        given = replace(case, **changes)
        assert cells.describe(given, "float32")[0] == 0, changes
        assert cells.describe(given, "float32", False)[0] > 0, changes
    assert cells.describe(case, "float16")[0] == 1
    assert cells.describe(replace(case, img_shape=(2, 4, 20, 20)), "float16")[0] == 0


def test_strips(cells):
    """Cells are computed in strips of four rows; the last strip may extend past the image."""
    for rows, strips in ((6, 1), (7, 1), (8, 2), (15, 2), (16, 3)):
        case = PoolCase((1, 256, rows, 5), (3, 3), (2, 2), (1, 1), "max", True, 0)
        # Three cells in a row, each with 64 vectors of channels.
        assert cells.describe(case, "float32")[0] == strips * 4 * 3 * 64 / 256, rows


@pytest.fixture(scope="module")
def on_host(tmp_path_factory):
    """Return the Ops by program, and the windows that they are compiled for."""

    def compiled(program: str, ws: int, stride: int, addend: int = NO_ADDEND) -> HostOp:
        macros = {"WINDOW_0": 1, "STRIDE_0": 1, "STRIP": 4 if stride < ws else 1, "ADDEND": addend}
        for axis in (1, 2):
            macros |= {f"WINDOW_{axis}": ws, f"STRIDE_{axis}": stride}
        folder = tmp_path_factory.mktemp(program)
        names = program, "PoolCellsParams", (KERNELS[program],)
        return HostOp(folder, "pool", *names, DTYPES, macros, header=PARAMS)

    windows = {"forward": (3, 2), "grad": (2, 2), "overlap": (3, 2)}
    found = {name: (compiled(f"pool_cells_{name}", *w), *w) for name, w in windows.items()}
    found["sum"] = compiled("pool_cells_grad", 2, 2, ADDEND_OF_VECTORS), 2, 2
    return found


@pytest.mark.needs("cudnn")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("program", ["forward", "grad", "overlap"])
def test_op_on_the_host(on_host, program, dtype):
    """The Ops launch the kernels for channels-last arrays."""
    rng = np.random.default_rng(SEED)
    host_op, ws, stride = on_host[program]
    cls = GpuDnnPool if program == "forward" else GpuDnnPoolGrad
    op = cls("max", 2, memory_format="channels_last")
    for _ in range(5):
        case = case_of(rng, dtype, (ws, ws), (stride, stride))
        x, gz = arrays_of(case, dtype)
        # The kernels do not read the pooled image.
        arrays = (x,) if program == "forward" else (x, np.full(gz.shape, np.nan), gz)
        operands = [channels_last(a, dtype).view(numpy_dtype(dtype)) for a in arrays]
        operands = [np.moveaxis(a, -1, 1) for a in operands]
        (result,) = host_op.run(op, *operands, *case.vectors)
        expected = reference(case, x, None if program == "forward" else gz)
        np.testing.assert_array_equal(result, expected, err_msg=str(case))


@pytest.mark.needs("cudnn")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vectors_before", [0, 1])
def test_sum_on_the_host(on_host, dtype, vectors_before):
    """The Op finds the distance of pixels, whatever axes have a length of 1."""
    rng = np.random.default_rng(SEED)
    host_op, *_ = on_host["sum"]
    op = GpuDnnPoolGradSum("max", 2, memory_format="channels_last")
    vector = 16 // ITEM_BYTES[dtype]
    with_windows = (2, 4, 6), (1, 5, 4), (3, 2, 4), (2, 4, 2), (3, 2, 2)
    for batch, *sizes in (*with_windows, (2, 1, 5), (3, 1, 1)):
        case = PoolCase((batch, vector, *sizes), (2, 2), (2, 2), (0, 0), "max", True, batch)
        x, gz = arrays_of(case, dtype)
        addend = addend_of(rng, case, dtype)
        wide, part = joined(addend, vector * vectors_before, vector)
        given = (x, np.full(gz.shape, np.nan), gz, wide)
        operands = [channels_last(a, dtype).view(numpy_dtype(dtype)) for a in given]
        operands = [np.moveaxis(a, -1, 1) for a in operands]
        (result,) = host_op.run(op, *operands[:3], operands[3][:, part], *case.vectors)
        expected = rounded(reference(case, x, gz) + addend, dtype)
        np.testing.assert_array_equal(result, expected, err_msg=str(case))


@pytest.mark.needs("cudnn")
def test_addends_of_other_shapes_are_refused(on_host):
    case = PoolCase((2, 4, 4, 6), (2, 2), (2, 2), (0, 0), "max", True, 0)
    shapes = case.img_shape, case.out_shape, case.out_shape, (2, 4, 4, 5)
    arrays = [channels_last(np.zeros(shape), "float32") for shape in shapes]
    op = GpuDnnPoolGradSum("max", 2, memory_format="channels_last")
    with pytest.raises(DnnValueError, match=r"GpuDnnPoolGradSum: .*addend has to be float32"):
        on_host["sum"][0].run(op, *(np.moveaxis(a, -1, 1) for a in arrays), *case.vectors)


#: The largest patches, and the largest window that is pooled.
LARGEST = [
    configuration_of(dtype, *windows)
    for dtype in ("bfloat16", "float32", "float64")
    for windows in (((3, 3), (1, 1)), ((2, 2, 2), (1, 1, 1)), ((14,), (1,)), ((2, 8), (1, 16)))
]
LARGEST += [
    given._replace(options=given.options.replace("-DADDEND=0", f"-DADDEND={ADDEND_OF_VECTORS}"))
    for given in LARGEST
]
LARGEST += [configuration_of(dtype, (3, 9), (3, 9), False) for dtype in DTYPES]


@pytest.mark.needs("nvrtc")
@pytest.mark.parametrize(
    "given",
    [
        *(
            configuration_of(dtype, *windows, gradient)
            for dtype in DTYPES
            for windows in COMMON
            for gradient in (False, True)
        ),
        *(
            configuration_of(dtype, *windows, addend=addend)
            for dtype in DTYPES
            for windows in COMMON
            for addend in (ADDEND_OF_ELEMENTS, ADDEND_OF_VECTORS)
        ),
        *(
            configuration_of("float32", *windows, addend=addend)
            for windows in WINDOWS[1:]
            for addend in (NO_ADDEND, ADDEND_OF_VECTORS)
        ),
        *(configuration_of("float16", (4, 4), (4, 4), addend=addend) for addend in range(3)),
        *LARGEST,
    ],
)
def test_gpu_compiler(given):
    """NVRTC compiles the kernels, without a GPU, and keeps everything in registers."""
    source, options = kernel_source(given.program), given.options.split()
    log = compile_cuda(source, "-std=c++17", "-Xptxas=-v", *options).log
    (frame,) = re.findall(r"(\d+) bytes stack frame", log)
    assert frame == "0", log


@pytest.mark.needs("nvrtc")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("architecture", ["sm_75", "sm_80", "sm_100"])
def test_other_architectures(dtype, architecture):
    """Older GPUs lack some instructions for pairs of numbers."""
    kinds = (False, NO_ADDEND), (True, NO_ADDEND), (True, ADDEND_OF_VECTORS)
    for kind in kinds:
        program, options = configuration_of(dtype, (3, 3), (2, 2), *kind)
        source = kernel_source(program)
        compile_cuda(source, "-std=c++17", *options.split(), architecture=architecture)


@pytest.mark.gpu
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("ws", "stride"), WINDOWS)
def test_op(ws, stride, dtype, deterministic):
    rng = np.random.default_rng(SEED)
    params = "max", len(ws), True, deterministic, "channels_last"
    for kind in ("finite", "NaN", "infinite"):
        case = case_of(rng, dtype, ws, stride)
        x, gz = arrays_of(case, dtype)
        if kind == "NaN":
            x[rng.random(x.shape) < 0.1] = np.nan
        if kind == "infinite":
            x[rng.random(x.shape) < 0.7] = -np.inf
        pooled = reference(case, x)
        operands = [on_gpu(a, dtype, "channels_last") for a in (x, pooled, gz)]
        poison()
        found = host(apply_op(GpuDnnPool(*params), operands[0], *case.vectors))
        np.testing.assert_array_equal(found, pooled, err_msg=f"{case}, {kind}")
        poison()
        result = apply_op(GpuDnnPoolGrad(*params), *operands, *case.vectors)
        check(result, reference(case, x, gz), dtype, bound=0)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("ws", "stride"), WINDOWS)
def test_sum_op(ws, stride, dtype):
    """The addend is an array of its own, or channels of a larger one, which may begin anywhere."""
    rng = np.random.default_rng(SEED)
    params = "max", len(ws), True, False, "channels_last"
    vector = 16 // ITEM_BYTES[dtype]
    for channels in ((0, 0), (vector, 2 * vector), (0, vector), (1, 2), (vector, 1)):
        case = case_of(rng, dtype, ws, stride)
        x, gz = arrays_of(case, dtype)
        addend = addend_of(rng, case, dtype)
        wide, part = joined(addend, *channels)
        operands = [on_gpu(a, dtype, "channels_last") for a in (x, reference(case, x), gz, wide)]
        operands[-1] = operands[-1][:, part]
        poison()
        result = apply_op(GpuDnnPoolGradSum(*params), *operands, *case.vectors)
        expected = rounded(reference(case, x, gz) + addend, dtype)
        np.testing.assert_array_equal(host(result), expected, err_msg=f"{case}, {channels}")
        np.testing.assert_array_equal(host(operands[-1]), addend, err_msg=f"{case}, {channels}")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("ws", "stride"), COMMON)
def test_sum_op_has_the_bits_of_two_ops(ws, stride, dtype):
    rng = np.random.default_rng(SEED)
    params = "max", len(ws), True, False, "channels_last"
    for _ in range(3):
        case = case_of(rng, dtype, ws, stride)
        x, gz, addend = (on_gpu(a, dtype, "channels_last") for a in case.arrays())
        gradient = apply_op(GpuDnnPoolGrad(*params), x, gz, gz, *case.vectors)
        result = apply_op(GpuDnnPoolGradSum(*params), x, gz, gz, addend, *case.vectors)
        np.testing.assert_array_equal(host(result), host(gradient + addend), err_msg=str(case))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("channels", [1, 3, 4, 8, 12, 64])
@pytest.mark.parametrize(("ws", "stride"), COMMON)
def test_channels(ws, stride, dtype, channels):
    """The Ops also take channels that do not fill vectors, and arrays of other alignment."""
    import cupy

    rng = np.random.default_rng(SEED)
    case = replace(case_of(rng, dtype, ws, stride), img_shape=(2, channels, 9, 12))
    # cuDNN computes some of these: without ties, and with sums that are exact in every dtype.
    x = rng.permuted(np.broadcast_to(np.arange(9.0 * 12), (2, channels, 9 * 12)), axis=-1)
    x = x.reshape(case.img_shape)
    gz = rng.integers(-3, 4, case.out_shape).astype("float64")
    pooled = reference(case, x)
    operands = [on_gpu(a, dtype, "channels_last") for a in (x, pooled, gz)]
    forward = GpuDnnPool("max", 2, memory_format="channels_last")
    gradient = GpuDnnPoolGrad("max", 2, memory_format="channels_last")
    expected = reference(case, x, gz)
    memory = cupy.empty(operands[0].size + 1, operands[0].dtype)
    shifted = memory[1:].reshape(operands[0].transpose(0, 2, 3, 1).shape).transpose(0, 3, 1, 2)
    shifted[...] = operands[0]
    for given in (operands[0], shifted):
        check(apply_op(forward, given, *case.vectors), pooled, dtype, bound=0)
        result = apply_op(gradient, given, *operands[1:], *case.vectors)
        check(result, expected, dtype, bound=0)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_repeat_their_bits(dtype):
    rng = np.random.default_rng(SEED)
    case = PoolCase((4, 64, 33, 35), (3, 3), (1, 1), (1, 1), "max", True, 0)
    x, gz = (rng.standard_normal(s) for s in (case.img_shape, case.out_shape))
    operands = [on_gpu(a, dtype, "channels_last") for a in (x, gz, gz)]
    op = GpuDnnPoolGrad("max", 2, memory_format="channels_last")
    first = host(apply_op(op, *operands, *case.vectors))
    assert first.any()
    for _ in range(3):
        np.testing.assert_array_equal(host(apply_op(op, *operands, *case.vectors)), first)
