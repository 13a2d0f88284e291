"""Theano's Ops that are expressions here: diagonals, blocks of matrices, activations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from dnnops.errors import DnnNotSupportedError, DnnValueError

RNG = np.random.default_rng(6)


@pytest.mark.parametrize(("shape", "i0", "i1"), [((6, 3), 0, 1), ((2, 6, 4, 3), 1, 3)])
def test_diagonals(theano: Any, shape: tuple[int, ...], i0: int, i1: int):
    from theano.tensor.nnet import conv3d2d

    value = RNG.normal(size=shape)
    rows = shape[i0] - shape[i1] + 1
    view = conv3d2d.get_diagonal_subtensor_view(value, i0, i1)
    moved = np.moveaxis(value, (i0, i1), (0, 1))
    expected = np.array(
        [[moved[t + shape[i1] - 1 - k, k] for k in range(shape[i1])] for t in range(rows)]
    )
    assert_array_equal(np.moveaxis(view, (i0, i1), (0, 1)), expected)
    assert np.shares_memory(view, value)

    x = theano.tensor.tensor("float64", (False,) * len(shape))
    y = conv3d2d.DiagonalSubtensor()(x, i0, i1)
    weights = RNG.normal(size=view.shape)
    added = conv3d2d.IncDiagonalSubtensor()(x, i0, i1, weights)
    gradient = theano.grad((y * weights).sum(), x)
    found, whole, slope = theano.function([x], [y, added, gradient])(value)
    assert_array_equal(found, view)
    copy = value.copy()
    conv3d2d.get_diagonal_subtensor_view(copy, i0, i1)[...] += weights
    assert_allclose(whole, copy)
    assert_allclose(slope, copy - value, atol=1e-15)
    with pytest.raises(DnnNotSupportedError, match="must not be shorter"):
        conv3d2d.get_diagonal_subtensor_view(value, i1, i0)


def test_outer_products_of_blocks(theano: Any):
    from theano.tensor.nnet import blocksparse

    o, x, y = (RNG.normal(size=shape) for shape in ((4, 3, 2, 5), (2, 2, 2), (2, 2, 5)))
    rows, columns = np.array([[0, 3], [0, 2]]), np.array([[1, 2], [1, 0]])
    expected = o.copy()
    for b, i, j in np.ndindex(2, 2, 2):
        expected[rows[b, i], columns[b, j]] += 0.5 * np.outer(x[b, i], y[b, j])
    made = blocksparse.SparseBlockOuter()(o, x, y, rows, columns, alpha=0.5)
    assert_allclose(made.eval(), expected)
    assert blocksparse.sparse_block_outer_inplace is blocksparse.sparse_block_outer


@pytest.mark.parametrize("alpha", [0.5, np.array(0.5), "variable"])
def test_elu_with_any_alpha(theano: Any, alpha: Any):
    x = theano.tensor.dvector()
    value = np.array([-800.0, -20.0, -1.0, 0.5, 800.0])
    y = theano.tensor.nnet.elu(x, theano.tensor.constant(0.5) if alpha == "variable" else alpha)
    found, slope = theano.function([x], [y, theano.grad(y.sum(), x)])(value)
    assert_allclose(found, [-0.5, 0.5 * np.expm1(-20), 0.5 * np.expm1(-1), 0.5, 800])
    assert_allclose(slope, [0, 0.5 * np.exp(-20), 0.5 * np.exp(-1), 1, 1])


def test_dimshuffle_has_theanos_arguments(theano: Any):
    op = theano.tensor.DimShuffle((False, False), [1, "x", 0])
    y = op(theano.tensor.dmatrix())
    assert y.ndim == 3
    assert isinstance(y.owner.op, theano.tensor.elemwise.DimShuffle)


def test_abstract_ops_are_not_those_of_backends(theano: Any):
    from theano.tensor.nnet import abstract_conv, bn
    from theano.tensor.nnet.nnet import LogSoftmax, Softmax

    from dnnops import nnet
    from dnnops.cpu.batchnorm import OneDnnBatchNormTrain
    from dnnops.cpu.conv import OneDnnConv
    from dnnops.cpu.softmax import OneDnnSoftmax

    conv = {"ndim": 2, "border_mode": (0, 0), "subsample": (1, 1), "filter_flip": True}
    for name, abstract, backend in (
        (bn.AbstractBatchNormTrain, nnet.BatchNormTrain((0,)), OneDnnBatchNormTrain((0,))),
        (abstract_conv.AbstractConv2d, nnet.Conv(**conv), OneDnnConv(**conv)),
    ):
        assert isinstance(abstract, name)
        assert not isinstance(backend, name)
    for log in (False, True):
        op = OneDnnSoftmax((1,), log)
        assert isinstance(op, Softmax) is not log
        assert isinstance(op, LogSoftmax) is log


def test_rewriters_optimize(theano: Any):
    x = theano.tensor.dvector()
    graph = theano.gof.FunctionGraph([x], [theano.tensor.exp(theano.tensor.log(x) * 1)])
    theano.compile.mode.optdb.query("+canonicalize").optimize(graph)
    assert len(graph.toposort()) == 2


@pytest.mark.parametrize(
    ("mode", "neib_shape", "neib_step"),
    [
        ("valid", (3, 3), None),
        ("valid", (2, 2), (1, 3)),
        ("half", (3, 3), (2, 2)),
        ("full", (2, 3), (2, 4)),
        ("wrap_centered", (2, 3), None),
        ("wrap_centered", (5, 5), (1, 1)),
    ],
)
def test_neighborhoods_that_do_not_fit(theano: Any, mode: str, neib_shape: Any, neib_step: Any):
    """They raise a TypeError at the call, even if all sizes are constants."""
    tt = theano.tensor
    images = np.arange(16.0).reshape(1, 1, 4, 4)
    op = tt.nnet.neighbours.Images2Neibs(mode)
    for ten4 in (tt.constant(images), theano.shared(images)):
        for neibs in (
            op(ten4, neib_shape, neib_step),
            tt.nnet.neighbours.images2neibs(ten4, neib_shape, neib_step, mode),
        ):
            assert (neibs.type.ndim, neibs.type.dtype) == (2, "float64")
            f = theano.function([], neibs)
            with pytest.raises(TypeError, match="images2neibs"):
                f()
    with pytest.raises(DnnValueError, match="neib_shape must be between 1 and"):
        tt.nnet.neighbours.images2neibs(ten4, (0, 3))


def test_known_numbers_of_channels(theano: Any):
    """Theano's old conv2d asserted that they agree; the sizes may be constants."""
    tt = theano.tensor
    x, w = tt.dtensor4s("x", "w")
    conv2d = tt.nnet.conv.conv2d
    images, filters = (2, 3, 6, 6), (4, 2, 3, 3)
    for image_shape in (images, tt.constant(images), (None, tt.constant(3), None, None)):
        with pytest.raises(AssertionError, match="image_shape has 3 channels"):
            conv2d(x, w, image_shape, filters)
        for fitting in (None, (4, None, 3, 3), (4, 3, 3, 3)):
            assert conv2d(x, w, image_shape, fitting).type.ndim == 4
    with pytest.raises(AssertionError, match="contradicts the shape"):
        conv2d(tt.constant(np.ones(images)), w, (2, 3, 6, 5))
