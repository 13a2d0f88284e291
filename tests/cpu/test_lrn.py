"""Local response normalization in compiled code against the abstract Ops' NumPy in float64."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from dnnops.cpu.lrn import OneDnnLRN, OneDnnLRNGrad, OneDnnWindowSum
from dnnops.errors import DnnValueError
from dnnops.nnet import LRN, LRNGrad, local_response_normalization
from dnnops.nnet.norm.window_base import WindowSum
from tests.cpu.conv.test_conv import in_double, restrided
from tests.linkers import LINKERS
from tests.nnet.norm.window_norm_cases import Case, cases
from tests.oracle import PERFORM_MODE, assert_close, fuzz, normal, run_op, small_integers

DTYPES = ("float32", "float64")


def check(case: Case, dtype: str) -> None:
    """Compare all Ops, on arrays with any strides."""
    rng = np.random.default_rng(case.seed)
    x, gy = (normal(rng, case.shape, dtype) for _ in range(2))
    bound = 2e-6 if dtype == "float32" else 1e-14
    y = run_op(OneDnnLRN(**case.parameters), restrided(rng, x))
    assert_close(y, run_op(LRN(**case.parameters), *in_double([x])), bound=bound)
    dx = run_op(OneDnnLRNGrad(**case.parameters), restrided(rng, x), restrided(rng, gy))
    expected = run_op(LRNGrad(**case.parameters), *in_double([x, gy]))
    # A difference of numbers that may be almost equal, and these are rounded.
    size = max(np.linalg.norm(expected), np.linalg.norm(gy * (y / x)))
    assert np.linalg.norm(dx - expected) <= 2 * bound * size
    total = run_op(OneDnnWindowSum(case.n, (1,), True), restrided(rng, x))
    expected = run_op(WindowSum(case.n, (1,), True), *in_double([x]))
    assert np.linalg.norm(total - expected) <= bound * np.linalg.norm(x) * case.n
    assert y.flags.c_contiguous
    assert dx.flags.c_contiguous
    assert total.flags.c_contiguous


@pytest.mark.parametrize("dtype", DTYPES)
@fuzz(200, case=cases(2, 6, max_size=6))
def test_random(dtype, case):
    check(case, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "shape", [(3, 20, 31, 33), (2, 7, 90, 90), (5000, 3), (70, 300), (3, 40, 9, 9, 9)], ids=str
)
def test_sizes_for_several_tiles_and_threads(shape, dtype):
    for n, beta in ((5, 0.75), (16, 0.6)):
        check(Case(shape, n, 0.5, beta, 1.0, seed=1), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(3, 20, 31, 33), (9, 12)], ids=str)
def test_channels_last(shape, dtype):
    rng = np.random.default_rng(2)
    last = (shape[0], *shape[2:], shape[1])
    x, gy = (np.moveaxis(normal(rng, last, dtype), -1, 1) for _ in range(2))
    assert x.shape == shape
    for n in (1, 4, 5):
        result = run_op(OneDnnLRNGrad(n, 0.5, 0.75, 1.0), x, gy)
        assert_close(result, run_op(LRNGrad(n, 0.5, 0.75, 1.0), *in_double((x, gy))))


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_exact_on_integers(n):
    x = small_integers(np.random.default_rng(3), (3, 12, 40, 9), "float32")
    padded = np.pad(x**2, ((0, 0), ((n - 1) // 2, n // 2), (0, 0), (0, 0)))
    base = 1 + sum(padded[:, i : i + 12] for i in range(n))
    out = run_op(OneDnnLRN(n, alpha=n, beta=1, k=1), x)
    np.testing.assert_array_equal(out, x * (np.float32(1) / base))


@pytest.mark.parametrize("beta", [0.01, 0.3, 0.5, 0.75, 1.0, 1.7, 4.0, 70.0])
def test_powers_of_any_size(beta):
    """Each element is right, not only the norm, for bases from 1e-5 to 1e37."""
    x = np.logspace(-3, 18.5, 4001).astype("float32").reshape(1, 1, -1)
    result = run_op(OneDnnLRN(1, 1.0, beta, 1e-5), x)
    with np.errstate(over="ignore"):
        expected = run_op(LRN(1, 1.0, beta, 1e-5), x.astype("float64"))
    # Below these, float32 numbers have fewer digits.
    normal_ones = (expected / x > 1e-37) & (expected / x < 1e38) & (expected < 1e38)
    assert normal_ones.mean() > 0.02
    np.testing.assert_allclose(result[normal_ones], expected[normal_ones], rtol=1e-6 * max(1, beta))


def test_a_large_channel_leaves_nothing_behind():
    """Running sums would fail here, because they subtract the infinity again."""
    x = np.random.default_rng(4).standard_normal((2, 30, 50)).astype("float32")
    x[:, 10] = 1e8
    for n in (4, 5):
        result = run_op(OneDnnLRN(n, 1.0, 0.75, 1.0), x)
        expected = run_op(LRN(n, 1.0, 0.75, 1.0), x.astype("float64"))
        np.testing.assert_allclose(result, expected, rtol=5e-6)


@pytest.mark.parametrize("beta", [0.5, 0.75, 1.0, 0.6])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_non_finite_values_stay_in_their_windows(value, beta):
    x = np.random.default_rng(5).standard_normal((2, 12, 40)).astype("float32")
    x[0, 6, 3] = value
    gy = np.ones_like(x)
    with np.errstate(invalid="ignore"):
        for backend, abstract, arrays in (
            (OneDnnLRN, LRN, [x]),
            (OneDnnLRNGrad, LRNGrad, [x, gy]),
        ):
            result = run_op(backend(5, 1.0, beta, 1.0), *arrays)
            expected = run_op(abstract(5, 1.0, beta, 1.0), *arrays)
            np.testing.assert_array_equal(np.isnan(result), np.isnan(expected))
            np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-6)


def test_empty():
    for shape in [(0, 3, 2), (2, 0, 2), (2, 3, 0)]:
        x = np.zeros(shape, "float32")
        assert run_op(OneDnnLRN(5, 1, 1, 1), x).shape == shape
        assert run_op(OneDnnLRNGrad(5, 1, 1, 1), x, x).shape == shape


# -- in graphs ---------------------------------------------------------------------------


def ops_of(fn) -> set[str]:
    return {type(node.op).__name__ for node in fn.maker.fgraph.apply_nodes}


@LINKERS
def test_forward_gradient_and_second_derivative(mode):
    x, gy = pt.ftensor4("x"), pt.ftensor4("gy")
    y = local_response_normalization(x, n=4, alpha=2.0)
    grad = pytensor.grad(None, x, known_grads={y: gy})
    second = pytensor.grad((grad**2).sum(), x)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        fn = pytensor.function([x, gy], [y, grad, second], mode=mode)
    assert {"OneDnnLRN", "OneDnnLRNGrad", "OneDnnWindowSum"} <= ops_of(fn)
    assert not {"LRN", "LRNGrad", "WindowSum"} & ops_of(fn)
    plain = pytensor.function([x, gy], [y, grad, second], mode=PERFORM_MODE)
    rng = np.random.default_rng(6)
    for _ in range(5):
        shape = tuple(rng.integers(1, 9, 4))
        arrays = [restrided(rng, normal(rng, shape, "float32")) for _ in range(2)]
        for result, expected in zip(fn(*arrays), plain(*arrays), strict=True):
            assert_close(result, expected, allow_zero=True)
    if mode == "CVM":
        with pytest.raises(DnnValueError, match="OneDnnLRNGrad: the operands must have the same"):
            fn(arrays[0], np.ones((1, 1, 9, 9), "float32"))


@pytest.mark.parametrize(
    ("dtype", "mode"), [("float16", "CVM"), ("float64", "CVM"), ("float32", "DNN")]
)
def test_dtypes_and_modes(dtype, mode):
    x = pt.tensor(dtype=dtype, shape=(None,) * 3)
    grad = pytensor.grad(local_response_normalization(x).sum(), x)
    fn = pytensor.function([x], grad, mode=mode)
    assert "OneDnnLRNGrad" in ops_of(fn)
    value = normal(np.random.default_rng(7), (2, 8, 3), dtype)
    expected = run_op(LRNGrad(5, 1e-4, 0.75, 2.0), *in_double((value, np.ones_like(value))))
    assert_close(fn(value), expected)


def test_left_to_numpy():
    x = pt.tensor(dtype="float32", shape=(None,) * 9)
    fn = pytensor.function([x], local_response_normalization(x), mode="CVM")
    assert "LRN" in ops_of(fn)
    y = pt.fmatrix("y")
    without = pytensor.compile.get_mode("CVM").excluding("onednn")
    fn = pytensor.function([y], local_response_normalization(y), mode=without)
    assert "LRN" in ops_of(fn)


def test_vectorized():
    """Extra axes become part of the batch."""
    x, many = pt.ftensor3("x"), pt.tensor("many", dtype="float32", shape=(None,) * 5)
    out = local_response_normalization(x, alpha=1.0)
    grad = pytensor.grad((out**2).sum(), x)
    results: Any = pytensor.graph.vectorize_graph([out, grad], {x: many})
    fn = pytensor.function([many], results, mode="CVM")
    assert {"OneDnnLRN", "OneDnnLRNGrad"} <= ops_of(fn)
    assert "Blockwise" not in ops_of(fn)
    single = pytensor.function([x], [out, grad], mode="CVM")
    values = normal(np.random.default_rng(8), (2, 3, 4, 6, 5), "float32")
    for place in np.ndindex(2, 3):
        for result, expected in zip(fn(values), single(values[place]), strict=True):
            np.testing.assert_allclose(result[place], expected, rtol=1e-5)


@pytest.mark.parametrize("beta", [0.5, 0.75, 1.0, 0.6])
@pytest.mark.parametrize("largest", [1e8, 1e12, 1e19, 1e30, 3e38])
def test_large_numbers(largest, beta):
    """Squares of float32 beyond 1.8e19 are infinite in float32; the results aren't."""
    rng = np.random.default_rng(0)
    case = Case((2, 7, 3, 5), 5, 0.5, beta, 1.0, seed=1)
    x, gy = rng.uniform(-1, 1, case.shape), rng.standard_normal(case.shape).astype("float32")
    x[:, :, 0] *= 1e-8  # beside large numbers, and in windows of their own
    x[1, 3:] *= 1e-20
    x = (largest * x).astype("float32")
    for op, abstract in ((OneDnnLRN, LRN), (OneDnnLRNGrad, LRNGrad)):
        arrays = (x, gy) if op is OneDnnLRNGrad else (x,)
        expected = run_op(abstract(**case.parameters), *in_double(arrays))
        scale = np.abs(gy * run_op(LRN(**case.parameters), *in_double([x])) / x)
        for given in (arrays, [restrided(rng, a) for a in arrays]):
            found = run_op(op(**case.parameters), *given)
            wanted = expected.astype("float32")
            np.testing.assert_allclose(
                np.where(scale < 1e-30, wanted, found) if len(arrays) == 2 else found,
                wanted,
                rtol=2e-5,
                atol=0,
            )
    np.testing.assert_array_equal(
        run_op(LRN(**case.parameters), x),
        run_op(LRN(**case.parameters), *in_double([x])).astype("float32"),
    )
