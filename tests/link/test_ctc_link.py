"""The CTC loss under JAX and PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import strategies as st

from dnnops.errors import DnnValueError
from dnnops.nnet import CTC
from tests.link.conversions import DTYPES, assert_converted, both_libraries, converted
from tests.nnet.loss.ctc_cases import cases
from tests.oracle import fuzz


@both_libraries
@fuzz(
    max_examples=6,
    case=cases(scales=(1.0, 20.0)),
    with_label_lengths=st.booleans(),
    integer=st.sampled_from(["int32", "int64"]),
    dtype=st.sampled_from(DTYPES),
)
def test_costs_and_gradients(library, case, with_label_lengths, integer, dtype):
    activations, labels, lengths, label_lengths = case.arrays(integer=integer)
    # Memory behind a sequence's end may contain anything.
    activations[np.arange(case.steps)[:, None] >= lengths] = np.nan
    op = CTC(True, with_label_lengths)
    operands = (activations, labels, lengths, label_lengths)[: 3 + with_label_lengths]
    assert_converted(library, op, *operands, dtype=dtype, atol=5000)


@both_libraries
def test_padding_between_symbols_and_no_steps(library):
    rng = np.random.default_rng(0)
    labels = np.array([[-1, 2, -1, 2], [-1, -1, -1, -1], [1, -7, 3, 2]])
    arrays = (rng.standard_normal((7, 3, 4)), labels, np.array([5, 0, 7]))
    assert_converted(library, CTC(), *arrays, dtype="float64", atol=5000)


@both_libraries
def test_impossible_and_nan(library):
    rng = np.random.default_rng(0)
    activations = rng.standard_normal((5, 3, 4))
    activations[:, 0, 2] = -np.inf  # the only symbol of its label
    activations[1, 1, 3] = np.nan
    labels = np.array([[2, -1], [1, 2], [3, 3]])
    assert_converted(
        library, CTC(), activations, labels, np.array([5, 5, 5]), dtype="float64", atol=5000
    )


@both_libraries
@pytest.mark.parametrize(
    ("labels", "lengths"),
    [([[4, -1]], [5]), ([[0, -1]], [5]), ([[1, 1]], [2]), ([[1, 2]], [6]), ([[1, 2]], [-1])],
)
def test_operands_that_the_op_rejects(library, labels, lengths):
    arrays = (np.zeros((5, 1, 4)), np.array(labels), np.array(lengths))
    run = converted(library, CTC(), *arrays)
    if library == "torch":
        with pytest.raises(DnnValueError):
            run(*arrays)
    else:
        assert np.isnan(run(*arrays)[0]).all()
