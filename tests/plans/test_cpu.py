"""All plans of a convolution on the CPU: which are listed, and that their results are right."""

from __future__ import annotations

import ctypes
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import dnnops
from dnnops.cpu.base import clear_caches
from dnnops.cpu.conv import OneDnnConv
from dnnops.errors import (
    DnnError,
    DnnMemoryError,
    DnnNotSupportedError,
    DnnTypeError,
    DnnValueError,
)
from dnnops.nnet import conv2d
from dnnops.nnet.conv.op import Conv
from dnnops.plans import ConvPlan
from dnnops.plans import cpu as plan_list
from dnnops.plans.cpu import PlanList, conv_node
from dnnops.runtime.build import ONEDNN
from tests.cpu.conv.test_conv import DTYPES, PAIRS, in_double, operands, restrided
from tests.cpu.own_ways import two_threads  # noqa: F401  every test runs with them
from tests.needs import missing
from tests.oracle import TRANSFORM_RELATIVE_ERROR, ConvCase, assert_close, conv_cases, fuzz, run_op

every_op = pytest.mark.parametrize("index", range(3), ids=[pair[0].__name__ for pair in PAIRS])
DIRECTIONS = ("forward", "grad_inputs", "grad_weights")


def make_case(img: tuple, kern: tuple, **params: Any) -> ConvCase:
    ndim = len(img) - 2
    ones = (1,) * ndim
    defaults = {
        "border_mode": ((1, 1),) * ndim,
        "subsample": ones,
        "filter_flip": True,
        "filter_dilation": ones,
        "num_groups": 1,
        "seed": 3,
    }
    return ConvCase(img_shape=img, kern_shape=kern, **{**defaults, **params})


#: Of which Winograd's algorithm and several implementations of oneDNN are possible.
COMMON = make_case((4, 32, 28, 28), (32, 32, 3, 3))

#: A matrix product for each image.
PIXELWISE = make_case((4, 32, 14, 14), (24, 32, 1, 1), border_mode=((0, 0),) * 2)


def listing(case: ConvCase, index: int, arrays: tuple | None = None) -> tuple[PlanList, np.ndarray]:
    """A list of plans and their output array."""
    arrays = arrays or operands(case, index, "float32")
    shape = (case.top_shape, case.img_shape, case.kern_shape)[index]
    output = np.full(shape, np.nan, arrays[0].dtype)
    op = PAIRS[index][0](**case.params)
    return PlanList(conv_node(op, arrays), list(arrays), output), output


def names(plans: list[ConvPlan]) -> list[str]:
    return [plan.name for plan in plans]


def refused(plans: PlanList) -> list[str]:
    return [plan.name for plan in plans.plans if plan.reason]


#: Plans of dnnops that have conditions; every other plan can be run.
CONDITIONAL = {"winograd", "product", "depthwise"}
#: Plans of COMMON that this machine cannot run.
REFUSED = [*(["winograd"] if missing("avx512") else []), "product", "depthwise"]


def walk(case: ConvCase, index: int, arrays: tuple, bound: float) -> set[str]:
    """Compare all plans with the oracle."""
    reference = run_op(PAIRS[index][1](**case.params), *in_double(arrays))
    plans, output = listing(case, index, arrays)
    walked = set()
    with plans:
        assert set(refused(plans)) <= CONDITIONAL
        for number, plan in enumerate(plans.plans):
            output.fill(np.nan)
            if plan.reason:
                with pytest.raises(DnnNotSupportedError, match="cannot be run"):
                    plans.run(number)
                assert np.isnan(output).all()
                continue
            plans.run(number)
            try:
                assert_close(output, reference, bound=bound, allow_zero=True)
            except AssertionError as error:
                raise AssertionError(f"{plan.name}: {error}") from error
            walked.add(plan.name)
    return walked


@every_op
@fuzz(max_examples=40, case=conv_cases(max_channels=20, max_size=9, max_kernel=4))
def test_all_plans_are_right(index, case):
    walked = walk(case, index, operands(case, index, "float32"), 1e-5)
    assert "ref:any" in walked
    assert len(walked) > 1


@pytest.mark.needs("avx512")
@pytest.mark.parametrize("channels", [1, 5, 16, 33])
@pytest.mark.parametrize("pads", [((0, 0), (0, 0)), ((1, 1), (1, 1)), ((2, 1), (0, 2))])
@every_op
def test_winograd_is_right_also_where_it_is_not_used(index, pads, channels):
    for flip in (False, True):
        case = make_case(
            (2, channels, 6, 9), (channels + 1, channels, 3, 3), border_mode=pads, filter_flip=flip
        )
        arrays = operands(case, index, "float32")
        assert "winograd" in walk(case, index, arrays, TRANSFORM_RELATIVE_ERROR["float32"])


@every_op
@fuzz(max_examples=20, case=conv_cases())
def test_float64_has_one_plan(index, case):
    arrays = operands(case, index, "float64")
    assert walk(case, index, arrays, 1e-12) == {"gemm (BLAS)"}


@every_op
def test_operands_of_other_strides(index):
    rng = np.random.default_rng(5)
    case = make_case((2, 6, 9, 8), (4, 3, 3, 2), num_groups=2, subsample=(2, 1))
    for dtype in DTYPES:
        for _ in range(4):
            arrays = tuple(
                restrided(rng, a) if a.dtype.kind == "f" else a
                for a in operands(case, index, dtype)
            )
            walk(case, index, arrays, 1e-5)


@every_op
def test_implementations_differ(index):
    """Also after the first one is in oneDNN's cache, from which its own list starts over."""
    run_op(PAIRS[index][0](**COMMON.params, algo="direct"), *operands(COMMON, index, "float32"))
    for _ in range(2):
        plans, _ = listing(COMMON, index)
        with plans:
            rows = plans.plans
        found = names(rows)
        assert {"winograd", "x64:gemm:jit", "ref:any"} < set(found)
        assert len(set(found)) == len(found)
        assert not any("#" in name for name in found)
        assert refused(plans) == REFUSED
        of_onednn = [row for row in rows if row.api == "onednn"]
        assert of_onednn[-1].name == "ref:any"
        # Layouts are an implementation's own: blocked ones take copies, the product's don't.
        direct = next(row for row in rows if row.name.startswith("jit:"))
        product = next(row for row in rows if row.name == "x64:gemm:jit")
        assert direct.notes == ("reorders image, filters, output",)
        assert product.notes == ("reorders filters",)
        assert all((row.workspace_bytes is None) == bool(row.reason) for row in rows)
        assert {row.direction for row in rows} == {DIRECTIONS[index]}


def test_the_cache_of_primitives_is_on_again():
    def capacity() -> int:
        number = ctypes.c_int()
        assert ONEDNN.library.dnnl_get_primitive_cache_capacity(ctypes.byref(number)) == 0
        return number.value

    before = capacity()
    assert before > 0
    listing(COMMON, 0)[0].close()
    assert capacity() == before
    with pytest.raises(DnnValueError):
        listing(COMMON, 0, (np.ones((1, 2, 4, 4), "float32"), np.ones((1, 3, 2, 2), "float32")))
    assert capacity() == before


@every_op
@pytest.mark.parametrize(
    "case", [COMMON, PIXELWISE, make_case((2, 5, 9, 9), (4, 5, 2, 3))], ids=str
)
def test_the_choice_is_what_the_op_runs(index, case):
    arrays = operands(case, index, "float32")
    results = {}
    for algo in ("auto", "direct"):
        plans, output = listing(case, index, arrays)
        with plans:
            name = plans.choice(algo)
            number = names(plans.plans).index(name)
            plans.run(number)
            results[algo] = name
        # One implementation on the same number of threads gives the same bits.
        own = run_op(PAIRS[index][0](**case.params, algo=algo), *arrays)
        np.testing.assert_array_equal(output, own)
    assert results["direct"] not in (*CONDITIONAL, "ref:any")
    if case is COMMON and not missing("avx512"):
        assert results["auto"] == "winograd"
    elif case is PIXELWISE:
        assert results["auto"] == "product"
    else:
        assert results["auto"] == results["direct"]
    plans, _ = listing(case, index, arrays)
    with plans, pytest.raises(DnnValueError, match="'small' is not available on the CPU"):
        plans.choice("small")


@every_op
def test_every_plan_can_be_asked_for_by_name(index):
    arrays = operands(COMMON, index, "float32")
    plans, output = listing(COMMON, index, arrays)
    with plans:
        assert refused(plans) == REFUSED
        runnable = [plan.name for plan in plans.plans if not plan.reason]
        assert len(runnable) > 2
        for number, name in enumerate(runnable):
            assert plans.choice(name) == name
            plans.run(number)
            own = run_op(PAIRS[index][0](**COMMON.params, algo=name), *arrays)
            np.testing.assert_array_equal(output, own)
    op = PAIRS[index][0](**COMMON.params, algo="jit:none_such")
    with pytest.raises(
        DnnValueError, match=r"there is no plan jit:none_such .* there are: "
    ) as error:
        run_op(op, *arrays)
    listed = str(error.value).split("there are: ")[1].split("\n")[0]
    assert set(runnable) == set(listed.split(", "))


def test_plans_asked_for_that_compute_something_else():
    wide = make_case((2, 5, 9, 9), (4, 5, 2, 3))
    for case, dtype, name, words in (
        (wide, "float32", "winograd", "the plan winograd cannot be run: "),
        (COMMON, "float64", "jit:avx2", r"no plan jit:avx2 in float64; there is: gemm \(BLAS\)"),
        (
            COMMON,
            "float32",
            "gemm (BLAS)",
            r"no plan gemm \(BLAS\) for this convolution; there are:",
        ),
    ):
        with pytest.raises(DnnError, match=words):
            run_op(OneDnnConv(**case.params, algo=name), *operands(case, 0, dtype))
    expected = run_op(OneDnnConv(**COMMON.params), *operands(COMMON, 0, "float64"))
    named = run_op(OneDnnConv(**COMMON.params, algo="gemm (BLAS)"), *operands(COMMON, 0, "float64"))
    np.testing.assert_array_equal(named, expected)


@pytest.mark.parametrize("mode", ["CVM", pytest.param("NUMBA", marks=pytest.mark.slow)])
def test_the_flag_takes_a_plans_name(mode: str):
    """Select a plan other than the first; ``chosen_plans`` shows it, except under Numba."""
    x, w = pt.ftensor4("x"), pt.ftensor4("w")
    arrays = operands(COMMON, 0, "float32")
    with pytensor.config.change_flags(onednn__conv__algo="x64:gemm:jit"):
        f = pytensor.function([x, w], conv2d(x, w, border_mode="half"), mode=mode)
    expected = run_op(Conv(2, border_mode="half"), *(a.astype("float64") for a in arrays))
    assert_close(f(*arrays), expected)
    if mode == "CVM":
        (row,) = dnnops.chosen_plans(f)
        assert (row.plan, row.source) == ("x64:gemm:jit", "given")


@pytest.mark.needs("avx512")
def test_notes_of_winograd():
    def told(img: tuple, kern: tuple, **params: Any) -> ConvPlan:
        plans, _ = listing(make_case(img, kern, **params), 0)
        with plans:
            return next(plan for plan in plans.plans if plan.name == "winograd")

    used = told((4, 32, 28, 28), (32, 32, 3, 3))
    assert (used.api, used.notes, used.reason, used.deterministic) == ("dnnops", (), "", True)
    assert used.workspace_bytes > 36 * 32 * 32 * 4  # its filters alone
    for arguments, note in (
        (((4, 8, 28, 28), (32, 8, 3, 3)), "not used for fewer than 16 channels"),
        (((4, 32, 1, 28), (32, 32, 3, 3)), "not used if 4 x 4 tiles extend far beyond the edge"),
        (((1, 32, 4, 8), (32, 32, 3, 3)), "not used for fewer than 24 tiles of 4 x 4 per thread"),
    ):
        plan = told(*arguments)
        assert (plan.notes, plan.reason) == ((note,), "")
    image = (4, 32, 28, 28)
    for arguments, params, reason in (
        ((image, (32, 32, 5, 5)), {}, "3 x 3 filters"),
        ((image, (32, 32, 3, 3)), {"subsample": (2, 1)}, "stride and dilation 1"),
        ((image, (32, 16, 3, 3)), {"num_groups": 2}, "one group"),
        ((image, (32, 32, 3, 3)), {"border_mode": ((3, 3), (1, 1))}, "padding of at most 2"),
        (((4, 32, 28), (32, 32, 3)), {}, "two spatial axes"),
    ):
        plan = told(*arguments, **params)
        assert reason in plan.reason
        assert (plan.notes, plan.workspace_bytes) == ((), None)


def test_notes_of_product():
    def told(index: int, img: tuple, kern: tuple, **params: Any) -> ConvPlan:
        none = ((0, 0),) * (len(img) - 2)
        plans, _ = listing(make_case(img, kern, **{"border_mode": none, **params}), index)
        with plans:
            return next(plan for plan in plans.plans if plan.name == "product")

    image = (4, 32, 14, 14)
    for index in range(3):
        used = told(index, image, (16, 32, 1, 1))
        assert (used.api, used.notes, used.reason, used.deterministic) == ("dnnops", (), "", True)
        assert told(index, (4, 30, 40), (6, 10, 1), num_groups=3).notes == ()
        few = told(index, (4, 32, 6, 4), (32, 32, 1, 1))
        assert few.notes == ("not used for images of fewer than 25 pixels",)
        many = told(index, (21, 32, 7, 7), (32, 32, 1, 1))
        assert bool(many.notes) == (index > 0)
        assert told(index, (20, 32, 7, 7), (32, 32, 1, 1)).notes == ()
    assert told(0, image, (16, 32, 1, 1)).workspace_bytes == 0
    for kern, params, reason in (
        ((32, 32, 1, 2), {}, "filters of one pixel"),
        ((32, 32, 1, 1), {"subsample": (1, 2)}, "stride 1"),
        ((32, 32, 1, 1), {"border_mode": ((0, 0), (0, 1))}, "no padding"),
    ):
        plan = told(0, image, kern, **params)
        assert reason in plan.reason
        assert (plan.notes, plan.workspace_bytes) == ((), None)


def test_refused_plans_come_last():
    plans, _ = listing(make_case((2, 16, 9, 9), (16, 16, 5, 5)), 0)
    with plans:
        rows = plans.plans
    assert set(names(rows)[-3:]) == CONDITIONAL
    assert [bool(row.reason) for row in rows] == [False] * (len(rows) - 3) + [True] * 3


@every_op
def test_times(index):
    plans, _ = listing(COMMON, index)
    with plans:
        assert all(row.time_ms is None for row in plans.plans)
        assert refused(plans) == REFUSED
        runnable = [number for number, row in enumerate(plans.plans) if not row.reason]
        for number in runnable:
            row = plans.plans[number]
            milliseconds = plans.time(number)
            assert 0 < milliseconds < 60_000
            assert plans.plans[number].time_ms == milliseconds
            assert plans.plans[number].name == row.name
        times = {plans.plans[number].name: plans.plans[number].time_ms for number in runnable}
    # A naive loop is a hundred times slower than any of the others, or the names are made up.
    assert times["ref:any"] == max(times.values())


def test_a_hopeless_plan_is_judged_by_a_part(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(plan_list, "_LARGE", 1.0)
    monkeypatch.setattr(plan_list, "_SAMPLE", 1e6)
    monkeypatch.setattr(plan_list, "_BUDGET", 1e-6)
    monkeypatch.setattr(plan_list, "_MAX_SLOWDOWN", 1e-6)
    for index in range(3):
        plans, output = listing(COMMON, index)
        with plans:
            # Of the first one it isn't known that others are faster.
            assert 0 < plans.time(0) < math.inf
            output.fill(np.nan)
            assert plans.time(1) == math.inf
            row = plans.plans[1]
        assert row.time_ms is None
        assert row.reason == ""
        assert row.notes[-1].endswith(" s, estimated from a small part of it")
        assert np.isnan(output).all()


def test_which_plans_are_timed_in_full(monkeypatch: pytest.MonkeyPatch):
    """Those that take at most 1.5 s, or 20 times as long as the fastest that was timed."""
    rng = np.random.default_rng(1)
    expected: dict[str, float] = {}
    plans, _ = listing(COMMON, 0)

    def call(self: PlanList, function: str, *arguments: Any) -> None:
        assert function == "time"
        assert (arguments[0], arguments[2]) == (plans._list, 1500)
        timed.append(arguments[1])
        arguments[-1]._obj.value = expected[list(plans._numbers)[arguments[1]]]

    with plans:
        rows = [row for row in plans.plans if not row.reason]
        unmeasured = plans._rows
        numbers = [plans._number(index) for index in range(len(rows))]
        with monkeypatch.context() as patch:
            patch.setattr(PlanList, "_call", call)
            patch.setattr(PlanList, "_expected_time", lambda self, plan: expected[plan.name])
            for _ in range(200):
                plans._rows, timed, best = list(unmeasured), [], math.inf
                times = np.exp(rng.uniform(math.log(1), math.log(60_000), len(rows)))
                expected |= zip(names(rows), times.tolist(), strict=True)
                for index in rng.permutation(len(rows)).tolist():
                    time, limit = expected[rows[index].name], max(1500, 20 * best)
                    done, result = len(timed), plans.time(index)
                    row = plans.plans[index]
                    if time > limit:
                        assert (result, row.time_ms, len(timed)) == (math.inf, None, done)
                        words = "estimated from a small part of it"
                        assert row.notes[-1] == f"about {time / 1000:.3g} s, {words}"
                    else:
                        assert result == row.time_ms == time
                        assert timed[done:] == [numbers[index]]
                        assert row.notes == rows[index].notes
                        best = min(best, time)


def test_how_much_of_a_convolution_is_a_part():
    """One image, whose largest axes are halved until it takes 1e8 operations, or are of size 1."""
    rng = np.random.default_rng(2)

    def steps(size: int) -> list[int]:
        sizes = [size]
        while sizes[-1] > 1:
            sizes.append(-(-sizes[-1] // 2))
        return sizes

    for _ in range(300):
        ndim = int(rng.integers(1, 4))
        channels = np.exp(rng.uniform(0, 10, 2)).astype(int).tolist()
        filters = (*channels, *rng.integers(1, 6, ndim).tolist())
        top = (int(rng.integers(1, 9)), channels[0], *rng.integers(1, 300, ndim).tolist())
        part = plan_list._shrunk(filters, top)
        assert part[:2] == [1, channels[0]]
        halved = [steps(whole).index(size) for whole, size in zip(top[2:], part[2:], strict=True)]
        flops = plan_list.conv_flops(filters, part)
        assert flops <= 1e8 or set(part[2:]) == {1}
        # With one step less along some axis, it would take too long.
        before = [
            [*part[: 2 + i], steps(top[2 + i])[count - 1], *part[3 + i :]]
            for i, count in enumerate(halved)
            if count
        ]
        assert not before or any(plan_list.conv_flops(filters, x) > 1e8 for x in before)
        longest = max(before, key=max, default=part)
        assert max(part[2:]) <= max(longest[2:])


@every_op
@fuzz(max_examples=20, case=conv_cases(max_channels=20, max_size=20, max_kernel=4))
def test_parts_are_convolutions_of_the_same_kind(index, case):
    """The smaller convolution can be built for all parameters."""
    arrays = operands(case, index, "float32")
    plans, _ = listing(case, index, arrays)
    with plans, pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan_list, "_LARGE", 1.0)
        patch.setattr(plan_list, "_SAMPLE", 1.0)
        assert set(refused(plans)) <= CONDITIONAL
        reference = next(row for row in plans.plans if row.name == "ref:any")
        assert plans._expected_time(reference) > 0


def test_a_plan_that_fails_is_refused_from_then_on(monkeypatch: pytest.MonkeyPatch):
    plans, _ = listing(COMMON, 0)

    def refuse(self: PlanList, function: str, *arguments: Any) -> None:
        assert function == "time"
        raise DnnMemoryError("cannot allocate 9 bytes of scratch memory")

    with plans:
        assert refused(plans) == REFUSED
        with monkeypatch.context() as patch:
            patch.setattr(PlanList, "_call", refuse)
            with pytest.raises(DnnMemoryError):
                plans.time(1)
        row = plans.plans[1]
        assert (row.reason, row.time_ms) == ("cannot allocate 9 bytes of scratch memory", None)
        assert refused(plans) == [row.name, *REFUSED]


def test_listing_beside_threads_that_compute():
    """They are unaffected if oneDNN's cache is turned off for a moment."""
    case = make_case((2, 5, 9, 9), (4, 5, 2, 3))
    arrays = operands(case, 0, "float32")
    expected = run_op(PAIRS[0][1](**case.params), *in_double(arrays))
    stop = threading.Event()

    def compute() -> int:
        rounds = 0
        while not stop.is_set():
            clear_caches()
            assert_close(run_op(PAIRS[0][0](**case.params), *arrays), expected)
            rounds += 1
        return rounds

    with ThreadPoolExecutor() as pool:
        computing = [pool.submit(compute) for _ in range(2)]
        try:
            found = set()
            for _ in range(20):
                plans, _ = listing(case, 0, arrays)
                with plans:
                    found.add(tuple(names(plans.plans)))
        finally:
            stop.set()
        assert all(result.result() > 0 for result in computing)
    assert len(found) == 1


def test_a_closed_list():
    plans, _ = listing(COMMON, 0)
    plans.close()
    plans.close()
    for use in (lambda: plans.run(0), lambda: plans.time(0), lambda: plans.choice("auto")):
        with pytest.raises(DnnValueError, match="is closed"):
            use()


def test_invalid_operands_are_rejected():
    good = np.ones((1, 2, 4, 4), "float32"), np.ones((3, 2, 2, 2), "float32")
    op = PAIRS[0][0](2)
    with pytest.raises(DnnValueError, match=r"output has to be float32\(1, 3, 3, 3\)"):
        PlanList(conv_node(op, good), list(good), np.empty((1, 3, 3, 4), "float32"))
    empty = np.ones((0, 2, 4, 4), "float32")
    with pytest.raises(DnnValueError, match="empty array"):
        PlanList(conv_node(op, (empty, good[1])), [empty, good[1]], np.empty((0, 3, 3, 3), "f4"))
    half = tuple(a.astype("float16") for a in good)
    with pytest.raises(DnnTypeError, match="float32, got float16"):
        PlanList(conv_node(op, half), list(half), np.empty((1, 3, 3, 3), "float16"))
    double = tuple(a.astype("float64") for a in good)
    strided = np.empty((1, 3, 3, 6))[..., ::2]
    with pytest.raises(DnnValueError, match="in float64 the output has to be contiguous"):
        PlanList(conv_node(op, double), list(double), strided)
