"""Elementwise Ops that overwrite their first operand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

from dnnops.theano.tensors import inplace


@pytest.mark.parametrize("name", inplace.__all__)
def test_every_name(theano: Any, name: str):
    op = getattr(theano.tensor.inplace, name)
    assert getattr(theano.tensor.inplace, name) is op
    if name != "transpose_inplace":
        assert op.inplace_pattern == {0: 0}


def test_operands_are_overwritten(theano: Any):
    tt = theano.tensor
    x, y = tt.dvectors("x", "y")
    values = np.array([1.0, 4.0]), np.array([2.0, 3.0])
    cases = {
        "sqrt": [1, 2], "inv": [1, 0.25], "sgn": [1, 1], "neg": [-1, -4], "add": [3, 7],
        "mul": [2, 12], "pow": [1, 64], "fill": [2, 3], "true_div": [0.5, 4 / 3],
    }  # fmt: skip
    for name, wanted in cases.items():
        op = getattr(tt.inplace, f"{name}_inplace")
        operands = (x, y)[: op.nfunc_spec[1] if op.nfunc_spec else op.scalar_op.nin]
        inputs = [theano.In(operands[0], mutable=True), *operands[1:]]
        f = theano.function(inputs, op(*operands), accept_inplace=True)
        overwritten = values[0].copy()
        assert_allclose(f(overwritten, *values[1 : len(operands)]), wanted, err_msg=name)
        assert_allclose(overwritten, wanted, err_msg=name)
    assert tt.inplace.transpose_inplace(tt.dmatrix()).type.ndim == 2
