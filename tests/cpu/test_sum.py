"""Sums over some axes on the CPU."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from hypothesis import strategies as st

from dnnops.cpu.sum import CpuSum, kept_axes
from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.nnet import relu
from tests.cpu.conv.test_conv import restrided
from tests.linkers import LINKERS
from tests.oracle import assert_close, fuzz, run_op

SEEDS = st.integers(0, 2**32 - 1)
#: Shapes for which several threads, columns in groups and parts of rows are used.
LARGE = [
    (3, 5000),
    (5000, 3),
    (1, 40000),
    (40000, 1),
    (7, 1100, 9),
    (600, 700),
    (2, 3, 9000),
    (1000, 1, 33),
]


@st.composite
def cases(draw: st.DrawFn) -> tuple[tuple[int, ...], int, int, tuple[int, ...], int]:
    """Return a shape, the axes that are kept, the order of axes in memory, and a seed."""
    small = st.lists(st.integers(0, 12), min_size=0, max_size=5).map(tuple)
    shape = draw(st.one_of(small, st.sampled_from(LARGE)))
    first = draw(st.integers(0, len(shape)))
    last = draw(st.integers(first, len(shape)))
    return shape, first, last, tuple(draw(st.permutations(range(len(shape))))), draw(SEEDS)


def reference(x: np.ndarray, first: int, last: int) -> np.ndarray:
    axes = tuple(i for i in range(x.ndim) if not first <= i < last)
    return x.astype("float64").sum(axis=axes)


@fuzz(max_examples=150, case=cases())
def test_random(case):
    shape, first, last, order, seed = case
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal(shape) + 1).astype("float32")
    x = x.transpose(order).copy().transpose(np.argsort(order))
    for data in (x, restrided(rng, x) if shape else x):
        out = run_op(CpuSum(first, last), data)
        assert_close(out, reference(x, first, last), bound=1e-6, allow_zero=True)
    x = rng.integers(-3, 4, shape).astype("float32")
    out = run_op(CpuSum(first, last), restrided(rng, x) if shape else x)
    np.testing.assert_array_equal(out, reference(x, first, last))


def test_broadcast_and_reversed_arrays():
    x = np.arange(12, dtype="float32").reshape(3, 4)
    np.testing.assert_array_equal(run_op(CpuSum(0, 1), x[::-1]), x[::-1].sum(axis=1))
    wide = np.broadcast_to(x[:, None, :], (3, 5, 4))
    np.testing.assert_array_equal(run_op(CpuSum(2, 3), wide), wide.sum(axis=(0, 1)))


def test_long_sums_are_accurate():
    x = np.full((16, 1, 512, 512), 0.1, "float32")
    for data in (x, x.reshape(-1, 4)):
        out = run_op(CpuSum(1, 2), data)
        expected = np.float64(np.float32(0.1)) * x.size / out.size
        assert out == pytest.approx(np.full(out.shape, expected), rel=1e-7)


def test_digits_of_large_numbers():
    """Partial sums may exceed the range of float32."""
    large, small = 3e38, 2.0**100
    x = np.array([large] * 40 + [-large] * 40 + [small], "float32")
    assert run_op(CpuSum(0, 0), x[None].repeat(2, 0)) == 2 * small
    np.testing.assert_array_equal(run_op(CpuSum(1, 2), x[:, None].repeat(40, 1)), [small] * 40)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite(value):
    x = np.ones((70, 70), "float32")
    x[3, 5] = value
    for first in (0, 1):
        out = run_op(CpuSum(first, first + 1), x)
        np.testing.assert_array_equal(out, x.sum(axis=1 - first))


def test_axes():
    assert kept_axes(4, (0, 2, 3)) == (1, 2)
    assert kept_axes(4, (2, 3)) == (0, 2)
    assert kept_axes(3, (0, 1)) == (2, 3)
    assert kept_axes(3, None) == (0, 0)
    assert kept_axes(3, ()) == (0, 3)
    assert kept_axes(4, (1,)) is None
    assert kept_axes(0, None) == (0, 0)


@LINKERS
def test_sums_of_a_network(mode):
    """Sums next to other Ops of oneDNN are replaced; those between axes that stay are not."""
    x = pt.tensor("x", dtype="float32", shape=(None, 3, None))
    y = pt.special.softmax(relu(x), axis=1)
    outputs = [y.sum(axis=(0, 2)), y.sum(), y.mean(axis=2), y.sum(axis=0), y.sum(axis=1)]
    fn = pytensor.function([x], outputs, mode=mode)
    ops = [type(node.op).__name__ for node in fn.maker.fgraph.apply_nodes]
    assert (ops.count("CpuSum"), ops.count("Sum")) == (4, 1)
    plain = pytensor.function(
        [x], outputs, mode=pytensor.compile.get_mode("CVM").excluding("onednn")
    )
    value = np.random.default_rng(0).standard_normal((6, 3, 50)).astype("float32")
    for got, wanted in zip(fn(value), plain(value), strict=True):
        assert_close(got, wanted, bound=1e-6)
        assert got.shape == wanted.shape


def test_gradient():
    x = pt.tensor("x", dtype="float32", shape=(2, 3, 4))
    out = CpuSum(1, 2)(x)
    (gradient,) = pytensor.grad((out * np.arange(3, dtype="float32")).sum(), [x])
    value = gradient.eval({x: np.zeros((2, 3, 4), "float32")})
    np.testing.assert_array_equal(value, np.broadcast_to(np.arange(3)[:, None], (2, 3, 4)))


def test_errors():
    with pytest.raises(DnnTypeError, match="at least 2 axes"):
        CpuSum(1, 2).make_node(np.zeros(2, "float32"))
    with pytest.raises(DnnTypeError, match="float32 array"):
        CpuSum(0, 1).make_node(np.zeros(2))
    with pytest.raises(DnnValueError, match="first <= last, got 2 and 1"):
        CpuSum(2, 1)
