"""Linear algebra with Theano's names and arguments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

from dnnops.errors import DnnTypeError, DnnValueError

A = np.array([[4.0, 1.0, 0.5], [1.0, 3.0, 0.2], [0.5, 0.2, 2.0]])
B = np.arange(6.0).reshape(3, 2)


def test_functions(theano: Any):
    slinalg, nlinalg = theano.tensor.slinalg, theano.tensor.nlinalg
    a, b = theano.tensor.dmatrices("a", "b")
    tall = np.linalg.qr(B)
    cases = [
        (slinalg.solve(a, b), np.linalg.solve(A, B)),
        (slinalg.solve(a, b[:, 1]), np.linalg.solve(A, B[:, 1])),
        (slinalg.solve_symmetric(a, b), np.linalg.solve(A, B)),
        (slinalg.solve_lower_triangular(a, b), np.linalg.solve(np.tril(A), B)),
        (slinalg.solve_upper_triangular(a, b[:, 0]), np.linalg.solve(np.triu(A), B[:, 0])),
        (slinalg.Solve("lower_triangular", lower=True)(a, b), np.linalg.solve(np.tril(A), B)),
        (slinalg.Solve()(a, b), np.linalg.solve(A, B)),
        (slinalg.cholesky(a), np.linalg.cholesky(A)),
        (slinalg.Cholesky(lower=False)(a), np.linalg.cholesky(A).T),
        (nlinalg.eigh(a, "U")[0], np.linalg.eigvalsh(A)),
        (nlinalg.Eigh(UPLO="L")(a)[0], np.linalg.eigvalsh(A)),
        (nlinalg.qr(b)[0], tall[0]),
        (nlinalg.qr(b)[1], tall[1]),
        (nlinalg.qr(b, mode="r"), tall[1]),
        (nlinalg.qr(b, "complete")[0], np.linalg.qr(B, "complete")[0]),
        (nlinalg.norm(a, "inf"), np.linalg.norm(A, np.inf)),
        (nlinalg.norm(b[:, 0], "-inf"), 0.0),
        (nlinalg.norm(b[:, 1], 3), np.linalg.norm(B[:, 1], 3)),
        (nlinalg.norm(a, None), np.linalg.norm(A)),
        (nlinalg.lstsq()(a, b[:, 0], 1e-12)[0], np.linalg.solve(A, B[:, 0])),
        (nlinalg.AllocDiag(1)(a[0]), np.diag(A[0], 1)),
        (nlinalg.alloc_diag(a[0]), np.diag(A[0])),
        (nlinalg.trace(a), np.trace(A)),
        (nlinalg.extract_diag(a), np.diag(A)),
        (nlinalg.matrix_inverse(a), np.linalg.inv(A)),
        (theano.sandbox.linalg.psd(a), A),
        (theano.grad(slinalg.solve(a, b).sum(), b), np.linalg.solve(A.T, np.ones((3, 2)))),
    ]
    f = theano.function([a, b], [graph for graph, _ in cases])
    for index, (result, (_, wanted)) in enumerate(zip(f(A, B), cases, strict=True)):
        assert_allclose(result, wanted, atol=1e-12, err_msg=f"case {index}")


def test_a_failed_factorization_is_an_error(theano: Any):
    a = theano.tensor.dmatrix()
    slinalg = theano.tensor.slinalg
    f = theano.function([a], slinalg.cholesky(a))
    with pytest.raises(np.linalg.LinAlgError, match="not positive definite"):
        f(-A)
    assert np.isnan(theano.function([a], slinalg.Cholesky(on_error="nan")(a))(-A)).any()


def test_bound_of_the_spectral_radius(theano: Any):
    from theano.sandbox.linalg.ops import spectral_radius_bound

    a = theano.tensor.dmatrix()
    largest = np.linalg.eigvalsh(A).max()
    bounds = theano.function([a], [spectral_radius_bound(a, n) for n in (1, 4)])(A)
    assert largest < bounds[1] < bounds[0]
    assert_allclose(bounds[0], np.trace(A @ A) ** 0.5)
    assert_allclose(bounds[1], largest, rtol=1e-2)
    with pytest.raises(DnnTypeError, match="integer"):
        spectral_radius_bound(a, 1.5)
    with pytest.raises(DnnValueError, match="positive"):
        spectral_radius_bound(a, 0)
    with pytest.raises(DnnTypeError, match="matrix"):
        spectral_radius_bound(a[0], 1)


def test_bad_arguments(theano: Any):
    slinalg = theano.tensor.slinalg
    with pytest.raises(DnnValueError, match="A_structure must be one of"):
        slinalg.Solve("nonsense")
    with pytest.raises(DnnTypeError, match="A must be a matrix"):
        slinalg.solve(theano.tensor.vector(), theano.tensor.vector())
    with pytest.raises(DnnValueError, match="UPLO"):
        theano.tensor.nlinalg.eigh(A, "X")
    with pytest.raises(DnnValueError, match="mode"):
        theano.tensor.nlinalg.qr(A, "full")
