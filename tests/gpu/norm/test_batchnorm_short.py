"""Statistics of few contiguous elements, such as layer normalization's: kernels on the host."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from dnnops.gpu.batchnorm import parameter_dtype
from dnnops.gpu.kernels import kernel_source
from tests.emulation.host_batchnorm import WAYS, HostKernels, work_of
from tests.emulation.nvrtc import compile_cuda
from tests.gpu.device import DTYPES, numpy_dtype
from tests.gpu.norm.test_batchnorm import BLOCKS, Case
from tests.oracle import RELATIVE_ERROR, sampled

#: Vectors and single elements; a thread per channel up to a whole warp, with up to 64 numbers each.
LENGTHS = (2, 3, 4, 7, 8, 31, 33, 49, 64, 100, 200, 257, 512, 1000, 1023, 2047, 2048, 3000)

#: Channels: fewer than those of a block, or several blocks of which the last one has fewer.
CASES = [
    Case(
        (1, channels, length),
        dtype,
        kind,
        running=i % 2 == 0,
        inplace=i % 3 == 0,
        seed=1000 * i + length,
    )
    for i, (dtype, channels) in enumerate(zip(DTYPES, (9, 37, 11, 10), strict=True))
    for length in LENGTHS
    for kind in ("train", "gradient")
]
#: At addresses that no vector may have.
CASES += [
    Case((1, 33, 512), dtype, kind, alignment=8, seed=5)
    for dtype in ("float16", "float32")
    for kind in ("train", "gradient")
]

#: A mean that is many times the deviation, and a first element that is far off.
LARGE_MEANS = [
    Case((1, 12, length), dtype, kind, running=True, mean=1000.0, seed=length)
    for length in (257, 512, 1024)
    for dtype in ("float32", "float64")
    for kind in ("train", "gradient")
]
LARGE_MEANS += [Case((1, 12, n), "float32", "train", outlier=200.0, seed=n) for n in (257, 1024)]

#: With channels of equal elements and of a NaN.
SPECIAL = [
    Case((1, 20, length), dtype, "train", seed=length)
    for length in (30, 96, 520)
    for dtype in DTYPES
]


@pytest.fixture(scope="module")
def kernels(tmp_path_factory) -> HostKernels:
    cases = [*CASES, *LARGE_MEANS, *SPECIAL]
    cases += [replace(case, kind="gradient") for case in SPECIAL]
    options = [case.work.options for case in cases]
    return HostKernels(tmp_path_factory.mktemp("batchnorm_short"), options)


@pytest.mark.needs("cudnn")
def test_lengths(kernels):
    for case in CASES:
        case.check(kernels)
    works = [case.work for case in CASES if case.work.way == WAYS["short"]]
    # Only the longest channels of large elements are too long.
    assert len(works) >= len(CASES) - 10
    assert {w.macro("LANES") for w in works} == {1, 2, 4, 8, 16, 32}
    assert {w.macro("EVEN") for w in works} == {0, 1}
    assert max(w.macro("HOLDS") for w in works) == 64
    assert all(w.workspace == w.shared_bytes == 0 for w in works)
    assert any(w.grid > 1 and w.params.channels % (w.threads // w.macro("LANES")) for w in works)


@pytest.mark.needs("cudnn")
def test_large_means(kernels):
    for case in LARGE_MEANS:
        assert case.work.way == WAYS["short"]
        case.check(kernels)


@pytest.mark.needs("cudnn")
@pytest.mark.parametrize("case", SPECIAL, ids=lambda case: f"{case.dtype}-{case.shape[2]}")
def test_equal_elements_and_nans(kernels, case):
    """Without a variance, data becomes exactly the bias; a NaN concerns its own channel only."""
    dtype, of, shape = numpy_dtype(case.dtype), parameter_dtype(case.dtype), case.shape
    channels = shape[1]
    rng = np.random.default_rng(case.seed)
    x, g = (rng.standard_normal(shape).astype(dtype) for _ in range(2))
    equal = [0, 3, channels - 1]
    x[:, equal] = x[:, equal, :1]
    x[0, 5, -1] = x[0, 6, 0] = g[0, 7, 1] = np.nan
    scale = np.ones(channels, of)
    bias = rng.standard_normal(channels).astype(dtype).astype(of)  # survives the conversion
    statistics = [np.full(channels, np.inf, of) for _ in range(2)]
    parameters = [np.full(channels, np.inf, of) for _ in range(2)]
    data, gradient = case.array(x), case.array(g)
    out, dx = (case.array(np.full(shape, np.inf)) for _ in range(2))

    def launch(kind, out, results):
        work = replace(case, kind=kind).work
        assert work.way == WAYS["short"]
        p = work.params
        p.x, p.other, p.out = (a.ctypes.data for a in (data, gradient, out))
        p.scale, p.bias = scale.ctypes.data, bias.ctypes.data
        p.mean, p.spread = (a.ctypes.data for a in statistics)
        for i in range(2):
            p.results[i] = results[i].ctypes.data
        p.epsilon = 0.125
        kernels.run(work, case.seed)

    launch("train", out, statistics)
    launch("gradient", dx, parameters)
    mean, invstd = statistics
    np.testing.assert_array_equal(out[0, equal], np.repeat(bias[equal, np.newaxis], shape[2], 1))
    np.testing.assert_array_equal(mean[equal], x[0, equal, 0].astype(of))
    np.testing.assert_allclose(invstd[equal], np.sqrt(8), RELATIVE_ERROR[of])
    found = [np.flatnonzero(np.isnan(a).all(-1)) for a in (out[0], dx[0])]
    assert [list(a) for a in found] == [[5, 6], [5, 6, 7]]
    for array, expected in ((out, [5, 6]), (dx, [5, 6, 7])):
        others = np.delete(array[0].astype("float64"), expected, 0)
        assert np.isfinite(others).all()
    for results, expected in (
        (mean, [5, 6]),
        (invstd, [5, 6]),
        (parameters[0], [5, 6, 7]),
        (parameters[1], [7]),
    ):
        assert list(np.flatnonzero(np.isnan(results))) == expected
        assert np.isfinite(np.delete(results, expected)).all()


@pytest.mark.needs("cudnn")
@pytest.mark.parametrize(
    ("shape", "dtype", "kind", "lanes", "holds"),
    [
        ((1, 16384, 512), "float32", "train", 32, 4),
        ((1, 16384, 512), "float32", "gradient", 32, 4),
        ((1, 16384, 1024), "bfloat16", "gradient", 32, 4),
        ((1, 16384, 64), "float32", "train", 8, 2),
        ((1, 16384, 4), "float32", "train", 1, 1),
        ((1, 16384, 4096), "float32", "train", 32, 32),
        ((1, 16384, 2048), "float32", "gradient", 32, 16),
        ((1, 16384, 49), "float32", "train", 32, 2),
        ((1, 16384, 1001), "float16", "train", 32, 32),
        ((1, 528, 512), "float32", "train", 32, 4),
        # Not enough registers, or channels; several pieces of memory; channels side by side.
        ((1, 16384, 4100), "float32", "train", None, None),
        ((1, 16384, 2052), "float32", "gradient", None, None),
        ((1, 16384, 2049), "float32", "train", None, None),
        ((1, 100, 512), "float32", "train", None, None),
        ((1, 1, 512), "float32", "train", None, None),
        ((2, 16384, 512), "float32", "train", None, None),
        ((64, 256, 3136), "float32", "train", None, None),
        ((16384, 512, 1), "float32", "train", None, None),
        ((1, 16384, 1), "float32", "train", None, None),
        ((1, 16384, 512), "float32", "inference", None, None),
    ],
)
def test_choice_on_a_large_device(shape, dtype, kind, lanes, holds):
    """Test which channels get threads of their own on an H200 with 132 multiprocessors."""
    work = work_of(shape, kind, dtype)
    assert (work.way == WAYS["short"]) == (lanes is not None), list(WAYS)[work.way]
    if lanes is not None:
        assert (work.macro("LANES"), work.macro("HOLDS")) == (lanes, holds)
        teams = work.threads // lanes
        assert (work.grid - 1) * teams < shape[1] <= work.grid * teams


@pytest.mark.needs("cudnn")
def test_choice_by_the_number_of_channels():
    """With fewer channels than the device has schedulers of warps, a block has one to itself."""
    for channels, way in ((BLOCKS - 1, "alone"), (BLOCKS, "short")):
        assert Case((1, channels, 512), "float32", "train").work.way == WAYS[way]


@pytest.mark.needs("cudnn", "nvrtc")
def test_gpu_compiler():
    """NVRTC compiles kernels without a GPU, also for older ones, and nothing is spilled."""
    longest = [
        Case((1, 16384, length), dtype, kind, fused=fused)
        for length, dtype in ((2048, "float32"), (4096, "float16"), (1024, "float64"))
        for kind, fused in (("train", 0), ("train", 3), ("gradient", 0), ("gradient", 1))
    ]
    longest += [
        Case((1, 16384, 2047), dtype, kind, fused=kind == "gradient")
        for dtype in ("float32", "float16")
        for kind in ("train", "gradient")
    ]
    works = [case.work for case in (*longest, *CASES[::7])]
    short = {work.options.decode() for work in works if work.way == WAYS["short"]}
    assert len(short) >= len(longest)
    for architecture in ("sm_80", "sm_90"):
        for options in sampled(short):
            log = compile_cuda(
                kernel_source("batchnorm"),
                "-Xptxas=-v",
                *options.split(),
                architecture=architecture,
            ).log
            assert re.findall(r"(\d+) bytes spill stores", log) == ["0"], f"{options}: {log}"
