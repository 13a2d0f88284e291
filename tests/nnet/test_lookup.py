"""Embeddings."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from dnnops.errors import DnnTypeError
from dnnops.nnet import embedding
from tests.oracle import PERFORM_MODE


def test_rows_and_gradient():
    table, indices = pt.dmatrix(), pt.imatrix()
    out = embedding(indices, table)
    gradient = pytensor.grad((out * np.arange(1.0, 4)[:, None]).sum(), table)
    f = pytensor.function([table, indices], [out, gradient], mode=PERFORM_MODE)
    values, rows = np.arange(8.0).reshape(4, 2), np.array([[0, 2, -1], [2, 2, 3]], "int32")
    found, derivative = f(values, rows)
    np.testing.assert_array_equal(found, values[rows])
    wanted = np.zeros((4, 2))
    np.add.at(wanted, rows, np.arange(1.0, 4)[:, None])
    np.testing.assert_array_equal(derivative, wanted)
    with pytest.raises(IndexError):
        f(values, rows + 4)


def test_errors():
    with pytest.raises(DnnTypeError, match="indices must be an integer tensor"):
        embedding(pt.dvector(), pt.dmatrix())
    with pytest.raises(DnnTypeError, match="table must have 2 dimensions"):
        embedding(pt.lvector(), pt.dvector())
