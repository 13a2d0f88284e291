"""Methods that variables have while Theano's names are installed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import dnnops.theano


def test_variables_are_true(theano: Any):
    tt = theano.tensor
    x, i = tt.matrix("x"), theano.scalar.float64("i")
    variables = [x, x + 1, tt.constant(0.0), theano.shared(0.0), theano.sparse.csr_matrix(), i]
    # Theano's functions of this name do not mark their results, which serve as masks.
    variables += [tt.eq(x, 0), tt.neq(x, 0), tt.gt(x, 0), i < 2, x[0]]
    assert all(variables)
    assert not [v for v in variables if not v]
    for comparison in (x < 1, x <= 1, x > 1, x >= 1, np.float32(3) > x):
        with pytest.raises(TypeError, match="truth of a comparison"):
            bool(comparison)
    with pytest.raises(TypeError, match="truth of a comparison"):
        0 < x < 1  # noqa: B015


def test_comparisons_still_compare(theano: Any):
    x = theano.tensor.vector()
    f = theano.function([x], [x < 2, x <= 2, x > 2, x >= 2])
    assert np.array_equal(f([1, 2, 3]), [[1, 0, 0], [1, 1, 0], [0, 0, 1], [0, 1, 1]])
    assert (x < 2).owner.op == pt.lt


def test_methods_of_variables(theano: Any):
    tt = theano.tensor
    x = tt.dvector("x")
    assert x.reshape((2, 3), 2).ndim == tt.reshape(x, tt.ivector(), 2).ndim == 2
    assert tt.constant(2.5).get_scalar_constant_value() == 2.5
    with pytest.raises(tt.NotScalarConstantError):
        tt.dscalar().get_scalar_constant_value()
    f = theano.function([x], tt.constant([1, 0]).choose([x, -x], None, "raise"))
    assert f([3.0, 4.0]).tolist() == [-3, 4]
    assert tt.dvector.value_zeros((2,)).tolist() == [0, 0]
    assert tt.dvector.sparse_grad is False


def test_attributes_of_functions(theano: Any):
    x, kept = theano.tensor.dscalar("x"), theano.shared(1.0, "kept")
    f = theano.function([x], [x * kept, x + kept], updates=[(kept, kept + 1)])
    assert f(2.0) == [2, 3]
    assert f[kept] == f["kept"] == f.value[kept] == f.container["kept"].value == 2
    f[kept] = 5.0
    assert kept.get_value() == 5
    assert f(2.0) == [10, 7]
    assert kept in f
    assert "other" not in f
    assert f.n_returned_outputs == 2
    assert f.fn is f.vm
    assert f.output_keys is None
    assert list(f.nodes_with_inner_function) == []
    f.sync_shared()


def test_inputs_of_a_graph_are_changed(theano: Any):
    x, y = theano.tensor.dscalars("x", "y")
    total = x + x
    graph = theano.gof.FunctionGraph([x, y], [total], clone=False)
    graph.change_input(total.owner, 1, y)
    assert total.owner.inputs == [x, y]
    graph.change_input("output", 0, y, reason="test")
    assert graph.outputs == [y]


def test_updates_are_merged(theano: Any):
    a, b = theano.shared(0.0), theano.shared(1.0)
    merged = {a: a + 1} + theano.OrderedUpdates([(b, b + 1)])
    assert isinstance(merged, theano.OrderedUpdates)
    assert list(merged) == [a, b]


def test_uninstalling_restores_methods():
    cls = next(c for c in pt.TensorVariable.__mro__ if "__bool__" in vars(c))
    before = dict(vars(cls))
    dnnops.theano.install()
    assert dict(vars(cls)) != before
    assert pt.matrix()
    dnnops.theano.uninstall()
    assert dict(vars(cls)) == before
    for variable in (pt.matrix(), pytensor.scalar.float64()):
        with pytest.raises(TypeError, match="cannot be converted to Python bool"):
            bool(variable)
