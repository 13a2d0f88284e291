"""Batch normalization for a GPU, without one: kernels on the host, compiled kernels, rewrites."""

from __future__ import annotations

import itertools
import random
import re
from dataclasses import dataclass, replace

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from dnnops import dnn
from dnnops.errors import DnnNotSupportedError, DnnTypeError, DnnValueError
from dnnops.gpu.batchnorm import (
    GpuDnnBatchNorm,
    GpuDnnBatchNormGrad,
    GpuDnnBatchNormInference,
    parameter_dtype,
)
from dnnops.gpu.kernels import kernel_source
from dnnops.gpuarray.type import GpuArrayType
from dnnops.nnet import batch_normalization_test, batch_normalization_train
from tests.emulation.host_batchnorm import KINDS, WAYS, HostKernels, Work, work_of
from tests.emulation.nvrtc import compile_cuda
from tests.gpu.calls import call, channels_last, device_tensor
from tests.gpu.device import DTYPES, numpy_dtype, rounded
from tests.oracle import RELATIVE_ERROR, SEED, repeat_command, sampled
from tests.rewriting.gpu.test_to_cudnn import nodes, rewritten

#: Number of blocks that run at once: a small device, so that small arrays need many blocks.
BLOCKS = 8

#: The same for kernels with 16 or 32 independent warps.
BLOCKS_OF_WARPS = 2


# -- on the host ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """Arrays viewed as (batch, channel, inner), at addresses that are multiples of `alignment`."""

    shape: tuple[int, int, int]
    dtype: str
    kind: str
    running: bool = False
    inplace: bool = False
    alignment: int = 16
    mean: float = 0.0
    outlier: float = 0.0
    #: What `x` and the gradient are multiplied by.
    magnitude: float = 1.0
    slope: float = 1.0
    epsilon: float = 0.125
    cooperative: bool = True
    #: Whether the device supports bulk copies.
    bulk: bool = True
    blocks_of_warps: int = BLOCKS_OF_WARPS
    #: Number of blocks for kernels whose threads keep their data in registers.
    holding_blocks: int = 0
    #: Most steps of a thread that stay in shared memory if rows are swept.
    kept: int = 1000
    #: Bits of ``BatchNormFused``.
    fused: int = 0
    seed: int = 0

    @property
    def work(self) -> Work:
        kept = (BLOCKS, self.blocks_of_warps if self.bulk else 0, BLOCKS, self.holding_blocks)
        if not self.cooperative:
            kept = (0, 0, 0, 0)
        work = work_of(self.shape, self.kind, self.dtype, self.alignment, BLOCKS, kept, self.fused)
        work.params.kept = min(work.params.kept, self.kept)
        work.params.cached = min(work.params.cached, 3)
        return work

    def array(self, values: np.ndarray) -> np.ndarray:
        """Return a copy at an address that is not a multiple of more than the alignment."""
        dtype = numpy_dtype(self.dtype)
        memory = np.empty(values.size + 32, dtype)
        start = -(memory.ctypes.data // dtype.itemsize) % (16 // dtype.itemsize)
        start += self.alignment % 16 // dtype.itemsize
        array = memory[start : start + values.size].reshape(values.shape)
        array[...] = values
        return array

    def check(self, kernels: HostKernels) -> None:
        """Run the kernel, and compare it with float64."""
        rng = np.random.default_rng(self.seed)
        x, g = (rounded(rng.standard_normal(self.shape) + m, self.dtype) for m in (self.mean, 0))
        if self.outlier:
            x[0, :, 0] = rounded(np.array(self.outlier), self.dtype)
        x = rounded(x.clip(-1, 1) if self.magnitude > 1e38 else x, self.dtype)
        x, g = (rounded(a * b, self.dtype) for a, b in ((x, self.magnitude), (g, self.slope)))
        channels = (self.shape[1],)
        scale, bias, mean = (rng.standard_normal(channels) for _ in range(3))
        spread = rng.uniform(0.5, 2, channels)
        if self.kind == "gradient":  # the mean of x is an operand, and rounded
            mean, spread = x.mean((0, 2)), 1 / np.sqrt(x.var((0, 2)) + self.epsilon)
        running = [rng.standard_normal(channels), rng.uniform(0.5, 2, channels)]
        of_parameters = parameter_dtype(self.dtype)

        def parameter(values: np.ndarray) -> np.ndarray:
            return values.astype(of_parameters)

        scale, bias, mean, spread, *running = map(parameter, (scale, bias, mean, spread, *running))
        data, gradient = self.array(x), self.array(g)
        out = data if self.inplace else self.array(np.full(self.shape, np.nan))
        results = [np.full(channels, np.nan, of_parameters) for _ in range(4)]
        work = self.work
        params = work.params
        params.x, params.other, params.out = (a.ctypes.data for a in (data, gradient, out))
        params.scale, params.bias, params.mean, params.spread = (
            a.ctypes.data for a in (scale, bias, mean, spread)
        )
        params.epsilon, params.factor = self.epsilon, 0.25
        for i in range(2):
            params.results[i] = results[i].ctypes.data
            if self.running and self.kind == "train":
                params.running[i] = running[i].ctypes.data
                params.new_running[i] = results[2 + i].ctypes.data
        kernels.run(work, self.seed)

        expected = self.expected(x, g, scale, bias, mean, spread, running)
        found = [out, *results][: len(expected)]
        if self.is_extreme:
            self._compare_channels(found, expected)
            return
        bound = RELATIVE_ERROR[self.dtype]
        for i, (result, reference) in enumerate(zip(found, expected, strict=True)):
            wanted = bound if i == 0 else RELATIVE_ERROR[of_parameters] * (1 + abs(self.mean))
            error = np.linalg.norm(result.astype("float64") - reference)
            # Sums and means of numbers of both signs may be near zero; their terms are rounded, and
            # a mean is computed as a distance from one of its numbers: a few units of each.
            is_sum = self.kind == "gradient" and i
            least = 0.1 * np.sqrt(x.size) if is_sum else 0.05 * np.sqrt(self.shape[1])
            size = max(np.linalg.norm(reference), least)
            words = f"result {i} of {self}, {repeat_command()}: {error / size:.2g}"
            assert error <= wanted * size, words

    @property
    def is_extreme(self) -> bool:
        return not all(1e-18 < size < 1e18 for size in (self.magnitude, self.slope))

    def _compare_channels(self, found: list[np.ndarray], expected: list[np.ndarray]) -> None:
        """Compare each channel by itself, so that the largest does not hide the others."""
        tiny = float(np.finfo("float32").smallest_subnormal)
        for i, (result, reference) in enumerate(zip(found, expected, strict=True)):
            # The sums of a gradient are compared with those of the terms' sizes.
            if self.kind == "gradient" and i:
                size = np.full(self.shape[1], self.slope * np.sqrt(self.shape[0] * self.shape[2]))
            else:
                size = self._norms(reference)
            with np.errstate(over="ignore", invalid="ignore"):  # large sums
                reference = reference.astype(result.dtype).astype("float64")
                error = self._norms(np.where(np.isinf(reference), 0, result - reference))
            bound = RELATIVE_ERROR[self.dtype if i == 0 else parameter_dtype(self.dtype)]
            least = tiny * np.sqrt(reference.size)
            words = f"result {i} of {self}: {(error / size).max():.2g}"
            # A mean is compared with the deviation.
            if self.kind == "train" and i == 1:
                size = 1 / expected[2]
            assert (error <= bound * size + least).all(), words

    def _norms(self, array: np.ndarray) -> np.ndarray:
        axes = tuple(axis for axis in range(array.ndim) if axis != array.ndim // 2)
        return np.sqrt((array**2).sum(axes))

    def expected(self, x, g, scale, bias, mean, spread, running) -> list[np.ndarray]:
        scale, bias, mean, spread, *running = (
            a.astype("float64") for a in (scale, bias, mean, spread, *running)
        )
        axes, count = (0, 2), self.shape[0] * self.shape[2]

        def wide(a: np.ndarray) -> np.ndarray:
            return a[:, np.newaxis]

        if self.kind == "inference":
            invstd = 1 / np.sqrt(spread + self.epsilon)
            return [(x - wide(mean)) * wide(scale * invstd) + wide(bias)]
        if self.kind == "gradient":
            centered = x - wide(mean)
            normalized = (centered - wide(centered.mean(axes))) * wide(spread)
            dscale, dbias = (g * normalized).sum(axes), g.sum(axes)
            dx = (g - wide(dbias) / count - normalized * wide(dscale) / count) * wide(
                scale * spread
            )
            return [dx, dscale, dbias]
        mean, variance = x.mean(axes), x.var(axes)
        invstd = 1 / np.sqrt(variance + self.epsilon)
        results = [(x - wide(mean)) * wide(invstd * scale) + wide(bias), mean, invstd]
        if self.running:
            unbiased = variance * count / max(count - 1, 1)
            results += [running[0] * 0.75 + mean * 0.25, running[1] * 0.75 + unbiased * 0.25]
        return results


def random_case(rng: random.Random) -> Case:
    inner = rng.choice([1, 1, 2, 4, 7, 16, 49, 64, 200, 1000, 8000])
    channels = rng.choice([1, 2, 3, 8, 20, 32, 64, 65, 130])
    most = max(1, min(3000, 30000 // (inner * channels)))
    batch = rng.choice([1, 2, 5, rng.randint(1, most), most])
    kind = rng.choice(list(KINDS))
    return Case(
        (batch, channels, inner),
        rng.choice(DTYPES),
        kind,
        running=rng.random() < 0.5,
        inplace=rng.random() < 0.3,
        alignment=rng.choice([16, 16, 8]),
        cooperative=rng.random() < 0.6,
        bulk=rng.random() < 0.7,
        kept=rng.choice([0, 1, 3, 1000]),
        seed=rng.randrange(2**31),
    )


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    rng = random.Random(SEED)
    large = [
        Case(shape, dtype, kind, running=True, inplace=dtype == "float16", seed=rng.randrange(999))
        for shape in ((4, 3, 8001), (5, 2, 16000), (3001, 40, 1), (2000, 33, 1), (1000, 32, 1))
        for dtype in ("float32", "float16")
        for kind in ("train", "gradient")
    ]
    large += [replace(case, cooperative=False) for case in large]
    # By warps: pieces of images, several images, the last share shorter, channels in pairs or not.
    large += [
        Case(shape, dtype, kind, True, inplace=i % 3 == 0, bulk=bulk, seed=rng.randrange(999))
        for i, shape in enumerate(
            [(2, 5, 9000), (40, 3, 784), (91, 2, 320), (301, 3, 64), (1, 3, 50000), (3, 1, 30000)]
        )
        for dtype, bulk in (("float32", i > 0), ("float16", True), ("float64", True))
        for kind in ("train", "gradient")
    ]
    # Held: by one block, several, whose last warps have nothing to do, and several crews of them;
    # in pieces of images, whose last one is shorter, or several images.
    large += [
        Case(shape, dtype, kind, True, i % 3 == 0, holding_blocks=blocks, seed=rng.randrange(999))
        for i, (shape, blocks) in enumerate(
            [
                ((8, 7, 784), 2),
                ((20, 5, 784), 7),
                ((17, 3, 3600), 6),
                ((40, 9, 320), 3),
                ((3, 4, 30000), 9),
                ((64, 6, 160), 4),
            ]
        )
        for dtype in ("float32", "float16", "bfloat16", "float64")
        for kind in ("train", "gradient")
    ]
    # So many shares that their sums are looked for in bundles.
    large += [
        Case(shape, "float32", kind, running=True, blocks_of_warps=13)
        for shape, kind in (((1, 1, 200000), "train"), ((1, 1, 110000), "gradient"))
    ]
    # All blocks go over all rows: of channels in one group or more, some steps in shared memory.
    large += [
        Case(shape, dtype, kind, True, inplace=kept == 2, kept=kept, seed=rng.randrange(999))
        for shape in ((4000, 40, 1), (400, 1100, 1), (9000, 8, 1), (3000, 33, 1))
        for dtype, kept in (("float32", 0), ("float32", 2), ("float16", 2), ("float64", 1000))
        for kind in ("train", "gradient")
    ]
    # A few threads of a warp have a channel to themselves; test_batchnorm_short.py has more.
    large += [Case((1, 30, 96), "float32", kind, running=True) for kind in ("train", "gradient")]
    large += [
        Case(shape, "bfloat16", kind, running=True)
        for shape in ((60, 3, 7), (90, 40, 1))
        for kind in KINDS
    ]
    return large + [random_case(rng) for _ in range(60)]


@pytest.fixture(scope="module")
def kernels(tmp_path_factory, cases) -> HostKernels:
    options = [case.work.options for case in [*cases, *LARGE_MEANS, *LARGE_NUMBERS, *SMALL_NUMBERS]]
    return HostKernels(tmp_path_factory.mktemp("batchnorm"), options)


#: A mean that is many times the deviation, and a first element that is far off.
LARGE_MEANS = [
    replace(case, cooperative=cooperative)
    for case in (
        Case((64, 3, 400), "float32", "train", mean=1000.0),
        Case((64, 3, 400), "float32", "gradient", mean=1000.0),
        Case((3000, 32, 1), "float32", "train", mean=1000.0),
        Case((3000, 32, 1), "float32", "gradient", mean=1000.0),
        Case((64, 3, 400), "float32", "train", outlier=200.0),
        Case((3000, 32, 1), "float32", "train", outlier=200.0),
    )
    for cooperative in (False, True)
] + [
    # Of rows that are swept.
    Case((4000, 40, 1), "float32", "train", outlier=200.0, kept=1),
    Case((4000, 40, 1), "float32", "train", mean=1000.0, kept=1),
    Case((4000, 40, 1), "float32", "gradient", mean=1000.0, kept=1),
    # Held by several blocks.
    Case((64, 3, 784), "float32", "train", outlier=200.0, holding_blocks=6),
    Case((256, 2, 52), "float32", "train", outlier=200.0, holding_blocks=64, bulk=False),
    Case((64, 3, 784), "float32", "train", mean=1000.0, holding_blocks=6),
    Case((64, 3, 784), "float32", "gradient", mean=1000.0, holding_blocks=6),
]

#: Numbers whose squares or reciprocals float32 does not have, in all ways.
LARGE_NUMBERS = [
    replace(
        case, dtype=dtype, kind=kind, magnitude=magnitude, slope=slope, inplace=magnitude > 1e30
    )
    for case in (
        Case((5, 3, 40), "float32", "train"),
        Case((5, 20, 1), "float32", "train"),
        *(
            Case(shape, "float32", "train", cooperative=cooperative)
            for shape in ((4, 3, 8001), (1000, 32, 1))
            for cooperative in (False, True)
        ),
        Case((91, 2, 320), "float32", "train"),
        Case((64, 3, 784), "float32", "train", holding_blocks=6),
        Case((4000, 40, 1), "float32", "train", kept=1),
        Case((1, 30, 96), "float32", "train"),
    )
    for kind, dtype, magnitude, slope in (
        ("train", "float32", 1e20, 1.0),
        ("train", "float32", 5e37, 1.0),
        ("train", "bfloat16", 3e38, 1.0),
        ("gradient", "float32", 5e37, 1e20),
        ("gradient", "bfloat16", 1e37, 1e3),
        ("gradient", "float32", 1.0, 1e35),
        ("inference", "float32", 5e37, 1.0),
    )
]
#: Numbers so small that only an epsilon of 0 leaves them their size.
SMALL_NUMBERS = [
    replace(case, magnitude=1e-38, slope=slope, epsilon=0.0)
    for case in LARGE_NUMBERS
    if case.dtype == "float32" and case.kind != "inference"
    for slope in (1e-20,)
]


@pytest.mark.needs("cudnn")
def test_random_arrays(kernels, cases):
    """Test all kinds of kernels, with any sizes."""
    for case in cases:
        case.check(kernels)
    configurations = {
        tuple(case.work.macro(name) for name in ("KIND", "ROWS", "HOW")) for case in cases
    }
    ways = {
        rows: [WAYS[name] for name in ("alone", "kept", "streamed", *large)]
        for rows, large in enumerate([("by_warps", "held", "short"), ("swept",)])
    }
    expected = {(k, rows, way) for k in (0, 1) for rows in (0, 1) for way in ways[rows]}
    assert configurations == expected | {(2, 0, 0), (2, 1, 0)}
    # Pieces of images, and several images; of a group of channels that lacks one; many turns.
    works = [case.work for case in cases]
    by_warps = [work.params for work in works if work.way == WAYS["by_warps"]]
    assert {p.pieces > 1 for p in by_warps} == {True, False}
    assert any(p.channels % p.abreast for p in by_warps)
    assert any(p.bundles for p in by_warps)
    assert any(p.channels * p.splits > 2 * BLOCKS_OF_WARPS * 16 for p in by_warps)
    # Shares side by side or not, equal or not; of one block or more, with three turns or more.
    held = [work for work in works if work.way == WAYS["held"]]
    kinds = {(w.macro("KIND"), w.macro("EVEN"), w.macro("LINED")) for w in held}
    assert kinds == set(itertools.product((0, 1), repeat=3))
    turns = {
        (w.params.members > 1, w.params.channels * w.params.members > 2 * w.grid) for w in held
    }
    assert turns == set(itertools.product((False, True), repeat=2))


@pytest.mark.needs("cudnn")
def test_large_means(kernels):
    for case in LARGE_MEANS:
        case.check(kernels)


@pytest.mark.needs("cudnn")
@pytest.mark.parametrize("numbers", [LARGE_NUMBERS, SMALL_NUMBERS], ids=["large", "small"])
def test_extreme_numbers(kernels, numbers):
    for case in numbers:
        case.check(kernels)
    ways = {case.work.way for case in numbers if case.kind != "inference"}
    assert ways == {*WAYS.values()} - {WAYS["by_given"]}


@pytest.mark.needs("cudnn")
def test_order_of_blocks():
    """Each part of both passes has one block, which starts after the blocks that it waits for."""
    for shape in ((64, 256, 3136), (2000000, 40, 1), (8, 3, 50176), (512, 2, 50176)):
        work = work_of(shape, "train", "float32", kept_blocks=(0, 0, 0, 0))
        p = work.params
        total = p.groups * p.splits
        assert work.way == WAYS["streamed"]
        assert work.grid == 2 * total
        adds, normalizes = [], []
        for number in range(work.grid):  # as in the kernel
            pair = number - p.lag
            if pair < 0 or (number < 2 * total - p.lag and pair % 2 == 0):
                adds.append(number if pair < 0 else p.lag + pair // 2)
            else:
                part = pair // 2 if number < 2 * total - p.lag else number - total
                normalizes.append(part)
                needed = (part // p.splits + 1) * p.splits
                assert len(adds) >= needed
        assert adds == list(range(total))
        assert normalizes == list(range(total))


@pytest.mark.needs("cudnn")
def test_sizes_beyond_32_bits():
    with pytest.raises(DnnNotSupportedError, match="too large for batch normalization"):
        work_of((1, 2**31, 1), "train", "float32")
    with pytest.raises(DnnNotSupportedError, match="too large for batch normalization"):
        work_of((1, 2, 2**32), "train", "float32")
    assert work_of((2**33, 32, 1), "train", "float16").params.splits > 1


@pytest.mark.needs("cudnn")
@pytest.mark.parametrize(
    ("shape", "dtype", "kind", "way", "size"),
    [
        # Of shares that a warp has: their size in elements, in whole images or pieces of one.
        ((64, 256, 3136), "float32", "train", "held", 3136),
        ((64, 256, 3136), "float32", "gradient", "held", 1568),
        ((64, 256, 3136), "float16", "train", "held", 6272),
        ((64, 512, 784), "float32", "gradient", "held", 1568),
        ((64, 1024, 196), "float32", "train", "held", 1568),
        ((32, 64, 12544), "float32", "train", "held", 3136),
        ((100, 96, 1600), "float32", "gradient", "held", 1600),
        ((65, 256, 3136), "float32", "train", "held", 3136),
        ((32, 3, 50176), "float32", "gradient", "by_warps", 1144),
        ((3, 1, 1000000), "float32", "train", "by_warps", 1424),
        # What a block has room for; images that aren't of whole vectors; what nobody has room for.
        ((64, 1024, 196), "float16", "train", "alone", None),
        ((32, 512, 49), "float32", "gradient", "alone", None),
        ((64, 33, 3249), "float32", "train", "kept", None),
        ((1024, 512, 49), "float32", "train", "kept", None),
        ((8, 4, 2**20), "float32", "train", "streamed", None),
        ((200704, 256, 1), "float32", "train", "swept", None),
    ],
)
def test_ways_on_a_large_device(shape, dtype, kind, way, size):
    """Test the kernels that an H200 with 132 multiprocessors uses."""
    work = work_of(shape, kind, dtype)
    assert work.way == WAYS[way], list(WAYS)[work.way]
    if size is not None:
        p = work.params
        assert p.share * work.macro("V") == size
        warps = work.grid * work.macro("THREADS") // 32
        assert p.abreast * p.splits <= warps
        assert work.shared_bytes <= 227 << 10
        # Bulk copies take longer to other places of shared memory than multiples of 128 bytes.
        assert p.slots % 8 == 0


@pytest.mark.needs("cudnn", "nvrtc")
def test_gpu_compiler(cases):
    """NVRTC compiles kernels without a GPU, and keeps everything in registers."""
    for options in sampled({case.work.options.decode() for case in cases}):
        log = compile_cuda(kernel_source("batchnorm"), "-Xptxas=-v", *options.split()).log
        (spilled,) = map(int, re.findall(r"(\d+) bytes spill stores", log))
        # Once for a share: of what a thread has while it waits, or of a square root in float64.
        assert spilled <= 64, f"{options}: {log}"


@pytest.mark.needs("cudnn", "nvrtc")
def test_compiler_of_older_gpus(cases):
    """All kernels for GPUs without bulk copies compile for older GPUs, too."""
    bulk = (WAYS["by_warps"], WAYS["held"])
    older = [case.work for case in cases if case.work.way not in bulk]
    found = {}
    for work in older:
        found[work.way, work.macro("KIND"), work.macro("ROWS")] = work.options.decode()
    for options in found.values():
        compile_cuda(kernel_source("batchnorm"), *options.split(), architecture="sm_80")


# -- the symbolic side ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda x, p: GpuDnnBatchNorm("rows"), DnnValueError, "mode must be one of"),
        (lambda x, p: GpuDnnBatchNorm()(x, p), TypeError, "missing 1 required .*: 'bias'"),
        (
            lambda x, p: GpuDnnBatchNorm(running_averages=True)(x, p, p, running_mean=p),
            DnnValueError,
            "running_mean and running_var must both be given",
        ),
        (
            lambda x, p: GpuDnnBatchNorm()(x, p, p, running_mean=p, running_var=p),
            DnnValueError,
            "running_averages=False, running_mean and running_var must not be given",
        ),
        (lambda x, p: GpuDnnBatchNorm()(x, p, p, -1.0), DnnValueError, "epsilon must be finite"),
        (
            lambda x, p: dnn.dnn_batch_normalization_train(x, p, p, epsilon=-1e-5),
            ValueError,
            "epsilon must be finite and at least 0, got -1e-05",
        ),
        (
            lambda x, p: dnn.dnn_batch_normalization_test(x, p, p, p, p, epsilon=np.nan),
            ValueError,
            "epsilon must be finite and at least 0, got nan",
        ),
        (
            lambda x, p: GpuDnnBatchNorm("spatial")(x, p, p, 0.1),
            DnnValueError,
            r"must have size 1 on the axes \(0, 2\)",
        ),
        (
            lambda x, p: dnn.dnn_batch_normalization_train(x, p, p, running_mean=p),
            DnnValueError,
            "must be given together",
        ),
        (
            lambda x, p: dnn.dnn_batch_normalization_train(x, p, p, "batch"),
            DnnValueError,
            "mode must be one of",
        ),
    ],
)
def test_bad_operands(make, error, words):
    x = GpuArrayType("float32", (4, 3, 5))()
    parameter = GpuArrayType("float32", (1, 3, 5))()
    with pytest.raises(error, match=words):
        make(x, parameter)


def test_theanos_defaults_and_keywords():
    x, p = GpuArrayType("float32", (4, 3, 5))(), GpuArrayType("float32", (1, 3, 5))()
    assert GpuDnnBatchNorm().make_node(x, p, p).inputs[3].data == 1e-4
    averages = {"running_average_factor": 0.3, "running_mean": p, "running_var": p}
    node = GpuDnnBatchNorm(running_averages=True).make_node(x, p, p, epsilon=1e-3, **averages)
    assert [a.data for a in node.inputs[3:5]] == [1e-3, 0.3]
    assert GpuDnnBatchNormInference().make_node(x, p, p, p, p).inputs[5].data == 1e-4
    assert len(GpuDnnBatchNormGrad().make_node(x, x, p, p, p, 1e-4).inputs) == 5


def test_parameters_of_16_bit_arrays():
    x = GpuArrayType("float16", (4, 3, 5))()
    parameter = GpuArrayType("float16", (1, 3, 5))()
    with pytest.raises(DnnTypeError, match="must be float32 on cuda0 for x of dtype float16"):
        GpuDnnBatchNorm()(x, parameter, parameter, 0.1)


@pytest.mark.needs("cudnn")
def test_epsilon_of_a_call():
    """Shapes that are known only at the call are checked then."""
    op = GpuDnnBatchNorm("spatial", axes=(0, 2))
    x, parameter = device_tensor((4, 3, 5)), device_tensor((1, 3, 1))
    outputs = [device_tensor((0,)) for _ in range(3)]
    for epsilon in (-1e-9, np.inf, np.nan):
        given = [x, parameter, parameter, np.array(epsilon)]
        with pytest.raises(DnnValueError, match="epsilon has to be finite and at least 0"):
            call("dnnops_cudnn_batchnorm_shape", op, given, outputs)


def test_memory_formats():
    """Both formats are accepted if each channel has statistics, and results have that of x."""
    of_channels = GpuDnnBatchNorm("spatial", axes=(0, 2, 3))
    of_pixels = GpuDnnBatchNorm(axes=(0,))
    assert [of_channels._layouts(i) for i in range(3)] == [3, 1, 1]
    assert of_pixels._layouts(0) == 1
    assert GpuDnnBatchNormInference("spatial", axes=(0, 2))._layouts(1) == 1
    assert channels_last((2, 3, 4, 5)).strides[1] == 4


# -- rewrites --------------------------------------------------------------------------------


@pytest.fixture
def without_probing():
    with pytensor.config.change_flags(dnn__enabled="no_check", floatX="float32"):
        yield


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_graphs_get_the_ops(without_probing, dtype):
    """Training with its gradient, and inference, work in place where they can."""
    of = parameter_dtype(dtype)
    x, gamma, beta = GpuArrayType(dtype, (None,) * 4)(), pt.vector(dtype=of), pt.vector(dtype=of)
    on_host = pt.as_tensor_variable(x)
    means = [pt.tensor(dtype=of, shape=(1, None, 1, 1)) for _ in range(2)]
    h = pt.tanh(on_host)
    out, *_, new_mean, new_var = batch_normalization_train(
        h, gamma, beta, "spatial", running_mean=means[0], running_var=means[1]
    )
    test = batch_normalization_test(pt.exp(on_host), gamma, beta, *means, "spatial")
    loss = (out.astype("float32") ** 3).sum()
    grads = pytensor.grad(loss, [x, gamma, beta])
    inputs = [x, gamma, beta, *means]
    fgraph = rewritten(inputs, [*grads, new_mean, new_var])
    (train,) = nodes(fgraph, "GpuDnnBatchNorm")
    # The gradient needs the normalized data.
    assert not train.op.inplace_output
    # They were copied from the host for this node alone.
    assert train.op.inplace_running_mean
    assert train.op.inplace_running_var
    assert train.op.destroy_map == {3: [5], 4: [6]}
    (gradient,) = nodes(fgraph, "GpuDnnBatchNormGrad")
    assert gradient.op.inplace
    (inference,) = nodes(rewritten(inputs, [test]), "GpuDnnBatchNormInference")
    assert inference.op.inplace
    (train,) = nodes(rewritten(inputs, [out, new_mean]), "GpuDnnBatchNorm")
    assert train.op.destroy_map == {0: [0], 3: [5], 4: [6]}


def test_operands_of_a_caller_stay(without_probing):
    """Only operands that the caller gives up are overwritten; maybe one of two averages."""
    x = GpuArrayType("float32", (None,) * 4)()
    parameters = [GpuArrayType("float32", (1, None, 1, 1))() for _ in range(4)]
    op = GpuDnnBatchNorm("spatial", True)
    results = op.make_node(x, *parameters[:2], 0.1, 0.3, *parameters[2:]).outputs
    inputs = [x, *parameters]
    for mutable, found in (
        ((), {}),
        ((parameters[3],), {4: [6]}),
        ((parameters[2], parameters[3], x), {0: [0], 3: [5], 4: [6]}),
    ):
        fgraph = rewritten(inputs, [results[0], *results[3:]], mutable=mutable)
        (node,) = nodes(fgraph, "GpuDnnBatchNorm")
        assert node.op.destroy_map == found
