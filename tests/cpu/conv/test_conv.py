"""Convolution on oneDNN and BLAS: against the float64 oracle, through every linker."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from hypothesis import strategies as st

from dnnops.cpu.base import cache_statistics, clear_caches
from dnnops.cpu.conv import OneDnnConv, OneDnnConvGradInputs, OneDnnConvGradWeights
from dnnops.errors import DnnNotSupportedError, DnnTypeError, DnnValueError
from dnnops.nnet import Conv, ConvGradInputs, ConvGradWeights, conv2d
from tests.oracle import RELATIVE_ERROR, ConvCase, assert_close, conv_cases, fuzz, run_op

PAIRS = (
    (OneDnnConv, Conv),
    (OneDnnConvGradInputs, ConvGradInputs),
    (OneDnnConvGradWeights, ConvGradWeights),
)
DTYPES = ("float32", "float64")


def operands(case: ConvCase, index: int, dtype: str, integers: bool = False) -> tuple:
    img, kern, top = case.arrays(dtype, integers)
    return (
        (img, kern),
        (kern, top, np.array(case.img_shape[2:])),
        (img, top, np.array(case.kern_shape[2:])),
    )[index]


def in_double(arrays: tuple) -> list[np.ndarray]:
    return [a.astype("float64") if a.dtype.kind == "f" else a for a in arrays]


def restrided(rng: np.random.Generator, array: np.ndarray) -> np.ndarray:
    """Return an array with other strides: permuted in memory, every second element, reversed."""
    kind = rng.integers(4)
    if kind == 0:
        order = rng.permutation(array.ndim)
        return np.ascontiguousarray(array.transpose(order)).transpose(np.argsort(order))
    if kind == 1:
        wide = np.full([2 * n for n in array.shape], np.nan, array.dtype)
        view = wide[tuple(slice(None, None, 2) for _ in array.shape)]
        view[...] = array
        return view
    if kind == 2:
        axis = rng.integers(array.ndim)
        return np.flip(np.flip(array, axis).copy(), axis)
    return array


def expected_sums(oracle: Any, arrays: Any, bound: float | None = None) -> tuple[np.ndarray, float]:
    """Return the oracle's result, and the bound of the relative error.

    The error of a sum that almost cancels is that of its terms.
    """
    double = in_double(arrays)
    expected = run_op(oracle, *double)
    terms = run_op(oracle, *(np.abs(a) if a.dtype.kind == "f" else a for a in double))
    size = np.linalg.norm(expected)
    dtype = arrays[0].dtype
    error_of_terms = 8 * np.finfo(dtype).eps * np.linalg.norm(terms)
    bound = RELATIVE_ERROR[dtype.name] if bound is None else bound
    return expected, max(bound, error_of_terms / size) if size > 0 else bound


def assert_sums_close(out: np.ndarray, oracle: Any, arrays: Any) -> None:
    """Compare with the oracle."""
    expected, bound = expected_sums(oracle, arrays)
    assert_close(out, expected, bound=bound, allow_zero=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("index", range(3), ids=[pair[0].__name__ for pair in PAIRS])
@fuzz(max_examples=60, case=conv_cases(max_channels=20, max_size=9, max_kernel=4))
def test_random(index, dtype, case):
    backend, abstract = PAIRS[index]
    arrays = operands(case, index, dtype)
    out = run_op(backend(**case.params), *arrays)
    assert_sums_close(out, abstract(**case.params), arrays)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("index", range(3), ids=[pair[0].__name__ for pair in PAIRS])
@fuzz(max_examples=25, case=conv_cases())
def test_small_integers_are_exact(index, dtype, case):
    backend, abstract = PAIRS[index]
    arrays = operands(case, index, dtype, integers=True)
    expected = run_op(abstract(**case.params), *in_double(arrays))
    np.testing.assert_array_equal(run_op(backend(**case.params), *arrays), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("index", range(3), ids=[pair[0].__name__ for pair in PAIRS])
@fuzz(max_examples=40, case=conv_cases(), seed=st.integers(0, 2**32 - 1))
def test_strides(index, dtype, case, seed):
    backend, abstract = PAIRS[index]
    rng = np.random.default_rng(seed)
    arrays = operands(case, index, dtype)
    strided = [restrided(rng, a) if a.dtype.kind == "f" else a for a in arrays]
    out = run_op(backend(**case.params), *strided)
    assert_sums_close(out, abstract(**case.params), arrays)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("index", range(3), ids=[pair[0].__name__ for pair in PAIRS])
@fuzz(max_examples=25, case=conv_cases(empty=True))
def test_empty(index, dtype, case):
    backend, abstract = PAIRS[index]
    arrays = operands(case, index, dtype)
    out = run_op(backend(**case.params), *arrays)
    assert_close(out, run_op(abstract(**case.params), *in_double(arrays)), allow_zero=True)


@pytest.mark.parametrize(
    ("mode", "dtype"),
    [
        ("CVM", "float32"),
        ("CVM", "float64"),
        (None, "float32"),
        pytest.param(None, "float64", marks=pytest.mark.slow),
    ],
)
def test_linkers(mode, dtype):
    """C code and Numba handle many shapes with one function, without warnings or object mode."""
    img, kern = pt.tensor4("img", dtype=dtype), pt.tensor4("kern", dtype=dtype)
    params = {"border_mode": ((1, 2), (0, 1)), "subsample": (2, 1), "num_groups": 2}
    out = conv2d(img, kern, **params)
    top = pt.tensor4("top", dtype=dtype)
    grads = pytensor.grad(None, [img, kern], known_grads={out: top})
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.filterwarnings("ignore", "PyTensor could not link to a BLAS")
        fn = pytensor.function([img, kern, top], [out, *grads], mode=mode)
        names = {type(node.op).__name__ for node in fn.maker.fgraph.apply_nodes}
        assert {"OneDnnConv", "OneDnnConvGradInputs", "OneDnnConvGradWeights"} <= names
        rng = np.random.default_rng(7)
        for batch, channels, filters, height, width in rng.integers(1, 9, size=(20, 5)):
            case = ConvCase(
                img_shape=(batch, 2 * channels, height + 3, width + 3),
                kern_shape=(2 * filters, channels, 3, 2),
                filter_flip=True,
                filter_dilation=(1, 1),
                seed=int(rng.integers(2**32)),
                **params,
            )
            arrays = case.arrays(dtype)
            results = fn(*(restrided(rng, a) for a in arrays))
            for index, (_, abstract) in enumerate(PAIRS):
                reference = run_op(
                    abstract(**case.params), *in_double(operands(case, index, dtype))
                )
                assert_close(results[index], reference, allow_zero=True)
    with pytest.raises(
        DnnValueError, match=r"(?s)OneDnnConv\w*: .*operands: .*float(32|64)\(4, 99, 3, 2\)"
    ):
        fn(arrays[0], np.zeros((4, 99, 3, 2), dtype), arrays[2])


def test_float16_is_computed_in_float32():
    img, kern = pt.tensor4("img", dtype="float16"), pt.tensor4("kern", dtype="float16")
    out = conv2d(img, kern)
    fn = pytensor.function([img, kern], out, mode="CVM")
    assert any(isinstance(node.op, OneDnnConv) for node in fn.maker.fgraph.apply_nodes)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 3, 6, 6)).astype("float16")
    w = rng.normal(size=(4, 3, 3, 3)).astype("float16")
    result = fn(x, w)
    assert result.dtype == "float16"
    assert_close(result, run_op(Conv(2), x.astype("float64"), w.astype("float64")))


def test_excluded():
    img, kern = pt.tensor4("img", dtype="float32"), pt.tensor4("kern", dtype="float32")
    mode = pytensor.compile.get_mode("CVM").excluding("onednn")
    fn = pytensor.function([img, kern], conv2d(img, kern), mode=mode)
    assert any(type(node.op) is Conv for node in fn.maker.fgraph.apply_nodes)


def test_backend_op_is_differentiable():
    img, kern = pt.tensor4("img", dtype="float64"), pt.tensor4("kern", dtype="float64")
    out = OneDnnConv(2)(img, kern)
    grads = pytensor.grad((out**2).sum(), [img, kern])
    fn = pytensor.function([img, kern], grads, mode="CVM")
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(1, 2, 4, 4)), rng.normal(size=(3, 2, 2, 2))
    top = 2 * run_op(Conv(2), x, w)
    expected = (
        run_op(ConvGradInputs(2), w, top, np.array([4, 4])),
        run_op(ConvGradWeights(2), x, top, np.array([2, 2])),
    )
    for result, reference in zip(fn(x, w), expected, strict=True):
        assert_close(result, reference)


def test_errors_leave_the_op_usable():
    op = OneDnnConv(2, num_groups=2)
    img, kern = pt.tensor4("img", dtype="float32"), pt.tensor4("kern", dtype="float32")
    fn = pytensor.function([img, kern], op(img, kern), mode="CVM")
    good = np.ones((1, 4, 5, 5), "float32"), np.ones((2, 2, 3, 3), "float32")
    for bad, words in (
        ((good[0], np.ones((3, 2, 3, 3), "float32")), "does not divide"),
        ((good[0], np.ones((2, 2, 6, 3), "float32")), "larger than the padded image"),
        ((np.ones((1, 3, 5, 5), "float32"), good[1]), "channels"),
    ):
        with pytest.raises(DnnValueError, match=words):
            fn(*bad)
        np.testing.assert_array_equal(fn(*good), np.full((1, 2, 3, 3), 18, "float32"))


def test_integers_are_refused():
    with pytest.raises(DnnTypeError):
        OneDnnConv(2).make_node(np.ones((1, 1, 3, 3), "int64"), np.ones((1, 1, 3, 3), "int64"))


def test_no_dgemm(monkeypatch):
    """Without a registered BLAS, float64 raises an error and does not crash."""
    from dnnops.runtime.build import ONEDNN, _register_dgemm

    ONEDNN.library.dnnops_onednn_set_dgemm(None)
    try:
        with pytest.raises(DnnNotSupportedError, match="dgemm"):
            run_op(OneDnnConv(2), np.ones((1, 1, 3, 3)), np.ones((1, 1, 2, 2)))
    finally:
        _register_dgemm(ONEDNN.library)


def test_cache_is_bounded_and_counts():
    clear_caches()
    before = cache_statistics()["conv"]
    assert before["size"] == 0
    x, w = np.ones((1, 1, 5, 5), "float32"), np.ones((1, 1, 2, 2), "float32")
    for _ in range(3):
        run_op(OneDnnConv(2), x, w)
    after = cache_statistics()["conv"]
    assert after["size"] == 1
    assert after["misses"] == before["misses"] + 1
    assert after["hits"] == before["hits"] + 2
    for size in range(5, 5 + after["capacity"] + 3):
        run_op(OneDnnConv(1), np.ones((1, 1, size), "float32"), np.ones((1, 1, 2), "float32"))
    full = cache_statistics()["conv"]
    assert full["size"] == full["capacity"]
    assert full["evictions"] >= 4


@pytest.mark.parametrize("stride", [2**31 - 1, 2**31 - 2, 2**30])
def test_strides_past_the_image(stride):
    """Such sizes behave like large images: oneDNN computes positions in 32 bits."""
    rng = np.random.default_rng(9)
    x, w = (rng.standard_normal(s).astype("float32") for s in ((2, 3, 6, 7), (4, 3, 3, 3)))
    top = rng.standard_normal((2, 4, 1, 1)).astype("float32")
    for op, plain, operands in (
        (OneDnnConv, Conv, (x, w)),
        (OneDnnConvGradInputs, ConvGradInputs, (w, top, np.array([6, 7]))),
        (OneDnnConvGradWeights, ConvGradWeights, (x, top, np.array([3, 3]))),
    ):
        found = run_op(op(2, subsample=stride), *operands)
        wide = [a.astype("float64") if a.dtype.kind == "f" else a for a in operands]
        assert_close(found, run_op(plain(2, subsample=6), *wide), allow_zero=True)
