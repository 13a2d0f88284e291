"""Names of ``theano.sparse``."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_array_equal

VALUE = np.array([[0.0, -2.0], [0.5, 0.0]])


def test_types(theano: Any):
    sparse = theano.sparse
    assert sparse.enable_sparse is True
    matrix = sparse.SparseType("csc", "float32")("m")
    made = sparse.basic.constant(sp.csr_matrix(VALUE), name="c")
    shared = sparse.shared(sp.csr_matrix(VALUE), "s")
    for variable in (matrix, made, shared):
        assert isinstance(variable.type, sparse.type.SparseType)
        assert isinstance(variable, theano.Variable)
        assert not isinstance(variable, theano.tensor.TensorVariable)
    assert (matrix.name, matrix.dtype, matrix.format) == ("m", "float32", "csc")
    assert isinstance(matrix, sparse.SparseVariable)
    assert isinstance(made, sparse.SparseConstant)
    assert not isinstance(made, sparse.SparseVariable)
    assert not isinstance(shared, sparse.basic.SparseVariable)
    assert isinstance(shared, sparse.sharedvar.SparseTensorSharedVariable)
    assert sparse.csc_matrix("x", dtype="float32").type == matrix.type
    assert made.eval().toarray().tolist() == VALUE.tolist()


def test_functions(theano: Any):
    tt, sparse = theano.tensor, theano.sparse
    x = sparse.csr_matrix("x", "float64")
    cases = [
        (sparse.sgn(x), np.sign(VALUE)),
        (sparse.basic.Neg()(x), -VALUE),
        (sparse.neg(x), -VALUE),
        (sparse.SquareDiagonal()(tt.constant([1.0, 2.0])), np.diag([1.0, 2.0])),
        (sparse.MulSS()(x, x), VALUE**2),
        (sparse.MulSD()(x, tt.constant(VALUE)), VALUE**2),
        (sparse.MulSV()(x, tt.constant([1.0, 3.0])), VALUE * [1, 3]),
        (sparse.structured_monoid(tt.sqr)(lambda x: None)(x), VALUE**2),
        (sparse.structured_monoid(tt.add)(lambda x, y: None)(x, 2.0), VALUE + 2 * (VALUE != 0)),
        (x * 2, VALUE * 2),
        (x[0:1, :], VALUE[:1]),
        (x.T, VALUE.T),
    ]
    f = theano.function([x], [sparse.dense_from_sparse(graph) for graph, _ in cases])
    for index, (result, (_, wanted)) in enumerate(zip(f(sp.csr_matrix(VALUE)), cases, strict=True)):
        assert_array_equal(result, wanted, err_msg=f"case {index}")
    y = tt.constant(VALUE)
    dense = theano.function([x], [sparse.dot(x, y), sparse.sp_sum(x), sparse.structured_dot(x, y)])
    product, total, structured = dense(sp.csr_matrix(VALUE))
    assert_array_equal(product, VALUE @ VALUE)
    assert_array_equal(structured, VALUE @ VALUE)
    assert total == VALUE.sum()
    with pytest.raises(TypeError, match=r"scipy\.sparse\.spmatrix"):
        sparse.basic.constant(VALUE)
