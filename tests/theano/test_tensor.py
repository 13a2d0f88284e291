"""Functions with Theano's arguments or names."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import dnnops.nnet
from dnnops.errors import DnnTypeError, DnnValueError, DnnWarning

X = np.arange(12.0).reshape(3, 4)


def test_functions_of_arrays(theano: Any):
    tt = theano.tensor
    x, v = tt.matrix("x", "float64"), tt.vector(dtype="float64")
    cases = [
        (tt.stack(v, v + 1), np.stack([X[0], X[0] + 1])),
        (tt.stack([v, v + 1], 1), np.stack([X[0], X[0] + 1], 1)),
        (tt.stack([v, v], axis=-1), np.stack([X[0], X[0]], 1)),
        (tt.flatten(x), X.ravel()),
        (tt.flatten(x, outdim=2), X),
        (tt.flatten(tt.stack([x, x]), 2), np.stack([X, X]).reshape(2, 12)),
        (tt.abs_(-x), X),
        (tt.inv(x + 1), 1 / (X + 1)),
        (tt.clip(x, max=5, min=2), X.clip(2, 5)),
        (tt.switch(cond=tt.gt(x, 3), ift=x, iff=-x), np.where(X > 3, X, -X)),
        (tt.tile(v, (2,), ndim=2), np.tile(X[0], (1, 2))),
        (tt.repeat(x=x, repeats=2, axis=1), X.repeat(2, 1)),
        (tt.mean(x, 0, "float64", False, True), X.mean(0, keepdims=True)),
        (tt.split(x, [1, 2], 2, 0)[1], X[1:]),
        (tt.choose([1, 0, 1, 0], tt.stack([v, -v])), np.choose([1, 0, 1, 0], [X[0], -X[0]])),
        (tt.unravel_index(np.array([5]), (3, 4), ndim=1)[0], [1]),
        (tt.batched_tensordot(x, x, [[1], [1]]), (X * X).sum(1)),
        (tt.patternbroadcast(x[:, :1], (False, True)) + x, X[:, :1] + X),
        (tt.addbroadcast(x[:1], 0) + x, X[:1] + X),
        (theano.gradient.consider_constant(x), X),
    ]
    results = theano.function([x, v], [graph for graph, _ in cases])(X, X[0])
    for index, (result, (_, expected)) in enumerate(zip(results, cases, strict=True)):
        assert_allclose(result, expected, err_msg=f"case {index}")


def test_batched_tensordot_sums_over_several_axes(theano: Any):
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 3, 4, 5)), rng.normal(size=(2, 5, 4, 6))
    x, y = theano.tensor.dtensor4s("x", "y")
    f = theano.function([x, y], theano.tensor.batched_tensordot(x, y, [[2, 3], [2, 1]]))
    assert_allclose(f(a, b), np.einsum("nijk,nkjl->nil", a, b))
    f = theano.function([x, y], theano.tensor.batched_tensordot(x, y.swapaxes(1, 2), 2))
    assert_allclose(f(a, b), np.einsum("nijk,nkjl->nil", a, b))


@pytest.mark.parametrize(
    ("axes", "subscripts"),
    [
        ([2, 2], "nij,nkj->nik"),
        ((np.int64(2), -1), "nij,nkj->nik"),
        (np.array([[2, 1], [1, 2]]), "nij,nji->n"),
        (((2,), [1]), "nij,njk->nik"),
        ([[], []], "nij,nkl->nijkl"),
        (1, "nij,njk->nik"),
        (np.int64(2), "nij,nij->n"),
        (0, "nij,nkl->nijkl"),
    ],
)
def test_axes_of_batched_tensordot(theano: Any, axes: Any, subscripts: str):
    a, b = np.random.default_rng(0).normal(size=(2, 3, 4, 4))
    dot = theano.tensor.batched_tensordot(a, b, axes=axes)
    assert_allclose(dot.eval(mode="FAST_COMPILE"), np.einsum(subscripts, a, b))


@pytest.mark.parametrize(
    ("shapes", "subscripts"),
    [
        (((2, 3, 4), (2, 4, 5)), "nij,njk->nik"),
        (((2, 4), (2, 4, 5)), "nj,njk->nk"),
        (((2, 3, 4), (2, 4)), "nij,nj->ni"),
        (((2, 4), (2, 4)), "nj,nj->n"),
        (((2,), (2, 4, 5)), "n,njk->njk"),
        (((2, 4), (2,)), "nj,n->nj"),
        (((2, 6, 3, 4), (2, 4, 5)), "nhij,njk->nhik"),
        (((2, 3, 4), (2, 5, 4, 6)), "nij,nhjk->nihk"),
    ],
)
def test_batched_dot(theano: Any, shapes: Any, subscripts: str):
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=shape) for shape in shapes)
    dot = theano.tensor.batched_dot(a, b)
    assert_allclose(dot.eval(mode="FAST_COMPILE"), np.einsum(subscripts, a, b))


def test_functions_that_pytensor_warns_about(theano: Any):
    tt = theano.tensor
    x = tt.dvector()
    f = theano.function([x], [tt.sgn(x), tt.chi2sf(x, 2)])
    sign, survival = f([-2.0, 0.0, 3.0])
    assert_array_equal(sign, [-1, 0, 1])
    assert_allclose(survival[1:], [1, np.exp(-1.5)])
    with pytest.raises(DnnTypeError, match="batch axis"):
        tt.batched_dot(1.0, x)


@pytest.mark.parametrize("axes", [3, -1, [0, 1], [[1, 2], [1]], [1, 2, 1], [3, 1], [[1], [-3]]])
def test_bad_axes_of_batched_tensordot(theano: Any, axes: Any):
    x = theano.tensor.tensor3()
    with pytest.raises(DnnValueError, match="batched_tensordot: "):
        theano.tensor.batched_tensordot(x, x, axes)


def test_patterns_of_broadcasting(theano: Any):
    tt = theano.tensor
    column = tt.tensor("float32", (False, True), "c")
    assert column.type == tt.TensorType("float32", (False, True))
    assert column.broadcastable == (False, True)
    assert tt.unbroadcast(column, 1).broadcastable == (False, False)
    assert tt.unbroadcast(column, 0) is column
    assert tt.addbroadcast(tt.matrix(), 0).broadcastable == (True, False)
    assert tt.patternbroadcast(column, (True, False)).broadcastable == (True, False)
    value = np.ones((2, 1), "float32")
    assert_array_equal(theano.function([column], tt.unbroadcast(column, 1))(value), value)
    assert theano.shared(np.ones((1, 3)), broadcastable=(True, False)).broadcastable == (
        True,
        False,
    )
    assert theano.shared(np.ones((1, 3)), "name", borrow=True).broadcastable == (False, False)
    assert theano.shared(2.0, broadcastable=()).get_value() == 2.0


def test_bad_arguments(theano: Any):
    tt = theano.tensor
    with pytest.raises(DnnValueError, match="ndim or outdim"):
        tt.flatten(tt.matrix(), 1, outdim=1)
    with pytest.raises(DnnValueError, match="out must be None"):
        tt.choose([0], [[1]], out=tt.vector())
    with pytest.raises(DnnTypeError, match=r"conv2d: filters has 4 dimensions; expected 2 or 3"):
        theano.tensor.signal.conv.conv2d(tt.matrix(), tt.tensor4())


def test_functions(theano: Any):
    tt = theano.tensor
    x, y = tt.dscalars("x", "y")
    f = theano.function([x, theano.In(y, value=2.0)], x - y)
    assert (f(3.0), f(3.0, 1.0), f(x=3.0), f(3.0, y=0.0), f(y=0.0, x=1.0)) == (1, 2, 1, 3, 1)
    with pytest.raises(TypeError):
        f()
    f = theano.function([x, theano.Param(y, default=2.0)], {"sum": x + y, "product": x * y})
    assert f(3.0) == {"sum": 5.0, "product": 6.0}
    assert f(3.0, 4.0) == {"sum": 7.0, "product": 12.0}
    assert len(f.maker.fgraph.outputs) == 2
    total = theano.shared(0.0)
    updates = theano.OrderedUpdates([(total, total + x)]) + {}
    f = theano.function([x], updates=updates, mode="FAST_RUN", allow_input_downcast=True)
    with theano.config.change_flags(linker="py"):
        f = theano.function([x], updates=updates, mode="FAST_RUN", allow_input_downcast=True)
    f(2)
    f(3)
    assert total.get_value() == 5.0
    assert theano.clone(x + y, {x: y}).eval({y: 2.0}) == 4.0
    assert theano.gof.graph.is_same_graph(x + y, x + y)
    assert not theano.gof.graph.is_same_graph(x + y, y + x)
    assert theano.gof.graph.is_same_graph(x + y, y + y, givens={x: y})
    assert theano.sparse_grad(x) is x


def test_older_convolutions_and_pools(theano: Any):
    """Results equal those of `dnnops.nnet`, whose own tests have an oracle."""
    rng = np.random.default_rng(1)
    tt = theano.tensor
    images, filters = rng.normal(size=(2, 3, 7, 6)), rng.normal(size=(4, 3, 3, 2))
    videos, taps = rng.normal(size=(2, 5, 3, 6, 6)), rng.normal(size=(4, 2, 3, 3, 2))
    expected = dnnops.nnet.conv2d(images, filters)
    old = tt.nnet.conv.conv2d(images, filters, (2, 3, 7, 6), (4, 3, 3, 2), unroll_kern=2)
    with pytest.warns(DnnWarning, match="conv2d: the arguments unroll_batch"):
        new = tt.nnet.conv2d(images, filters, subsample=(2, 2), unroll_batch=1)
    signal = tt.signal.conv.conv2d(images[:, 0], filters[:, 0], border_mode="full")
    one = tt.signal.conv.conv2d(images[0, 0], filters[0, 0], (7, 6), (3, 2))
    one_image = tt.signal.conv.conv2d(images[0, 0], filters[:, 0])
    one_filter = tt.signal.conv.conv2d(images[:, 0], filters[0, 0])
    whole = dnnops.nnet.conv2d(images[:, :1], filters[:, :1], border_mode="full")
    single = dnnops.nnet.conv2d(images[:, :1], filters[:, :1])
    by_time = tt.nnet.conv3d2d.conv3d(videos, taps, (2, 5, 3, 6, 6), border_mode=("valid",) * 3)
    by_channel = dnnops.nnet.conv3d(videos.swapaxes(1, 2), taps.swapaxes(1, 2))
    pooled = tt.signal.downsample.max_pool_2d(images, (2, 2), st=(1, 1), ignore_border=True)
    pooled_3d = tt.signal.pool.max_pool_3d(videos, (2, 2, 2), True)
    results = theano.function([], [old, new, signal, one, one_image, one_filter, by_time])()
    old, new, signal, one, one_image, one_filter, by_time = results
    results = theano.function([], [pooled, pooled_3d, expected, whole, single, by_channel])()
    pooled, pooled_3d, expected, whole, single, by_channel = results
    assert_allclose(old, expected)
    assert_allclose(new, expected[:, :, ::2, ::2])
    assert_allclose(signal, whole)
    assert_allclose(one, single[0, 0])
    assert_allclose(one_image, single[0])
    assert_allclose(one_filter, single[:, 0])
    assert_allclose(by_time, by_channel.swapaxes(1, 2))
    windows = np.lib.stride_tricks.sliding_window_view(images, (2, 2), axis=(2, 3))
    assert_array_equal(pooled, windows.max((-1, -2)))
    windows = np.lib.stride_tricks.sliding_window_view(videos, (2, 2, 2), axis=(2, 3, 4))
    assert_array_equal(pooled_3d, windows[:, :, ::2, ::2, ::2].max((-1, -2, -3)))


def test_scan_gives_updates(theano: Any):
    tt = theano.tensor
    count = theano.shared(0)
    x = tt.dvector("x")
    outputs, updates = theano.scan(
        lambda item, total: (total + item, {count: count + 1}),
        sequences=x,
        outputs_info=tt.constant(np.float64(0)),
    )
    f = theano.function([x], outputs[-1], updates=updates + {})
    assert f([1, 2, 3]) == 6
    assert count.get_value() == 3


def test_devices_functions_build_graphs(theano: Any):
    from theano.gpuarray.basic_ops import gpu_contiguous, gpu_from_host, host_from_gpu
    from theano.sandbox.cuda.blas import GpuCorrMM

    x, w = theano.tensor.ftensor4s("x", "w")
    assert type(gpu_contiguous(x).owner.op).__name__ == "GpuContiguous"
    assert host_from_gpu(gpu_from_host(x)).type.dtype == "float32"
    assert GpuCorrMM(subsample=(2, 2), pad=(1, 1))(x, w).ndim == 4
    basic_ops = theano.gpuarray.basic_ops
    assert basic_ops.GpuAllocEmpty("float16", None)(2, 3).type.dtype == "float16"
    assert basic_ops.gpu_alloc_empty(2, 3).type.shape == (2, 3)
    assert basic_ops.GpuAlloc(None)(x[0, 0, 0, 0], 2).ndim == 1
    assert basic_ops.GpuEye("float32")(2, 3, 0).ndim == 2
    assert basic_ops.GpuReshape(1)(x, [-1]).ndim == 1
    assert basic_ops.GpuJoin()(0, x, w).ndim == 4
    assert len(basic_ops.GpuSplit(2)(x, 0, [1, 2])) == 2
    assert theano.gpuarray.pygpu_activated is False


@pytest.mark.parametrize("kind", [dict, list])
def test_an_update_may_have_size_one(theano: Any, kind: Any):
    """PyTensor's types have static sizes, which Theano's did not."""
    kept = theano.shared(np.zeros((2, 2)), "kept")
    row = theano.tensor.ones((3, 1))
    f = theano.function([], [], updates=kind([(kept, row)]) if kind is list else {kept: row})
    f()
    assert_array_equal(kept.get_value(), np.ones((3, 1)))
