"""Sizes in means are converted one by one."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.graph.fg import FunctionGraph
from pytensor.tensor.basic import MakeVector

from dnnops.gpuarray.type import GpuArrayType
from dnnops.nnet import relu
from dnnops.rewriting.pipeline import PASSES
from tests.gpuarray.graphs import ops, rewritten

(PASS,) = (step for step in PASSES if step.name == "converted_sizes")


def rewritten_by_pass(outputs):
    fgraph = FunctionGraph(outputs=[*outputs, relu(pt.fvector())], clone=False)
    PASS.rewriter.query().apply(fgraph)
    return fgraph


@pytest.mark.parametrize("index", [0, 1, -1])
@pytest.mark.parametrize("dtypes", [("int64", "float32"), ("int32", "int8")])
def test_equal_results(index, dtypes):
    n, m = pt.scalar("n", dtype=dtypes[0]), pt.scalar("m", dtype=dtypes[0])
    converted = pt.cast(MakeVector(dtypes[0])(n, m), dtypes[1])
    new, *_ = rewritten_by_pass([converted[index], converted]).outputs
    assert new.type.dtype == dtypes[1]
    assert ops(FunctionGraph(outputs=[new])) == ["Elemwise"]
    assert new.eval({[n, m][index]: 300}) == np.asarray(300).astype(dtypes[1])


@pytest.mark.parametrize(
    "build",
    [
        lambda sizes, i: pt.cast(sizes, "float32")[:1],
        lambda sizes, i: pt.cast(sizes, "float32")[i],
        lambda sizes, i: pt.sqrt(sizes)[0],
        lambda sizes, i: pt.cast(sizes, "float32")[5],
    ],
)
def test_others_stay(build):
    n, m, i = pt.lscalars("nmi")
    out = build(MakeVector("int64")(n, m), i)
    before = ops(FunctionGraph(outputs=[out]))
    assert ops(FunctionGraph(outputs=rewritten_by_pass([out]).outputs[:1])) == before


def test_a_mean_of_images_transfers_no_sizes():
    x = GpuArrayType("float32", (None,) * 4)()
    y = x.mean(axis=(2, 3))
    gradient = pytensor.grad((y**2).sum(), x)
    graph = rewritten([x], [y, gradient])
    assert "MakeVector" not in ops(graph)
    assert "GpuFromHost" not in ops(graph)
