"""Hierarchical softmax, same-size pooling, and elementwise batch normalization."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from scipy.special import softmax

from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.nnet import batch_normalization, h_softmax, max_pool_2d_same_size
from tests.oracle import assert_close, check_gradient, evaluate

RNG = np.random.default_rng(13)


def test_hierarchical_softmax():
    batch, features, classes, per_class, outputs = 4, 5, 3, 4, 11
    shapes = (batch, features), (features, classes), classes
    shapes += (classes, features, per_class), (classes, per_class)
    arrays = [RNG.standard_normal(s) for s in shapes]
    inputs = [pt.tensor(dtype="float64", shape=(None,) * a.ndim) for a in arrays]
    x, w1, b1, w2, b2 = arrays
    expected = np.zeros((batch, classes * per_class))
    for row in range(batch):
        first = softmax(x[row] @ w1 + b1)
        for k in range(classes):
            second = softmax(x[row] @ w2[k] + b2[k])
            expected[row, k * per_class : (k + 1) * per_class] = first[k] * second
    np.testing.assert_allclose(expected.sum(axis=1), 1)

    def made(*v, target=None):
        return h_softmax(v[0], batch, outputs, classes, per_class, *v[1:], target)

    labels = RNG.integers(0, outputs, batch)
    outs = [made(*inputs), *(made(*inputs, target=t) for t in (labels, labels[:, None]))]
    found = evaluate(outs, dict(zip(inputs, arrays, strict=True)))
    assert_close(found[0], expected[:, :outputs])
    for out in found[1:]:
        assert_close(out, expected[np.arange(batch), labels])
    check_gradient(made, arrays)
    size = pt.lscalar()
    (out,) = evaluate(
        [h_softmax(inputs[0], size, outputs, classes, per_class, *inputs[1:], labels)],
        {**dict(zip(inputs, arrays, strict=True)), size: batch},
    )
    assert_close(out, expected[np.arange(batch), labels])
    with pytest.raises(DnnTypeError, match="h_softmax: W2 must have 3 dimensions, got 2"):
        made(*inputs[:3], pt.dmatrix(), inputs[4])


@pytest.mark.parametrize("mode", [None, "ONEDNN"])
def test_same_size_pooling(mode):
    value = RNG.integers(-4, 5, (2, 3, 7, 6)).astype("float32")
    x = pt.ftensor4()
    fn = pytensor.function([x], max_pool_2d_same_size(x, (2, 3)), mode=mode)
    expected = np.zeros_like(value)
    for b, c, i, j in np.ndindex(2, 3, 3, 2):
        here = (b, c, slice(2 * i, 2 * i + 2), slice(3 * j, 3 * j + 3))
        patch = value[here]
        at = np.unravel_index(patch.argmax(), patch.shape)
        expected[here][at] = patch[at]
    np.testing.assert_array_equal(fn(value), expected)
    with pytest.raises(DnnTypeError, match="max_pool_2d_same_size: input must have 4 dimensions"):
        max_pool_2d_same_size(pt.ftensor3(), (2, 2))


def test_same_size_pooling_gradient():
    x = RNG.permutation(2 * 6 * 4).reshape((1, 2, 6, 4)) / 8
    check_gradient(lambda v: max_pool_2d_same_size(v, (3, 2)), [x], allow_zero=True)


@pytest.mark.parametrize("mode", ["low_mem", "high_mem"])
def test_elementwise_batch_normalization(mode):
    x = RNG.standard_normal((4, 3, 2, 5))
    params = [RNG.uniform(0.5, 2, (1, 3, 1, 1)) for _ in range(4)]
    v = pt.dtensor4()
    made = [pt.tensor(dtype="float64", shape=(1, None, 1, 1)) for _ in params]
    (out,) = evaluate(
        [batch_normalization(v, *made, mode=mode)], dict(zip((v, *made), (x, *params), strict=True))
    )
    gamma, beta, mean, std = params
    assert_close(out, gamma * (x - mean) / std + beta)
    full = [np.broadcast_to(p, x.shape) for p in params]
    check_gradient(lambda *a: batch_normalization(*a, mode=mode), [x, *full])
    with pytest.raises(DnnValueError, match="mode must be one of low_mem, high_mem, got 'fast'"):
        batch_normalization(v, *made, mode="fast")
