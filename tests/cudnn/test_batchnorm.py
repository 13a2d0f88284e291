"""Batch normalization on a GPU: its kernels on the host and compiled, its Ops on a device."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from hypothesis import strategies as st

from dnnops import dnn
from dnnops.cudnn.batchnorm import (
    GpuDnnBatchNorm,
    GpuDnnBatchNormGrad,
    GpuDnnBatchNormInference,
    parameter_dtype,
)
from dnnops.cudnn.kernels import kernel_source
from dnnops.errors import DnnNotSupportedError, DnnTypeError, DnnValueError
from dnnops.gpuarray.transfer import as_gpuarray_variable
from dnnops.gpuarray.type import GpuArrayType
from dnnops.nnet import (
    BatchNormInference,
    BatchNormTrain,
    BatchNormTrainGrad,
    batch_normalization_test,
    batch_normalization_train,
)
from tests.cudnn.device import DTYPES, check, host, make_node, numpy_dtype, on_gpu, poison, rounded
from tests.cudnn.host_batchnorm import KINDS, WAYS, HostKernels, Work, work_of
from tests.oracle import RELATIVE_ERROR, SEED, fuzz, repeat_command

#: Blocks that run at once: of a small device, so that small arrays have many of them.
BLOCKS = 8


# -- on the host ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """Arrays seen as (batch, channel, inner), whose addresses are a multiple of `alignment`."""

    shape: tuple[int, int, int]
    dtype: str
    kind: str
    running: bool = False
    inplace: bool = False
    alignment: int = 16
    mean: float = 0.0
    outlier: float = 0.0
    cooperative: bool = True
    seed: int = 0

    @property
    def work(self) -> Work:
        kept_blocks = BLOCKS if self.cooperative else 0
        return work_of(self.shape, self.kind, self.dtype, self.alignment, BLOCKS, kept_blocks)

    def array(self, values: np.ndarray) -> np.ndarray:
        """A copy at an address that is no larger multiple than wanted."""
        dtype = numpy_dtype(self.dtype)
        memory = np.empty(values.size + 32, dtype)
        start = -(memory.ctypes.data // dtype.itemsize) % (16 // dtype.itemsize)
        start += self.alignment % 16 // dtype.itemsize
        array = memory[start : start + values.size].reshape(values.shape)
        array[...] = values
        return array

    def check(self, kernels: HostKernels) -> None:
        """Run the kernel and compare with float64."""
        rng = np.random.default_rng(self.seed)
        x, g = (rounded(rng.standard_normal(self.shape) + m, self.dtype) for m in (self.mean, 0))
        if self.outlier:
            x[0, :, 0] = rounded(np.array(self.outlier), self.dtype)
        channels = (self.shape[1],)
        scale, bias, mean = (rng.standard_normal(channels) for _ in range(3))
        spread = rng.uniform(0.5, 2, channels)
        if self.kind == "gradient":  # as it is given: the mean of x, rounded
            mean, spread = x.mean((0, 2)), 1 / np.sqrt(x.var((0, 2)) + 0.125)
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
        params.x, params.gradient, params.out = (a.ctypes.data for a in (data, gradient, out))
        params.scale, params.bias, params.mean, params.spread = (
            a.ctypes.data for a in (scale, bias, mean, spread)
        )
        params.epsilon, params.factor = 0.125, 0.25
        for i in range(2):
            params.results[i] = results[i].ctypes.data
            if self.running and self.kind == "train":
                params.running[i] = running[i].ctypes.data
                params.new_running[i] = results[2 + i].ctypes.data
        kernels.run(work, self.seed)

        expected = self.expected(x, g, scale, bias, mean, spread, running)
        found = [out, *results][: len(expected)]
        bound = 3 * RELATIVE_ERROR[self.dtype]
        for i, (result, reference) in enumerate(zip(found, expected, strict=True)):
            wanted = bound if i == 0 else 3 * RELATIVE_ERROR[of_parameters] * (1 + abs(self.mean))
            error = np.linalg.norm(result.astype("float64") - reference)
            size = max(np.linalg.norm(reference), 1e-3)
            words = f"result {i} of {self}, {repeat_command()}: {error / size:.2g}"
            assert error <= wanted * size, words

    def expected(self, x, g, scale, bias, mean, spread, running) -> list[np.ndarray]:
        scale, bias, mean, spread, *running = (
            a.astype("float64") for a in (scale, bias, mean, spread, *running)
        )
        axes, count = (0, 2), self.shape[0] * self.shape[2]

        def wide(a: np.ndarray) -> np.ndarray:
            return a[:, np.newaxis]

        if self.kind == "inference":
            return [(x - wide(mean)) * wide(scale / np.sqrt(spread + 0.125)) + wide(bias)]
        if self.kind == "gradient":
            centered = x - wide(mean)
            normalized = (centered - wide(centered.mean(axes))) * wide(spread)
            dscale, dbias = (g * normalized).sum(axes), g.sum(axes)
            dx = (g - wide(dbias) / count - normalized * wide(dscale) / count) * wide(
                scale * spread
            )
            return [dx, dscale, dbias]
        mean, variance = x.mean(axes), x.var(axes)
        invstd = 1 / np.sqrt(variance + 0.125)
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
        seed=rng.randrange(2**31),
    )


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    rng = random.Random(SEED)
    large = [
        Case(shape, dtype, kind, running=True, inplace=dtype == "float16", seed=rng.randrange(999))
        for shape in ((4, 3, 8001), (5, 2, 16000), (3001, 40, 1), (2000, 33, 1), (60, 3, 7))
        for dtype in ("float32", "float16")
        for kind in ("train", "gradient")
    ]
    large += [replace(case, cooperative=False) for case in large]
    return large + [random_case(rng) for _ in range(60)]


@pytest.fixture(scope="module")
def kernels(tmp_path_factory, cases) -> HostKernels:
    options = [case.work.options for case in [*cases, *LARGE_MEANS]]
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
]


def test_random_arrays(kernels, cases):
    """All kinds of kernels, whatever the sizes."""
    for case in cases:
        case.check(kernels)
    configurations = {
        tuple(case.work.macro(name) for name in ("KIND", "ROWS", "HOW")) for case in cases
    }
    assert len(configurations) == 2 * 2 * 3 + 2  # three ways, and inference


def test_large_means(kernels):
    for case in LARGE_MEANS:
        case.check(kernels)


def test_order_of_blocks():
    """Every part of both passes has one block, which begins after those that it waits for."""
    for shape in ((64, 256, 3136), (2000000, 40, 1), (8, 3, 50176), (512, 2, 50176)):
        work = work_of(shape, "train", "float32", kept_blocks=0)
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


def test_sizes_beyond_32_bits():
    with pytest.raises(DnnNotSupportedError, match="too large for batch normalization"):
        work_of((1, 2**31, 1), "train", "float32")
    with pytest.raises(DnnNotSupportedError, match="too large for batch normalization"):
        work_of((1, 2, 2**32), "train", "float32")
    assert work_of((2**33, 32, 1), "train", "float16").params.splits > 1


def test_gpu_compiler(cases):
    """NVRTC compiles all kinds, without a GPU, and keeps everything in registers."""
    from cupy.cuda import nvrtc

    for options in dict.fromkeys(case.work.options.decode() for case in cases):
        program = nvrtc.createProgram(kernel_source("batchnorm"), "batchnorm.cu", (), ())
        try:
            nvrtc.compileProgram(program, ("-arch=sm_90", "-Xptxas=-v", *options.split()))
        except nvrtc.NVRTCError:
            pytest.fail(f"{options}: {nvrtc.getProgramLog(program)}")
        log = nvrtc.getProgramLog(program)
        nvrtc.destroyProgram(program)
        (spilled,) = map(int, re.findall(r"(\d+) bytes spill stores", log))
        # Of a square root in float64 that is computed once.
        assert spilled <= 32, f"{options}: {log}"


# -- on a GPU ------------------------------------------------------------------------------


def reference_of(op: Any, *arrays: np.ndarray) -> list[np.ndarray]:
    """All results of an abstract Op's `perform`, in float64."""
    node = op.make_node(*arrays)
    storage: list[list[Any]] = [[None] for _ in node.outputs]
    op.perform(node, [np.asarray(a) for a in arrays], storage)
    return [cell[0] for cell in storage]


def results_of(op: Any, *operands: Any) -> list[Any]:
    """All results of an Op of device arrays and host scalars."""
    node, values = make_node(op, *operands)
    storage: list[list[Any]] = [[None] for _ in node.outputs]
    node.op.perform(node, values, storage)
    return [cell[0] for cell in storage]


def gpu_arrays(arrays: list[np.ndarray], dtype: str, count: int) -> list[Any]:
    """Arrays on the device: the first ones in a dtype, the others in that of parameters."""
    dtypes = [dtype] * count + [parameter_dtype(dtype)] * (len(arrays) - count)
    return [on_gpu(a, d) for a, d in zip(arrays, dtypes, strict=True)]


def compare(results: list[Any], expected: list[np.ndarray], dtype: str) -> None:
    for i, (result, reference) in enumerate(zip(results, expected, strict=True)):
        bound = 20 * RELATIVE_ERROR[dtype if i == 0 else parameter_dtype(dtype)]
        # A sum of numbers of both signs, such as a gradient, may be next to nothing.
        size = np.linalg.norm(reference) / max(np.sqrt(reference.size), 1)
        np.testing.assert_allclose(host(result), reference, rtol=bound, atol=bound * max(1, size))


@st.composite
def gpu_cases(draw):
    """A shape, axes, whether there are running averages, and a seed."""
    shape = draw(st.lists(st.integers(1, 9), min_size=1, max_size=5))
    first = draw(st.integers(0, len(shape)))
    last = draw(st.integers(first, len(shape)))
    if last - first == len(shape):
        last = first  # statistics over everything
    axes = tuple(i for i in range(len(shape)) if not first <= i < last)
    if len(shape) < 4:
        for i in range(min(2, len(shape))):
            shape[i] *= draw(st.sampled_from([1, 1, 8, 60]))
    return tuple(shape), axes, draw(st.booleans()), draw(st.integers(0, 2**32 - 1))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@fuzz(max_examples=70, case=gpu_cases())
def test_ops(dtype, case):
    """Training, gradient and inference against the abstract Ops in float64."""
    shape, axes, running, seed = case
    rng = np.random.default_rng(seed)
    of = parameter_dtype(dtype)
    small = tuple(1 if i in axes else n for i, n in enumerate(shape))
    x, g = (rounded(rng.standard_normal(shape), dtype) for _ in range(2))
    scale, bias, mean = (rounded(rng.standard_normal(small), of) for _ in range(3))
    var = rounded(rng.uniform(0.5, 2, small), of)
    epsilon, factor = np.array(0.01), np.array(0.3)
    poison()
    averages = [factor, mean, var] if running else []
    reference = reference_of(BatchNormTrain(axes, running), x, scale, bias, epsilon, *averages)
    given = [*gpu_arrays([x, scale, bias], dtype, 1), epsilon]
    if running:
        given += [factor, *gpu_arrays([mean, var], of, 2)]
    results = results_of(GpuDnnBatchNorm("spatial", running, axes), *given)
    compare(results, reference, dtype)

    saved_mean, saved_invstd = (host(r) for r in results[1:3])
    reference = reference_of(BatchNormTrainGrad(axes), x, g, scale, saved_mean, saved_invstd)
    given = gpu_arrays([x, g, scale, saved_mean, saved_invstd], dtype, 2)
    compare(results_of(GpuDnnBatchNormGrad("spatial", axes), *given), reference, dtype)

    reference = reference_of(BatchNormInference(axes), x, scale, bias, mean, var, epsilon)
    given = [*gpu_arrays([x, scale, bias, mean, var], dtype, 1), epsilon]
    compare(results_of(GpuDnnBatchNormInference("spatial", axes), *given), reference, dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    ("shape", "mode"),
    [
        ((16, 70, 112, 112), "spatial"),
        ((64, 33, 57, 57), "spatial"),
        ((70000, 40), "spatial"),
        ((100000, 9), "per-activation"),
        ((300, 2000), "per-activation"),
    ],
)
def test_many_blocks(shape, mode, dtype):
    """Blocks that share a channel wait for each other; every run gives the same bits."""
    rng = np.random.default_rng(1)
    axes = (0,) if mode == "per-activation" else (0, *range(2, len(shape)))
    small = tuple(1 if i in axes else n for i, n in enumerate(shape))
    x, g = (rounded(rng.standard_normal(shape, "float32") + 3, dtype) for _ in range(2))
    scale, bias = (rounded(rng.standard_normal(small), "float32") for _ in range(2))
    epsilon = np.array(1e-4)
    given = [*gpu_arrays([x, scale, bias], dtype, 1), epsilon]
    runs = [results_of(GpuDnnBatchNorm(mode), *given) for _ in range(5)]
    assert len({tuple(r.get().tobytes() for r in results) for results in runs}) == 1
    results = runs[0]
    for result, expected in zip(
        results, reference_of(BatchNormTrain(axes), x, scale, bias, epsilon), strict=True
    ):
        check(result, expected, result.dtype.name)
    mean, invstd = (host(r) for r in results[1:])
    reference = reference_of(BatchNormTrainGrad(axes), x, g, scale, mean, invstd)
    given = gpu_arrays([x, g, scale, mean, invstd], dtype, 2)
    bound = 3 * RELATIVE_ERROR[dtype]
    for result, expected in zip(
        results_of(GpuDnnBatchNormGrad(mode), *given), reference, strict=True
    ):
        assert np.linalg.norm(host(result) - expected) <= bound * np.linalg.norm(expected)


@pytest.mark.gpu
def test_compiled_function():
    """A graph of `dnnops.nnet` runs on the device, with gradients and running averages."""
    x = pt.tensor("x", dtype="float32", shape=(None, 6, None, None))
    gamma, beta = pt.fvector("gamma"), pt.fvector("beta")
    mean, var = pt.fvector("mean"), pt.fvector("var")
    outputs = batch_normalization_train(
        x, gamma, beta, "spatial", running_mean=mean, running_var=var
    )
    test = batch_normalization_test(x, gamma, beta, mean, var, "spatial")
    loss = (outputs[0] ** 3).sum() + (test**2).sum() + outputs[1].sum()
    results = [loss, *outputs, test, *pytensor.grad(loss, [x, gamma, beta])]
    inputs = [x, gamma, beta, mean, var]
    mode = pytensor.compile.get_mode("CVM").including("gpu")
    transfer = [as_gpuarray_variable(v) for v in results]
    f = pytensor.function(inputs, transfer, mode=mode)
    ops = {type(node.op) for node in f.maker.fgraph.toposort()}
    assert {GpuDnnBatchNorm, GpuDnnBatchNormGrad, GpuDnnBatchNormInference} <= ops
    oracle = pytensor.function(inputs, results, mode="FAST_COMPILE")
    rng = np.random.default_rng(0)
    for shape in ((4, 6, 5, 7), (2, 6, 20, 20), (4, 6, 5, 7)):
        given = [rng.standard_normal(shape), *(rng.uniform(0.5, 2, 6) for _ in range(4))]
        given = [a.astype("float32") for a in given]
        for result, reference in zip(f(*given), oracle(*given), strict=True):
            np.testing.assert_allclose(host(result), reference, rtol=2e-3, atol=2e-3)


@pytest.mark.gpu
def test_explicit_calls():
    """`dnnops.dnn` takes parameters of both ranks, and casts them."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4, 3, 5)).astype("float32")
    for mode, small, full in (("spatial", (3,), (1, 3, 1)), ("per-activation", (3, 5), (1, 3, 5))):
        axes = (0, 2) if mode == "spatial" else (0,)
        scale, bias, mean = rng.standard_normal((3, *small))
        var = rng.uniform(0.5, 2, small)
        wide = [a.reshape(full) for a in (scale, bias, mean, var)]
        symbolic = dnn.dnn_batch_normalization_train(
            on_gpu(x, "float32"), scale, bias.reshape(full), mode, 0.1, 0.3, mean, var
        )
        test = dnn.dnn_batch_normalization_test(x, scale, bias, mean, var, mode, 0.1)
        f = pytensor.function([], [*symbolic, test], mode="CVM")
        scalars = np.array(0.1), np.array(0.3)
        x64 = x.astype("float64")
        wanted = reference_of(BatchNormTrain(axes, True), x64, *wide[:2], *scalars, *wide[2:])
        wanted += reference_of(BatchNormInference(axes), x64, *wide, scalars[0])
        for result, reference in zip(f(), wanted, strict=True):
            check(result, reference, "float32")


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda x, p: GpuDnnBatchNorm("rows"), DnnValueError, "mode must be one of"),
        (lambda x, p: GpuDnnBatchNorm()(x, p, p), DnnTypeError, "expected the operands x, scale"),
        (lambda x, p: GpuDnnBatchNorm()(x, p, p, -1.0), DnnValueError, "epsilon must be finite"),
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


def test_parameters_of_16_bit_arrays():
    x = GpuArrayType("float16", (4, 3, 5))()
    parameter = GpuArrayType("float16", (1, 3, 5))()
    with pytest.raises(DnnTypeError, match="must be float32 on cuda0 beside x of float16"):
        GpuDnnBatchNorm()(x, parameter, parameter, 0.1)
