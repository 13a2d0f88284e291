"""Names and behavior that must be the same with every supported release of PyTensor."""

from __future__ import annotations

import pytensor.tensor as pt
import pytest
from pytensor.graph.basic import equal_computations
from pytensor.graph.fg import FunctionGraph
from pytensor.tensor.rewriting.shape import ShapeFeature
from pytensor.tensor.shape import Shape_i

from dnnops.compat import inferred_size


@pytest.mark.parametrize("axis", [0, -2])
def test_size_of_a_variable_in_the_graph(axis):
    x = pt.matrix("x")
    y = pt.exp(x)
    fgraph = FunctionGraph([x], [y], clone=False, features=[ShapeFeature()])
    for variable in (x, y):
        size = inferred_size(fgraph, variable, axis)
        assert equal_computations([size], [Shape_i(0)(x)])


def test_a_known_size_of_a_variable():
    x = pt.tensor("x", shape=(None, 7))
    fgraph = FunctionGraph([x], [pt.exp(x)], clone=False, features=[ShapeFeature()])
    assert inferred_size(fgraph, fgraph.outputs[0], -1).data == 7


def test_size_of_what_is_not_in_the_graph():
    x = pt.matrix("x")
    fgraph = FunctionGraph([x], [pt.exp(x)], clone=False, features=[ShapeFeature()])
    assert inferred_size(fgraph, pt.log(x), 0) is None


def test_size_where_nobody_follows_shapes():
    x = pt.matrix("x")
    assert inferred_size(FunctionGraph([x], [pt.exp(x)], clone=False), x, 0) is None
