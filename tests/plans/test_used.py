"""Reports of compiled functions on their convolutions: rows, profile, lines of dnn.verbose."""

from __future__ import annotations

import copy
import ctypes
import gc
import io
import pickle
import re
import subprocess
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor import config
from pytensor.compile.builders import OpFromGraph

import dnnops
from dnnops.cpu.conv import OneDnnConv, OneDnnConvGradInputs, OneDnnConvGradWeights
from dnnops.errors import DnnTypeError
from dnnops.gpu.conv import GpuDnnConv, GpuDnnConvGradI, GpuDnnConvGradW
from dnnops.gpuarray.type import GpuArrayType
from dnnops.nnet import conv2d, conv3d
from dnnops.plans import conv_plans
from dnnops.plans.used import ChosenPlan, ChosenPlans
from dnnops.runtime.build import ONEDNN
from dnnops.runtime.headers import CHOSEN, structure
from dnnops.runtime.nodes import node_number

#: (image, filters) of convolutions that select certain plans.
SMALL = (2, 3, 9, 8), (4, 3, 3, 3)
WINOGRAD = (8, 32, 28, 28), (32, 32, 3, 3)


def tensors(*names: str, dtype: str = "float32", ndim: int = 4) -> list:
    return [pt.tensor(name, dtype=dtype, shape=(None,) * ndim) for name in names]


def arrays(*shapes: tuple, dtype: str = "float32") -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def forward(mode: str | None = "ONEDNN", **keywords):
    """Compile a function of one convolution, whose output is called y."""
    x, k = tensors("x", "k")
    y = conv2d(x, k, border_mode="half")
    y.name = "y"
    return pytensor.function([x, k], y, mode=mode, **keywords)


def only(rows: ChosenPlans) -> ChosenPlan:
    assert len(rows) == 1
    return rows[0]


def conv_nodes(f) -> list:
    return [node for node in f.maker.fgraph.toposort() if "Conv" in type(node.op).__name__]


def has_row(number: int) -> bool:
    row = structure("dnnops_chosen_row", CHOSEN)()
    return bool(ONEDNN.library.dnnops_chosen(number, ctypes.byref(row)))


# -- rows ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_direction(dtype):
    x, k, top = tensors("x", "k", "top", dtype=dtype)
    y = conv2d(x, k, subsample=(2, 1))
    y.name = "y"
    grads = pytensor.grad(None, [x, k], known_grads={y: top})
    f = pytensor.function([x, k, top], [y, *grads], mode="ONEDNN")
    shapes = {"input_shape": SMALL[0], "filter_shape": SMALL[1], "output_shape": (2, 4, 4, 6)}
    unknown = dict.fromkeys(shapes, (None,) * 4)
    before = dnnops.chosen_plans(f)
    assert {row.op for row in before} == {
        "OneDnnConv",
        "OneDnnConvGradInputs",
        "OneDnnConvGradWeights",
    }
    for row in before:
        assert (row.plan, row.source, row.workspace_bytes, row.time_ms) == ("", "", None, None)
        assert {name: getattr(row, name) for name in unknown} == unknown
    f(*arrays(*shapes.values(), dtype=dtype))
    rows = dnnops.chosen_plans(f)
    # In the order of execution, whatever that is.
    assert [row.op for row in rows] == [type(node.op).__name__ for node in conv_nodes(f)]
    assert {row.op: row.direction for row in rows} == {
        "OneDnnConv": "forward",
        "OneDnnConvGradInputs": "grad_inputs",
        "OneDnnConvGradWeights": "grad_weights",
    }
    for row in rows:
        assert {name: getattr(row, name) for name in shapes} == shapes
        assert row.dtype == dtype
        assert row.memory_format == "contiguous"
        assert row.algo == "auto"
        assert row.source == "guessed"
        assert row.time_ms is None
        assert row.workspace_bytes >= 0
        assert row.output == ("y" if row.direction == "forward" else "")
        assert (row.plan == "gemm (BLAS)") == (dtype == "float64")
        assert row.plan != "winograd"


def test_the_plan_is_the_one_that_runs():
    """The row says Winograd exactly if the result is not the direct algorithm's."""
    x, k = tensors("x", "k")
    image, filters = arrays(*WINOGRAD)
    results = {}
    for algo in ("auto", "direct"):
        f = pytensor.function([x, k], OneDnnConv(algo=algo)(x, k), mode="ONEDNN")
        results[algo] = f(image, filters)
        row = only(dnnops.chosen_plans(f))
        assert row.algo == algo
        assert row.workspace_bytes > 0
        if algo == "direct":
            assert row.plan != "winograd"
            assert re.fullmatch(r"[a-z0-9_:]+", row.plan)
            names = [plan.name for plan in conv_plans(*WINOGRAD, device="cpu")]
            assert row.plan in names
    used_winograd = not np.array_equal(results["auto"], results["direct"])
    auto = pytensor.function([x, k], OneDnnConv(algo="auto")(x, k), mode="ONEDNN")
    auto(image, filters)
    assert (only(dnnops.chosen_plans(auto)).plan == "winograd") == used_winograd


def test_workspace_is_what_conv_plans_says():
    f = forward()
    for shapes in (SMALL, WINOGRAD):
        f(*arrays(*shapes))
        row = only(dnnops.chosen_plans(f))
        plans = conv_plans(*shapes, border_mode="half", device="cpu")
        assert row.workspace_bytes in [p.workspace_bytes for p in plans if p.name == row.plan]


def test_three_spatial_axes_and_one():
    x, k = tensors("x", "k", ndim=5)
    f = pytensor.function([x, k], conv3d(x, k), mode="ONEDNN")
    f(*arrays((1, 2, 5, 6, 7), (3, 2, 2, 2, 2)))
    row = only(dnnops.chosen_plans(f))
    assert row.output_shape == (1, 3, 4, 5, 6)
    x, k = tensors("x", "k", ndim=3)
    f = pytensor.function([x, k], OneDnnConv(1)(x, k), mode="ONEDNN")
    f(*arrays((1, 2, 5), (3, 2, 2)))
    row = only(dnnops.chosen_plans(f))
    assert (row.input_shape, row.output_shape) == ((1, 2, 5), (1, 3, 4))


def test_memory_formats_of_image_and_output(monkeypatch):
    f = forward()
    f(*arrays(*SMALL))
    report = ONEDNN.library.dnnops_chosen
    for bits in range(8):  # of the image, the filters and the output

        def with_formats(number, row, bits=bits):
            found = report(number, row)
            row._obj.channels_last = bits
            return found

        with monkeypatch.context() as patch:
            patch.setattr(ONEDNN.library, "dnnops_chosen", with_formats)
            found = only(dnnops.chosen_plans(f)).memory_format
        names = {"contiguous": (0, 2), "mixed": (1, 3, 4, 6), "channels_last": (5, 7)}
        assert bits in names[found]


def test_memory_format():
    f = forward()
    image, filters = arrays(*SMALL)
    f(np.ascontiguousarray(image.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2), filters)
    assert only(dnnops.chosen_plans(f)).memory_format == "mixed"
    f(image, filters)
    assert only(dnnops.chosen_plans(f)).memory_format == "contiguous"
    # An image of one channel is in both formats: that is contiguous.
    f(*arrays((2, 1, 4, 4), (1, 1, 3, 3)))
    assert only(dnnops.chosen_plans(f)).memory_format == "contiguous"


def test_static_shapes_of_a_node_that_has_not_run():
    x = pt.tensor("x", dtype="float32", shape=(2, 3, None, 8))
    k = pt.tensor("k", dtype="float32", shape=(4, 3, 3, 3))
    row = only(dnnops.chosen_plans(pytensor.function([x, k], conv2d(x, k), mode="ONEDNN")))
    assert row.input_shape == (2, 3, None, 8)
    assert row.filter_shape == (4, 3, 3, 3)
    assert row.output_shape == (2, 4, None, 6)


def test_row_follows_the_shape():
    f = forward()
    for shapes in (SMALL, WINOGRAD, SMALL):
        f(*arrays(*shapes))
        row = only(dnnops.chosen_plans(f))
        assert (row.input_shape, row.filter_shape) == shapes
        assert row.output_shape == (*shapes[0][:1], shapes[1][0], *shapes[0][2:])


def test_empty_batch_leaves_the_row():
    f = forward()
    f(*arrays(*SMALL))
    before = only(dnnops.chosen_plans(f))
    f(*arrays((0, 3, 9, 8), SMALL[1]))
    assert only(dnnops.chosen_plans(f)) == before


def test_functions_of_one_graph_have_their_own_rows():
    x, k = tensors("x", "k")
    y = conv2d(x, k)
    f, g = (pytensor.function([x, k], y, mode="ONEDNN") for _ in range(2))
    f(*arrays(*SMALL))
    assert only(dnnops.chosen_plans(g)).plan == ""
    g(*arrays(*WINOGRAD))
    assert only(dnnops.chosen_plans(f)).input_shape == SMALL[0]
    assert only(dnnops.chosen_plans(g)).input_shape == WINOGRAD[0]


def test_equal_nodes_have_their_own_rows():
    x, k = tensors("x", "k")
    f = pytensor.function([x, k], conv2d(conv2d(x, k), k), mode="ONEDNN")
    f(*arrays((2, 3, 9, 8), (3, 3, 3, 3)))
    shapes = [row.input_shape for row in dnnops.chosen_plans(f)]
    assert shapes == [(2, 3, 9, 8), (2, 3, 7, 6)]


def test_copies_have_their_own_rows():
    f = forward()
    f(*arrays(*SMALL))
    made = [f.copy(), copy.copy(f), copy.deepcopy(f), pickle.loads(pickle.dumps(f))]
    for g in made:
        assert only(dnnops.chosen_plans(g)).plan == ""
    for i, g in enumerate(made):
        g(*arrays((3 + i, 3, 9, 8), SMALL[1]))
    batches = [only(dnnops.chosen_plans(g)).input_shape[0] for g in (f, *made)]
    assert batches == [2, 3, 4, 5, 6]
    numbers = [node_number(node) for g in (f, *made) for node in conv_nodes(g)]
    assert len(set(numbers)) == 5


def test_other_linkers_of_c():
    """Test a graph that is one C module, too."""
    x, k = tensors("x", "k")
    y = OneDnnConv()(x, OneDnnConv(border_mode="half")(k, k))
    for linker in ("c", "c|py", "vm"):
        f = pytensor.function([x, k], y, mode=pytensor.compile.Mode(linker, optimizer=None))
        f(*arrays((2, 3, 9, 8), (3, 3, 3, 3)))
        rows = dnnops.chosen_plans(f)
        assert [row.input_shape for row in rows] == [(3, 3, 3, 3), (2, 3, 9, 8)], linker
        assert all(row.plan for row in rows)


def test_the_number_is_no_part_of_the_code():
    f, g = forward(), forward()
    first, second = (
        next(
            thunk.thunk.module
            for node, thunk in zip(h.vm.nodes, h.vm.thunks, strict=True)
            if isinstance(node.op, OneDnnConv)
        )
        for h in (f, g)
    )
    assert first is second


@pytest.mark.parametrize(
    "op",
    [
        OneDnnConv,
        OneDnnConvGradInputs,
        OneDnnConvGradWeights,
        GpuDnnConv,
        GpuDnnConvGradI,
        GpuDnnConvGradW,
    ],
)
def test_word_of_the_number(op):
    """Only the node's word differs from the parameters of calls from Python."""
    if op.__name__.startswith("Gpu"):
        x, k = (GpuArrayType("float32", (None,) * 4, 0)() for _ in range(2))
    else:
        x, k = tensors("x", "k")
    shape = () if op in (OneDnnConv, GpuDnnConv) else (pt.lvector(),)
    first, second = (op()(x, k, *shape).owner for _ in range(2))
    words = [node.op.get_params(node).words for node in (first, second, first)]
    at = op.node_word
    assert first.op.words[at] == 0
    assert words[0][at] == node_number(first) > 0
    assert words[1][at] == node_number(second) > 0
    assert words[0][at] != words[1][at]
    np.testing.assert_array_equal(words[0], words[2])
    for word in words:
        word[at] = 0
        np.testing.assert_array_equal(word, first.op.words)


def test_plans_of_numba_are_unknown(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")  # or words may be in two lines
    f = forward(mode=None)
    for _ in range(2):
        row = only(dnnops.chosen_plans(f))
        assert (row.plan, row.remark) == ("", "not C code, plan unknown")
        printed = " ".join(str(dnnops.chosen_plans(f)).split())
        assert "(not C code, plan unknown)" in printed
        assert "has not run" not in printed
        assert "Compile with mode='DNN' or another mode with the CVM linker" in printed
        f(*arrays(*SMALL))


def test_nodes_that_have_not_run(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    f = forward(mode="ONEDNN")
    row = only(dnnops.chosen_plans(f))
    assert (row.plan, row.remark) == ("", "")
    printed = str(dnnops.chosen_plans(f))
    assert "(has not run)" in printed
    assert "C code" not in printed


@pytest.mark.filterwarnings("ignore:Passing .compile_kwargs. to .OpFromGraph.")
@pytest.mark.parametrize("kind", ["scan", "OpFromGraph"])
def test_inner_graphs(kind):
    x, k = tensors("x", "k")
    if kind == "scan":
        xs = pt.tensor("xs", dtype="float32", shape=(None,) * 5)
        ys = pytensor.scan(lambda x, k: conv2d(x, k), [xs], non_sequences=[k], return_updates=False)
        f = pytensor.function([xs, k], conv2d(ys[-1], k), mode="ONEDNN")
        f(*arrays((3, 2, 3, 9, 8), (3, 3, 3, 3)))
    else:
        # Some releases of PyTensor give its function a mode of its own.
        op = OpFromGraph([x, k], [conv2d(x, k)], inline=False, mode="ONEDNN")
        f = pytensor.function([x, k], conv2d(op(x, k), k), mode="ONEDNN")
        f(*arrays((2, 3, 9, 8), (3, 3, 3, 3)))
    rows = dnnops.chosen_plans(f)
    assert [row.input_shape for row in rows] == [(2, 3, 9, 8), (2, 3, 7, 6)]
    assert all(row.plan for row in rows)


def test_functions_without_convolutions():
    x = pt.vector("x")
    rows = dnnops.chosen_plans(pytensor.function([x], x + 1))
    assert rows == []
    assert str(rows) == "no convolutions"


@pytest.mark.parametrize(
    "wrong", [None, 3, tensors("x")[0], np.sum, "f"], ids=lambda wrong: type(wrong).__name__
)
def test_non_functions_are_rejected(wrong):
    with pytest.raises(DnnTypeError, match=r"takes a function compiled by pytensor\.function"):
        dnnops.chosen_plans(wrong)


# -- lifetimes and threads ----------------------------------------------------


def test_rows_go_with_the_function():
    f, g = forward(), forward()
    for h in (f, g):
        h(*arrays(*SMALL))
    numbers = [node_number(conv_nodes(h)[0]) for h in (f, g)]
    assert all(map(has_row, numbers))
    del f, h
    gc.collect()
    assert [has_row(number) for number in numbers] == [False, True]
    assert only(dnnops.chosen_plans(g)).input_shape == SMALL[0]


def test_threads_in_one_function():
    f = forward()
    inputs = [arrays((n, 3, 9, 8), SMALL[1]) for n in (2, 3)]
    seen = []

    def work(image: np.ndarray, filters: np.ndarray) -> None:
        for _ in range(200):
            f(image, filters)
            seen.append(only(dnnops.chosen_plans(f)))

    threads = [threading.Thread(target=work, args=pair) for pair in inputs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {row.input_shape[0] for row in seen if row.plan} <= {2, 3}
    assert all(row.input_shape == (*row.output_shape[:1], 3, 9, 8) for row in seen if row.plan)
    assert only(dnnops.chosen_plans(f)).plan


# -- what is shown -------------------------------------------------------------------------


def test_table_as_text(monkeypatch):
    rows = ChosenPlans(
        [
            ChosenPlan(
                "GpuDnnConv",
                "y",
                "forward",
                (64, 128, 28, 28),
                (128, 128, 3, 3),
                (64, 128, 26, 26),
                "float16",
                "channels_last",
                "time_once",
                "engine7_k2=4",
                int(12.3 * 2**20),
                0.04021,
                "timed",
            ),
            ChosenPlan(
                "OneDnnConv",
                "",
                "forward",
                (None, 3, None, 8),
                (4, 3, 3, 3),
                (None,) * 4,
                "float32",
                "contiguous",
                "auto",
            ),
        ]
    )
    monkeypatch.setenv("COLUMNS", "160")
    header, *lines = (" ".join(line.split()) for line in str(rows).splitlines())
    assert header == "convolution image * filters dtype asked for plan workspace time chosen"
    assert lines == [
        "GpuDnnConv y 64x128x28x28 * 128x128x3x3 float16 channels_last time_once engine7_k2=4"
        " 12.3 MiB 0.0402 ms timed",
        "OneDnnConv ?x3x?x8 * 4x3x3x3 float32 auto (has not run)",
    ]
    monkeypatch.setenv("COLUMNS", "90")
    assert max(map(len, str(rows).splitlines())) <= 90


def test_profile():
    f = forward(profile=True)
    other = forward()
    for h in (f, other):
        h(*arrays(*WINOGRAD))
    written = io.StringIO()
    f.profile.summary(file=written)
    row = only(dnnops.chosen_plans(f))
    section = written.getvalue().split("\nConvolutions\n---\n")[1].splitlines()
    assert section[0].split()[:3] == ["%", "time", "convolution"]
    assert section[1].split()[1:5] == ["OneDnnConv", "y", "8x32x28x28", "*"]
    assert row.plan in section[1]
    assert "guessed" in section[1]
    times = {node: time for (_, node), time in f.profile.apply_time.items()}
    (own,) = [time for node, time in times.items() if type(node.op).__name__ == "OneDnnConv"]
    share = 100 * own / sum(times.values())
    assert float(section[1].split()[0]) == pytest.approx(share, abs=0.051)
    assert section[2] == ""


def test_profile_without_convolutions():
    x = pt.vector("x")
    f = pytensor.function([x], x + 1, profile=True, mode="CVM")
    f(np.ones(3, config.floatX))
    written = io.StringIO()
    f.profile.summary(file=written)
    assert "Convolutions" not in written.getvalue()
    assert "Function profiling" in written.getvalue()


def verbose(**keywords):
    with config.change_flags(dnn__verbose=True):
        return forward(**keywords)


def test_verbose(capfd):
    f, silent = verbose(), forward()
    for shapes in (SMALL, SMALL, WINOGRAD, WINOGRAD, SMALL):
        silent(*arrays(*shapes))
        f(*arrays(*shapes))
    lines = capfd.readouterr().err.splitlines()
    pattern = (
        r"dnnops: OneDnnConv {} \* {} float32: [a-z0-9_:]+, [\d.]+ [KM]?i?B workspace \(guessed\)"
    )
    small, large = (
        pattern.format(*("x".join(map(str, shape)) for shape in shapes))
        for shapes in (SMALL, WINOGRAD)
    )
    assert len(lines) == 3
    for line, expected in zip(lines, (small, large, small), strict=True):
        assert re.fullmatch(expected, line), line
    assert only(dnnops.chosen_plans(f)).plan in lines[2]


def test_verbose_without_a_node(capfd):
    """Without state between calls, as under Numba, a line is printed once per process."""
    shapes = (2, 3, 11, 13), (4, 3, 3, 3)
    image, filters = arrays(*shapes)
    f = verbose(mode=None)
    for _ in range(3):
        f(image, filters)
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("dnnops: OneDnnConv 2x3x11x13 * 4x3x3x3 float32: ")


# -- measuring what was not timed ----------------------------------------------------------


def test_times_are_filled_in(monkeypatch):
    asked = []

    def stand_in(**arguments):
        asked.append(arguments)
        return [
            SimpleNamespace(name="another", time_ms=1.0),
            SimpleNamespace(name=used, time_ms=2.0),
        ]

    monkeypatch.setattr("dnnops.plans.listing.conv_plans", stand_in)
    x, k = tensors("x", "k")
    y = conv2d(x, k, border_mode=(1, 1), subsample=(2, 1), num_groups=3)
    f = pytensor.function([x, k], [y, conv2d(x, k, num_groups=3)], mode="ONEDNN")
    # What hasn't run isn't measured.
    assert [row.time_ms for row in dnnops.chosen_plans(f, time=True)] == [None, None]
    assert not asked
    f(*arrays((2, 3, 9, 8), (6, 1, 3, 3)))
    used = dnnops.chosen_plans(f)[0].plan
    rows = dnnops.chosen_plans(f, time=True)
    assert [row.time_ms for row in rows] == [2.0 if row.plan == used else None for row in rows]
    assert [row.time_ms for row in dnnops.chosen_plans(f)] == [None, None]
    strided = next(arguments for arguments in asked if arguments["subsample"] == (2, 1))
    assert strided == {
        "input_shape": (2, 3, 9, 8),
        "filter_shape": (6, 1, 3, 3),
        "border_mode": ((1, 1), (1, 1)),
        "subsample": (2, 1),
        "filter_dilation": (1, 1),
        "num_groups": 3,
        "filter_flip": True,
        "direction": "forward",
        "dtype": "float32",
        "memory_format": "contiguous",
        "device": "cpu",
        "time": True,
    }


def test_equal_convolutions_are_measured_once(monkeypatch):
    calls = []
    monkeypatch.setattr(
        "dnnops.plans.listing.conv_plans", lambda **arguments: calls.append(1) or []
    )
    x, k, w = tensors("x", "k", "w")
    f = pytensor.function([x, k, w], [conv2d(x, k), conv2d(x, w)], mode="ONEDNN")
    f(*arrays(*SMALL, SMALL[1]))
    assert len(dnnops.chosen_plans(f, time=True)) == 2
    assert len(calls) == 1


def test_measured():
    f = forward()
    f(*arrays(*WINOGRAD))
    row = only(dnnops.chosen_plans(f, time=True))
    assert 0 < row.time_ms < 1000


# -- importing -----------------------------------------------------------------------------


def test_chosen_plans_loads_no_library():
    code = """
import sys, dnnops, pytensor, pytensor.tensor as pt
from dnnops.cpu.conv import OneDnnConv
from dnnops.runtime.build import ONEDNN
x, k = (pt.tensor(dtype="float32", shape=(None,) * 4) for _ in range(2))
mode = pytensor.compile.Mode("py", None)
f = pytensor.function([x, k], OneDnnConv()(x, k), mode=mode, profile=True)
assert "rich" not in sys.modules
rows = dnnops.chosen_plans(f)
assert [row.plan for row in rows] == [""]
assert not ONEDNN.is_loaded
"""
    finished = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stderr
