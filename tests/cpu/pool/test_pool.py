"""Pooling on oneDNN and in loops: against the float64 oracle, through every linker."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from hypothesis import strategies as st

from dnnops.cpu.pool import (
    OneDnnAveragePoolGrad,
    OneDnnMaxPoolGrad,
    OneDnnMaxPoolGradGrad,
    OneDnnPool,
)
from dnnops.errors import DnnValueError
from dnnops.nnet import pool_2d
from dnnops.nnet.pool.op import AveragePoolGrad, MaxPoolGrad, MaxPoolGradGrad, Pool
from tests.cpu.conv.test_conv import in_double, restrided
from tests.linkers import EVERY_LINKER
from tests.oracle import PoolCase, assert_close, fuzz, pool_cases, run_op

DTYPES = ("float32", "float64")
AVERAGES = ("sum", "average_inc_pad", "average_exc_pad")


def check(backend, abstract, arrays, seed):
    rng = np.random.default_rng(seed)
    strided = [restrided(rng, a) if a.dtype.kind == "f" else a for a in arrays]
    assert_close(run_op(backend, *strided), run_op(abstract, *in_double(arrays)), allow_zero=True)


@pytest.mark.parametrize("dtype", DTYPES)
@fuzz(max_examples=80, case=pool_cases(empty=True), ties=st.booleans())
def test_forward(dtype, case, ties):
    x, _, _ = case.arrays(dtype, ties)
    params = (case.ndim, case.mode, case.ignore_border)
    check(OneDnnPool(*params), Pool(*params), (x, *case.vectors), case.seed)


@pytest.mark.parametrize("dtype", DTYPES)
@fuzz(max_examples=60, case=pool_cases(modes=("max",), empty=True), ties=st.booleans())
def test_gradients_of_maxima(dtype, case, ties):
    x, gz, ggx = case.arrays(dtype, ties)
    maxout = run_op(Pool(case.ndim, "max", case.ignore_border), x, *case.vectors)
    params = (case.ndim, case.ignore_border)
    first = (x, maxout, gz, *case.vectors)
    check(OneDnnMaxPoolGrad(*params), MaxPoolGrad(*params), first, case.seed)
    second = (x, maxout, ggx, *case.vectors)
    check(OneDnnMaxPoolGradGrad(*params), MaxPoolGradGrad(*params), second, case.seed)


@pytest.mark.parametrize("dtype", DTYPES)
@fuzz(max_examples=60, case=pool_cases(modes=AVERAGES, empty=True))
def test_gradients_of_averages(dtype, case):
    x, gz, _ = case.arrays(dtype)
    params = (case.ndim, case.mode, case.ignore_border)
    operands = (x, gz, *case.vectors)
    check(OneDnnAveragePoolGrad(*params), AveragePoolGrad(*params), operands, case.seed)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", ["max", *AVERAGES])
@pytest.mark.parametrize("spatial", [(7, 7), (1, 1), (3, 5), (16,), (5, 4, 9)])
def test_one_window_with_the_whole_image(spatial, mode, dtype):
    """The window may reach beyond the image, into padding that counts or does not."""
    ndim = len(spatial)
    for padding in (0, 1):
        window = tuple(n + 2 * padding for n in spatial)
        case = PoolCase((2, 3, *spatial), window, window, (padding,) * ndim, mode, True, 5)
        assert case.out_shape == (2, 3, *(1,) * ndim)
        x, gz, _ = case.arrays(dtype)
        params = (ndim, mode, True)
        check(OneDnnPool(*params), Pool(*params), (x, *case.vectors), case.seed)
        if mode != "max":
            operands = (x, gz, *case.vectors)
            check(OneDnnAveragePoolGrad(*params), AveragePoolGrad(*params), operands, case.seed)
            continue
        x[0, 1].flat[-1] = x[1, 0].flat[0] = np.nan
        maxima = run_op(OneDnnPool(*params), x, *case.vectors)
        np.testing.assert_array_equal(maxima, run_op(Pool(*params), x, *case.vectors))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [8, 9])
def test_nan_is_the_maximum(dtype, size):
    x = np.arange(2 * 3 * size * size, dtype=dtype).reshape(2, 3, size, size)
    x[0, 1, 2, 3] = np.nan
    x[1, 2, 0, 0] = np.nan
    vectors = [np.array(v) for v in ([2, 2], [2, 2], [0, 0])]
    out = run_op(OneDnnPool(2, "max", True), x, *vectors)
    np.testing.assert_array_equal(out, run_op(Pool(2, "max", True), x, *vectors))


@EVERY_LINKER
@pytest.mark.parametrize("pool_mode", ["max", "average_exc_pad"])
def test_linkers(mode, pool_mode):
    """Window, stride and padding are operands, so one compiled function serves them all."""
    x = pt.tensor4("x", dtype="float32")
    ws, stride, pad = (pt.lvector(name) for name in ("ws", "stride", "pad"))
    out = pool_2d(x, ws, ignore_border=True, stride=stride, pad=pad, mode=pool_mode)
    top = pt.tensor4("top", dtype="float32")
    grad = pytensor.grad(None, x, known_grads={out: top})
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        fn = pytensor.function([x, ws, stride, pad, top], [out, grad], mode=mode)
        names = {type(node.op).__name__ for node in fn.maker.fgraph.apply_nodes}
        assert "OneDnnPool" in names
        assert names & {"OneDnnMaxPoolGrad", "OneDnnAveragePoolGrad"}
        rng = np.random.default_rng(3)
        for _ in range(20):
            window = tuple(rng.integers(1, 4, 2))
            case = PoolCase(
                img_shape=(
                    *rng.integers(1, 4, 2),
                    *np.add(window, rng.integers(0, 6, 2)),
                ),
                ws=window,
                stride=tuple(rng.integers(1, 4, 2)),
                pad=tuple(rng.integers(0, window)),
                mode=pool_mode,
                ignore_border=True,
                seed=int(rng.integers(2**32)),
            )
            image, gz, _ = case.arrays("float32")
            result, result_grad = fn(image, *case.vectors, gz)
            operands = in_double((image, *case.vectors))
            reference = run_op(Pool(2, pool_mode, True), *operands)
            assert_close(result, reference, allow_zero=True)
            if pool_mode == "max":
                arrays = (image, reference, gz, *case.vectors)
                expected = run_op(MaxPoolGrad(2, True), *in_double(arrays))
            else:
                arrays = (image, gz, *case.vectors)
                expected = run_op(AveragePoolGrad(2, pool_mode, True), *in_double(arrays))
            assert_close(result_grad, expected, allow_zero=True)
    with pytest.raises(DnnValueError, match="smaller than ws"):
        fn(image, np.array([1, 1]), np.array([1, 1]), np.array([1, 0]), gz)
    with pytest.raises(DnnValueError, match="positive"):
        fn(image, np.array([0, 1]), np.array([1, 1]), np.array([0, 0]), gz)


def in_wide_rows(case: PoolCase, window: int, stride: int, width: int) -> PoolCase:
    """Return a case with another last axis."""
    return replace(
        case,
        img_shape=(*case.img_shape[:-1], width),
        ws=(*case.ws[:-1], window),
        stride=(*case.stride[:-1], stride),
        pad=(*case.pad[:-1], min(case.pad[-1], window - 1)),
    )


@pytest.mark.parametrize("dtype", DTYPES)
@fuzz(
    max_examples=200,
    case=pool_cases(max_window=4),
    window=st.sampled_from([(2, 1), (2, 2), (3, 1), (3, 2)]),
    width=st.integers(1, 80),
    ties=st.booleans(),
    hard=st.booleans(),
)
def test_usual_windows_in_wide_rows(dtype, case, window, width, ties, hard):
    """These windows have loops of their own, which go through rows in whole vectors."""
    case = in_wide_rows(case, *window, width)
    x, gz, _ = case.arrays(dtype, ties)
    params = (case.ndim, case.mode, case.ignore_border)
    if case.mode != "max":
        # Only contiguous images take these loops.
        expected = run_op(Pool(*params), *in_double((x, *case.vectors)))
        assert_close(run_op(OneDnnPool(*params), x, *case.vectors), expected, allow_zero=True)
        return
    if hard:
        values = [-np.inf, -0.0, 0.0, np.inf, np.nan]
        odds = [0.7, 0.1, 0.1, 0.05, 0.05]
        x[...] = np.random.default_rng(case.seed).choice(values, x.shape, p=odds)
    out = run_op(OneDnnPool(*params), x, *case.vectors)
    np.testing.assert_array_equal(out, run_op(Pool(*params), x, *case.vectors))
    params = (case.ndim, case.ignore_border)
    operands = (x, out, gz, *case.vectors)
    check(OneDnnMaxPoolGrad(*params), MaxPoolGrad(*params), operands, case.seed)


@pytest.mark.parametrize("dtype", DTYPES)
def test_padded_slices(dtype):
    """With padding, windows of several depths contain the same lines of a single slice."""
    case = PoolCase((1, 2, 1, 6, 31), (2, 2, 2), (1, 3, 2), (1, 1, 0), "max", True, 3)
    x, gz, _ = case.arrays(dtype)
    out = run_op(OneDnnPool(3, "max", True), x, *case.vectors)
    np.testing.assert_array_equal(out, run_op(Pool(3, "max", True), x, *case.vectors))
    operands = (x, out, gz, *case.vectors)
    check(OneDnnMaxPoolGrad(3, True), MaxPoolGrad(3, True), operands, case.seed)


def test_windows_far_larger_than_the_image():
    x = np.random.default_rng(0).standard_normal((2, 3, 6, 6)).astype("float32")
    vectors = [np.array(v) for v in ([2, 2**26], [1, 1], [0, 0])]
    out = run_op(OneDnnPool(2, "max", False), x, *vectors)
    assert out.shape[-1] == 1
    np.testing.assert_array_equal(out[..., 0], np.maximum(x[:, :, 1:], x[:, :, :-1]).max(-1))


@pytest.mark.parametrize("which", range(3))
def test_windows_past_26_bits_are_refused(which):
    x = pt.tensor4("x", dtype="float32")
    vectors = [pt.lvector() for _ in range(3)]
    fn = pytensor.function([x, *vectors], OneDnnPool(2, "max", True)(x, *vectors), mode="CVM")
    values = [np.array(v) for v in ([2, 2], [1, 1], [0, 0])]
    values[which][1] = 2**26 + 1
    with pytest.raises(DnnValueError, match="at most 67108864"):
        fn(np.ones((1, 1, 4, 4), "float32"), *values)
