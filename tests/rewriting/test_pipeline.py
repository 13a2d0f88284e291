"""The list of passes is in order, and has all passes of dnnops in PyTensor."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, combinations
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor import config
from pytensor.compile.mode import get_mode, optdb
from pytensor.graph.rewriting.basic import GraphRewriter, SequentialGraphRewriter
from pytensor.graph.rewriting.db import RewriteDatabaseQuery
from pytensor.tensor.rewriting.shape import UnShapeOptimizer

from dnnops import nnet
from dnnops.errors import DnnValueError
from dnnops.rewriting.fuse.conv_merge import ConvMerge
from dnnops.rewriting.move.lifting import EVERYTHING, GraphToGpu
from dnnops.rewriting.passes.entry import ByTags
from dnnops.rewriting.pipeline import PASSES
from dnnops.rewriting.recognize.attention import RecognizeAttention
from dnnops.rewriting.recognize.stable_logarithms import StableLogarithms

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


#: Tags that decide, and for each pass that depends on them: those that it needs, and those that it
#: must not see, included or excluded.
TAGS = ("gpu", "onednn", "cudnn", "numba", "jax", "fusion", EVERYTHING, "symbolic_op_recognition")
ALWAYS = ((), (), ())
CONDITIONS = {
    "recognize_batchnorm": ((), ("gpu",), ()),
    "float16_in_float32": ((), ("gpu",), ()),
    "onednn_attention": ((), ("gpu",), ()),
    "expand_slow_activations": ((), ("gpu",), ()),
    "forget_sizes": ((), ("numba", "jax"), ()),
    "conv_merge": ((), (), ("cudnn",)),
    "gpu_separate_factors": (("gpu",), (), ()),
    "gpu_dropout_from_device": (("gpu",), (), ()),
    "gpu_separate_averages": (("gpu",), (), ()),
    "gpu_horizontal_fusion": (("gpu",), (), ()),
    "gpu_batchnorm_activation": ((), (), ("fusion",)),
    "gpu_conv_epilogue": ((), (), ("fusion", "cudnn")),
    "gpu_dense": ((), (), ("fusion",)),
    "gpu_merge_folded_batchnorm": ((), (), ("fusion", "cudnn")),
    "gpu_pool_sum": ((), (), ("fusion", "cudnn")),
}


def sets_of_tags(most: int) -> list[frozenset[str]]:
    return [
        frozenset(tags)
        for tags in chain.from_iterable(combinations(TAGS, n) for n in range(most + 1))
    ]


@pytest.mark.parametrize(
    "step", [step for step in PASSES if isinstance(step.rewriter, ByTags)], ids=lambda s: s.name
)
def test_which_tags_a_pass_heeds(step):
    needed, unwanted, not_excluded = map(set, CONDITIONS.get(step.name, ALWAYS))
    for included in sets_of_tags(3):
        for excluded in sets_of_tags(2):
            made = query(step.name, list(included), list(excluded))
            runs = needed <= included and not unwanted & included and not not_excluded & excluded
            assert (type(made) is not SequentialGraphRewriter) == runs, (included, excluded)
            if hasattr(made, "everywhere"):
                assert made.everywhere == bool({"onednn", "gpu"} & included)
            if hasattr(made, "excluded_tags"):
                assert made.excluded_tags == excluded
            if hasattr(made, "everything"):
                assert made.everything == (EVERYTHING in included)
            if isinstance(made, StableLogarithms):
                assert made._of_exponentials == ("symbolic_op_recognition" not in excluded)


def test_sizes_are_forgotten_before_fusion():
    name = "forget_sizes"
    assert isinstance(query(name, ["fast_run", "onednn"]), UnShapeOptimizer)
    assert type(query(name, ["fast_run", "onednn", "numba"])) is SequentialGraphRewriter
    x = pt.matrix("x")
    f = pytensor.function([x], pt.exp(x) + 1, mode="ONEDNN")
    assert not hasattr(f.maker.fgraph, "shape_feature")
    f = pytensor.function([x], pt.exp(x) + 1, mode=get_mode("ONEDNN").excluding(name))
    assert hasattr(f.maker.fgraph, "shape_feature")


def test_an_error_shows_where_the_user_made_the_operation():
    x, w = (pt.tensor(name, dtype="float32", shape=(None,) * 4) for name in "xw")
    flags = {"traceback__limit": 8, "exception_verbosity": "high"}
    with config.change_flags(**flags):
        y = nnet.relu(nnet.conv2d(x, w) + 1)  # this line
        f = pytensor.function([x, w], y, mode="ONEDNN")
        assert config.traceback__limit == 8
        with pytest.raises(DnnValueError, match="has 3 channels") as error:
            f(np.zeros((1, 3, 4, 4), "float32"), np.zeros((1, 2, 3, 3), "float32"))
    assert "# this line" in str(error.value)
