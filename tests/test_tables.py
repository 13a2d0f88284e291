"""Tables of any width, in the interpreter and in notebooks."""

from __future__ import annotations

import io
import re
from html.parser import HTMLParser

import pytensor
import pytensor.tensor as pt
import pytest
import rich

import dnnops
from dnnops.display import line_width, plain_console, rendered
from dnnops.plans import ConvPlan
from dnnops.plans.table import ConvPlans, plan_table
from dnnops.plans.used import ChosenPlan, ChosenPlans
from dnnops.tables import Column, Table, wrapped

NAMES = ["GpuDnnConvActivation{relu}", "OneDnnSoftmaxGrad x"]
TABLE = Table(
    [
        Column("Op", NAMES, fold=40),
        Column("results", ["f32 64x128x28x28\nf32 8", "bf16 scalar"]),
        Column("new", ["12.3 MiB", "0"], right=True, whole=True),
    ],
    ("new", "results"),
)


class Cells(HTMLParser):
    """Collects the texts of a page, and the names of its elements."""

    def __init__(self, page: str):
        super().__init__()
        self.texts: list[str] = []
        self.tags: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)

    def handle_data(self, data):
        self.texts.append(data)


def test_cells_are_shown_as_they_are():
    """Cells are neither markup nor codes of emoji, and fold only where there is a width."""
    name = "[bold]a[/bold]:x:" + 200 * "b"
    table = Table([Column("name", [name], fold=20), Column("count", ["1"], right=True, whole=True)])
    assert rendered(plain_console(), table).splitlines() == [
        f"name{' ' * (len(name) - 4)}  count",
        f"{name}      1",
    ]
    lines = table.text(60).splitlines()
    assert max(map(len, lines)) <= 60
    assert "".join(line[:53].strip() for line in lines[1:]) == name


@pytest.mark.parametrize("width", [*range(28, 80), 200])
def test_names_are_whole_at_any_width(width: int):
    lines = TABLE.text(width).splitlines()
    assert max(map(len, lines)) <= width
    words = {word for line in lines for word in line.split()}
    assert {word for name in NAMES for word in name.split()} <= words
    hidden = re.search(r"also shows: (.+)", " ".join(" ".join(lines).split()))
    dropped = hidden[1].split(", ") if hidden else []
    assert dropped == ["new", "results"][: len(dropped)]
    assert ("64x128x28x28" in words) == ("results" not in dropped)
    assert any("12.3 MiB" in line for line in lines) == ("new" not in dropped)
    assert (not dropped) == (width >= 26 + 2 + 12 + 2 + 8)


def test_nothing_is_left_to_drop():
    """Words break if even one column is too wide."""
    lines = TABLE.text(12).splitlines()
    assert max(map(len, lines)) <= 12
    assert NAMES[0] in "".join(line.strip() for line in lines)


def test_paragraphs_break_at_blanks():
    text = f"at node 3 of {NAMES[0]} in as_input_f32-contiguous-order"
    for width in (5, 12, 40, 60):
        assert " ".join(wrapped(text, width)).split() == text.split()


@pytest.mark.parametrize(
    ("columns", "expected"), [("57", 57), ("", 80), ("0", 80), ("-3", 80), ("wide", 80)]
)
def test_columns_without_a_terminal(monkeypatch: pytest.MonkeyPatch, columns: str, expected: int):
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr("sys.stdout", io.StringIO())
    assert line_width(80) == expected
    assert plain_console().width == (expected if expected != 80 else 100_000)


def test_a_closed_output_does_not_matter(monkeypatch: pytest.MonkeyPatch):
    closed = io.StringIO()
    closed.close()
    for stream in (closed, None):
        monkeypatch.setattr("sys.stdout", stream)
        assert NAMES[0] in TABLE.text(line_width(80))


@pytest.fixture(scope="module")
def shown():
    x = pt.matrix("x<&>")
    f = pytensor.function([x], pt.exp(x) - 1, mode="CVM", name="f<&>")
    plan = ConvPlan("engine7_k2=4", "forward", "graph", 7, 0, True, time_ms=0.25)
    refused = ConvPlan("<b>", "forward", "graph", reason="it requires\n <i>")
    sizes = ((1, 2, 3, 4),) * 3
    chosen = ChosenPlan("GpuDnnConv", "<y>", "forward", *sizes, "float32", "contiguous", "auto")
    return {
        "explanation": (dnnops.explain(f), ["f<&>", "Elemwise"]),
        "conv_plans": (ConvPlans([plan, refused], 10**9), ["engine7_k2=4", "<b>"]),
        "chosen_plans": (ChosenPlans([chosen]), ["GpuDnnConv", "<y>"]),
        "no plans": (ConvPlans([], 1), ["no plans"]),
        "no convolutions": (ChosenPlans(), ["no convolutions"]),
    }


@pytest.mark.parametrize(
    "kind", ["explanation", "conv_plans", "chosen_plans", "no plans", "no convolutions"]
)
def test_interpreter_and_notebook(kind: str, shown):
    """The table is what the interpreter, ``print``, rich and a notebook show."""
    found, words = shown[kind]
    assert repr(found) == str(found)
    page = Cells(found._repr_html_())
    out = io.StringIO()
    rich.print(found, file=out)
    for word in words:
        assert word in repr(found)
        assert word in out.getvalue()
        assert any(word in text for text in page.texts)
    assert page.tags <= {"p", "table", "tr", "th", "td"}
    assert ("table" in page.tags) == (not kind.startswith("no "))


def test_a_notebook_has_all_columns():
    page = Cells(TABLE.html())
    assert page.texts == [
        *("Op", "results", "new"),
        *(NAMES[0], "f32 64x128x28x28\nf32 8", "12.3 MiB"),
        *(NAMES[1], "bf16 scalar", "0"),
    ]


def test_lists_of_plans_are_lists():
    plan = ConvPlan("jit:avx2", "forward", "onednn", time_ms=2.0)
    plans = ConvPlans([plan], 10**9)
    assert plans == [plan]
    assert plans[0] is plan
    assert "GFLOP/s" in str(plans)
    assert "500" in str(plans)
    assert "TFLOP/s" in plan_table([plan], 10**13).text(80)
