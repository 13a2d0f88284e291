"""Operands whose strides oneDNN cannot describe are packed, not refused."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from numpy.lib.stride_tricks import sliding_window_view
from scipy.special import softmax

from dnnops.nnet import conv2d, pool_2d
from tests.linkers import LINKERS


def images(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    odd = rng.standard_normal((3, 3, 5, 6)).astype("float32")
    return {
        "every second of an odd number of rows": odd[:, :, ::2],
        "every second of an odd number of columns": odd.swapaxes(2, 3)[..., ::2],
        "every second of an odd batch": odd.swapaxes(0, 1)[::2],
        "overlapping windows": sliding_window_view(odd[:, :, 0], 3, axis=2),
        "broadcast rows": np.broadcast_to(odd[:, :, :1], odd.shape),
        "one row of a strided image": odd[:, :, 2:4, ::2],
        "reversed": odd[:, ::-1, :, ::-1],
    }


def padded_conv(x):
    filters = np.random.default_rng(1).standard_normal((2, 3, 2, 2)).astype("float32")
    return conv2d(x, pt.as_tensor(filters), border_mode=1)


OPERATIONS = {
    "conv": padded_conv,
    "average pool": lambda x: pool_2d(x, (2, 2), True, (1, 1), (1, 1), mode="average_exc_pad"),
    "max pool": lambda x: pool_2d(x, (2, 2), True, (1, 1), (1, 1)),
    "softmax": lambda x: pt.special.softmax(x, axis=1),
    "log-softmax": lambda x: pt.special.log_softmax(x, axis=-1),
}


@LINKERS
@pytest.mark.parametrize("operation", OPERATIONS)
def test_views_give_what_their_copies_give(operation, mode):
    x = pt.tensor("x", dtype="float32", shape=(None,) * 4)
    function = pytensor.function([x], OPERATIONS[operation](x), mode=mode)
    for name, image in images().items():
        expected = function(np.ascontiguousarray(image)).copy()
        np.testing.assert_allclose(function(image), expected, atol=1e-5, err_msg=name)


@LINKERS
def test_gradients_with_respect_to_views(mode):
    x, k, g = (pt.tensor(dtype="float32", shape=(None,) * 4) for _ in range(3))
    out = conv2d(x, k)
    grads = pytensor.grad(None, [x, k], known_grads={out: g})
    function = pytensor.function([x, k, g], grads, mode=mode)
    rng = np.random.default_rng(2)
    image = rng.standard_normal((2, 3, 6, 6)).astype("float32")
    filters = rng.standard_normal((4, 3, 5, 3)).astype("float32")[:, :, ::2]
    # The gradient of a sum: one number, broadcast.
    top = np.broadcast_to(np.float32(1.5), (2, 4, 4, 4))
    top_view = rng.standard_normal((2, 4, 7, 4)).astype("float32")[:, :, ::2]
    for topgrad in (top, top_view):
        expected = function(image, filters.copy(), topgrad.copy())
        for result, reference in zip(function(image, filters, topgrad), expected, strict=True):
            np.testing.assert_allclose(result, reference, atol=1e-4)


def test_softmax_over_a_strided_vector():
    v = pt.fvector("v")
    function = pytensor.function([v], pt.special.softmax(v), mode="CVM")
    values = np.random.default_rng(3).standard_normal(24).astype("float32")
    for view in (values[::3], values[::-1], np.broadcast_to(values[:1], (5,))):
        np.testing.assert_allclose(function(view), softmax(view), atol=1e-6)
