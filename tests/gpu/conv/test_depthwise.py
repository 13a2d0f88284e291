"""The depthwise kernels: compiled for the host, compiled for a GPU, and run on one."""

from __future__ import annotations

import random
import re
from contextlib import suppress
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dnnops.dtypes import numpy_dtype
from dnnops.errors import DnnNotSupportedError, DnnValueError
from dnnops.gpu.algorithms import last_plan
from dnnops.gpu.kernels import kernel_source
from dnnops.nnet.conv.op import Conv, ConvGradInputs, ConvGradWeights
from tests.emulation.host_depthwise import HostKernels
from tests.emulation.nvrtc import compile_cuda
from tests.gpu.calls import channels_last, device_tensor, host_tensor
from tests.gpu.conv.depthwise_rows import OPS, Plan, depthwise_plans
from tests.gpu.device import DTYPES, apply_op, check, host, on_gpu, poison, rounded
from tests.oracle import (
    RELATIVE_ERROR,
    SEED,
    ConvCase,
    assert_close,
    repeat_command,
    run_op,
    sampled,
)

ORACLES = (Conv, ConvGradInputs, ConvGradWeights)
FORMATS = ("contiguous", "channels_last")
#: Elements of NaN on each side of an array on the host, which must not be read or written.
GUARD = 64


def random_case(rng: random.Random) -> ConvCase:
    """Return a depthwise convolution of unusual sizes; the image may be larger than the filters."""
    kernel = rng.choice([(3, 3), (3, 3), (5, 5), (1, 3), (2, 2), (4, 3), (7, 7), (1, 1), (1, 7)])
    stride = rng.choice([(1, 1), (1, 1), (2, 2), (2, 2), (1, 2), (3, 2), (2, 3)])
    dilation = rng.choice([(1, 1), (1, 1), (1, 1), (2, 2), (1, 3), (3, 2)])
    extent = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    pad = [rng.choice([0, n // 2, n - 1, n // 2 + 1]) for n in extent]
    least = [max(1, n - 2 * p) for n, p in zip(extent, pad, strict=True)]
    size = [n + rng.choice([0, 1, 2, 5, 6, 13, 27]) for n in least]
    channels = rng.choice([1, 2, 3, 4, 6, 8, 16, 24, 40])
    return ConvCase(
        img_shape=(rng.choice([1, 2, 3, 5]), channels, *size),
        kern_shape=(channels, 1, *kernel),
        border_mode=tuple((p, p) for p in pad),
        subsample=stride,
        filter_flip=rng.random() < 0.5,
        filter_dilation=dilation,
        num_groups=channels,
        seed=rng.randrange(2**32),
    )


def depthwise_case(img_shape: tuple, kernel: int = 3, stride: int = 1, pad: int = 1) -> ConvCase:
    """Return a convolution with square filters."""
    return ConvCase(
        img_shape=img_shape,
        kern_shape=(img_shape[1], 1, kernel, kernel),
        border_mode=((pad, pad),) * 2,
        subsample=(stride,) * 2,
        filter_flip=True,
        filter_dilation=(1, 1),
        num_groups=img_shape[1],
        seed=1,
    )


class HostArray:
    """Return a copy of an array in a dtype and memory format, between guards."""

    def __init__(self, values: np.ndarray, dtype: str, memory_format: str, misaligned: bool):
        order = [0, 2, 3, 1] if memory_format == "channels_last" else [0, 1, 2, 3]
        itemsize = numpy_dtype(dtype).itemsize
        ordered = values.transpose(order)
        extra = 16 // itemsize
        self._memory = np.full(ordered.size + 2 * GUARD + extra, np.nan, numpy_dtype(dtype))
        start = GUARD + (-(self._memory.ctypes.data // itemsize) % extra) + misaligned
        self._inside = slice(start, start + ordered.size)
        inside = self._memory[self._inside].reshape(ordered.shape)
        inside[...] = ordered
        self.array = inside.transpose([order.index(axis) for axis in range(4)])
        # host_tensor() does not know bfloat16: it uses the codes of the dtype's name.
        self.tensor = host_tensor(self.array)

    @property
    def is_intact(self) -> bool:
        outside = self._memory.copy()
        outside[self._inside] = np.nan
        return bool(np.isnan(outside.astype("float32")).all())


class Run:
    """One direction of a case, in a dtype, on the host."""

    def __init__(
        self,
        case: ConvCase,
        index: int,
        dtype: str,
        memory_format: str,
        misaligned: bool = False,
        values: list[np.ndarray] | None = None,
    ):
        self.case, self.index, self.dtype = case, index, dtype
        values = [rounded(a, dtype) for a in values or case.arrays()]
        self.values = values
        formats = (memory_format, "contiguous", memory_format)
        self.arrays = [
            HostArray(a, dtype, f, misaligned) for a, f in zip(values, formats, strict=True)
        ]
        self.op = OPS[index](**case.params)
        self.role = (2, 0, 1)[index]

    def inputs(self, arrays: list) -> tuple:
        image, filters, top = arrays
        case = self.case
        return (
            (image, filters),
            (filters, top, np.array(case.img_shape[2:])),
            (image, top, np.array(case.kern_shape[2:])),
        )[self.index]

    def plans(self, op: Any = None) -> list[Plan]:
        given = self.inputs([a.tensor for a in self.arrays])
        output = self.arrays[self.role].tensor
        return depthwise_plans(op or self.op, [*given, np.array(1.0)], output)

    def run(self, kernels: HostKernels, plan: Plan, alpha: float, beta: float) -> np.ndarray:
        """Run a plan, and return the result in float64."""
        result = self.arrays[self.role]
        result.array[...] = self.values[self.role] if beta else np.nan
        pointers = tuple(a.array.ctypes.data for a in self.arrays)
        kernels.run(plan, pointers, alpha, beta, self.case.seed & 0xFFFF)
        assert all(a.is_intact for a in self.arrays)
        return result.array.astype("float64")

    def check(self, kernels: HostKernels, plan: Plan, alpha: float = 1, beta: float = 0) -> None:
        """Compare a plan's result with the oracle's."""
        reference = run_op(ORACLES[self.index](**self.case.params), *self.inputs(self.values))
        reference = alpha * reference + (beta * self.values[self.role] if beta else 0)
        out = self.run(kernels, plan, alpha, beta)
        assert_close(out, reference, bound=2 * RELATIVE_ERROR[self.dtype], allow_zero=True)


def random_runs(rng: random.Random, count: int) -> list[Run]:
    return [
        Run(
            random_case(rng),
            rng.randrange(3),
            rng.choice(DTYPES),
            rng.choice(FORMATS),
            misaligned=rng.random() < 0.2,
        )
        for _ in range(count)
    ]


def check_all(
    folder: Path, chosen: list[tuple[Run, Plan]], rng: random.Random | None = None
) -> None:
    kernels = HostKernels(folder, [plan.options for _, plan in chosen])
    for run, plan in chosen:
        scalars = rng.choice([(1, 0), (1, 0), (-2, 0), (0.5, 3)]) if rng else (1, 0)
        try:
            run.check(kernels, plan, *scalars)
        except AssertionError as error:
            raise AssertionError(
                f"{run.op} {run.case} {run.dtype} {plan.name}, alpha and beta {scalars}: {error}\n"
                f"repeat with {repeat_command()}"
            ) from error


@pytest.mark.needs("cudnn", "ml_dtypes")
def test_suggested_plans(tmp_path):
    """Random cases: the kernels' source runs on the host, launched as on a GPU."""
    rng = random.Random(SEED)
    chosen = []
    for run in random_runs(rng, 150):
        plans = run.plans()
        assert plans
        chosen += [(run, plan) for plan in rng.sample(plans, min(2, len(plans)))]
    check_all(tmp_path, chosen, rng)


def random_name(rng: random.Random, run: Run, memory_format: str) -> str:
    """Return the name of a plan that a user could request; it may not be able to run."""
    tiles = f"k0={rng.randint(1, 9)}_k1={rng.randint(1, 6)}"
    threads = f"k3={rng.choice([32, 64, 96, 200, 256, 512])}"
    gradient = f"_k5={rng.choice([1, 1, 2, 8])}" if run.index == 2 else ""
    if memory_format == "channels_last":
        return f"depthwise0_{tiles}_k2={rng.choice([1, 2, 4])}_{threads}{gradient}"
    return f"depthwise1_{tiles}_{threads}{gradient or f'_k4={rng.randint(0, 1)}'}"


@pytest.mark.needs("cudnn")
def test_any_knobs(tmp_path):
    """Plans with tiles other than the suggested ones compute the same, or are rejected."""
    rng = random.Random(SEED)
    chosen = []
    for _ in range(150):
        memory_format = rng.choice(FORMATS)
        run = Run(random_case(rng), rng.randrange(3), rng.choice(DTYPES), memory_format)
        name = random_name(rng, run, memory_format)
        with suppress(DnnNotSupportedError, DnnValueError):
            (plan,) = run.plans(run.op.replace(algo=name))
            assert plan.name == name
            chosen.append((run, plan))
    assert len(chosen) > 60
    check_all(tmp_path, chosen, rng)


@pytest.mark.needs("cudnn")
@pytest.mark.parametrize("memory_format", FORMATS)
def test_larger_images(tmp_path, memory_format):
    """Blocks compute rows of a plane, or several images in sequence, or sums in parts."""
    chosen = []
    for case in (
        depthwise_case((3, 6, 45, 70)),
        depthwise_case((2, 3, 33, 64), kernel=5, stride=2, pad=2),
        depthwise_case((70, 4, 5, 5)),
        depthwise_case((1, 1, 6, 3500)),
        depthwise_case((40, 64, 7, 7)),
    ):
        for index in range(3):
            run = Run(case, index, "float32", memory_format)
            chosen += [(run, plan) for plan in run.plans()[:2]]
    by_options = " ".join(plan.options for _, plan in chosen)
    params = [plan.params for _, plan in chosen]
    assert any(p.splits > 1 for p in params)
    if memory_format == "contiguous":
        assert "STAGES=2" in by_options
        assert any(p.chunks > 1 for p in params)
        assert any(p.images > 1 for p in params)
        assert any(p.group > 1 for p in params)
    check_all(tmp_path, chosen)


@pytest.mark.needs("cudnn")
def test_one_stage(tmp_path):
    """Rows are so wide that shared memory cannot hold the next ones at the same time."""
    run = Run(depthwise_case((2, 1, 6, 3500)), 2, "float32", "contiguous")
    (plan,) = run.plans(run.op.replace(algo="depthwise1_k0=1_k1=8_k3=512_k5=1"))
    assert "STAGES=1" in plan.options
    check_all(tmp_path, [(run, plan)])


@pytest.mark.needs("cudnn")
@pytest.mark.parametrize("index", range(3), ids=[op.__name__ for op in OPS])
def test_padding_takes_no_part(tmp_path, index):
    """Infinite filter entries times zeros of the padding would be NaN."""
    case = depthwise_case((2, 8, 9, 11))
    ones = [np.ones_like(a) for a in case.arrays()]
    ones[(1, 1, 2)[index]][...] = np.inf
    chosen = []
    for memory_format in FORMATS:
        run = Run(case, index, "float32", memory_format, values=ones)
        chosen += [(run, plan) for plan in run.plans()]
    kernels = HostKernels(tmp_path, [plan.options for _, plan in chosen])
    for run, plan in chosen:
        assert np.isposinf(run.run(kernels, plan, 1, 0)).all()


@pytest.mark.needs("cudnn")
def test_plans_exist_for_depthwise_convolutions_only():
    """There are no plans for convolutions that are not depthwise, or mixed memory formats."""
    case = depthwise_case((2, 8, 9, 11))
    assert Run(case, 0, "float32", "contiguous").plans()
    two_groups = replace(case, kern_shape=(8, 4, 3, 3), num_groups=2)
    assert not Run(two_groups, 0, "float32", "contiguous").plans()
    twice_the_channels = replace(case, kern_shape=(16, 1, 3, 3))
    assert not Run(twice_the_channels, 0, "float32", "contiguous").plans()
    run = Run(case, 0, "float32", "contiguous")
    run.arrays[2] = HostArray(run.values[2], "float32", "channels_last", False)
    assert not run.plans()
    large_filters = depthwise_case((1, 2, 20, 20), kernel=9, pad=4)
    assert not Run(large_filters, 0, "float32", "contiguous").plans()


#: Layers of MobileNets, of EfficientNets and of ConvNeXts: channels, size, kernel, stride.
LAYERS = (
    (144, 56, 3, 1),
    (144, 56, 3, 2),
    (512, 14, 3, 1),
    (960, 7, 3, 1),
    (120, 28, 5, 1),
    (96, 56, 7, 1),
)


@pytest.mark.needs("cudnn", "nvrtc")
@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: "x".join(map(str, layer)))
def test_gpu_compiler(layer):
    """NVRTC compiles the first plan of directions, formats and dtypes, without a GPU.

    Each commit takes other ones.
    """
    channels, size, kernel, stride = layer
    pad = kernel // 2
    top = (size + 2 * pad - kernel) // stride + 1
    shapes = ((64, channels, size, size), (channels, 1, kernel, kernel), (64, channels, top, top))
    makers = {"contiguous": device_tensor, "channels_last": channels_last}
    for index, dtype, memory_format in sampled(
        product(range(3), ("float16", "float32"), makers), 5
    ):
        make = makers[memory_format]
        image, filters, tops = (make(shape, dtype) for shape in shapes)
        inputs, result = (
            ([image, filters], tops),
            ([filters, tops, np.array([size] * 2)], image),
            ([image, tops, np.array([kernel] * 2)], filters),
        )[index]
        case = depthwise_case(shapes[0], kernel, stride, pad)
        plan = depthwise_plans(OPS[index](**case.params), [*inputs, np.array(1.0)], result)[0]
        options = plan.options.split()
        log = compile_cuda(kernel_source("depthwise"), "-Xptxas=-v", *options).log
        # Arrays that do not fit in registers count as stack memory.
        for used in (r"(\d+) bytes spill stores", r"(\d+) bytes stack frame"):
            found = [int(n) for n in re.findall(used, log)]
            assert found, f"{plan.name} of {plan.options}: {log}"
            assert max(found) <= 64, f"{plan.name} of {plan.options}: {log}"


# -- on a GPU ------------------------------------------------------------------------------


def with_plan(run: Run, plan: Plan, memory_format: str) -> Any:
    """Return the Op of a run with the plan's memory format; filters are contiguous."""
    wanted = memory_format if run.index < 2 else "contiguous"
    return run.op.replace(algo=plan.name, memory_format=wanted)


@pytest.mark.gpu
@pytest.mark.parametrize("memory_format", FORMATS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("index", range(3), ids=[op.__name__ for op in OPS])
def test_on_a_gpu(index, dtype, memory_format):
    """Run suggested plans of random cases by name; only few, since each is compiled."""
    rng = random.Random(SEED)
    for _ in range(3):
        case = random_case(rng)
        run = Run(case, index, dtype, memory_format)
        reference = run_op(ORACLES[index](**case.params), *run.inputs(run.values))
        formats = (memory_format, "contiguous", memory_format)
        given = run.inputs([on_gpu(a, dtype, f) for a, f in zip(run.values, formats, strict=True)])
        plans = run.plans()
        for plan in (plans[0], rng.choice(plans)):
            op = with_plan(run, plan, memory_format)
            poison()
            check(apply_op(op, *given), reference, dtype)
            assert last_plan() == plan.name


@pytest.mark.gpu
@pytest.mark.parametrize("index", range(3), ids=[op.__name__ for op in OPS])
def test_same_bits(index):
    """The order of all sums is fixed, so results are reproducible."""
    case = depthwise_case((8, 24, 28, 28))
    for memory_format in FORMATS:
        run = Run(case, index, "float32", memory_format)
        formats = (memory_format, "contiguous", memory_format)
        given = run.inputs(
            [on_gpu(a, "float32", f) for a, f in zip(run.values, formats, strict=True)]
        )
        for plan in run.plans()[:2]:
            op = with_plan(run, plan, memory_format)
            first, second = (host(apply_op(op, *given)) for _ in range(2))
            np.testing.assert_array_equal(first, second)
