"""Reports of GPU functions on their convolutions."""

from __future__ import annotations

import ctypes
import gc
import io
import re

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor import config

import dnnops
from dnnops.gpu.algorithms import clear_cache
from dnnops.nnet import conv2d
from dnnops.plans import conv_plans
from dnnops.plans.used import ChosenPlan
from dnnops.runtime.build import CUDNN
from dnnops.runtime.headers import CHOSEN, structure
from dnnops.runtime.nodes import node_number

pytestmark = pytest.mark.gpu

SHAPES = (8, 32, 28, 28), (16, 32, 3, 3)
OUTPUT_SHAPE = (8, 16, 28, 28)


def arrays(*shapes: tuple) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    return [rng.standard_normal(shape).astype("float32") for shape in shapes]


def compiled(algo: str, gradients: bool = False, **flags):
    """Compile a function that keeps results on the GPU, with selections not stored on disk."""
    x, k = (pt.tensor(name, dtype="float32", shape=(None,) * 4) for name in "xk")
    flags |= {"dnn__conv__algo_fwd": algo, "dnn__conv__algo_bwd": algo, "dnn__conv__cache": "off"}
    with config.change_flags(**flags):
        y = conv2d(x, k, border_mode="half")
        outputs = [y, *pytensor.grad((y**2).sum(), [x, k])] if gradients else y
        return pytensor.function([x, k], outputs, mode="CUDNN")


def only(rows) -> ChosenPlan:
    assert len(rows) == 1
    return rows[0]


def chosen_after(algo: str, *shapes: tuple, **flags) -> ChosenPlan:
    f = compiled(algo, **flags)
    with config.change_flags(dnn__conv__cache="off"):
        f(*arrays(*(shapes or SHAPES)))
    return only(dnnops.chosen_plans(f))


def test_every_direction():
    f = compiled("guess_on_shape_change", gradients=True)
    before = dnnops.chosen_plans(f)
    assert [row.plan for row in before] == [""] * 3
    f(*arrays(*SHAPES))
    rows = dnnops.chosen_plans(f)
    assert {row.direction: row.op for row in rows} == {
        "forward": "GpuDnnConv",
        "grad_inputs": "GpuDnnConvGradI",
        "grad_weights": "GpuDnnConvGradW",
    }
    for row in rows:
        assert (row.input_shape, row.filter_shape) == SHAPES
        assert row.output_shape == OUTPUT_SHAPE
        assert row.dtype == "float32"
        assert row.algo == "guess_on_shape_change"
        assert row.source == "guessed"
        assert row.time_ms is None
        # As conv_plans() lists it, and with the same workspace.
        plans = conv_plans(*SHAPES, border_mode="half", direction=row.direction, device="cuda0")
        listed = next(plan for plan in plans if plan.name == row.plan)
        assert row.workspace_bytes == listed.workspace_bytes


def test_timed():
    clear_cache()
    row = chosen_after("time_on_shape_change")
    assert row.source == "timed"
    assert 0 < row.time_ms < 100
    assert row.workspace_bytes >= 0
    # By the process' table, in another function: what was timed is still that.
    again = chosen_after("time_on_shape_change")
    assert (again.plan, again.source, again.time_ms) == (row.plan, "timed", row.time_ms)


def test_given():
    plans = conv_plans(*SHAPES, border_mode="half", device="cuda0")
    for api in ("legacy", "graph"):
        name = next(plan.name for plan in plans if plan.api == api and not plan.reason)
        row = chosen_after(name)
        assert (row.algo, row.plan, row.source) == (name, name, "given")


def test_times_are_filled_in():
    f = compiled("guess_on_shape_change", gradients=True)
    f(*arrays(*SHAPES))
    for row in dnnops.chosen_plans(f, time=True):
        assert 0 < row.time_ms < 100
        assert row.source == "guessed"


def test_row_follows_the_shape():
    f = compiled("guess_on_shape_change")
    for batch in (8, 3, 8):
        f(*arrays((batch, *SHAPES[0][1:]), SHAPES[1]))
        assert only(dnnops.chosen_plans(f)).input_shape[0] == batch


def test_rows_go_with_the_function():
    def has_row(number: int) -> bool:
        row = structure("dnnops_chosen_row", CHOSEN)()
        return bool(CUDNN.library.dnnops_chosen(number, ctypes.byref(row)))

    f = compiled("guess_on_shape_change")
    f(*arrays(*SHAPES))
    node = next(x for x in f.maker.fgraph.toposort() if type(x.op).__name__ == "GpuDnnConv")
    number = node_number(node)
    assert has_row(number)
    del f, node
    gc.collect()
    assert not has_row(number)


def test_profile():
    x, k = (pt.tensor(name, dtype="float32", shape=(None,) * 4) for name in "xk")
    f = pytensor.function([x, k], conv2d(x, k, border_mode="half"), mode="CUDNN", profile=True)
    f(*arrays(*SHAPES))
    written = io.StringIO()
    f.profile.summary(file=written)
    section = written.getvalue().split("\nConvolutions\n---\n")[1].splitlines()
    assert "GpuDnnConv" in section[1]
    assert only(dnnops.chosen_plans(f)).plan in section[1]


def test_verbose(capfd):
    clear_cache()
    f = compiled("time_on_shape_change", dnn__verbose=True)
    with config.change_flags(dnn__conv__cache="off"):
        for batch in (8, 8, 3):
            f(*arrays((batch, *SHAPES[0][1:]), SHAPES[1]))
    lines = [x for x in capfd.readouterr().err.splitlines() if x.startswith("dnnops: GpuDnnConv ")]
    assert len(lines) == 2
    for line, batch in zip(lines, (8, 3), strict=True):
        assert re.fullmatch(
            rf"dnnops: GpuDnnConv {batch}x32x28x28 \* 16x32x3x3 float32: \w[\w=]+,"
            r" (no|[\d.]+ [KMG]?i?B) workspace, [\d.]+ ms \(timed\)",
            line,
        ), line
