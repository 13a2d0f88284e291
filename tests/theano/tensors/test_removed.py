"""Functions and Op classes that PyTensor no longer has."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from dnnops.errors import DnnTypeError, DnnValueError

X = np.array([[3.0, 1.0, 2.0], [-1.0, 5.0, 0.5]])


def test_largest_elements(theano: Any):
    tt = theano.tensor
    x, k = tt.dmatrix("x"), tt.iscalar("k")
    down, up = -np.sort(-X, 1), np.sort(X, 1)
    cases = [
        (tt.topk(x, 2), down[:, :2]),
        (tt.argtopk(x, 2, sorted=False, idx_dtype="int32"), np.argsort(-X, 1)[:, :2]),
        (tt.topk(x, -2), up[:, 1::-1]),
        (tt.topk(x, 1, axis=0), X.max(0, keepdims=True)),
        (tt.topk(x, 3, axis=None), [5, 3, 2]),
        (tt.topk(x, k), down[:, :2]),
        (tt.topk_and_argtopk(x, -k)[1], np.argsort(X, 1)[:, 1::-1]),
        (theano.grad(tt.topk(x, 1).sum(), x), X.max(1, keepdims=True) == X),
    ]
    f = theano.function([x, k], [graph for graph, _ in cases])
    for index, (result, (graph, wanted)) in enumerate(zip(f(X, 2), cases, strict=True)):
        assert_array_equal(result, wanted, err_msg=f"case {index}")
        assert result.dtype == graph.dtype
    for count in (0, 4, -4):
        with pytest.raises(ValueError, match="kth must not be 0 or exceed"):
            f(X, count)
    with pytest.raises(DnnValueError, match="kth must not be 0"):
        tt.topk(x, 0)
    values, indices = tt.TopKOp(axis=1)(x, 1)
    assert (values.ndim, indices.dtype) == (2, "int64")
    assert tt.TopKOp(return_values=False)(x, 1).dtype == "int64"


def test_op_classes(theano: Any):
    tt = theano.tensor
    x = tt.dmatrix("x")
    cases = [
        (tt.Flatten(2)(x), X),
        (tt.Flatten()(x), X.ravel()),
        (tt.Tile(2)(x, (1, 2)), np.tile(X, (1, 2))),
        (tt.extra_ops.CumsumOp(axis=1)(x), X.cumsum(1)),
        (tt.extra_ops.CumprodOp()(x), X.cumprod()),
        (tt.extra_ops.DiffOp(n=1, axis=1)(x), np.diff(X)),
        (tt.extra_ops.RepeatOp(axis=0)(x, 2), X.repeat(2, 0)),
        (tt.Tri()(2, 3, 0), np.tri(2, 3)),
        (tt.MaxAndArgmax((1,))(x)[1], X.argmax(1)),
        (tt.Mean(axis=1)(x), X.mean(1)),
        (tt.Rebroadcast((0, True))(x[:1]) + x, X[:1] + X),
        (tt.div_proxy(x, 2), X / 2),
        (tt.div_proxy(tt.constant([7, 8]), 2), [3, 4]),
        (tt.isnan_(x), np.isnan(X)),
    ]
    f = theano.function([x], [graph for graph, _ in cases])
    for index, (result, (_, wanted)) in enumerate(zip(f(X), cases, strict=True)):
        assert_array_equal(result, wanted, err_msg=f"case {index}")
    assert tt.Rebroadcast((0, True))(x).broadcastable == (True, False)
    assert tt.Tensor("float32", (False,)) == tt.fvector
    assert tt.wmatrix().dtype == "int16"
    axes = tt.basic.check_and_normalize_axes
    assert (axes(x, None), axes(x, -1), axes(x, (0, 1))) == ([], [1], [0, 1])
    with pytest.raises(DnnValueError, match="out of range"):
        axes(x, 2)


def test_arrays_from_files(theano: Any, tmp_path: Any):
    """The example of Theano's docstring."""
    path = theano.Variable(theano.gof.generic)
    np.save(tmp_path / "stored.npy", np.arange(5))
    for mode in (None, "c"):
        f = theano.function([path], theano.tensor.load(path, "int64", (False,), mode) * 2)
        assert f(str(tmp_path / "stored.npy")).tolist() == [0, 2, 4, 6, 8]
    np.save(tmp_path / "other.npy", np.ones(5))
    with pytest.raises(DnnTypeError, match="float64; expected int64"):
        f(str(tmp_path / "other.npy"))
    with pytest.raises(DnnValueError, match="expected a file npy"):
        f("stored.npz")
    with pytest.raises(DnnValueError, match="mmap_mode"):
        theano.tensor.load(path, "int64", (False,), "r+")
    fixed = theano.tensor.load(str(tmp_path / "other.npy"), "float64", (False,))
    assert fixed.sum().eval(mode="FAST_COMPILE") == 5
