"""The plan that each value of the flags and of ``algo=`` selects."""

from __future__ import annotations

import re

import numpy as np
import pytest
from pytensor import config

from dnnops.errors import DnnError, DnnNotSupportedError, DnnValueError
from dnnops.flag_values import ALGORITHM_WORDS
from dnnops.gpu import algorithms
from dnnops.gpu.algorithms import LEGACY_ALGORITHMS
from dnnops.gpu.library import cudnn_version, free_workspaces
from dnnops.plans.cache import CachedChoice, plan_cache
from dnnops.runtime.build import CUDNN
from tests.gpu.conv.convolutions import every_op, large_case
from tests.gpu.device import DTYPES, apply_op
from tests.plans.timed import Convolution, bits, lines_of, only_row, seconds_of

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("no_stored_plans")]

every_dtype = pytest.mark.parametrize("dtype", DTYPES)
TIMED = ("time_once", "time_on_shape_change")
#: Of a 3-d convolution.
THREE_AXES = {
    "border_mode": ((1, 1),) * 3,
    "subsample": (1, 1, 1),
    "filter_dilation": (1, 1, 1),
}
ONCE = ("guess_once", "time_once")


def time_limit(seconds: float):
    """Limit the time of timing and of the lists in errors."""
    return config.change_flags(dnn__conv__time_limit=seconds)


# -- backward data as a forward convolution ------------------------------------------------


@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize(
    "params",
    [
        {},
        {"filter_flip": False},
        {"kern_shape": (16, 32, 5, 3), "border_mode": ((4, 4), (0, 0)), "filter_flip": False},
        {"filter_dilation": (2, 3), "kern_shape": (16, 32, 3, 3)},
        {"num_groups": 2, "kern_shape": (48, 16, 3, 3), "filter_flip": False},
        {"num_groups": 4, "kern_shape": (48, 8, 3, 3), "subsample": (2, 3)},
        {"num_groups": 2, "kern_shape": (8, 16, 5, 4), "subsample": (3, 1), "filter_flip": False},
        {"kern_shape": (16, 32, 1, 1), "border_mode": ((0, 0), (0, 0))},
        {"img_shape": (2, 24, 9, 10, 11), "kern_shape": (16, 24, 3, 2, 3), **THREE_AXES},
    ],
    ids=[
        "flipped",
        "plain",
        "padding",
        "dilation",
        "groups",
        "strides",
        "other strides",
        "1x1",
        "3-d",
    ],
)
def test_as_forward(params, dtype, memory_format):
    """Engines of forward convolutions compute the gradient with respect to the inputs."""
    conv = Convolution(large_case(**params), 1, dtype, memory_format)
    allow_tf32 = dtype == "float32"
    plans = conv.runnable(allow_tf32=allow_tf32)
    names = [name for name in plans if name.endswith("_as_forward")]
    assert names
    bound = {"float32": 2e-3}.get(dtype)
    for name in names:
        out = apply_op(conv.op(algo=name, allow_tf32=allow_tf32), *conv.given)
        conv.check(out, bound=bound)


@pytest.mark.parametrize(
    ("index", "params", "reason"),
    [
        (0, {}, "only the gradient with respect to the inputs"),
        (2, {}, "only the gradient with respect to the inputs"),
        (1, {"subsample": (1, 2)}, "not offered for strides without groups"),
        (1, {"border_mode": ((2, 2), (5, 5))}, "the padding is larger than the filters"),
    ],
)
def test_not_as_forward(index, params, reason):
    conv = Convolution(large_case(**params), index)
    with time_limit(0.01):
        assert reason in conv.refusal(algo="engine1_as_forward")


# -- precision -----------------------------------------------------------------------------


def test_first_layers():
    """Engine 63 sums in float32, whatever cuDNN notes about it: its error is that of rounding."""
    if cudnn_version() // 100 != 919:
        pytest.skip("the engine has this number in cuDNN 9.19")
    case = large_case(
        img_shape=(8, 3, 224, 224),
        kern_shape=(64, 3, 7, 7),
        border_mode=((3, 3), (3, 3)),
        subsample=(2, 2),
        filter_flip=False,
    )
    for memory_format in ("contiguous", "channels_last"):
        conv = Convolution(case, 0, "float16", memory_format)
        names = [name for name in conv.runnable() if name.startswith("engine63")]
        assert names
        for name in names:
            conv.check(apply_op(conv.op(algo=name), *conv.given), bound=3e-4)


# -- the same bits -------------------------------------------------------------------------

DETERMINISTIC = (
    {"algo": "deterministic"},
    *(
        {"algo": algo, "deterministic": True}
        for algo in ("time_on_shape_change", "guess_on_shape_change", "none", "small", "large")
    ),
)


@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last"])
@every_dtype
@every_op
def test_deterministic(index, dtype, memory_format):
    """100 runs give the same bits."""
    import cupy

    # Many images and few filters: what tempts into adding up partial sums as they come.
    case = large_case(img_shape=(32, 64, 28, 28), kern_shape=(64, 64, 3, 3), border_mode="half")
    conv = Convolution(case, index, dtype, memory_format)
    for settings in DETERMINISTIC:
        op = conv.op(**settings)
        with time_limit(0.3):
            first = conv.run(**settings)
            plan = algorithms.last_plan()
            differs = cupy.zeros((), "bool")
            for _ in range(99):
                differs |= (bits(apply_op(op, *conv.given)) != bits(first)).any()
                assert algorithms.last_plan() == plan
        assert not differs, (settings, plan)


@every_op
def test_only_deterministic_plans_are_listed(index):
    conv = Convolution(large_case(), index)
    rows = conv.plans(deterministic=True)
    assert all(row.deterministic for row in rows if not row.reason)
    refused = {row.name for row in rows if row.reason.startswith("not deterministic")}
    others = conv.runnable()
    assert {name for name, row in others.items() if not row.deterministic} <= refused
    for name in sorted(refused)[:3]:
        with time_limit(0.01):
            assert "not deterministic" in conv.refusal(algo=name, deterministic=True)


# -- once, or for each shape ---------------------------------------------------------------


@pytest.mark.parametrize("algo", ONCE)
@every_op
def test_once_keeps_a_plan_that_can_run(index, algo):
    first, second = (
        Convolution(large_case(img_shape=(n, 32, 30, 30)), index, "float16", "channels_last")
        for n in (8, 5)
    )
    f = first.compiled(algo=algo)
    with time_limit(0.3):
        plan = first.run_row(f)
        assert plan.source == ("timed" if algo == "time_once" else "guessed")
        row = second.run_row(f)
    if plan.plan in second.runnable():
        assert row.plan == plan.plan
    assert row.source != "given"  # the user gave none
    # It is ready now: further calls look nothing up.
    before = algorithms.cache_statistics()
    for _ in range(5):
        second.check(f(*second.given))
    assert algorithms.cache_statistics() == before
    assert only_row(f) == row


@pytest.mark.parametrize("algo", ONCE)
def test_once_prints_one_line_for_each_choice(algo, capfd):
    first, second = (Convolution(large_case(img_shape=(n, 32, 30, 30)), 0) for n in (8, 5))
    with config.change_flags(dnn__verbose=True, dnn__conv__time_limit=0.2):
        f = first.compiled(algo=algo)
        for conv in (first, first, first, second, second, second):
            conv.check(f(*conv.given))
    assert 1 <= len(lines_of(capfd.readouterr().err)) <= 2


LAYOUT = "float16", "channels_last"
POINTWISE = {"img_shape": (8, 64, 14, 14), "kern_shape": (64, 64, 1, 1), "border_mode": "valid"}
#: Shapes for which plans of `POINTWISE` may fail: other filters, odd channels.
OTHERS = (
    {"img_shape": (8, 64, 14, 14), "kern_shape": (64, 64, 3, 3), "border_mode": "valid"},
    {"img_shape": (8, 3, 15, 13), "kern_shape": (5, 3, 3, 3), "border_mode": "valid"},
    {"img_shape": (2, 7, 9, 9), "kern_shape": (3, 7, 5, 5), "border_mode": "valid"},
)


@pytest.mark.parametrize("algo", ONCE)
@every_op
def test_once_on_shapes_that_differ_in_all(index, algo):
    """Plans that fit are kept, others are selected anew, and results are right."""
    first = Convolution(large_case(**POINTWISE), index, *LAYOUT)
    for params in OTHERS:
        other = Convolution(large_case(**params), index, *LAYOUT)
        f = first.compiled(algo=algo)
        with time_limit(0.3):
            plan = first.run_row(f).plan
            row = other.run_row(f)
            if plan in other.runnable():
                assert row.plan == plan
            assert row.source in ("guessed", "timed")
            first.run_row(f)


def test_a_new_selection_times_no_plans_for_a_message(tmp_path):
    """If a plan cannot be kept, the plans that can run are not listed; only errors list them."""
    first, other = (Convolution(large_case(**p), 0, *LAYOUT) for p in (POINTWISE, OTHERS[0]))
    product = next(name for name, row in first.runnable().items() if row.api == "cublaslt")
    assert product not in other.runnable()
    algorithms.clear_cache()
    with config.change_flags(dnn__conv__cache=str(tmp_path)):
        first.run(algo="time_on_shape_change")
        # As if the product had been the fastest.
        (entry,) = plan_cache().entries()
        plan_cache().store(entry.key, CachedChoice(((product, 1.0, 0),)))
        algorithms.clear_cache()
        timing = seconds_of(lambda: other.run(algo="time_on_shape_change"))
        f = first.compiled(algo="time_once")
        row = first.run_row(f)
        assert (row.plan, row.source) == (product, "cache")
        choosing = seconds_of(lambda: f(*other.given))
        other.check(f(*other.given))
        assert only_row(f).source == "timed"
    assert choosing < 0.3 * timing


def test_on_shape_change_chooses_for_each_shape():
    """The selection for a shape is found again when the shape returns."""
    convolutions = [
        Convolution(large_case(img_shape=(n, 32, size, size)), 0) for n, size in ((8, 30), (2, 60))
    ]
    for algo, source in (("guess_on_shape_change", "guessed"), ("time_on_shape_change", "timed")):
        f = convolutions[0].compiled(algo=algo)
        with time_limit(0.3):
            rows = [conv.run_row(f) for conv in convolutions]
            assert [conv.run_row(f) for conv in convolutions] == rows
        assert {row.source for row in rows} == {source}
        assert [row.input_shape[0] for row in rows] == [8, 2]


# -- names and numbers ---------------------------------------------------------------------

FLAGS = ("dnn__conv__algo_fwd", "dnn__conv__algo_bwd_data", "dnn__conv__algo_bwd_filter")


@every_op
def test_every_number_as_in_theanos_flag(index):
    conv = Convolution(large_case(), index)
    names = LEGACY_ALGORITHMS[conv.cls.direction]
    ran = 0
    for number, name in enumerate(names):
        with config.change_flags(**{FLAGS[index]: str(number)}, dnn__conv__time_limit=0.01):
            assert conv.op().algo == str(number)
            refusal = conv.refusal()
        if refusal:
            assert f"The plan {name} cannot run" in refusal
        else:
            assert algorithms.last_plan() == name
            ran += 1
    assert ran >= 3
    with pytest.raises(DnnValueError, match=rf"0 to {len(names) - 1}"):
        conv.op(algo=len(names))


def test_math_types_in_names():
    """FFMA is used where tensor cores are allowed, and no tensor cores where they are not."""
    case = large_case(img_shape=(8, 64, 30, 30), kern_shape=(64, 64, 3, 3))
    conv = Convolution(case, 0)
    for allow_tf32 in (False, True):
        name = "IMPLICIT_PRECOMP_GEMM_FMA_MATH"
        conv.check(apply_op(conv.op(algo=name, allow_tf32=allow_tf32), *conv.given), bound=1e-5)
        assert algorithms.last_plan() == name
    for math_type in ("DEFAULT_MATH", "TENSOR_OP_MATH"):
        name = f"IMPLICIT_PRECOMP_GEMM_{math_type}"
        conv.check(apply_op(conv.op(algo=name, allow_tf32=True), *conv.given), bound=1e-3)
        assert algorithms.last_plan() == name
        with time_limit(0.01):
            assert "dnn.allow_tf32 is False" in conv.refusal(algo=name)


@every_op
def test_a_plan_that_cannot_run(index):
    """The error lists plans that can run, fastest first, and each can be requested."""
    conv = Convolution(large_case(), index)
    refused = {row.api: row for row in conv.plans() if row.reason and row.number is not None}
    assert {"legacy", "graph"} <= set(refused)
    for row in refused.values():
        with time_limit(0.5):
            words = conv.refusal(algo=row.name)
        assert f"The plan {row.name} cannot run this convolution:" in words
        (able,) = re.findall("These can, fastest first: (.*)", words)
        listed = re.findall(r"([A-Z][A-Z0-9_]+|[a-z]+\d[\w=-]*) \(([\d.e+-]+) ms\)", able)
        assert 1 <= len(listed) <= 12, able
        times = [float(time_ms) for _, time_ms in listed]
        assert times == sorted(times)
        assert times[0] > 0
        for name in {listed[0][0], listed[-1][0]}:
            conv.run(algo=name)
            assert algorithms.last_plan() == name
    # It fares no worse than before.
    conv.run()


def test_plans_that_there_are_not():
    conv = Convolution(large_case(), 0)
    for name in ("engine9999", "engine0_k99=1", "gemm9999"):
        with (
            time_limit(0.01),
            pytest.raises(DnnError, match=rf"The plan {name} cannot run(?s:.*)These can"),
        ):
            conv.run(algo=name)


def test_words_that_name_one_algorithm():
    conv = Convolution(large_case(), 0, "float64")
    with time_limit(0.01):
        words = conv.refusal(algo="fft")
    assert re.search("The algorithm FFT cannot run(?s:.*)These can, fastest first: ", words)


# -- the limit on workspaces ---------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@every_op
def test_workspace_limit(index, dtype):
    """All selections respect it; a plan that does not raises an error that names the flag."""
    conv = Convolution(large_case(), index, dtype)
    workspaces = {name: row.workspace_bytes for name, row in conv.runnable().items()}
    sizes = sorted(set(workspaces.values()) - {0})
    assert sizes, "no plan takes a workspace"
    limit = sizes[len(sizes) // 2] - 1
    rows = conv.plans(workspace_limit=limit)
    within = {row.name: row.workspace_bytes for row in rows if not row.reason}
    assert within
    assert max(within.values()) <= limit
    over = {name for name, size in workspaces.items() if size > limit}
    told = [row.reason for row in rows if row.name in over]
    assert told
    assert all(f"over the limit of {limit}" in reason for reason in told)
    assert all("flag dnn.conv.workspace_limit" in reason for reason in told)
    with config.change_flags(dnn__conv__time_limit=0.2, dnn__conv__workspace_limit=limit):
        for algo in ALGORITHM_WORDS:
            if algo in TIMED:  # which may take a plan that is not listed
                assert conv.run_row(conv.compiled(algo=algo)).workspace_bytes <= limit
            elif refusal := conv.refusal(algo=algo):
                assert algo.startswith(("fft", "winograd"))
                assert "cannot run" in refusal
            else:
                assert within[algorithms.last_plan()] <= limit


@pytest.mark.parametrize("algo", TIMED)
def test_timing_leaves_no_more_than_the_limit(algo):
    conv = Convolution(large_case(), 0)
    old = np.ones(conv.expected.shape)
    for limit in (0, 1 << 20):
        for accumulate in (False, True):
            free_workspaces()
            algorithms.clear_cache()
            if accumulate:
                conv.run_on(old, algo=algo, workspace_limit=limit)
            else:
                conv.run(algo=algo, workspace_limit=limit)
            assert CUDNN.library.dnnops_cudnn_workspace_bytes(0) <= limit


@every_op
def test_a_limit_that_no_plan_fits(index):
    """Without a workspace there is still a plan, or an error that names the flag."""
    for dtype in ("float32", "bfloat16"):
        conv = Convolution(large_case(), index, dtype, "channels_last")
        able = conv.runnable(workspace_limit=0)
        for algo in (*TIMED, "guess_once", "small", "none", "fft"):
            f = conv.compiled(algo=algo, workspace_limit=0)
            try:
                assert conv.run_row(f).workspace_bytes == 0
            except DnnNotSupportedError as error:
                words = str(error)
                # Others than these words take any plan that there is.
                if algo != "fft" and (able or "dnn.conv.workspace_limit" not in words):
                    raise
