"""Divisive normalization in compiled code against the abstract Ops' NumPy in float64."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from hypothesis import strategies as st

from dnnops.cpu.divisive_normalization import (
    OneDnnDivisiveNormalization,
    OneDnnDivisiveNormalizationGrad,
)
from dnnops.errors import DnnValueError
from dnnops.nnet import DivisiveNormalization, DivisiveNormalizationGrad, divisive_normalization
from tests.cpu.conv.test_conv import restrided
from tests.cpu.test_batchnorm import in_double, run_all
from tests.linkers import LINKERS
from tests.nnet.norm.window_norm_cases import Case, cases
from tests.oracle import PERFORM_MODE, assert_close, fuzz, normal

DTYPES = ("float32", "float64")
PAIRS: list[tuple[Any, Any]] = [
    (OneDnnDivisiveNormalization, DivisiveNormalization),
    (OneDnnDivisiveNormalizationGrad, DivisiveNormalizationGrad),
]


def check(case: Case, has_means: bool, dtype: str) -> None:
    """Compare both Ops, on arrays with any strides."""
    rng = np.random.default_rng(case.seed)
    for extra, (backend, abstract) in enumerate(PAIRS):
        arrays = [normal(rng, case.shape, dtype) for _ in range(1 + has_means + extra)]
        parameters = {**case.parameters, "has_means": has_means}
        results = run_all(backend(**parameters), *(restrided(rng, a) for a in arrays))
        expected = run_all(abstract(**parameters), *in_double(arrays))
        assert len(results) == (2 if has_means and extra else 1)
        bound = 3e-6 if dtype == "float32" else 1e-14
        for result, reference in zip(results, expected, strict=True):
            assert result.flags.c_contiguous
            # Gradients are differences of numbers that may be almost equal; these are rounded.
            # The second one is the gradient with respect to the means.
            size = np.linalg.norm(reference)
            if extra:
                size += np.linalg.norm(arrays[-1]) * case.k**-case.beta
            assert np.linalg.norm(result - reference) <= bound * size


@pytest.mark.parametrize("dtype", DTYPES)
@fuzz(200, case=cases(3, 5, max_size=7), has_means=st.booleans())
def test_random(dtype, case, has_means):
    check(case, has_means, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(3, 5, 61, 43), (2, 2, 9000), (1, 3, 20, 17, 30)], ids=str)
def test_sizes_for_several_threads(shape, dtype):
    for n, beta in ((5, 0.75), (16, 0.6)):
        check(Case(shape, n, 0.5, beta, 1.0, seed=1), True, dtype)


def test_non_finite_values_stay_in_their_windows():
    x = np.random.default_rng(2).standard_normal((1, 2, 12, 12)).astype("float32")
    x[0, 1, 3, 4] = np.nan
    x[0, 0, 8, 8] = np.inf
    with np.errstate(invalid="ignore"):
        (result,) = run_all(OneDnnDivisiveNormalization(4, 1.0, 0.75, 1.0), x)
        (expected,) = run_all(DivisiveNormalization(4, 1.0, 0.75, 1.0), x)
    np.testing.assert_array_equal(np.isnan(result), np.isnan(expected))
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-6)


def test_empty():
    for shape in [(0, 3, 2, 2), (2, 0, 2, 2), (2, 3, 0, 2)]:
        x = np.zeros(shape, "float32")
        results = run_all(OneDnnDivisiveNormalizationGrad(5, 1, 1, 1, has_means=True), x, x, x)
        assert [r.shape for r in results] == [shape, shape]


# -- in graphs ---------------------------------------------------------------------------


def ops_of(fn) -> set[str]:
    return {type(node.op).__name__ for node in fn.maker.fgraph.apply_nodes}


@LINKERS
def test_forward_and_gradients(mode):
    x, means, gy = (pt.ftensor4(name) for name in ("x", "means", "gy"))
    y = divisive_normalization(x, n=4, alpha=2.0, means=means)
    outputs = [y, *pytensor.grad(None, [x, means], known_grads={y: gy})]
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        fn = pytensor.function([x, means, gy], outputs, mode=mode)
    assert {"OneDnnDivisiveNormalization", "OneDnnDivisiveNormalizationGrad"} <= ops_of(fn)
    plain = pytensor.function([x, means, gy], outputs, mode=PERFORM_MODE)
    rng = np.random.default_rng(3)
    for _ in range(5):
        shape = tuple(rng.integers(1, 9, 4))
        arrays = [restrided(rng, normal(rng, shape, "float32")) for _ in range(3)]
        for result, expected in zip(fn(*arrays), plain(*arrays), strict=True):
            assert_close(result, expected, allow_zero=True)
    if mode == "CVM":
        with pytest.raises(DnnValueError, match="the operands must have the same shape and dtype"):
            fn(arrays[0], np.ones((1, 1, 9, 9), "float32"), arrays[2])


@pytest.mark.parametrize(
    ("dtype", "mode"), [("float16", "CVM"), ("float64", "CVM"), ("float32", "DNN")]
)
def test_dtypes_and_modes(dtype, mode):
    x, means = (pt.tensor(dtype=dtype, shape=(None,) * 4) for _ in range(2))
    y = divisive_normalization(x, 3, 1.0, means=means)
    grads = pytensor.grad((y**2).sum(), [x, means])
    fn = pytensor.function([x, means], [y, *grads], mode=mode)
    assert {"OneDnnDivisiveNormalization", "OneDnnDivisiveNormalizationGrad"} <= ops_of(fn)
    arrays = [normal(np.random.default_rng(seed), (2, 2, 4, 5), dtype) for seed in (4, 5)]
    inputs = [pt.dtensor4(), pt.dtensor4()]
    other = divisive_normalization(inputs[0], 3, 1.0, means=inputs[1])
    other_grads = pytensor.grad((other**2).sum(), inputs)
    plain = pytensor.function(inputs, [other, *other_grads], mode=PERFORM_MODE)
    for result, expected in zip(fn(*arrays), plain(*in_double(arrays)), strict=True):
        assert result.dtype == dtype
        assert_close(result, expected, bound=5e-3 if dtype == "float16" else None)


def test_vectorized():
    """Extra axes become part of the batch; operands without them are repeated."""
    x, means = pt.ftensor4("x"), pt.ftensor4("means")
    many = pt.tensor("many", dtype="float32", shape=(None,) * 5)
    out = divisive_normalization(x, 3, 1.0, means=means)
    fn = pytensor.function(
        [many, means], pytensor.graph.vectorize_graph(out, {x: many}), mode="CVM"
    )
    assert "OneDnnDivisiveNormalization" in ops_of(fn)
    single = pytensor.function([x, means], out, mode="CVM")
    rng = np.random.default_rng(6)
    values, given = normal(rng, (3, 2, 4, 6, 5), "float32"), normal(rng, (2, 4, 6, 5), "float32")
    for i in range(3):
        result = fn(values, given)[i]
        np.testing.assert_allclose(result, single(values[i], given), rtol=1e-5)
