"""Theano's Op classes: the nodes that they make, and `isinstance` checks in a graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

import dnnops.nnet
from dnnops.errors import DnnNotSupportedError, DnnTypeError, DnnValueError

RNG = np.random.default_rng(5)
IMAGE, FILTERS = RNG.normal(size=(2, 3, 8, 7)), RNG.normal(size=(4, 3, 3, 2))
ROWS = RNG.normal(size=(4, 5))
LABELS = np.array([0, 4, 2, 2])


def test_convolutions(theano: Any):
    from theano.tensor.nnet.abstract_conv import (
        AbstractConv2d,
        AbstractConv2d_gradInputs,
        AbstractConv2d_gradWeights,
        AbstractConv3d,
        conv2d,
    )
    from theano.tensor.nnet.corr import CorrMM

    tt = theano.tensor
    x, w = tt.dtensor4(), tt.dtensor4()
    # By position, in Theano's order.
    op = AbstractConv2d((None, 3, 8, 7), None, "half", (2, 1), False, (1, 2), 1)
    y = op(x, w)
    assert isinstance(y.owner.op, AbstractConv2d)
    assert isinstance(y.owner.op, tt.nnet.abstract_conv.AbstractConv)
    assert not isinstance(y.owner.op, AbstractConv3d)
    assert not isinstance(y.owner.op, AbstractConv2d_gradInputs)
    assert (op.subsample, op.filter_dilation, op.filter_flip) == ((2, 1), (1, 2), False)
    params = {"border_mode": "half", "subsample": (2, 1), "filter_dilation": (1, 2)}
    own = dnnops.nnet.conv2d(x, w, filter_flip=False, **params)
    by_position = conv2d(x, w, None, None, "half", (2, 1), False, (1, 2), 1, False)
    g_op, w_op = AbstractConv2d_gradInputs(**params), AbstractConv2d_gradWeights(**params)
    gx, gw = g_op(w, y, x.shape[2:]), w_op(x, y, (3, 2), add_assert_shape=False)
    own_gx = dnnops.nnet.conv2d_grad_wrt_inputs(y, w, (None, 3, 8, 7), **params)
    own_gw = dnnops.nnet.conv2d_grad_wrt_weights(x, y, (None, None, 3, 2), **params)
    correlated = CorrMM("half", (2, 1), (1, 2))(x, w)
    made = [y, by_position, correlated, gx, gw]
    f = theano.function([x, w], [*made, own, own, own, own_gx, own_gw])
    results = f(IMAGE, FILTERS)
    for found, wanted in zip(results[:5], results[5:], strict=True):
        assert_allclose(found, wanted)
    with pytest.raises(DnnValueError, match="shape of img does not match the imshp argument"):
        f(IMAGE[..., :-1], FILTERS)
    with pytest.raises(DnnNotSupportedError, match="unshared"):
        AbstractConv2d(unshared=True)
    assert AbstractConv2d((1, 2, 3, 4)) == AbstractConv2d(imshp=[1, 2, 3, 4])
    assert len({AbstractConv2d((1, 2, 3, 4)), AbstractConv2d()}) == 2


@pytest.mark.parametrize("border_mode", ["valid", "full", (1, 2)])
def test_gradients_without_a_shape(theano: Any, border_mode: Any):
    """The operands determine it if there is no stride."""
    from theano.tensor.nnet import corr

    x, w = theano.tensor.dtensor4(), theano.tensor.dtensor4()
    y = corr.CorrMM(border_mode)(x, w)
    gx = corr.CorrMM_gradInputs(border_mode)(w, y)
    gw = corr.CorrMM_gradWeights(border_mode)(x, y) if border_mode != "full" else w
    own_gx, own_gw = theano.grad(None, [x, w], known_grads={y: y})
    found = theano.function([x, w], [gx, own_gx, gw, own_gw])(IMAGE, FILTERS)
    assert_allclose(found[0], found[1])
    if border_mode != "full":
        assert_allclose(found[2], found[3])
    with pytest.raises(DnnValueError, match="shape must be given"):
        corr.CorrMM_gradInputs(border_mode, (2, 2))(w, y)


@pytest.mark.parametrize(("ndim", "rank"), [(1, 3), (2, 4), (3, 5), (1, 1), (2, 5), (2, 3)])
def test_pooling(theano: Any, ndim: int, rank: int):
    from theano.tensor.signal.pool import (
        AveragePoolGrad,
        DownsampleFactorMaxGradGrad,
        MaxPoolGrad,
        Pool,
    )

    tt = theano.tensor
    x = tt.tensor("float64", (False,) * rank)
    ws = (2,) * ndim
    array = RNG.normal(size=(2, 3, 5, 4, 4)[5 - rank :])
    y = Pool(True, "max", ndim)(x, ws)
    if rank == ndim + 2:
        assert isinstance(y.owner.op, Pool)
    average = Pool(ndim=ndim, mode="average_exc_pad", ignore_border=True)(x, ws, ws, (1,) * ndim)
    grads = [
        MaxPoolGrad(True, ndim)(x, y, tt.ones_like(y), ws),
        AveragePoolGrad(True, "average_exc_pad", ndim)(
            x, tt.ones_like(average), ws, stride=ws, pad=(1,) * ndim
        ),
    ]
    if rank == ndim + 2:
        assert isinstance(grads[0].owner.op, MaxPoolGrad)
    derived = [theano.grad(z.sum(), x) for z in (y, average)]
    picked = DownsampleFactorMaxGradGrad(True, ndim=ndim)(x, y, x, ws)
    *found, value, again = theano.function([x], [*grads, *derived, y, picked])(array)
    assert_allclose(found[0], found[2])
    assert_allclose(found[1], found[3])
    assert_allclose(value, again)


@pytest.mark.parametrize("mode", ["max", "sum", "average_inc_pad", "average_exc_pad"])
@pytest.mark.parametrize("ignore_border", [True, False])
@pytest.mark.parametrize("shape", [(2, 3, 5, 4, 3, 6), (1, 4, 3, 2, 3, 2)])
def test_pooling_of_more_than_three_axes(theano: Any, mode: str, ignore_border: bool, shape: Any):
    ndim = 4 if shape[0] == 2 else 5
    ws, stride = (3, 2, 2, 4, 2)[-ndim:], (1, 2, 3, 2, 1)[-ndim:]
    pad = (1, 1, 0, 2, 0)[-ndim:] if ignore_border else (0,) * ndim
    x = RNG.normal(size=shape)
    low = np.finfo(float).min if mode == "max" else 0.0
    edges = [(0, 0)] * (len(shape) - ndim) + [(p, p) for p in pad]
    padded = np.pad(x, edges, constant_values=low)
    inside = np.pad(np.ones(shape[-ndim:]), edges[-ndim:])
    pool = theano.tensor.signal.pool.Pool
    wanted_shape = pool.out_shape(shape, ws, ignore_border, stride, pad, ndim)
    wanted = np.zeros(wanted_shape)
    for at in np.ndindex(*wanted_shape[-ndim:]):
        window = tuple(slice(i * s, i * s + w) for i, s, w in zip(at, stride, ws, strict=True))
        values = padded[(..., *window)].reshape(*shape[:-ndim], -1)
        number = inside[window].sum() if mode == "average_exc_pad" else values.shape[-1]
        one = values.max(-1) if mode == "max" else values.sum(-1)
        wanted[(..., *at)] = one / number if mode.startswith("average") else one
    variable = theano.tensor.TensorType("float64", (False,) * len(shape))()
    op = pool(ignore_border, mode, ndim)
    f = theano.function([variable], op(variable, ws, stride, pad))
    assert_allclose(f(x), wanted, rtol=1e-12)
    whole = (10 * x).astype("int32")
    if mode.startswith("average"):
        with pytest.raises(
            DnnTypeError, match=f"averages over {ndim} axes need a floating-point x"
        ):
            op(whole, ws)
    else:
        both = [op(whole, ws, stride, pad), op(whole.astype("float64"), ws, stride, pad)]
        found, exact = theano.function([], both)()
        assert found.dtype == "int32"
        np.testing.assert_array_equal(found, exact)


def test_shapes_of_pooling(theano: Any):
    from theano.tensor.signal.pool import Pool

    assert Pool.out_shape((9, 8, 6), (2, 2)) == [9, 4, 3]
    assert Pool.out_shape((10, 9), (2, 3), ignore_border=True, stride=(1, 2)) == [9, 4]
    assert Pool.out_shape((10, 9), ds=(2, 3), ignore_border=True, padding=(1, 1)) == [6, 3]


def test_softmax_and_cross_entropies(theano: Any):
    from theano.tensor.nnet import (
        CrossentropyCategorical1Hot,
        CrossentropySoftmaxArgmax1HotWithBias,
        LogSoftmax,
        Prepend_scalar_constant_to_each_row,
        Softmax,
        SoftmaxGrad,
        SoftmaxWithBias,
        softmax_op,
    )

    x, b = theano.tensor.dmatrix(), theano.tensor.dvector()
    sm = Softmax()(x)
    assert isinstance(sm.owner.op, Softmax)
    assert isinstance(LogSoftmax()(x).owner.op, LogSoftmax)
    made = [
        sm,
        softmax_op(x),
        SoftmaxWithBias()(x, b),
        CrossentropySoftmaxArgmax1HotWithBias()(x, b, LABELS)[1],
        SoftmaxGrad()(x, sm),
        CrossentropyCategorical1Hot()(sm, LABELS),
        Prepend_scalar_constant_to_each_row(5.0)(x),
    ]
    found = theano.function([x, b], made)(ROWS, np.zeros(5))
    e = np.exp(ROWS)
    wanted = e / e.sum(1, keepdims=True)
    for result in found[:4]:
        assert_allclose(result, wanted)
    assert_allclose(found[4], wanted * (ROWS - (ROWS * wanted).sum(1, keepdims=True)))
    assert_allclose(found[5], -np.log(wanted[np.arange(4), LABELS]))
    assert_allclose(found[6], np.insert(ROWS, 0, 5, axis=1))


def test_others(theano: Any):
    from theano.tensor.nnet.blocksparse import SparseBlockGemv, sparse_block_dot
    from theano.tensor.nnet.bn import AbstractBatchNormInference, AbstractBatchNormTrain
    from theano.tensor.nnet.ctc import ConnectionistTemporalClassification, ctc_available
    from theano.tensor.nnet.neighbours import Images2Neibs

    x = theano.tensor.dtensor4()
    scale = np.ones((1, 3, 1, 1))
    out = AbstractBatchNormTrain((0, 2, 3))(x, scale, scale)[0]
    assert isinstance(out.owner.op, AbstractBatchNormTrain)
    given = AbstractBatchNormInference((0, 2, 3))(x, scale, scale, scale, scale)
    assert isinstance(given.owner.op, AbstractBatchNormInference)
    weights, h = RNG.normal(size=(2, 2, 3, 4)), RNG.normal(size=(1, 2, 3))
    index, bias = np.array([[0, 1]]), RNG.normal(size=(2, 4))
    dot = sparse_block_dot(weights, h, index, bias, index)
    gemv = SparseBlockGemv()(bias[index], theano.tensor.as_tensor(weights), h, index, index)
    neighbours = Images2Neibs("full")(x, (2, 2), (1, 1))
    own = dnnops.nnet.images2neibs(x, (2, 2), (1, 1), mode="full")
    results = theano.function([x], [dot, neighbours, gemv, own])(IMAGE)
    for found, wanted in zip(results[:2], results[2:], strict=True):
        assert_allclose(found, wanted)
    assert ctc_available()
    loss = ConnectionistTemporalClassification()(theano.tensor.ftensor3(), [[1]], [2])
    assert isinstance(loss.owner.op, ConnectionistTemporalClassification)


def test_videos_padded_by_several_modes(theano: Any):
    from theano.tensor.nnet.conv3d2d import conv3d

    videos, taps = RNG.normal(size=(2, 5, 3, 6, 6)), RNG.normal(size=(4, 2, 3, 3, 2))
    mixed = conv3d(videos, taps, border_mode=("full", "half", "valid"))
    first = (0, 2, 1, 3, 4)
    padded = dnnops.nnet.conv3d(
        videos.transpose(first), taps.transpose(first), border_mode=(1, 1, 0)
    )
    found, wanted = theano.function([], [mixed, padded.dimshuffle(first)])()
    assert_allclose(found, wanted)


def test_convolutions_of_older_arguments(theano: Any):
    for name in ("imshp_logical", "kshp_logical"):
        with pytest.raises(DnnValueError, match=name):
            theano.tensor.nnet.conv2d(IMAGE, FILTERS, **{name: (1, 1)})
