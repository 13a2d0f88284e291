"""Functions and Ops of ``theano.tensor.slinalg``, ``nlinalg`` and ``theano.sandbox.linalg``."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.assumptions import assume
from pytensor.raise_op import CheckAndRaise
from pytensor.tensor import linalg

from dnnops.arguments import one_of
from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.theano.ops import OpName

__all__ = [
    "MATRIX_STRUCTURES",
    "Cholesky",
    "Eigh",
    "QRFull",
    "QRIncomplete",
    "Solve",
    "cholesky",
    "eigh",
    "lstsq",
    "norm",
    "psd",
    "qr",
    "solve",
    "solve_lower_triangular",
    "solve_symmetric",
    "solve_upper_triangular",
    "spectral_radius_bound",
]

MATRIX_STRUCTURES = (
    "general",
    "symmetric",
    "lower_triangular",
    "upper_triangular",
    "hermitian",
    "banded",
    "diagonal",
    "toeplitz",
)
#: PyTensor's names of the structures for which it has a method; Theano solved all others alike.
_METHODS = {"symmetric": "sym", "diagonal": "diagonal"}


def _solve(
    A_structure: str = "general",  # noqa: N803 - Theano's name
    lower: bool = False,
    overwrite_A: bool = False,  # noqa: N803
    overwrite_b: bool = False,
) -> Any:
    one_of("Solve", "A_structure", A_structure, MATRIX_STRUCTURES)

    def solver(A: Any, b: Any) -> Any:  # noqa: N803
        matrix, right = pt.as_tensor_variable(A), pt.as_tensor_variable(b)
        if matrix.ndim != 2 or right.ndim not in (1, 2):
            raise DnnTypeError(
                f"Solve: A must be a matrix and b a vector or matrix; got {matrix.type} and"
                f" {right.type}"
            )
        if A_structure.endswith("_triangular"):
            lower_half = A_structure == "lower_triangular"
            return linalg.solve_triangular(matrix, right, lower=lower_half, b_ndim=right.ndim)
        method = _METHODS.get(A_structure, "gen")
        return linalg.solve(matrix, right, assume_a=method, b_ndim=right.ndim)

    return solver


Solve = OpName("Solve", _solve, linalg.Solve)
solve = Solve()
solve_lower_triangular = Solve("lower_triangular", lower=True)
solve_upper_triangular = Solve("upper_triangular")
solve_symmetric = Solve("symmetric")


def _cholesky(lower: bool = True, on_error: str = "raise") -> Any:
    one_of("Cholesky", "on_error", on_error, ("raise", "nan"))

    def factor(x: Any) -> Any:
        triangle = linalg.cholesky(pt.as_tensor_variable(x), lower)
        if on_error == "nan":
            return triangle
        # PyTensor's own argument on_error is deprecated.
        fails = CheckAndRaise(
            np.linalg.LinAlgError, "Cholesky: the matrix is not positive definite"
        )
        return fails(triangle, ~pt.isnan(triangle).any())

    return factor


Cholesky = OpName("Cholesky", _cholesky, linalg.Cholesky)
cholesky = Cholesky()


def eigh(a: Any, UPLO: str = "L") -> Any:  # noqa: N803 - Theano's name
    """Return the eigenvalues and eigenvectors of a symmetric matrix, given by one of its halves.

    Parameters
    ----------
    a : matrix, (n, n)
    UPLO : {'L', 'U'}
        The half that is read, lower or upper.

    Returns
    -------
    values, vectors : TensorVariable, (n,) and (n, n)

    Raises
    ------
    DnnValueError
        If `UPLO` is invalid.
    """
    one_of("eigh", "UPLO", UPLO, ("L", "U"))
    return linalg.eigh(a, lower=UPLO == "L")


def _eigh(UPLO: str = "L") -> Any:  # noqa: N803
    return partial(eigh, UPLO=UPLO)


Eigh = OpName("Eigh", _eigh, linalg.Eigh)

_QR_MODES: dict[str, Any] = {"reduced": "economic", "complete": "full", "r": "r", "raw": "raw"}


def qr(a: Any, mode: str = "reduced") -> Any:
    """Return the QR decomposition of a matrix: `q` and `r`, or in the mode 'r' only `r`.

    Parameters
    ----------
    a : matrix, (m, n)
    mode : {'reduced', 'complete', 'r', 'raw'}
        As for `numpy.linalg.qr`.

    Returns
    -------
    TensorVariable, or list of TensorVariable

    Raises
    ------
    DnnValueError
        If `mode` is invalid.
    """
    one_of("qr", "mode", mode, tuple(_QR_MODES))
    result = linalg.qr(pt.as_tensor_variable(a), mode=_QR_MODES[mode])
    if mode != "r":
        return result
    (upper,) = result if isinstance(result, (list, tuple)) else [result]
    matrix = pt.as_tensor_variable(a)
    return upper[: pt.minimum(matrix.shape[0], matrix.shape[1])]


QRFull = OpName("QRFull", lambda mode: partial(qr, mode=mode), linalg.QR)
QRIncomplete = OpName("QRIncomplete", lambda mode: partial(qr, mode=mode), linalg.QR)

_INFINITIES = {"inf": np.inf, "-inf": -np.inf}


def _lstsq() -> Any:
    return linalg.lstsq


lstsq = OpName("lstsq", _lstsq)


def norm(x: Any, ord: Any) -> Any:
    """Return a norm of a vector or matrix; infinite orders may be given as 'inf' and '-inf'.

    Parameters
    ----------
    x : vector or matrix
    ord : int, float or {'fro', 'nuc', 'inf', '-inf'}

    Returns
    -------
    TensorVariable, ()
    """
    order: Any = _INFINITIES.get(ord, ord) if isinstance(ord, str) else ord
    return linalg.norm(pt.as_tensor_variable(x), order)


def psd(v: Any) -> Any:
    """Tell the rewrites that a matrix is symmetric and positive semi-definite.

    Parameters
    ----------
    v : matrix, (n, n)

    Returns
    -------
    TensorVariable, (n, n)
        The same numbers.
    """
    return assume(v, positive_definite=True, symmetric=True)


def spectral_radius_bound(X: Any, log2_exponent: int) -> Any:  # noqa: N803 - Theano's name
    """Return an upper bound of the largest eigenvalue of a symmetric matrix.

    Parameters
    ----------
    X : matrix
    log2_exponent : int
        How often the matrix is squared. With more squares, the bound is tighter.

    Returns
    -------
    TensorVariable, ()

    Raises
    ------
    DnnTypeError
        If `X` isn't a matrix, or the exponent isn't an integer.
    DnnValueError
        If the exponent isn't positive.
    """
    if X.type.ndim != 2:
        raise DnnTypeError(f"spectral_radius_bound: X must be a matrix, got {X.type}")
    if not isinstance(log2_exponent, int):
        raise DnnTypeError(
            f"spectral_radius_bound: log2_exponent must be an integer, got {log2_exponent!r}"
        )
    if log2_exponent <= 0:
        raise DnnValueError(
            f"spectral_radius_bound: log2_exponent must be positive, got {log2_exponent}"
        )
    power = X
    for _ in range(log2_exponent):
        power = pt.dot(power, power)
    return pt.trace(power) ** (2.0**-log2_exponent)
