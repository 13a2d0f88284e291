"""Functions of `dnnops.nnet` with sizes that libraries only know while they trace a graph."""

from __future__ import annotations

import functools
import pickle

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from dnnops import nnet
from dnnops.errors import DnnNotSupportedError
from tests.oracle import PERFORM_MODE, assert_close


def transposed(x, filters, extra_rows):
    """Transpose a convolution whose dilation exceeds its stride, with output padding."""
    sizes = (x.shape[2] + (filters.shape[2] - 1) * 3 + extra_rows, x.shape[3] + 2 + 1)
    return nnet.conv2d_transpose(x, filters, (None, None, *sizes), filter_dilation=(3, 2))


@pytest.mark.needs("jax")
def test_sizes_that_follow_from_shapes():
    """Slices, ranges, splits and new shapes of unknown size; the loaded function is the same."""
    x, filters = pt.dtensor4("x"), pt.dtensor4("filters")
    outputs = [
        transposed(x, filters, 2),
        # The gradient of a concatenation splits; the scaled grid has a size from a product of
        # floats.
        nnet.bilinear_upsampling(x, 2),
        nnet.spatial_transformer(x, np.array([[[0.9, 0, 0], [0, 1, 0.1]]] * 2), 0.6, 0.7),
        nnet.images2neibs(x, (2, 3), (1, 2), "ignore_borders"),
        nnet.pool_2d(x, (x.shape[2] // 2, 2), ignore_border=True),
    ]
    outputs += pytensor.grad(sum((out**2).sum() for out in outputs), [x, filters])
    function = pytensor.function([x, filters], outputs, mode="JAX")
    loaded = pickle.loads(pickle.dumps(function))
    reference = pytensor.function([x, filters], outputs, mode=PERFORM_MODE)
    rng = np.random.default_rng(0)
    arguments = rng.standard_normal((2, 3, 4, 5)), rng.standard_normal((3, 2, 3, 2))
    for found, again, wanted in zip(
        function(*arguments), loaded(*arguments), reference(*arguments), strict=True
    ):
        assert_close(np.asarray(found), wanted, bound=1e-12)
        np.testing.assert_array_equal(again, found)


@pytest.mark.needs("jax")
def test_sizes_that_are_values_are_an_error():
    x, filters, extra = pt.dtensor4("x"), pt.dtensor4("filters"), pt.lscalar("extra")
    function = pytensor.function([x, filters, extra], transposed(x, filters, extra), mode="JAX")
    with pytest.raises(DnnNotSupportedError, match=r"Alloc: .* depend only on the shapes"):
        function(np.ones((2, 3, 4, 4)), np.ones((3, 4, 3, 2)), 1)


@pytest.fixture(
    name="mode",
    params=[
        pytest.param("JAX", marks=pytest.mark.needs("jax")),
        pytest.param("PYTORCH", marks=pytest.mark.needs("torch")),
    ],
)
def mode_fixture(request, monkeypatch):
    if request.param == "PYTORCH":
        import torch

        # The default backend compiles C++.
        monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    return request.param


def test_indices_that_broadcast(mode):
    """Sizes are reductions over the sizes of several indices, with comparisons of sizes."""
    rng = np.random.default_rng(0)
    values = [
        rng.standard_normal((3, 4, 6, 5)),
        rng.standard_normal((2, 2, 6)),
        np.array([[0, 2], [1, 2]]),
        rng.standard_normal((4, 5)),
        np.array([[1, 3], [0, 1]]),
    ]
    arguments = [pt.tensor(dtype=x.dtype, shape=(None,) * x.ndim) for x in values]
    weights, x, _, bias, _ = arguments
    out = nnet.sparse_block_dot(*arguments)
    outputs = [out, *pytensor.grad((out**2).sum(), [weights, x, bias])]
    found = pytensor.function(arguments, outputs, mode=mode)(*values)
    for value, wanted in zip(
        found, pytensor.function(arguments, outputs, mode=PERFORM_MODE)(*values), strict=True
    ):
        assert_close(np.asarray(value), wanted, bound=1e-12)


def test_conditions_on_sizes(mode):
    """The wanted shape is checked, and the result has it: by values of size expressions."""
    x, filters = pt.dtensor4("x"), pt.dtensor4("filters")
    shape = pt.stack([x.shape[0], filters.shape[1] * 2, x.shape[2] * 0 + 4, x.shape[3] + 1])
    out = nnet.conv2d_transpose(
        x, filters, shape, input_dilation=(2, 2), filter_dilation=(3, 2), num_groups=2
    )
    values = np.ones((2, 4, 1, 2)), np.ones((4, 3, 2, 1))
    found = pytensor.function([x, filters], out, mode=mode)(*values)
    wanted = pytensor.function([x, filters], out, mode=PERFORM_MODE)(*values)
    assert_close(np.asarray(found), wanted, bound=1e-12)


@pytest.mark.needs("jax")
def test_shape_that_is_a_value_is_an_error():
    x, batch = pt.dvector("x"), pt.lscalar("batch")
    function = pytensor.function([x, batch], pt.specify_shape(nnet.relu(x), batch), mode="JAX")
    with pytest.raises(DnnNotSupportedError, match=r"SpecifyShape: .* depend only on the shapes"):
        function(np.ones(2), 2)
