"""Divisive normalization: by elements, against pooling, derivatives, errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from hypothesis import strategies as st

from dnnops.errors import DnnError, DnnTypeError, DnnValueError
from dnnops.nnet import (
    DivisiveNormalization,
    DivisiveNormalizationGrad,
    divisive_normalization,
    pool_2d,
)
from tests.nnet.norm.window_norm_cases import BAD_PARAMETERS, by_elements, cases
from tests.oracle import (
    PERFORM_MODE,
    assert_close,
    check_gradient,
    check_second_derivatives,
    evaluate,
    fuzz,
    normal,
    run_op,
)

DIFFERENCES = {"eps": 1e-5, "bound": 1e-6, "allow_zero": True}
MEANS = pytest.mark.parametrize("has_means", [False, True], ids=["no means", "means"])


@MEANS
@fuzz(40, case=cases(3, 5))
def test_against_loops_over_elements(has_means, case):
    x, means = case.arrays(2)
    op = DivisiveNormalization(**case.parameters, has_means=has_means)
    out = run_op(op, x, means) if has_means else run_op(op, x)
    squared = x - means if has_means else x
    assert_close(out, by_elements(case, tuple(range(2, x.ndim)), x, squared))


def test_against_average_pooling():
    """Caffe calls this normalization within a channel."""
    x = pt.dtensor4("x")
    squares = pool_2d(x**2, (5, 5), True, (1, 1), (2, 2), "average_inc_pad")
    ours = divisive_normalization(x, n=5, alpha=3.0, beta=0.75, k=1.0)
    values = {x: normal(np.random.default_rng(0), (2, 3, 9, 6), "float64")}
    out, expected = evaluate([ours, x / (1 + 3 * squares) ** 0.75], values)
    assert_close(out, expected)


def test_local_contrast_normalization():
    """Run the documentation's example."""
    x = pt.dtensor4("x")
    means = pool_2d(x, (9, 9), True, (1, 1), (4, 4), "average_exc_pad")
    y = divisive_normalization(x - means, n=9, alpha=1, beta=0.5, k=1e-4)
    # A tenth of the contrast, and an offset, are not seen where windows lie in the image.
    image = normal(np.random.default_rng(1), (1, 1, 20, 20), "float64")
    out, of_other = (evaluate(y, {x: a})[:, :, 8:12, 8:12] for a in (image, 50 + image / 10))
    assert_close(of_other, out, bound=0.02)


def test_means_are_what_squares_are_of_only():
    x, means = pt.dtensor4("x"), pt.dtensor4("means")
    y = divisive_normalization(x, 3, 1.0, 1.0, 2.0, means=means)
    image = normal(np.random.default_rng(2), (1, 2, 4, 4), "float64")
    np.testing.assert_allclose(evaluate(y, {x: image, means: image}), image / 2)


@MEANS
@fuzz(4, case=cases(3, 4, max_size=3, max_n=3))
def test_derivatives(has_means, case):
    def fun(x, means=None):
        return divisive_normalization(x, **case.parameters, means=means)

    points = case.arrays(2 if has_means else 1)
    check_gradient(fun, points, **DIFFERENCES)
    check_second_derivatives(fun, points, **DIFFERENCES)


@pytest.mark.parametrize("which", [(0,), (1,), (0, 1)], ids=str)
@fuzz(3, case=cases(3, 4, max_size=3, max_n=3))
def test_derivatives_of_the_gradient(which, case):
    def fun(*operands):
        op = DivisiveNormalizationGrad(**case.parameters, has_means=True)
        outputs = op.make_node(*operands).outputs
        return pt.concatenate([outputs[i].flatten() for i in which])

    check_gradient(fun, case.arrays(3), **DIFFERENCES)
    check_second_derivatives(fun, case.arrays(3), **DIFFERENCES)


@MEANS
def test_the_gradient_is_one_op(has_means):
    x, means = pt.tensor4("x"), pt.tensor4("means")
    y = divisive_normalization(x, means=means if has_means else None)
    grad = pytensor.grad(y.sum(), x)
    assert isinstance(grad.owner.op, DivisiveNormalizationGrad)
    assert len(grad.owner.inputs) == (3 if has_means else 2)


@fuzz(10, case=cases(3, 5), has_means=st.booleans(), dtype=st.sampled_from(["float16", "float32"]))
def test_shapes_and_dtypes(case, has_means, dtype):
    """Of results, of what is inferred, and the values beside float64's."""
    arrays = case.arrays(3 if has_means else 2, dtype)
    inputs = [pt.tensor(dtype=dtype, shape=(None,) * a.ndim) for a in arrays]
    op = DivisiveNormalizationGrad(**case.parameters, has_means=has_means)
    results = op.make_node(*inputs).outputs
    shapes = op.infer_shape(results[0].owner, [tuple(v.shape) for v in inputs])
    assert len(results) == len(shapes) == (2 if has_means else 1)
    values = dict(zip(inputs, arrays, strict=True))
    outs = evaluate(results, values)
    references = op.make_node(*(a.astype("float64") for a in arrays)).outputs
    for result, out, shape, reference in zip(results, outs, shapes, references, strict=True):
        assert out.dtype == result.type.dtype == dtype
        assert tuple(evaluate(list(shape), values)) == out.shape == case.shape
        expected = evaluate(reference, {})
        if np.linalg.norm(expected) > 1e-2:  # above the smallest numbers of float16
            assert_close(out, expected, allow_zero=True)


@pytest.mark.parametrize(("parameters", "error", "message"), BAD_PARAMETERS, ids=str)
def test_bad_parameters(parameters, error, message):
    with pytest.raises(error, match=f"DivisiveNormalization: {message}") as raised:
        divisive_normalization(pt.tensor4("x"), **parameters)
    assert isinstance(raised.value, DnnError)


def test_bad_operands():
    x = pt.ftensor4("x")
    with pytest.raises(DnnTypeError, match=r"x must have 3 to 5 dimensions .* got 2"):
        divisive_normalization(pt.fmatrix("x"))
    with pytest.raises(DnnTypeError, match=r"x must have 3 to 5 dimensions .* got 6"):
        divisive_normalization(pt.tensor(dtype="float32", shape=(None,) * 6))
    with pytest.raises(DnnTypeError, match="means must have 4 dimensions, got 3"):
        divisive_normalization(x, means=pt.ftensor3("means"))
    with pytest.raises(DnnTypeError, match="one dtype, got x float32, means float64"):
        divisive_normalization(x, means=pt.dtensor4("means"))
    with pytest.raises(DnnTypeError, match="has_means must be True or False, got 2"):
        DivisiveNormalization(5, 1, 1, 1, has_means=2)
    op: Any = DivisiveNormalization(5, 1, 1, 1, has_means=True)
    with pytest.raises(DnnTypeError, match="expected the operands x, means, got 1 of them"):
        op(x)


def test_means_of_another_shape():
    x, means = pt.ftensor4("x"), pt.ftensor4("means")
    image = np.ones((1, 2, 3, 4), "float32")
    message = r"one shape, got x \(1, 2, 3, 4\), means \(1, 1, 3, 4\)"
    with pytest.raises(DnnValueError, match=message):
        divisive_normalization(image, means=image[:, :1])
    fn = pytensor.function([x, means], divisive_normalization(x, means=means), mode=PERFORM_MODE)
    with pytest.raises(DnnValueError, match=message):
        fn(image, image[:, :1])
