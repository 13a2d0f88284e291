"""The table of a convolution's plans; no library is asked."""

from __future__ import annotations

from dnnops.plans.plan import ConvPlan, conv_flops
from dnnops.plans.table import ConvPlans, plan_table

#: 2 · (1·8·4·4) · (4·3·3)
FLOPS = 9216

FAST = ConvPlan(
    *("engine7_k2=4", "forward", "graph", 7, 3 << 20, True, "float32", ("tensor_cores",)),
    time_ms=0.25,
    energy_mj=1234.5,
)
SLOW = ConvPlan("FFT", "forward", "legacy", time_ms=1.0, energy_mj=0.01234)
REFUSED = ConvPlan(
    *("<b>", "forward", "graph", 0, 0, False, "", ("first", "second")),
    reason="it requires\n another GPU",
)


def cells(plans, flops=FLOPS):
    return {column.title: list(column.cells) for column in plan_table(plans, flops).columns}


def test_cells_of_plans():
    assert conv_flops((8, 4, 3, 3), (1, 8, 4, 4)) == FLOPS
    assert cells([FAST, SLOW, REFUSED]) == {
        "plan": ["engine7_k2=4", "FFT", "<b>"],
        "no.": ["7", "", "0"],
        "API": ["graph", "legacy", "graph"],
        "ms": ["0.2500", "1.0000", ""],
        "x best": ["1.00", "4.00", ""],
        "GFLOP/s": ["0.0369", "0.00922", ""],
        "mJ": ["1234", "0.0123", ""],
        "workspace": ["3.0 MiB", "", "0 B"],
        "determ.": ["yes", "?", "no"],
        "math": ["float32", "", ""],
        "notes": ["tensor cores", "", "cannot be run: it requires another GPU; first; second"],
    }


def test_columns_without_cells_are_hidden():
    assert list(cells([ConvPlan("FFT", "forward", "legacy")])) == ["plan", "API", "determ."]
    assert list(cells([])) == []
    assert str(ConvPlans([], FLOPS)).strip() == "no plans"


def test_decimals_follow_the_best_time():
    """Four digits of the fastest plan's time are shown, but no more decimals than that takes."""
    for time, text in (
        (0.0123456, "0.01235"),
        (1.5, "1.500"),
        (12.34, "12.34"),
        (45678.0, "45678"),
    ):
        assert cells([ConvPlan("FFT", "forward", "legacy", time_ms=time)])["ms"] == [text]


def test_the_unit_of_the_rate_follows_the_best_plan():
    plans = [ConvPlan("a", "forward", "legacy", time_ms=t) for t in (1.0, 4.0)]
    assert cells(plans, 10**9)["TFLOP/s"] == ["1", "0.25"]
    assert cells(plans, 10**9 - 1)["GFLOP/s"] == ["1000", "250"]


def test_numbers_stay_whole():
    """A size has a blank, at which the table would wrap it."""
    columns = {column.title: column for column in plan_table([FAST, REFUSED], FLOPS).columns}
    for title in ("no.", "ms", "x best", "GFLOP/s", "mJ", "workspace"):
        assert columns[title].right
        assert columns[title].least() == columns[title].wanted()
    assert columns["notes"].least() < columns["notes"].wanted()


def test_the_fastest_plan_stands_out():
    assert plan_table([FAST, SLOW], FLOPS).row_styles == {0: "green"}
    assert not plan_table([REFUSED], FLOPS).row_styles
    assert not plan_table([], FLOPS).row_styles


def test_three_digits_or_whole_numbers():
    for energy, text in (
        (0.0, "0"),
        (0.012349, "0.0123"),
        (99.96, "100"),
        (999.49, "999"),
        (999.5, "1000"),
        (1000.4, "1000"),
        (123456.7, "123457"),
    ):
        plan = ConvPlan("FFT", "forward", "legacy", energy_mj=energy)
        assert cells([plan])["mJ"] == [text]
