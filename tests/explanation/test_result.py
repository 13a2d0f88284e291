"""Explanations as text, JSON and pictures."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
import rich

import dnnops
from dnnops import nnet
from dnnops.errors import DnnUnavailableError, DnnValueError
from dnnops.explanation import Explanation, Node, Operand
from dnnops.explanation.table import show_operand

SHAPES = (2, 3, 10, 10), (4, 3, 3, 3)


@pytest.fixture(scope="module")
def measured() -> Explanation:
    x, w = (pt.tensor4(name, dtype="float32") for name in "xw")
    y = nnet.pool_2d(nnet.conv2d(x, w), (2, 2), True)
    f = pytensor.function([x, w], pt.exp(y).sum(axis=1), mode="ONEDNN", name="network")
    return dnnops.explain(f, *(np.ones(shape, "float32") for shape in SHAPES), calls=2)


def node(index, **fields):
    out = Operand("", "float32", (4, 5), "cpu", index)
    return Node(index, "Op", "Op()", "cpu", "C", "", (), (out,), **fields)


#: Like the explanation of a function on a GPU, with everything that a table shows.
DEVICES = Explanation(
    "step",
    "VMLinker",
    (
        replace(node(0, time_ms=1.5, bytes=80, live_bytes=80, peak_bytes=80), device="cuda0"),
        node(1, transfer="to host", moved_bytes=80, bytes=80, live_bytes=80, peak_bytes=160),
        node(2, between=True, reason="no GPU version", time_ms=0.5, bytes=2**21,
             live_bytes=80, peak_bytes=2**21),
        node(3, transfer="to device", moved_bytes=80),
        replace(
            node(4, time_ms=12.0, plan="legacy:" + "winograd_" * 12, captured=True, reuse="view"),
            op="GpuElemwise{a_rather_long_name_of_a_scalar_Op}", device="cuda0", library="cuDNN",
        ),
    ),
    calls=3,
)  # fmt: skip


def test_heading(measured):
    lines = str(measured).splitlines()
    assert lines[0].startswith(f"network: {len(measured.nodes)} nodes, ")
    assert "ms a call (median of 2)" in lines[0]
    assert "run by " in str(measured)
    assert "oneDNN 2" in str(measured)


@pytest.mark.parametrize("explanation", ["measured", "devices"])
def test_80_columns(explanation, measured):
    e = measured if explanation == "measured" else DEVICES
    for shown in (e, replace(e, calls=0, nodes=tuple(replace(n, time_ms=None) for n in e.nodes))):
        text = shown.as_text(80)
        assert max(map(len, text.splitlines())) <= 80
        numbers = [line.split()[0] for line in text.splitlines() if line[:3].strip().isdigit()]
        assert set(map(str, range(len(e.nodes)))) <= set(numbers)


def test_width_without_a_terminal(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr("sys.__stdout__", None)
    assert str(DEVICES) == DEVICES.as_text(80)


def test_rows(measured):
    (row,) = [line for line in str(measured).splitlines() if "OneDnnConv" in line]
    assert "oneDNN" in row
    assert "f32 2x4x8x8" in row
    assert "2.0 KiB" in row
    (plan,) = [x.plan for x in measured.nodes if x.plan]
    assert plan in "".join(str(measured).split())


def test_notes_about_devices():
    text = DEVICES.as_text(80)
    assert "Transfers: 1 to host 80 B; 3 to device 80 B" in text
    assert "On the host between nodes on a device: 2 Op" in text
    assert "2 Op: no GPU version" in text
    assert "CUDA graph" in text
    assert "cuda0" in text


def test_no_notes_about_devices_without_one(measured):
    assert "Transfers" not in str(measured)
    assert "cuda" not in str(measured)


def test_rich_table(measured):
    out = io.StringIO()
    rich.print(measured, file=out)
    assert "OneDnnConv" in out.getvalue()
    assert "run by " in out.getvalue()


def test_empty_function():
    x = pt.vector("x")
    e = dnnops.explain(pytensor.function([x], x, mode="CVM"))
    assert "node" in str(e)
    empty = replace(e, nodes=())
    assert str(empty) == "function: 0 nodes, peak memory 0 B"
    assert (empty.peak_bytes, empty.transfers) == (0, ())


@pytest.mark.parametrize(
    ("operand", "text"),
    [
        (Operand("", "float32", (2, None), "cpu", None), "f32 2x?"),
        (Operand("", "bfloat16", (), "cuda0", None), "bf16 scalar"),
        (Operand("", "uint8", (3,), "cpu", None), "u8 3"),
        (Operand("", "bool", (1,), "cpu", None), "bool 1"),
        (Operand("", "RandomGeneratorType", None, "cpu", None), "RandomGenerator"),
    ],
)
def test_operands(operand, text):
    assert show_operand(operand) == text


def test_json_round_trip(measured):
    for e in (measured, DEVICES):
        assert Explanation.from_json(e.to_json()) == e
        assert Explanation.from_json(e.to_json(indent=None)) == e


def test_json_fields(measured):
    found = json.loads(measured.to_json())
    assert (found["schema"], found["version"]) == ("dnnops.explain", 1)
    assert found["peak_bytes"] == measured.peak_bytes
    assert found["time_ms"] == measured.time_ms
    assert found["transfers"] == []
    assert len(found["nodes"]) == len(measured.nodes)
    assert set(found["nodes"][0]) == set(asdict(measured.nodes[0]))
    assert json.loads(DEVICES.to_json())["transfers"] == [1, 3]


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"schema": "dnnops.explain", "version": 2}', '{"schema": "x", "version": 1}',
     '{"schema": "dnnops.explain", "version": 1}'],
)  # fmt: skip
def test_other_json(text):
    with pytest.raises(DnnValueError, match="not an explanation of version 1 in JSON"):
        Explanation.from_json(text)


def test_unknown_sizes():
    assert replace(DEVICES, nodes=DEVICES.nodes[:2]).peak_bytes == 160
    assert DEVICES.peak_bytes is None


@pytest.mark.needs("matplotlib")
@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_picture(measured, tmp_path, suffix):
    path = tmp_path / f"network.{suffix}"
    measured.plot(path)
    assert path.stat().st_size > 5000
    if suffix == "svg":
        text = path.read_text()
        # matplotlib writes the text of a label as a comment.
        assert "OneDnnConv" in text
        assert "milliseconds per call" in text
        assert "memory of results, KiB" in text


@pytest.mark.needs("matplotlib")
def test_picture_of_many_nodes(tmp_path):
    nodes = tuple(node(i, time_ms=1.0 + i, bytes=0) for i in range(100))
    path = tmp_path / "many.svg"
    replace(DEVICES, nodes=nodes).plot(path)
    text = path.read_text()
    assert "71 other nodes" in text
    assert "99 Op" in text
    assert "70 Op" not in text


@pytest.mark.needs("matplotlib")
def test_wrong_paths_of_pictures(measured, tmp_path):
    with pytest.raises(DnnValueError, match="xyz"):
        measured.plot(tmp_path / "a.xyz")
    with pytest.raises(OSError, match="nowhere"):
        measured.plot(tmp_path / "nowhere" / "a.png")


@pytest.mark.needs("matplotlib")
def test_pictures_keep_modes_and_links(measured, tmp_path):
    file, link = tmp_path / "a.svg", tmp_path / "link.svg"
    file.touch(mode=0o600)
    link.symlink_to(file.name)
    measured.plot(link)
    assert link.is_symlink()
    assert file.stat().st_mode & 0o777 == 0o600
    assert "<svg" in file.read_text()
    with pytest.raises(DnnValueError, match="a device"):
        measured.plot("/dev/full")
    measured.plot(tmp_path / "picture")  # PNG, without a suffix
    assert (tmp_path / "picture").read_bytes().startswith(b"\x89PNG")


def test_nothing_to_draw(tmp_path):
    x = pt.vector("x")
    e = dnnops.explain(pytensor.function([x], pt.exp(x), mode="CVM"))
    with pytest.raises(DnnValueError, match="nothing to draw"):
        e.plot(tmp_path / "a.png")


def test_without_matplotlib(measured, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(DnnUnavailableError, match=r"pip install 'dnnops\[demo\]'"):
        measured.plot(tmp_path / "a.png")
    assert not list(Path(tmp_path).iterdir())


def test_public_name():
    assert dnnops.explain is dnnops.explanation.explain
    assert "explain" in dir(dnnops)
    with pytest.raises(AttributeError, match="no attribute 'explian'"):
        dnnops.explian  # noqa: B018
