"""All plans of random convolutions against the float64 oracle."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dnnops.errors import DnnNotSupportedError
from dnnops.gpu.algorithms import LEGACY_ALGORITHMS
from dnnops.plans import ConvPlan
from tests.gpu.conv.configurations import (
    COUNT,
    KINDS,
    MEMORY_FORMATS,
    PRECISIONS,
    configuration_id,
    make_configuration,
)
from tests.gpu.conv.convolutions import (
    NAMES,
    PAIRS,
    every_op,
    in_dtype,
    large_case,
    moved,
    operands,
    reference,
    result_shape,
)
from tests.gpu.device import make_node
from tests.needs import of_dtypes
from tests.oracle import SEED, small_integers
from tests.plans.walk import (
    KNOWN_WRONG,
    GuardedArray,
    Judge,
    granted,
    is_exact,
    report,
    walk,
)

pytestmark = pytest.mark.usefixtures("no_stored_plans")

#: Number of configurations that are searched for plans that cuDNN does not propose.
SEARCHED = 10
SEARCH_SECONDS = 3.0


# -- on a GPU ------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("number", range(COUNT), ids=configuration_id)
def test_every_plan(number):
    configuration = make_configuration(number)
    found = walk(configuration)
    assert not found, report(configuration, found)


@pytest.mark.gpu
@pytest.mark.parametrize("number", range(0, COUNT, COUNT // SEARCHED), ids=configuration_id)
def test_plans_that_a_search_finds(number):
    """Run engines with knob values that cuDNN's heuristics do not propose."""
    configuration = make_configuration(number)
    found = walk(configuration, search_seconds=SEARCH_SECONDS)
    assert not found, report(configuration, found)


MISALIGNED = """
import json, sys
import dnnops
from pytensor import config
from tests.gpu.conv.configurations import make_configuration
from tests.plans.walk import walk
with config.change_flags(dnn__conv__cache="off"):
    print(json.dumps(walk(make_configuration(int(sys.argv[1]), int(sys.argv[2])), offset=1)))
"""


@pytest.mark.gpu
@pytest.mark.parametrize("number", range(1, COUNT, 6), ids=configuration_id)
def test_arrays_that_are_not_aligned(number):
    """Plans of aligned arrays, as time_once keeps them, reject other arrays or are right.

    This runs in a separate process, because a misaligned read ends all work on the device.
    """
    done = subprocess.run(
        [sys.executable, "-c", MISALIGNED, str(number), str(SEED)],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert not found, report(make_configuration(number), found)


def listing(index: int, dtype: str = "float32", **settings):
    """List the plans of a large convolution."""
    import cupy

    from dnnops.plans.gpu import PlanList

    case = large_case()
    op = PAIRS[index][0](**case.params, **settings)
    given = moved(in_dtype(operands(case, index), dtype), dtype)
    output = cupy.empty(result_shape(case, index), given[0].dtype)
    return PlanList(*make_node(op, *given), output)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@every_op
def test_rows(index, dtype):
    direction = PAIRS[index][0].direction
    with listing(index, dtype) as plans:
        rows = plans.plans
    assert {row.direction for row in rows} == {direction}
    assert {"legacy", "graph"} <= {row.api for row in rows if not row.reason}
    refused = [bool(row.reason) for row in rows]
    assert refused == sorted(refused)
    for row in rows:
        if row.reason:
            assert row.workspace_bytes is None
            assert row.deterministic is None
        else:
            assert row.workspace_bytes >= 0
            assert row.deterministic in (True, False)
        assert row.time_ms is None
        assert (row.math_type != "") == (row.api == "legacy" and not row.reason)
    # Every algorithm of the legacy API is there, with its number, whether it can run or not.
    legacy = {row.name: row.number for row in rows if row.api == "legacy"}
    for number, name in enumerate(LEGACY_ALGORITHMS[direction]):
        assert legacy[name] == number
        assert f"{name}_DEFAULT_MATH" in legacy
    deterministic = {row.name: row.deterministic for row in rows if not row.reason}
    for name, expected in (("IMPLICIT_GEMM", True), ("ALGO_0", False), ("ALGO_1", True)):
        assert deterministic.get(name, expected) is expected


@pytest.mark.gpu
def test_pointwise_convolutions_are_matrix_products():
    case = large_case(kern_shape=(16, 32, 1, 1), border_mode="valid")
    import cupy

    from dnnops.plans.gpu import PlanList

    for index, dtype in ((0, "float32"), (1, "float16"), (0, "float64")):
        given = moved(in_dtype(operands(case, index), dtype), dtype)
        output = cupy.empty(result_shape(case, index), given[0].dtype)
        op = PAIRS[index][0](**case.params)
        with PlanList(*make_node(op, *given), output) as plans:
            assert any(row.api == "cublaslt" and not row.reason for row in plans.plans)


@pytest.mark.gpu
def test_timing_and_running_rows():
    with listing(0) as plans:
        rows = plans.plans
        runnable = [i for i, row in enumerate(rows) if not row.reason]
        for i in runnable[:3]:
            time_ms = plans.time(i)
            assert 0 < time_ms < 100
            assert plans.plans[i].time_ms == time_ms
            plans.run(i, 2)
        refused = len(runnable)
        assert rows[refused].reason
        for call in (plans.time, plans.run):
            with pytest.raises(DnnNotSupportedError) as error:
                call(refused)
            assert rows[refused].name in str(error.value)
            assert rows[refused].reason[:200] in str(error.value)


# -- without one: the configurations, and that what is wrong is found ------------------------


@pytest.mark.parametrize("seed", [SEED, 1, 2], ids=["random", "1", "2"])
def test_configurations(seed):
    configurations = [make_configuration(number, seed) for number in range(COUNT)]
    assert {c.kind for c in configurations} == set(KINDS)
    combinations = {(c.index, c.precision, c.memory_format) for c in configurations}
    assert len(combinations) == len(NAMES) * len(PRECISIONS) * len(MEMORY_FORMATS)
    assert {c.integers for c in configurations} == {False, True}
    assert {c.case.ndim for c in configurations} == {1, 2, 3}
    assert {c.case.filter_flip for c in configurations} == {False, True}
    assert {bool(c.factors[1]) for c in configurations} == {False, True}
    for c in configurations:
        assert c == make_configuration(c.number, seed)
        assert c.direction in configuration_id(c.number)
        arrays = operands(c.case, c.index, c.integers)
        # Of the right shapes, and so small that the oracle takes no time.
        assert reference(c.case, c.index, arrays).shape == result_shape(c.case, c.index)
        work = 2 * np.prod(c.case.top_shape) * np.prod(c.case.kern_shape[1:])
        assert work < 1e9
        PAIRS[c.index][0](**c.settings)


PLAN = ConvPlan("engine7_k2=4", "forward", "graph", 7, 0, True, notes=("tensor_core",))
FFT = replace(PLAN, name="engine8", notes=("fft",))
OTHER = replace(PLAN, name="engine4", number=4, notes=())
EXPECTED = small_integers(np.random.default_rng(0), (2, 3, 4, 5), "float64")


def complaints(plan: ConvPlan, *results, exact: bool = False, beside: bool = False) -> list[str]:
    """Judge a plan that leaves these results in turn."""
    output = GuardedArray(np, EXPECTED.shape, "float32", "channels_last")
    judge = Judge(EXPECTED, output, lambda transforms: 1e-4 if transforms else 1e-5, exact)
    left = iter(results * 3)

    def run() -> str:
        assert np.isnan(output.array).all()
        output.array[...] = next(left)
        if beside:
            output.memory[-1] = 0
        return plan.name

    return judge.complaints(plan, run)


def test_right_results():
    assert complaints(PLAN, EXPECTED, exact=True) == []
    assert complaints(PLAN, EXPECTED * (1 + 5e-6)) == []
    assert complaints(FFT, EXPECTED * (1 + 5e-5), exact=True) == []
    named = replace(PLAN, name="FFT_TILING", api="legacy")
    assert complaints(named, EXPECTED * (1 + 5e-5), exact=True) == []
    assert complaints(OTHER, EXPECTED * (1 + 5e-6), exact=True) == []
    assert complaints(replace(PLAN, deterministic=False), EXPECTED, EXPECTED * (1 + 1e-6)) == []


@pytest.mark.parametrize(
    ("plan", "results", "options", "words"),
    [
        (PLAN, [EXPECTED * (1 + 2e-5)], {}, "relative error 2e-05 > 1e-05"),
        (PLAN, [0 * EXPECTED], {}, "relative error 1 > 1e-05"),
        (FFT, [EXPECTED * (1 + 2e-4)], {}, "relative error 0.0002 > 0.0001"),
        (PLAN, [EXPECTED + 2.0**-20], {"exact": True}, "inexact for small integers"),
        (
            replace(PLAN, notes=()),
            [EXPECTED + 2.0**-20],
            {"exact": True},
            "inexact for small integers",
        ),
        (OTHER, [EXPECTED * (1 + 2e-5)], {"exact": True}, "relative error 2e-05 > 1e-05"),
        (PLAN, [np.where(EXPECTED == 3, np.nan, EXPECTED)], {}, "are not written"),
        (PLAN, [EXPECTED], {"beside": True}, "writes beside its output"),
        (PLAN, [EXPECTED, EXPECTED * (1 + 1e-6)], {}, "its bits differ from run to run"),
    ],
)
def test_wrong_results(plan, results, options, words):
    (found,) = complaints(plan, *results, **options)
    assert words in found


@pytest.mark.parametrize(
    ("name", "dtype", "exact"),
    [
        ("engine47_k0=6_k2=5", "bfloat16", False),
        ("engine47_k0=6_k2=5", "float32", True),
        ("engine47_k0=1_k2=5", "bfloat16", True),
        ("engine47_k0=12", "float16", False),
        ("engine47_k2=5", "bfloat16", True),
    ],
)
def test_sums_of_16_bits_that_are_split(name, dtype, exact):
    assert is_exact(replace(PLAN, name=name), dtype) is exact


def test_results_added_to_an_output():
    output = GuardedArray(np, EXPECTED.shape, "float64", "contiguous")
    judge = Judge(3 * EXPECTED, output, lambda _: 1e-12, added_to=EXPECTED)

    def add(factor: float) -> str:
        output.array[...] += factor * EXPECTED
        return PLAN.name

    assert judge.complaints(PLAN, lambda: add(2)) == []
    assert judge.complaints(PLAN, lambda: add(3)) == ["relative error 0.333 > 1e-12"]


def test_plans_that_do_not_run():
    output = GuardedArray(np, EXPECTED.shape, "float32", "contiguous")
    judge = Judge(EXPECTED, output, lambda _: 1e-5)

    def fail() -> str:
        raise DnnNotSupportedError("GpuDnnConv: CUDNN_STATUS_NOT_SUPPORTED\n  operands: ...")

    assert judge.complaints(PLAN, fail) == [
        "it is listed as runnable, but: GpuDnnConv: CUDNN_STATUS_NOT_SUPPORTED"
    ]
    assert judge.complaints(PLAN, lambda: "engine9") == ["engine9 was run instead"]
    refused = replace(PLAN, reason=f"{KNOWN_WRONG}: cuDNN 9.19 ...")

    def refuse() -> str:
        raise DnnNotSupportedError(f"The plan engine7 cannot run: {refused.reason}")

    assert granted(refused, refuse) == []
    assert "the error says" in granted(refused, fail)[0]
    assert "runs when it is asked for" in granted(refused, lambda: PLAN.name)[0]


@pytest.mark.parametrize("dtype", of_dtypes("float16", "bfloat16", "float32", "float64"))
@pytest.mark.parametrize("memory_format", MEMORY_FORMATS)
@pytest.mark.parametrize("offset", [0, 1])
def test_guarded_arrays(memory_format, dtype, offset):
    array = GuardedArray(np, EXPECTED.shape, dtype, memory_format, offset)
    assert np.isnan(array.array.astype("float64")).all()
    item = array.dtype.itemsize
    address, start = array.array.ctypes.data, array.memory.ctypes.data
    assert address - start == 4096 + offset * item
    strides = {"contiguous": (60, 20, 5, 1), "channels_last": (60, 1, 15, 3)}[memory_format]
    assert array.array.strides == tuple(n * item for n in strides)
    array.write(EXPECTED)
    values, untouched = array.read()
    assert untouched
    np.testing.assert_array_equal(values.astype("float64"), EXPECTED)
    array.memory[4095] = 0
    assert not array.read()[1]


def test_a_report_tells_how_to_repeat():
    configuration = make_configuration(3, 5)
    words = report(configuration, [f"engine{i}: wrong" for i in range(40)])
    assert "engine29: wrong\n  and 10 more\nrepeat with: DNNOPS_TEST_SEED=" in words
    assert "test_a_report_tells_how_to_repeat" in words
    assert repr(configuration) in words
