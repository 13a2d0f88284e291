"""The spatial transformer against explicit loops and PyTorch; derivatives, shapes, bad input."""

from __future__ import annotations

import warnings
from math import ceil
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from hypothesis import strategies as st
from pytensor.gradient import DisconnectedInputError, DisconnectedType, disconnected_type

from dnnops.compat import inferred_shapes
from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.nnet import (
    SpatialTransformerGrid,
    SpatialTransformerGridGrad,
    SpatialTransformerSampler,
    SpatialTransformerSamplerGrad,
    affine_grid,
    grid_sample,
    spatial_transformer,
)
from tests.nnet.resample.spatial_transformer_cases import (
    Case,
    cases,
    grid_by_loops,
    sample_by_loops,
)
from tests.oracle import (
    PERFORM_MODE,
    assert_close,
    check_gradient,
    check_infer_shape,
    check_second_derivatives,
    evaluate,
    fuzz,
    run_op,
)

DTYPES = ("float64", "float32", "float16")
IDENTITY = np.array([[1.0, 0, 0], [0, 1, 0]])


def run_grad(*arrays: np.ndarray) -> list[np.ndarray]:
    """Run the sampler's gradient, and check the types of its results."""
    op = SpatialTransformerSamplerGrad()
    node = op.make_node(*arrays)
    storage: list[list] = [[None], [None]]
    op.perform(node, list(arrays), storage)
    for (out,), variable in zip(storage, node.outputs, strict=True):
        assert (out.shape, out.dtype.name) == (variable.type.shape, variable.type.dtype)
    return [out for (out,) in storage]


# -- values ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@fuzz(40, case=cases(empty=True))
def test_grid_against_loops(dtype, case):
    theta = case.theta(dtype)
    grid = run_op(SpatialTransformerGrid(), theta, np.array(case.out_shape))
    expected = grid_by_loops(theta.astype("float64"), case.out_shape)
    assert_close(grid, expected, allow_zero=True)


@pytest.mark.parametrize("dtype", DTYPES)
@fuzz(40, case=cases(empty=True))
def test_samples_against_loops(dtype, case):
    img, grid, _ = case.arrays(dtype)
    expected = sample_by_loops(img.astype("float64"), grid.astype("float64"))
    assert_close(run_op(SpatialTransformerSampler(), img, grid), expected, allow_zero=True)


@pytest.mark.needs("torch")
@fuzz(60, case=cases(), scales=st.tuples(*[st.sampled_from([0.3, 0.5, 1, 1.7, 2, 3.25])] * 2))
def test_values_and_gradients_against_torch(case, scales):
    import torch

    img, theta = case.arrays()[0], case.theta()
    scale_width, scale_height = scales
    inputs = [pt.dtensor4(), pt.dtensor3()]
    out = spatial_transformer(*inputs, scale_width, scale_height)
    shape = (*img.shape[:2], ceil(img.shape[2] * scale_height), ceil(img.shape[3] * scale_width))
    gout = np.random.default_rng(case.seed).standard_normal(shape)
    gradients = pytensor.gradient.grad(None, inputs, known_grads={out: pt.constant(gout)})
    results = evaluate([out, *gradients], dict(zip(inputs, (img, theta), strict=True)))

    tensors = [torch.tensor(a, requires_grad=True) for a in (img, theta)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a single row or column, which is in the middle
        points = torch.nn.functional.affine_grid(tensors[1], shape, align_corners=True)
    theirs = torch.nn.functional.grid_sample(tensors[0], points, align_corners=True)
    theirs.backward(torch.tensor(gout))
    expected = [theirs.detach(), *(t.grad for t in tensors)]
    for result, tensor in zip(results, expected, strict=True):
        assert result.shape == tuple(tensor.shape)
        np.testing.assert_allclose(result, tensor.numpy(), rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("dtype", DTYPES)
def test_identity_is_exact(dtype):
    rng = np.random.default_rng(1)
    for rows, columns in [(1, 1), (2, 3), (5, 1), (9, 17), (33, 5)]:  # quotients without rounding
        img = rng.standard_normal((1, 2, rows, columns)).astype(dtype)
        img[0, 0, 0, 0] = np.nan  # is no part of its neighbors
        out = evaluate(spatial_transformer(img, IDENTITY[None].astype(dtype)), {})
        np.testing.assert_array_equal(out, img)


@fuzz(30, case=cases(max_size=40))
def test_identity_to_rounding(case):
    img = case.arrays()[0]
    theta = np.repeat(IDENTITY[None], len(img), axis=0)
    out = evaluate(spatial_transformer(img, theta), {})
    np.testing.assert_allclose(out, img, rtol=0, atol=1e-12)


def test_mirrored_and_shifted():
    img = np.arange(1.0, 10).reshape(1, 1, 3, 3)
    mirrored = [[[-1.0, 0, 0], [0, 1, 0]]]
    np.testing.assert_array_equal(evaluate(spatial_transformer(img, mirrored), {}), img[..., ::-1])
    down = [[[1.0, 0, 0], [0, 1, 1]]]  # by half of the image: one pixel
    np.testing.assert_array_equal(
        evaluate(spatial_transformer(img, down), {})[0, 0], [[4, 5, 6], [7, 8, 9], [0, 0, 0]]
    )
    halfway = [[[1.0, 0, 0.5], [0, 1, 0]]]  # beyond the last pixel, half of it is left
    np.testing.assert_array_equal(
        evaluate(spatial_transformer(img, halfway), {})[0, 0, 0], [1.5, 2.5, 1.5]
    )


def test_points_that_are_no_numbers_or_far_away():
    img = np.arange(1.0, 13).reshape(1, 1, 3, 4)
    far = [np.inf, -np.inf, 1e300, -1e300, 2.0**63, -3.0]
    grid = np.array([[[f, 0] for f in far] + [[0, f] for f in far] + [[f, f] for f in far]])[None]
    grid = grid.reshape(1, 3, 6, 2)
    gout = np.ones((1, 1, 3, 6))
    assert not run_op(SpatialTransformerSampler(), img, grid).any()
    for gradient in run_grad(img, grid, gout):
        assert not gradient.any()
    grid[0, 1, 2, 0] = grid[0, 2, 3, 1] = np.nan
    out = run_op(SpatialTransformerSampler(), img, grid)
    assert np.argwhere(np.isnan(out)).tolist() == [[0, 0, 1, 2], [0, 0, 2, 3]]
    by_img, by_grid = run_grad(img, grid, gout)
    assert not by_img.any()
    assert np.isnan(by_grid[0, [1, 2], [2, 3]]).all()
    assert np.isnan(by_grid).sum() == 4


def test_only_pixels_with_a_weight_count():
    img = np.array([[[[1.0, np.inf, np.nan]]]])
    grid = np.array([[[[-1.0, 0], [-1, 0.3], [-2, 0]]]])  # in one row, y is the same everywhere
    np.testing.assert_array_equal(run_op(SpatialTransformerSampler(), img, grid), [[[[1, 1, 0]]]])
    gout = np.array([[[[5.0, 7, np.nan]]]])
    grid[0, 0, 2] = -9
    by_img, _ = run_grad(np.ones((1, 1, 2, 3)), np.array(grid), gout)
    assert np.isfinite(by_img).all()


# -- derivatives -------------------------------------------------------------------------


@fuzz(20, case=cases())
def test_derivatives_of_the_sampler(case):
    check_gradient(grid_sample, case.arrays()[:2], case.seed, eps=1e-6, allow_zero=True)


@fuzz(5, case=cases(max_channels=2, max_size=4))
def test_second_derivatives_of_the_sampler(case):
    check_second_derivatives(grid_sample, case.arrays()[:2], case.seed, eps=1e-6, allow_zero=True)


@fuzz(20, case=cases())
def test_derivatives_of_the_grid(case):
    def fun(theta: Any) -> Any:
        return affine_grid(theta, case.out_shape)

    check_gradient(fun, [case.theta()], case.seed, bound=1e-8)
    check_second_derivatives(fun, [case.theta()], case.seed, bound=1e-8)


def test_third_derivatives_exist():
    x, grid = pt.dtensor4(), pt.dtensor4()
    loss = (grid_sample(x, grid) ** 3).sum()
    for _ in range(3):
        loss = (pytensor.grad(loss, grid) ** 2).sum()
    case = Case((1, 2, 4, 5), (3, 3), 7)
    assert np.isfinite(evaluate(loss, {x: case.arrays()[0], grid: case.grid()}))


def test_one_operand_may_depend_on_the_other():
    """The operands of the second derivatives are variables of their own."""
    case = Case((2, 3, 4, 5), (3, 4), 8)
    img, _, _ = case.arrays()

    def fun(theta: Any) -> Any:
        grid = affine_grid(theta, case.out_shape)
        return grid_sample(pt.constant(img) * theta.sum(), grid)

    check_second_derivatives(fun, [case.theta()], eps=1e-6)


def test_connection_pattern():
    img, grid, gout = pt.dtensor4(), pt.dtensor4(), pt.dtensor4()
    by_img, _ = SpatialTransformerSamplerGrad().make_node(img, grid, gout).outputs
    with pytest.raises(DisconnectedInputError):
        pytensor.grad(by_img.sum(), img)
    op, none = by_img.owner.op, disconnected_type()
    node = by_img.owner
    for wrt in range(3):
        tangents = [none] * 3
        tangents[wrt] = node.inputs[wrt]
        found = op.pushforward(node.inputs, node.outputs, tangents)
        connected = [not isinstance(t.type, DisconnectedType) for t in found]
        assert connected == op.connection_pattern(node)[wrt]
    theta, shape = pt.dtensor3(), pt.lvector()
    grid = affine_grid(theta, shape)
    op = grid.owner.op
    assert op.connection_pattern(grid.owner) == [[True], [False]]
    (found,) = op.pushforward(grid.owner.inputs, [grid], [none, none])
    assert isinstance(found.type, DisconnectedType)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_derivatives_keep_the_dtype(dtype):
    x, theta = pt.tensor4(dtype=dtype), pt.tensor3(dtype=dtype)
    out = spatial_transformer(x, theta)
    gradients = pytensor.grad((out**2).sum(), [x, theta])
    second = pytensor.grad((gradients[1] ** 2).sum(), [x, theta])
    assert {v.type.dtype for v in (out, *gradients, *second)} == {dtype}
    case = Case((1, 2, 3, 4), (3, 4), 9)
    values = {x: case.arrays(dtype)[0], theta: case.theta(dtype)}
    assert {v.dtype.name for v in evaluate([out, *gradients, *second], values)} == {dtype}


# -- shapes ------------------------------------------------------------------------------


@fuzz(20, case=cases())
def test_infer_shape(case):
    img, grid, gout = case.arrays()
    check_infer_shape(SpatialTransformerGrid(), case.theta(), np.array(case.out_shape))
    check_infer_shape(SpatialTransformerGridGrad(), grid)
    check_infer_shape(SpatialTransformerSampler(), img, grid)
    op = SpatialTransformerSamplerGrad()
    variables = [pt.dtensor4() for _ in range(3)]
    node = op.make_node(*variables)
    shapes = inferred_shapes(op, node, [tuple(v.shape) for v in variables])
    found = evaluate(
        [pt.stack(list(s)) for s in shapes],
        dict(zip(variables, (img, grid, gout), strict=True)),
    )
    assert [tuple(s) for s in found] == [img.shape, grid.shape]


def test_static_shapes():
    img, theta = pt.tensor(dtype="float64", shape=(4, None, 10, 7)), pt.dtensor3()
    assert spatial_transformer(img, theta, 0.5, 2).type.shape == (4, None, 20, 4)
    assert spatial_transformer(img, theta).type.shape == (4, None, 10, 7)
    assert spatial_transformer(pt.dtensor4(), theta).type.shape == (None,) * 4
    gout = pt.tensor(dtype="float64", shape=(None, 3, 5, None))
    node = SpatialTransformerSamplerGrad().make_node(img, pt.dtensor4(), gout)
    assert [v.type.shape for v in node.outputs] == [(4, 3, 10, 7), (4, 5, None, 2)]


def test_the_outputs_size_is_rounded_up():
    img, theta = np.ones((1, 1, 10, 10)), IDENTITY[None]
    given = pt.dscalar()
    out = spatial_transformer(pt.constant(img), theta, 1, given)
    for scale, size in [(0.01, 1), (0.25, 3), (0.5, 5), (0.51, 6), (1.1, 11), (1.25, 13)]:
        assert spatial_transformer(img, theta, scale, 1).type.shape == (1, 1, 10, size)
        assert evaluate(out, {given: scale}).shape == (1, 1, size, 10)


def test_scales_are_not_rounded_to_single_precision():
    with pytensor.config.change_flags(floatX="float32"):
        out = spatial_transformer(np.ones((1, 1, 10, 10)), IDENTITY[None], 1.1, np.float64(1.1))
    assert out.type.shape == (1, 1, 11, 11)


# -- bad input ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("img", "theta", "options", "error", "message"),
    [
        ((2, 3, 4), (2, 2, 3), {}, DnnTypeError, "img must have 4 dimensions, got 3"),
        ((2, 3, 4, 5), (2, 3), {}, DnnTypeError, "theta must have 3 dimensions, got 2"),
        ((2, 3, 4, 5), (2, 3, 3), {}, DnnValueError, r"theta must have shape \(batch, 2, 3\)"),
        ((2, 3, 4, 5), (2, 2, 2), {}, DnnValueError, r"\(batch, 2, 3\), got \(2, 2, 2\)"),
        ((2, 3, 4, 5), (3, 2, 3), {}, DnnValueError, r"img \(2\), grid \(3\)"),
        ((2, 3, 0, 5), (2, 2, 3), {}, DnnValueError, r"between 1 and \d+, got \(0, 5\)"),
        ((2, 3, 4, 5), (2, 2, 3), {"scale_width": 0}, DnnValueError,
         "scale_width must be more than 0, got 0"),
        ((2, 3, 4, 5), (2, 2, 3), {"scale_height": -0.5}, DnnValueError,
         "scale_height must be more than 0, got -0.5"),
        ((2, 3, 4, 5), (2, 2, 3), {"scale_width": np.inf}, DnnValueError,
         "scale_width must be finite, got inf"),
        ((2, 3, 4, 5), (2, 2, 3), {"scale_width": np.nan}, DnnValueError, "be finite, got nan"),
        ((2, 3, 4, 5), (2, 2, 3), {"scale_width": 1e10}, DnnValueError, "gives 50000000000 for"),
        ((2, 3, 4, 5), (2, 2, 3), {"scale_height": "2"}, DnnTypeError, "must be a number"),
        ((2, 3, 4, 5), (2, 2, 3), {"scale_height": [2]}, DnnTypeError, "must be a number"),
    ],
)  # fmt: skip
def test_errors(img, theta, options, error, message):
    with pytest.raises(error, match=message):
        spatial_transformer(np.zeros(img), np.zeros(theta), **options)


def test_errors_of_dtypes():
    img, theta = np.zeros((2, 3, 4, 5), "float32"), np.zeros((2, 2, 3))
    with pytest.raises(DnnTypeError, match="one dtype, got img float32, theta float64"):
        spatial_transformer(img, theta)
    with pytest.raises(DnnTypeError, match="spatial_transformer: img has dtype int64"):
        spatial_transformer(img.astype("int64"), theta)
    with pytest.raises(DnnTypeError, match="theta has dtype complex128"):
        affine_grid(theta.astype("complex128"), (2, 2))
    with pytest.raises(DnnTypeError, match="img must be a tensor"):
        grid_sample(None, theta)


def test_errors_of_the_steps():
    theta, img, grid = np.zeros((2, 2, 3)), np.zeros((2, 3, 4, 5)), np.zeros((2, 6, 7, 2))
    with pytest.raises(DnnValueError, match=r"sizes must be between 1 and \d+, got \(3, 0\)"):
        affine_grid(theta, (3, 0))
    with pytest.raises(DnnValueError, match="out_shape must be a vector of 2 integers, got 3"):
        affine_grid(theta, (3, 4, 5))
    with pytest.raises(DnnTypeError, match="out_shape must be a vector of 2 integers"):
        affine_grid(theta, (3.0, 4.0))
    with pytest.raises(DnnValueError, match=r"grid must have shape .*, got \(2, 6, 7, 3\)"):
        grid_sample(img, np.zeros((2, 6, 7, 3)))
    with pytest.raises(DnnValueError, match=r"between 1 and \d+ rows and columns, got \(2, 3, 0"):
        grid_sample(img[:, :, :0], grid)
    with pytest.raises(DnnValueError, match=r"samples \(2, 3, 6, 7\), gout \(2, 3, 7, 6\)"):
        SpatialTransformerSamplerGrad().make_node(img, grid, np.zeros((2, 3, 7, 6)))
    with pytest.raises(DnnValueError, match=r"dgrid must have shape .*, got \(2, 3, 4, 5\)"):
        SpatialTransformerGridGrad().make_node(img)


def test_errors_at_the_call():
    x, theta, scale, grid = pt.dtensor4(), pt.dtensor3(), pt.dscalar(), pt.dtensor4()
    fn = pytensor.function(
        [x, theta, scale], spatial_transformer(x, theta, scale), mode=PERFORM_MODE
    )
    img, given = np.zeros((2, 3, 4, 5)), np.zeros((2, 2, 3))
    assert fn(img, given, 1.0).shape == img.shape
    with pytest.raises(DnnValueError, match=r"sizes must be between 1 and \d+, got \(4, 0\)"):
        fn(img, given, 0.0)
    with pytest.raises(DnnValueError, match=r"got \(4, -5\)"):
        fn(img, given, -1.0)
    with pytest.raises(DnnValueError, match=r"theta must have shape"):
        fn(img, np.zeros((2, 3, 3)), 1.0)
    with pytest.raises(DnnValueError, match=r"img \(2\), grid \(1\)"):
        fn(img, given[:1], 1.0)
    fn = pytensor.function([x, grid], grid_sample(x, grid), mode=PERFORM_MODE)
    with pytest.raises(DnnValueError, match="rows and columns"):
        fn(img[..., :0], np.zeros((2, 3, 3, 2)))
