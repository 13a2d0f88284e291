"""Listing, timing and selecting plans by shapes, without a network."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from inspect import signature
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import dnnops
from dnnops import plans
from dnnops.errors import (
    DnnLibraryError,
    DnnMemoryError,
    DnnNotSupportedError,
    DnnTypeError,
    DnnUnavailableError,
    DnnValueError,
    DnnWarning,
)
from dnnops.flag_values import ALGORITHM_WORDS
from dnnops.gpu.conv import GpuDnnConv, GpuDnnConvGradI, GpuDnnConvGradW
from dnnops.gpuarray.type import GpuArrayType
from dnnops.plans import ConvPlan, FlagChoice, conv_plans, flag_choices, survey
from dnnops.plans import cases as plan_cases
from dnnops.plans.arguments import make_case
from dnnops.runtime.build import ONEDNN
from tests.gpuarray.test_energy import FakeGpu
from tests.needs import of_dtypes

SMALL = {"input_shape": (2, 16, 9, 8), "filter_shape": (32, 16, 3, 3), "border_mode": 1}
ALL_DIRECTIONS = ("forward", "grad_inputs", "grad_weights")


# -- on the CPU ----------------------------------------------------------------------------


@pytest.mark.parametrize("direction", ALL_DIRECTIONS)
def test_onednns_plans(direction):
    listed = conv_plans(**SMALL, direction=direction, device="cpu")
    assert {plan.direction for plan in listed} == {direction}
    assert {plan.api for plan in listed} == {"onednn", "dnnops"}
    assert all(plan.time_ms is None and plan.energy_mj is None for plan in listed)
    names = [plan.name for plan in listed]
    assert len(set(names)) == len(names)
    assert "ref:any" in names
    timed = conv_plans(**SMALL, direction=direction, device="cpu", time=True)
    assert {plan.name for plan in timed} == set(names)
    times = [plan.time_ms for plan in timed if plan.time_ms is not None]
    assert times == sorted(times)
    assert len(times) == len([plan for plan in timed if not plan.reason])
    assert min(times) > 0


def test_both_names_of_a_direction():
    for ours, cudnns in (("grad_inputs", "backward_data"), ("grad_weights", "backward_filter")):
        rows = conv_plans(**SMALL, direction=cudnns, device="cpu")
        assert rows == conv_plans(**SMALL, direction=ours, device="cpu")
        assert {row.direction for row in rows} == {ours}


@pytest.mark.parametrize(
    "arguments",
    [
        {"input_shape": (2, 4, 12), "filter_shape": (6, 4, 3)},
        {"input_shape": (1, 4, 5, 6, 7), "filter_shape": (6, 4, 3, 2, 1), "border_mode": "full"},
        {"input_shape": (2, 6, 9, 9), "filter_shape": (4, 3, 3, 3), "num_groups": 2},
        {"input_shape": [2, 6, 19, 19], "filter_shape": [4, 6, 3, 3], "filter_dilation": (2, 3)},
        {**SMALL, "border_mode": ((0, 2), (1, 1)), "subsample": (2, 1), "filter_flip": False},
        {**SMALL, "memory_format": "channels_last"},
        {**SMALL, "dtype": "float64"},
        {**SMALL, "dtype": np.float32, "precision": "float32", "allow_tf32": False},
    ],
)
@pytest.mark.parametrize("direction", ALL_DIRECTIONS)
def test_all_kinds_of_convolutions(direction, arguments):
    rows = conv_plans(**arguments, direction=direction, device="cpu", time=True)
    assert rows[0].time_ms is not None
    expected = "float64" if arguments.get("dtype") == "float64" else "float32"
    assert {row.math_type for row in rows} == {expected}


def test_channels_last_operands_are_that():
    case = make_case(**SMALL, memory_format="channels_last", device="cpu")
    with case.listing() as listing:
        for array in listing._inputs:
            assert array.transpose(0, 2, 3, 1).flags.c_contiguous
            assert np.count_nonzero(array) == array.size
            assert 0.5 < array.std() < 2


def test_the_case_knows_its_size():
    case = make_case(
        input_shape=(2, 6, 9, 9), filter_shape=(4, 3, 3, 3), num_groups=2, device="cpu"
    )
    assert case.output_shape == (2, 4, 7, 7)
    assert case.flops == 2 * (2 * 4 * 7 * 7) * (3 * 3 * 3)


@pytest.mark.parametrize(
    ("number", "words"), [(1, "1 thread"), (2, "2 threads"), (11, "11 threads")]
)
def test_the_library_and_its_threads_are_named(monkeypatch, number, words):
    monkeypatch.setattr(ONEDNN.library, "omp_get_max_threads", lambda: number)
    library = make_case(**SMALL, device="cpu").library()
    assert re.fullmatch(rf".*\S, {words}, oneDNN 3\.\d+(\.\d+)?", library)


def test_flags_choices_on_the_cpu():
    large = {"input_shape": (4, 32, 28, 28), "filter_shape": (32, 32, 3, 3), "device": "cpu"}
    choices = flag_choices(**large, time=False)
    assert set(choices) == {"auto", "direct"}
    rows = conv_plans(**large)
    first = next(row.name for row in rows if row.api == "onednn")
    assert choices["direct"] == first
    assert choices["direct"].reason == ""
    double = flag_choices(**large, dtype="float64", time=False)
    assert set(double.values()) == {"gemm (BLAS)"}


def test_progress_is_told():
    told: list[tuple[int, int]] = []
    rows = conv_plans(**SMALL, device="cpu", time=True, progress=lambda *now: told.append(now))
    total = len([row for row in rows if not row.reason])
    assert told == [(done, total) for done in range(total + 1)]
    told.clear()
    conv_plans(**SMALL, device="cpu", progress=lambda *now: told.append(now))
    assert told == []


def test_energy_on_the_cpu_is_a_warning():
    with pytest.warns(DnnWarning, match="no energy was measured: only NVIDIA GPUs report"):
        rows = conv_plans(**SMALL, device="cpu", energy=True)
    assert all(row.energy_mj is None for row in rows)
    assert rows[0].time_ms is not None


def test_a_plan_that_was_not_timed_stands_behind_those_that_were(monkeypatch):
    monkeypatch.setattr("dnnops.plans.cpu._LARGE", 1.0)
    monkeypatch.setattr("dnnops.plans.cpu._BUDGET", 1e-6)
    monkeypatch.setattr("dnnops.plans.cpu._MAX_SLOWDOWN", 1e-9)
    rows = conv_plans((2, 3, 9, 9), (4, 3, 2, 2), device="cpu", time=True)
    assert rows[0].time_ms is not None
    assert all(row.time_ms is None for row in rows[1:])
    assert all("estimated from a small part" in row.notes[-1] for row in rows[1:] if not row.reason)
    refused = [row.name for row in rows if row.reason]
    assert [row.name for row in rows[-len(refused) :]] == refused
    assert {"product", "depthwise"} <= {*refused}


def test_no_device_means_one_that_works(monkeypatch):
    monkeypatch.setattr("dnnops.gpu.library.cudnn_usable", lambda device: (False, "no GPU"))
    assert make_case(**SMALL).device == "cpu"
    monkeypatch.setattr("dnnops.gpu.library.cudnn_usable", lambda device: (True, ""))
    assert make_case(**SMALL).device == "cuda0"


def test_too_little_memory(monkeypatch):
    monkeypatch.setattr(plan_cases, "_available_memory", lambda: 1000.0)
    with pytest.raises(DnnMemoryError, match=r"float32 arrays of \(2, 16, 9, 8\), .* need"):
        conv_plans(**SMALL, device="cpu", time=True)


@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("direction", ALL_DIRECTIONS)
def test_a_list_takes_no_memory(monkeypatch, direction, dtype, memory_format):
    settings = {"direction": direction, "dtype": dtype, "memory_format": memory_format}
    timed = conv_plans(**SMALL, **settings, device="cpu", time=True)

    def refuse(*arguments: Any) -> None:
        raise AssertionError("operands were made")

    monkeypatch.setattr(plan_cases.CpuCase, "_random", refuse)
    listed = conv_plans(**SMALL, **settings, device="cpu")
    assert {(row.name, row.reason, row.notes) for row in listed} == {
        (row.name, row.reason, row.notes) for row in timed
    }
    assert flag_choices(**SMALL, **settings, device="cpu", time=False)["auto"]
    # 2 TiB an array
    large = {"input_shape": (1 << 15, 64, 512, 512), "filter_shape": (64, 64, 3, 3)}
    rows = conv_plans(**large, border_mode="half", **settings, device="cpu")
    assert any(not row.reason for row in rows)


def test_it_is_what_users_see():
    assert dnnops.conv_plans is conv_plans
    assert dnnops.flag_choices is flag_choices
    assert {"conv_plans", "flag_choices"} <= set(dnnops.__all__)


# -- what can't be right -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        (
            {"input_shape": (2, 16)},
            DnnValueError,
            r"input_shape must be 3 to 5 .* got 2, \(2, 16\)",
        ),
        ({"filter_shape": (1,) * 6}, DnnValueError, "filter_shape must be 3 to 5 integers"),
        ({"input_shape": (2, 16, 9)}, DnnValueError, "same number of entries"),
        ({"input_shape": (2, 16, 9, 0)}, DnnValueError, "input_shape: every size .* 1 and"),
        ({"input_shape": (2, 16, 9, -9)}, DnnValueError, "input_shape: every size"),
        ({"filter_shape": (32, 16, 3, 2**31)}, DnnValueError, "filter_shape: every size"),
        ({"input_shape": (2, 16, 9.0, 9)}, DnnTypeError, "input_shape must be 3 to 5 integers"),
        ({"input_shape": "2,16,9,9"}, DnnTypeError, "input_shape must be 3 to 5 integers"),
        ({"filter_shape": (32, 15, 3, 3)}, DnnValueError, "16 channels, but filters of 15"),
        ({"filter_shape": (32, 16, 30, 3)}, DnnValueError, "larger than the padded image"),
        ({"num_groups": 3}, DnnValueError, "num_groups 3 does not divide"),
        ({"num_groups": 0}, DnnValueError, "num_groups must be a positive int"),
        ({"border_mode": "same"}, DnnValueError, "border_mode must be 'valid', 'half', 'full'"),
        ({"border_mode": -1}, DnnValueError, r"padding \(border_mode\) must be between 0"),
        ({"border_mode": (1, 1, 1)}, DnnValueError, "tuple of 2 ints"),
        ({"subsample": 0}, DnnValueError, "subsample must be between 1"),
        ({"filter_dilation": (1, 2, 3)}, DnnValueError, "filter_dilation must have 2 entries"),
        ({"direction": "backward"}, DnnValueError, "direction must be one of forward, grad_inputs"),
        (
            {"dtype": "int8"},
            DnnTypeError,
            "dtype must be one of bfloat16, float16, float32, float6",
        ),
        ({"dtype": "half-precision"}, DnnTypeError, "dtype must be one of"),
        ({"dtype": "float16"}, DnnTypeError, "in float32 there, so pass dtype float32"),
        ({"dtype": "bfloat16"}, DnnTypeError, "pass dtype float32 or float64"),
        (
            {"memory_format": "NHWC"},
            DnnValueError,
            "memory_format must be one of contiguous, chann",
        ),
        ({"device": "tpu"}, DnnValueError, "flag device: 'tpu' is not accepted"),
        (
            {"precision": "float16"},
            DnnValueError,
            "precision 'float16' is not available on the CPU",
        ),
        ({"precision": "half"}, DnnValueError, "flag dnn.conv.precision: 'half' is not accepted"),
        ({"dtype": None}, DnnTypeError, "dtype must be one of"),
        ({"allow_tf32": True}, DnnValueError, "allow_tf32=True is a cuDNN setting"),
        ({"allow_tf32": "maybe"}, DnnValueError, "flag dnn.allow_tf32: 'maybe' is not accepted"),
        ({"workspace_limit": 0}, DnnValueError, "workspace_limit=0 is a cuDNN setting"),
        ({"deterministic": True}, DnnValueError, "deterministic=True is a cuDNN setting"),
        ({"workspace_limit": "1MB"}, DnnValueError, "workspace_limit=1000000 is a cuDNN setting"),
        ({"workspace_limit": "lots"}, DnnValueError, "flag dnn.conv.workspace_limit: 'lots'"),
        ({"workspace_limit": -1}, DnnValueError, "flag dnn.conv.workspace_limit: '-1'"),
    ],
)
def test_bad_arguments(changes, error, words):
    with pytest.raises(error, match=words):
        conv_plans(**{**SMALL, "device": "cpu", **changes})
    with pytest.raises(error, match=words):
        flag_choices(**{**SMALL, "device": "cpu", **changes})


def test_cudnn_that_does_not_work(monkeypatch):
    monkeypatch.setattr("dnnops.gpu.library.cudnn_status", lambda device: f"no cuda{device} here")
    with pytest.raises(DnnUnavailableError, match="cannot be used on cuda1: no cuda1 here"):
        conv_plans(**SMALL, device="cuda1")


# -- on a GPU that is made up --------------------------------------------------------------


class FakePlanList:
    """Return a list of plans for a convolution that is not run.

    It has two plans that can run, the later one faster; one that fails when it is timed; and one
    that is rejected. A search finds one more.
    """

    made: list[FakePlanList] = []  # noqa: RUF012

    def __init__(self, node: Any, inputs: list[Any], output: Any):
        self.node, self.inputs, self.output = node, inputs, output
        self.ran: list[tuple[str, int]] = []
        direction = node.op.direction
        self.plans = [
            ConvPlan("IMPLICIT_GEMM", direction, "legacy", 0, 0, True, "FMA_MATH"),
            ConvPlan("engine1_k2=1", direction, "graph", 1, 64, False, notes=("tensor_core",)),
            ConvPlan("FFT", direction, "legacy", 4, 1 << 20, True),
            ConvPlan("WINOGRAD", direction, "legacy", 6, reason="not for these filters"),
        ]
        self.milliseconds = {"IMPLICIT_GEMM": 4.0, "engine1_k2=1": 1.0, "engine1_k2=2": 0.5}
        self.gpu: FakeGpu | None = None
        FakePlanList.made.append(self)

    def __enter__(self) -> FakePlanList:
        return self

    def __exit__(self, *_: object) -> None:
        self.closed = True

    def time(self, index: int) -> float:
        plan = self.plans[index]
        assert not plan.reason
        if plan.name == "FFT":
            self.plans[index] = replace(plan, reason="CUDNN_STATUS_EXECUTION_FAILED")
            raise DnnLibraryError("CUDNN_STATUS_EXECUTION_FAILED")
        self.plans[index] = replace(plan, time_ms=self.milliseconds[plan.name])
        return self.milliseconds[plan.name]

    def search(self, seconds: float) -> None:
        assert seconds == 2.0
        found = replace(self.plans[1], name="engine1_k2=2", time_ms=0.5)
        self.plans.append(found)

    def run(self, index: int, repeats: int = 1) -> None:
        self.ran.append((self.plans[index].name, repeats))
        gpu = FakePlanList.gpu
        gpu.milliseconds = self.milliseconds[self.plans[index].name]
        gpu.run(repeats)

    def choice(self, algo: str) -> str:
        if algo.startswith("winograd"):
            raise DnnNotSupportedError(f"{algo} cannot be run here")
        times = {plan.name: plan.time_ms for plan in self.plans if plan.time_ms is not None}
        if algo.startswith("time_"):
            return min(times, key=times.__getitem__)
        return "IMPLICIT_GEMM"


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    """Treat NumPy arrays as GPU arrays, and use the list above as cuDNN's plans."""

    @contextmanager
    def on_device(device: int) -> Iterator[Any]:
        yield cupy

    runtime = SimpleNamespace(
        getDeviceProperties=lambda number: {"name": f"GPU {number}".encode()},
        deviceGetPCIBusId=lambda number: "0000:3B:00.0",
    )
    allocated: list[int] = []

    def alloc(size: int) -> np.ndarray:
        allocated.append(size)
        return np.zeros(size, "uint8")

    def ndarray(shape: tuple[int, ...], dtype: Any, memptr: np.ndarray) -> np.ndarray:
        strides = [np.dtype(dtype).itemsize * math.prod(shape[i + 1 :]) for i in range(len(shape))]
        return np.lib.stride_tricks.as_strided(memptr[:64].view(dtype), shape, strides)

    cuda = SimpleNamespace(runtime=runtime, alloc=alloc)
    cupy = SimpleNamespace(empty=np.empty, asarray=np.asarray, ndarray=ndarray, cuda=cuda)
    board = FakeGpu(watts=400.0).install(monkeypatch)
    board.allocated = allocated
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(plan_cases, "on_device", on_device)
    monkeypatch.setattr("dnnops.gpu.library.cudnn_status", lambda device: "")
    monkeypatch.setattr("dnnops.plans.gpu.PlanList", FakePlanList)
    monkeypatch.setattr(FakePlanList, "made", [])
    monkeypatch.setattr(FakePlanList, "gpu", board, raising=False)
    return board


def test_the_order_of_plans(gpu):
    rows = conv_plans(**SMALL, device="cuda")
    assert [row.name for row in rows] == ["IMPLICIT_GEMM", "engine1_k2=1", "FFT", "WINOGRAD"]
    assert all(row.time_ms is None for row in rows)
    told: list[tuple[int, int]] = []
    rows = conv_plans(**SMALL, device="cuda", time=True, progress=lambda *now: told.append(now))
    names = ["engine1_k2=2", "engine1_k2=1", "IMPLICIT_GEMM", "FFT", "WINOGRAD"]
    assert [row.name for row in rows] == names
    assert [row.time_ms for row in rows] == [0.5, 1.0, 4.0, None, None]
    assert [row.reason for row in rows[2:]] == [
        "",
        "CUDNN_STATUS_EXECUTION_FAILED",
        "not for these filters",
    ]
    assert told == [(0, 3), (1, 3), (2, 3), (3, 3)]
    assert all(made.closed for made in FakePlanList.made)


@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last"])
@pytest.mark.parametrize("dtype", of_dtypes("float16", "bfloat16", "float32", "float64"))
@pytest.mark.parametrize(
    ("direction", "cls", "shapes", "vector"),
    [
        ("forward", GpuDnnConv, ((2, 16, 9, 8), (32, 16, 3, 3), (2, 32, 9, 8)), None),
        ("grad_inputs", GpuDnnConvGradI, ((32, 16, 3, 3), (2, 32, 9, 8), (2, 16, 9, 8)), [9, 8]),
        ("grad_weights", GpuDnnConvGradW, ((2, 16, 9, 8), (2, 32, 9, 8), (32, 16, 3, 3)), [3, 3]),
    ],
)
def test_operands_are_what_the_op_takes(gpu, direction, cls, shapes, vector, dtype, memory_format):
    settings = {"allow_tf32": True, "deterministic": True, "workspace_limit": "1MiB"}
    conv_plans(
        **SMALL,
        **settings,
        direction=direction,
        dtype=dtype,
        memory_format=memory_format,
        device="cuda1",
        time=True,
    )
    (made,) = FakePlanList.made
    op = made.node.op
    assert type(op) is cls
    assert (op.allow_tf32, op.deterministic, op.workspace_limit) == (True, True, 1 << 20)
    assert op.memory_format == memory_format
    assert op.border_mode == ((1, 1), (1, 1))
    variables = made.node.inputs
    assert len(made.inputs) == len(variables)
    for variable, array, shape in zip(variables[:2], made.inputs[:2], shapes, strict=False):
        assert variable.type == GpuArrayType(dtype, shape, 1)
        assert (array.shape, array.dtype.name) == (shape, dtype)
        inner = array if memory_format == "contiguous" else array.transpose(0, 2, 3, 1)
        assert inner.flags.c_contiguous
        assert np.count_nonzero(array) == array.size
    assert made.output.shape == shapes[2]
    assert made.output.dtype.name == dtype
    if vector is not None:
        assert made.inputs[2].tolist() == vector
        assert made.inputs[2].dtype == "int64"
    assert (made.inputs[-1].ndim, made.inputs[-1].dtype, made.inputs[-1]) == (0, "float64", 1.0)


def test_random_numbers_are_repeated_to_any_size(gpu, monkeypatch):
    monkeypatch.setattr(plan_cases, "_BLOCK", 101)
    conv_plans(**SMALL, device="cuda", time=True)
    image = FakePlanList.made[0].inputs[0].ravel()
    assert np.count_nonzero(image) == image.size
    np.testing.assert_array_equal(image[:101], image[101:202])
    assert 0.8 < image.std() < 1.2


def test_asymmetric_padding_is_what_is_really_run(gpu):
    arguments = {**SMALL, "border_mode": ((0, 2), (3, 1))}
    for direction, cls in zip(
        ALL_DIRECTIONS, (GpuDnnConv, GpuDnnConvGradI, GpuDnnConvGradW), strict=True
    ):
        case = make_case(**arguments, direction=direction, device="cuda")
        symmetric = {**SMALL, "input_shape": (2, 16, 11, 10), "border_mode": (0, 1)}
        plain = make_case(**symmetric, direction=direction, device="cuda")
        assert type(case.op) is cls
        assert case.op == plain.op
        assert case.input_shape == (2, 16, 11, 10)
        assert "an image of (2, 16, 11, 10) that is padded first" in case.remark
        assert plain.remark == ""
        # The output is that of the convolution that was asked for.
        assert case.output_shape == make_case(**arguments, device="cpu").output_shape
        rows = conv_plans(**arguments, direction=direction, device="cuda")
        assert all(row.notes[-1] == case.remark for row in rows)


def test_choices_of_flags_on_a_gpu(gpu):
    choices = flag_choices(**SMALL, device="cuda")
    assert tuple(choices) == ALGORITHM_WORDS
    assert choices["time_once"] == choices["time_on_shape_change"] == "engine1_k2=2"
    assert choices["small"] == "IMPLICIT_GEMM"
    assert (choices["winograd"], choices["winograd"].reason) == ("", "winograd cannot be run here")
    untimed = flag_choices(**SMALL, device="cuda", time=False)
    assert untimed["time_once"] == ""
    assert untimed["time_once"].reason == "nothing was timed"
    assert untimed["small"] == "IMPLICIT_GEMM"


def test_the_flag_is_that_of_the_direction(gpu):
    flags = [make_case(**SMALL, direction=d, device="cuda").flag for d in ALL_DIRECTIONS]
    names = ("fwd", "bwd_data", "bwd_filter")
    assert flags == [f"dnn.conv.algo_{name}" for name in names]
    for flag in flags:
        dnnops.config.flag_value(flag)


def test_energy(gpu):
    told: list[tuple[int, int]] = []
    rows = conv_plans(**SMALL, device="cuda", energy=True, progress=lambda *now: told.append(now))
    assert [row.name for row in rows[:3]] == ["engine1_k2=2", "engine1_k2=1", "IMPLICIT_GEMM"]
    for row in rows[:3]:
        assert row.energy_mj == pytest.approx(400.0 * row.time_ms, rel=0.1)
    assert [row.energy_mj for row in rows[3:]] == [None, None]
    assert told[-1][0] == told[-1][1]
    assert [done for done, _ in told] == sorted(done for done, _ in told)


def test_energy_that_is_not_told(gpu, monkeypatch):
    FakeGpu(counts=False).install(monkeypatch)
    with pytest.warns(DnnWarning, match="energy counter of cuda0: Not Supported"):
        rows = conv_plans(**SMALL, device="cuda", energy=True)
    assert rows[0].time_ms == 0.5
    assert all(row.energy_mj is None for row in rows)
    stuck = FakeGpu(period=0).install(monkeypatch)
    monkeypatch.setattr(FakePlanList, "gpu", stuck)
    with pytest.warns(DnnWarning, match="did not move"):
        conv_plans(**SMALL, device="cuda", energy=True)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(DnnUnavailableError, match="pip install nvidia-ml-py"):
        conv_plans(**SMALL, device="cuda", energy=True)


def test_a_search_that_fails_costs_what_it_would_have_found(gpu, monkeypatch):
    def refuse(self: FakePlanList, seconds: float) -> None:
        raise DnnMemoryError("no room for 9 bytes")

    monkeypatch.setattr(FakePlanList, "search", refuse)
    with pytest.warns(DnnWarning, match="that the library proposes were timed: no room for 9"):
        rows = conv_plans(**SMALL, device="cuda", time=True)
    assert rows[0].name == "engine1_k2=1"


def test_no_room_on_the_gpu(gpu, monkeypatch):
    def refuse(*arguments: Any) -> None:
        raise MemoryError("out of memory allocating 9,216 bytes")

    monkeypatch.setattr(sys.modules["cupy"], "empty", refuse)
    with pytest.raises(DnnMemoryError, match=r"no memory on cuda0 for float32 arrays of \(2, 16, "):
        conv_plans(**SMALL, device="cuda", time=True)


@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last"])
def test_a_list_takes_no_memory_on_the_gpu(gpu, memory_format):
    large = {"input_shape": (1 << 15, 64, 512, 512), "filter_shape": (64, 64, 3, 3)}
    conv_plans(**large, device="cuda", memory_format=memory_format)
    (made,) = FakePlanList.made
    for array, shape in zip((*made.inputs[:2], made.output), (*large.values(), None), strict=True):
        assert shape is None or array.shape == shape
        inner = array if memory_format == "contiguous" else array.transpose(0, 2, 3, 1)
        assert inner.flags.c_contiguous
    assert sum(gpu.allocated) < 4096


def test_bad_settings_for_cudnn(gpu):
    for changes, words in (
        (
            {"precision": "float64"},
            "no convolution of float32 arrays that computes in float64, only in float32",
        ),
        ({"precision": "half"}, "flag dnn.conv.precision: 'half' is not accepted"),
        ({"memory_format": "NCHW"}, "memory_format must be one of"),
    ):
        with pytest.raises(DnnValueError, match=words):
            conv_plans(**SMALL, device="cuda", **changes)


# -- small things --------------------------------------------------------------------------


def test_a_choice_is_a_name():
    choice = FlagChoice("", "why")
    assert (choice, choice.reason) == ("", "why")
    assert FlagChoice("FFT") == "FFT"
    assert FlagChoice("FFT").reason == ""


def test_a_plan_is_a_value():
    plan = ConvPlan("FFT", "forward", "legacy")
    assert plan == ConvPlan("FFT", "forward", "legacy")
    assert [field.name for field in fields(ConvPlan)] == [
        "name",
        "direction",
        "api",
        "number",
        "workspace_bytes",
        "deterministic",
        "math_type",
        "notes",
        "time_ms",
        "reason",
        "energy_mj",
    ]
    assert plans.conv_flops((4, 3, 2, 2), (1, 4, 5, 5)) == 2 * 100 * 12


# -- on a real GPU -------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("direction", ALL_DIRECTIONS)
@pytest.mark.parametrize(
    "arguments",
    [
        SMALL,
        {**SMALL, "dtype": "float16", "memory_format": "channels_last"},
        {**SMALL, "dtype": "bfloat16", "subsample": 2},
        {**SMALL, "dtype": "float64"},
        {**SMALL, "border_mode": ((0, 2), (3, 1))},
        {"input_shape": (1, 4, 8, 8, 8), "filter_shape": (6, 2, 3, 3, 3), "num_groups": 2},
        {"input_shape": (2, 4, 31), "filter_shape": (6, 4, 5), "filter_dilation": 2},
    ],
)
def test_plans_on_a_gpu(arguments, direction):
    found = survey(make_case(**arguments, direction=direction, device="cuda"))
    rows = found.plans
    times = [row.time_ms for row in rows if row.time_ms is not None]
    assert times
    assert times == sorted(times)
    assert rows[0].time_ms == min(times)
    assert all(row.reason for row in rows if row.time_ms is None)
    names = [row.name for row in rows]
    assert len(set(names)) == len(names)
    assert found.choices["time_once"] == rows[0].name
    assert found.choices["guess_once"] in names
    assert all(choice in names for choice in found.choices.values() if choice)
    assert all(choice.reason for choice in found.choices.values() if not choice)


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.needs("pynvml")
def test_energy_on_a_gpu():
    large = {"input_shape": (32, 128, 56, 56), "filter_shape": (128, 128, 3, 3), "border_mode": 1}
    found = survey(make_case(**large, device="cuda"), energy=True)
    if found.energy_reason:
        pytest.skip(found.energy_reason)
    timed = [plan for plan in found.plans if plan.time_ms is not None]
    assert all(plan.energy_mj > 0 for plan in timed)
    # Watts, between what a board takes when it is idle and what none does.
    assert all(20 < plan.energy_mj / plan.time_ms < 2000 for plan in timed)


def test_functions_of_one_convolution_have_the_same_defaults():
    parameters = signature(conv_plans).parameters
    for name, parameter in signature(flag_choices).parameters.items():
        if name not in ("time", "settings"):
            assert parameter.default == parameters[name].default
    assert (parameters["border_mode"].default, parameters["num_groups"].default) == ("valid", 1)
    assert parameters["subsample"].default == parameters["filter_dilation"].default == 1
