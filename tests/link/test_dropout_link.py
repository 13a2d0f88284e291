"""Dropout under JAX and PyTorch: the same elements as anywhere else."""

from __future__ import annotations

import numpy as np
import pytest

from dnnops.nnet import Dropout, DropoutGrad
from tests.link.conversions import assert_converted, both_libraries, converted, perform

STATES = [(3, 0), (-(2**63), 2**32 - 3), (2**40 + 7, -5), (-1, -1)]


@both_libraries
@pytest.mark.parametrize("state", STATES)
def test_same_numbers_from_a_state(library, state):
    check_same_numbers(library, state, (5, 7, 11), "float64")


@both_libraries
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((64,), "float16"), ((), "float64"), ((0, 3), "float64"), ((9,), "float32")],
)
def test_same_numbers_for_a_shape(library, shape, dtype):
    check_same_numbers(library, (3, 2**32 - 3), shape, dtype)


def check_same_numbers(library, state, shape, dtype):
    x = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    arrays = (x, 0.3, np.array(state))
    assert_converted(library, Dropout(), *arrays, dtype=dtype, atol=2)
    reserve = perform(Dropout(), *arrays)[1]
    assert_converted(library, DropoutGrad(), x, 0.3, reserve, dtype=dtype, atol=2)


@both_libraries
@pytest.mark.parametrize("p", [0.1, 1.0])
def test_probability_as_a_variable(library, p):
    arrays = (np.ones((40, 50)), np.array(p), np.array([5, 6]))
    for symbolic in ([1], []):
        y, reserve, _ = converted(library, Dropout(), *arrays, symbolic=symbolic)(*arrays)
        np.testing.assert_array_equal(y, perform(Dropout(), *arrays)[0])
        given = (arrays[0], arrays[1], reserve)
        (gx,) = converted(library, DropoutGrad(), *given, symbolic=symbolic)(*given)
        np.testing.assert_array_equal(gx, y)
