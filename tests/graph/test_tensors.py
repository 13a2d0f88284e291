"""Tensors of declared graphs: strides, packed memory, ranks, and the graph that they belong to."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dnnops import graph as cudnn
from dnnops.errors import DnnValueError
from tests.graph.planning import declared
from tests.oracle import SEED

FLOAT = cudnn.data_type.FLOAT


def new_graph():
    return cudnn.pygraph(io_data_type=FLOAT, compute_data_type=FLOAT)


def test_packed_memory():
    """A tensor is packed if each element of its span is one of its own; axes of size 1 are free."""
    rng = np.random.default_rng(SEED)
    found = []
    for number in range(60):
        dim = [int(n) for n in rng.integers(1, 4, rng.integers(1, 5))]
        stride, step = [0] * len(dim), 1
        for axis in rng.permutation(len(dim)):
            stride[axis] = step
            step *= dim[axis]
        if number % 3 == 0:  # perhaps a gap
            stride[int(rng.integers(len(dim)))] *= int(rng.integers(1, 4))
        stride = [
            int(rng.integers(1, 99)) if n == 1 else s for n, s in zip(dim, stride, strict=True)
        ]
        tensor = new_graph().tensor(dim, stride, FLOAT)
        places = sum(
            np.arange(n).reshape([-1 if i == axis else 1 for i in range(len(dim))]) * s
            for axis, (n, s) in enumerate(zip(dim, stride, strict=True))
        )
        distinct = len(np.unique(places))
        is_packed = distinct == math.prod(dim) == int(np.max(places)) + 1
        assert tensor.is_packed == is_packed, (dim, stride)
        assert tensor.span == 4 * (int(np.max(places)) + 1), (dim, stride)
        found.append(is_packed)
    assert 5 < sum(found) < 60


def test_strides_are_not_negative():
    new_graph().tensor([2, 3], [0, 1], FLOAT)
    with pytest.raises(DnnValueError, match="stride of x must be at least 0"):
        new_graph().tensor([2, 3], [-1, 1], FLOAT, name="x")


@pytest.mark.parametrize("spatial", [0, 1, 2, 3])
def test_axes_of_batch_normalization(spatial):
    """Images need at least one spatial axis."""
    graph = new_graph()
    x = graph.tensor([4, 6, *[5] * spatial], name="x")
    vectors = [graph.tensor([1, 6, *[1] * spatial]) for _ in range(4)]
    one = [graph.tensor([1] * (2 + spatial), is_pass_by_value=True) for _ in range(2)]
    for result in graph.batchnorm(x, *vectors, *one):
        result.set_output(True)
    if spatial:
        graph.validate()
    else:
        with pytest.raises(DnnValueError, match="at least 3 axes"):
            graph.validate()


@pytest.mark.parametrize(
    "declare",
    [
        lambda g: g.matmul(g.tensor([2, 3, 4]), g.tensor([4, 5])),
        lambda g: g.conv_fprop(
            g.tensor([2, 3, 4, 4]),
            g.tensor([5, 3, 2, 2, 2]),
            padding=[0, 0],
            stride=[1, 1],
            dilation=[1, 1],
        ),
        lambda g: g.sdpa(*(g.tensor([2, 3, 4, 5][:n]) for n in (4, 4, 3)), generate_stats=False)[0],
    ],
    ids=["matmul", "convolution", "attention"],
)
def test_operands_of_different_ranks(declare):
    graph = new_graph()
    declare(graph).set_output(True)
    with pytest.raises(DnnValueError, match="the operands have different ranks"):
        graph.validate()


def test_tensors_belong_to_the_graph_that_was_read():
    stored = declared("conv_bias_relu")[0].serialize()
    graph = new_graph()
    graph.deserialize(stored)
    assert {id(x.graph) for x in graph.tensors.values()} == {id(graph)}
