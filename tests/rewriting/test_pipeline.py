"""The list of passes is in order, and has all passes of dnnops in PyTensor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pytensor.compile.mode import optdb
from pytensor.graph.rewriting.basic import GraphRewriter, SequentialGraphRewriter
from pytensor.graph.rewriting.db import RewriteDatabaseQuery

from dnnops.rewriting.fuse.conv_merge import ConvMerge
from dnnops.rewriting.move.lifting import EVERYTHING, GraphToGpu
from dnnops.rewriting.pipeline import PASSES, ByTags
from dnnops.rewriting.recognize.attention import RecognizeAttention

ENTRIES: Any = optdb


def modules(rewriter: Any) -> Iterator[str]:
    """Return where the parts of a rewriter are defined."""
    while rewriter is not None:
        yield type(rewriter).__module__
        yield getattr(rewriter, "__module__", "") or ""
        rewriter = getattr(rewriter, "node_rewriter", None) or getattr(rewriter, "fn", None)


def test_order():
    """PyTensor sorts passes by position, and passes at the same position by name."""
    order = [(step.position, step.name) for step in PASSES]
    assert order == sorted(order)
    registered = {
        (position, name)
        for name, position in ENTRIES.__position__.items()
        for entry in ENTRIES.__db__[name]
        if any(module.startswith("dnnops.") for module in modules(entry))
    }
    assert registered == set(order)


@pytest.mark.parametrize("step", PASSES, ids=lambda step: step.name)
def test_entry(step):
    for tag in (step.name, *step.tags):
        assert step.rewriter in ENTRIES.__db__[tag]
    assert step.reason.endswith(".")


def query(name: str, include: list[str], exclude: list[str] | None = None) -> GraphRewriter:
    (entry,) = ENTRIES.__db__[name]
    assert isinstance(entry, ByTags)
    return entry.query(RewriteDatabaseQuery(include=include, exclude=exclude))


def test_tags_decide():
    host, device = ["fast_run", "onednn"], ["fast_run", "gpu", "cudnn"]
    assert isinstance(query("onednn_attention", host), RecognizeAttention)
    assert type(query("onednn_attention", device)) is SequentialGraphRewriter
    assert isinstance(query("conv_merge", device), ConvMerge)
    assert type(query("conv_merge", device, ["cudnn"])) is SequentialGraphRewriter
    assert not query("dense_gradients", ["fast_run"]).everywhere
    assert query("dense_gradients", host).everywhere
    lift = query("gpu_lift", [*device, EVERYTHING], ["inplace"])
    assert isinstance(lift, GraphToGpu)
    assert (lift.excluded_tags, lift.everything) == (frozenset(["inplace"]), True)
    assert not query("gpu_lift", device).everything
