"""Ops without a conversion of their own run by their expressions under JAX and PyTorch."""

from __future__ import annotations

import numpy as np
import pytensor.tensor as pt
import pytest
from pytensor.graph.basic import Apply

from dnnops.nnet.expressions import ExpandableOp
from tests.link.conversions import assert_converted, both_libraries


class Multiples(ExpandableOp):
    """The first multiples of an array."""

    __props__ = ("count",)

    def __init__(self, count):
        self.count = count

    def make_node(self, x):
        x = pt.as_tensor_variable(x)
        return Apply(self, [x], [x.type() for _ in range(self.count)])

    def _expressions(self, x):
        return [x * i for i in range(1, self.count + 1)]

    def perform(self, node, inputs, output_storage):
        for i, storage in enumerate(output_storage, start=1):
            storage[0] = inputs[0] * i


@both_libraries
@pytest.mark.parametrize("count", [1, 3])
def test_expressions_are_converted(library, count):
    x = np.random.default_rng(count).standard_normal((3, 4))
    assert_converted(library, Multiples(count), x, dtype="float64")


class Total(ExpandableOp):
    """The sum of each row, which PyTensor's conversion to JAX returns in float64."""

    __props__ = ()

    def make_node(self, x):
        x = pt.as_tensor_variable(x)
        return Apply(self, [x], [pt.tensor(dtype=x.type.dtype, shape=x.type.shape[:1])])

    def _expressions(self, x):
        return [x.sum(axis=1)]

    def perform(self, node, inputs, output_storage):
        output_storage[0][0] = inputs[0].sum(axis=1)


@both_libraries
def test_results_have_their_dtype(library):
    x = np.random.default_rng(0).standard_normal((3, 4))
    assert_converted(library, Total(), x, dtype="float32")
