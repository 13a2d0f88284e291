"""Faults of PyTensor that dnnops works around."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.scalar as ps
import pytensor.tensor as pt
import pytest
from pytensor.tensor.rewriting import special, subtensor, uncanonicalize

from dnnops.modes import OneDnnMode
from dnnops.rewriting.faults import faulty_rewrites
from dnnops.runtime.scalar_code import scalar_code, scalar_dtypes


def test_broadcast_sum_of_a_partial_array():
    """All elements get the one that was set in an array of one element."""
    x, v = pt.vector("x", shape=(7,)), pt.vector("v", shape=(1,))
    total = x + pt.set_subtensor(pt.zeros(1)[:1], v)
    f = pytensor.function([x, v], total, mode=OneDnnMode())
    np.testing.assert_array_equal(f(np.arange(7.0), [5.0]), np.arange(7.0) + 5)


def test_squeezed_reversed_slice():
    x = pt.tensor("x", shape=(3, 2), dtype="float64")
    f = pytensor.function([x], x[:, 1:0:-1].max(axis=1), mode=OneDnnMode())
    value = np.arange(6.0).reshape(3, 2)
    np.testing.assert_array_equal(f(value), value[:, 1])


def test_exponentials_over_sums():
    """Only exponentials over sums that keep their axes are a softmax."""
    x = pt.dmatrix("x")
    e = pt.exp(x)
    forms = [
        lambda e: e / e.sum(axis=1),
        lambda e: (e.T / e.sum(axis=0)).T,
        lambda e: e / e.sum(axis=1, keepdims=True),
        lambda e: e / e.sum(axis=0),
        lambda e: e / e.sum(),
    ]
    mode = OneDnnMode(linker="py")
    f = pytensor.function([x], [form(e) for form in forms], mode=mode)
    value = np.random.default_rng(0).standard_normal((3, 3))
    for result, form in zip(f(value), forms, strict=True):
        np.testing.assert_allclose(result, form(np.exp(value)), rtol=1e-12)
    names = [type(node.op).__name__ for node in f.maker.fgraph.apply_nodes]
    assert names.count("OneDnnSoftmax") == 3
    # A softmax cannot overflow.
    for result in f(np.full((3, 3), 1000.0))[2:]:
        np.testing.assert_allclose(result.sum(), result.size * result[0, 0])


def test_faulty_rewrites():
    """A rewrite is left out only if it is wrong."""
    known = (
        "local_add_of_sparse_write",
        "local_dimshuffle_subtensor",
        "local_softmax_stabilize",
    )
    if pytensor.__version__.startswith("3.0."):
        assert faulty_rewrites() == known
    # A rewrite that was moved would no longer be tried.
    assert hasattr(subtensor, known[0])
    assert hasattr(uncanonicalize, known[1])
    assert hasattr(special, known[2])


@pytest.mark.parametrize("is_nested", [False, True])
def test_dtypes_of_a_composite(is_nested):
    """Composites share their nodes, which stay as they are if one is applied to other dtypes."""
    x, y = ps.float32(), ps.float32()
    inner = ps.Composite([x, y], [ps.sqr(x * x) + y])
    total = inner(x, y) if is_nested else ps.sqr(x * x) + y
    composite = ps.Composite([x, y], [total, ps.eq(x, y)])
    code = scalar_code(composite, ("float32", "float32"))
    graphs = [composite.fgraph, inner.fgraph]
    nodes = [(n.op, tuple(n.inputs)) for graph in graphs for n in graph.toposort()]
    assert scalar_dtypes(composite, ("float32", "float64")) == ("float64", "bool")
    assert scalar_dtypes(ps.add, ("float16", "float32")) == ("float32",)
    assert [(n.op, tuple(n.inputs)) for graph in graphs for n in graph.toposort()] == nodes
    assert scalar_code(composite, ("float32", "float32")) == code
