"""The order of axes in memory, on NumPy's arrays, which have the same attributes as CuPy's."""

from __future__ import annotations

import numpy as np
import pytest

from dnnops.gpuarray.layout import common_order, dense_order

SHAPE = (2, 6, 4, 5)
CHANNELS_LAST = (0, 2, 3, 1)


def channels_last(shape=SHAPE):
    order = [shape[axis] for axis in CHANNELS_LAST]
    return np.zeros(order, "float32").transpose(0, 3, 1, 2)


def test_dense_arrays():
    assert dense_order(np.zeros(SHAPE)) is None
    assert dense_order(channels_last()) == CHANNELS_LAST
    assert dense_order(channels_last()[:, :3]) is None


@pytest.mark.parametrize(
    ("operands", "expected"),
    [
        ([np.zeros(SHAPE)], None),
        ([channels_last()], CHANNELS_LAST),
        ([np.zeros((1, 6, 1, 1)), channels_last()], CHANNELS_LAST),
        ([np.zeros(SHAPE), channels_last()], None),
        # Arrays with gaps decide only if no other does.
        ([channels_last((2, 9, 4, 5))[:, :6]], CHANNELS_LAST),
        ([channels_last((2, 9, 4, 5))[:, :6], np.zeros(SHAPE)], None),
        ([np.zeros((2, 9, 4, 5))[:, :6]], None),
        ([np.zeros(SHAPE)[::-1, :, ::-1]], None),
        ([np.zeros((1, 6, 1, 1))], None),
    ],
)
def test_order_of_results(operands, expected):
    assert common_order(operands, SHAPE) == expected
