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
