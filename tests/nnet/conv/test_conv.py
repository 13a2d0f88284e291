"""Convolution: against explicit loops and SciPy, derivatives, shapes, errors."""

from __future__ import annotations

import pickle
import re

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from hypothesis import strategies as st
from pytensor.gradient import DisconnectedInputError, verify_grad
from pytensor.graph.basic import equal_computations
from scipy import signal

from dnnops.errors import DnnNotSupportedError, DnnTypeError, DnnValueError
from dnnops.nnet import (
    Conv,
    ConvGradInputs,
    ConvGradWeights,
    conv1d,
    conv2d,
    conv2d_grad_wrt_inputs,
    conv2d_grad_wrt_weights,
    conv2d_transpose,
    conv3d,
    conv3d_grad_wrt_inputs,
    conv3d_grad_wrt_weights,
    conv3d_transpose,
    conv_output_shape,
    pool_2d,
    resolve_padding,
)
from tests.oracle import (
    PERFORM_MODE,
    ConvCase,
    assert_close,
    check_gradient,
    check_infer_shape,
    check_second_derivatives,
    conv_cases,
    evaluate,
    fuzz,
    normal,
    run_op,
)

OPS = (Conv, ConvGradInputs, ConvGradWeights)


def products(case: ConvCase):
    """Yield the elements of filters, image and output for each product of a convolution."""
    kern_in = case.kern_shape[1]
    kern_out = case.kern_shape[0] // case.num_groups
    kernel = case.kern_shape[2:]
    for batch, out, *position in np.ndindex(*case.top_shape):
        for channel, *tap in np.ndindex(kern_in, *kernel):
            pixel = [
                where * stride + i * dilation - before
                for where, stride, i, dilation, (before, _) in zip(
                    position,
                    case.subsample,
                    tap,
                    case.filter_dilation,
                    case.padding,
                    strict=True,
                )
            ]
            if all(0 <= p < n for p, n in zip(pixel, case.img_shape[2:], strict=True)):
                if case.filter_flip:
                    tap = [k - 1 - i for k, i in zip(kernel, tap, strict=True)]
                from_channel = (out // kern_out) * kern_in + channel
                yield (batch, from_channel, *pixel), (out, channel, *tap), (batch, out, *position)


def operands(case: ConvCase, op_class: type, dtype: str = "float64", integers: bool = False):
    """Return the operands of one of the Ops."""
    img, kern, top = case.arrays(dtype, integers)
    return {
        Conv: (img, kern),
        ConvGradInputs: (kern, top, np.array(case.img_shape[2:])),
        ConvGradWeights: (img, top, np.array(case.kern_shape[2:])),
    }[op_class]


def by_loops(
    case: ConvCase, op_class: type, integers: bool = False, absolute: bool = False
) -> np.ndarray:
    """Return an Op's expected result, summed product by product, or the sum of their sizes."""
    arrays = case.arrays("float64", integers)
    if absolute:
        arrays = [np.abs(array) for array in arrays]
    target = {Conv: 2, ConvGradInputs: 0, ConvGradWeights: 1}[op_class]
    first, second = (i for i in range(3) if i != target)
    out = np.zeros_like(arrays[target])
    for where in products(case):
        out[where[target]] += arrays[first][where[first]] * arrays[second][where[second]]
    return out


# -- values ------------------------------------------------------------------------------


@pytest.mark.parametrize("op_class", OPS)
@fuzz(
    40, case=conv_cases(max_channels=2, max_size=3), dtype=st.sampled_from(["float64", "float32"])
)
def test_perform_adds_up_the_products(op_class, case, dtype):
    out = run_op(op_class(**case.params), *operands(case, op_class, dtype))
    # The error of a sum that almost cancels is that of its terms.
    rounding = 8 * np.finfo(dtype).eps * np.linalg.norm(by_loops(case, op_class, absolute=True))
    # Padding and strides can leave most elements without any product.
    assert_close(out, by_loops(case, op_class), dtype, allow_zero=True, rounding=rounding)


@pytest.mark.parametrize("op_class", OPS)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@fuzz(40, case=conv_cases(max_channels=2, max_size=3))
def test_small_integers_are_exact(op_class, dtype, case):
    out = run_op(op_class(**case.params), *operands(case, op_class, dtype, integers=True))
    assert out.dtype == dtype
    np.testing.assert_array_equal(out, by_loops(case, op_class, integers=True))


@fuzz(120, case=conv_cases(max_size=9))
def test_perform_against_scipy(case):
    img, kern, _ = case.arrays()
    out = run_op(Conv(**case.params), img, kern)
    padded = np.pad(img, [(0, 0), (0, 0), *case.padding])
    extent = [(k - 1) * d + 1 for k, d in zip(kern.shape[2:], case.filter_dilation, strict=True)]
    dilated = np.zeros((*kern.shape[:2], *extent))
    dilated[(..., *(slice(None, None, d) for d in case.filter_dilation))] = kern
    run = signal.convolve if case.filter_flip else signal.correlate
    every = tuple(slice(None, None, s) for s in case.subsample)
    per_group = kern.shape[0] // case.num_groups
    expected = np.zeros_like(out)
    for batch, filt, channel in np.ndindex(img.shape[0], kern.shape[0], kern.shape[1]):
        source = padded[batch, filt // per_group * kern.shape[1] + channel]
        full = run(source, dilated[filt, channel], mode="valid", method="direct")
        expected[batch, filt] += full[every]
    assert_close(out, expected, allow_zero=True)


@pytest.mark.parametrize("op_class", OPS)
@fuzz(25, case=conv_cases(empty=True, max_channels=1, max_size=3))
def test_empty_batch_and_channels(op_class, case):
    out = run_op(op_class(**case.params), *operands(case, op_class))
    np.testing.assert_allclose(out, by_loops(case, op_class), atol=1e-12)


def test_one_of_everything():
    op = Conv(2)
    assert run_op(op, np.full((1, 1, 1, 1), 3.0), np.full((1, 1, 1, 1), 2.0)) == 6.0


def test_empty_image_under_padding_gives_zeros():
    out = run_op(Conv(1, border_mode="full"), np.ones((2, 1, 0)), np.ones((3, 1, 2)))
    np.testing.assert_array_equal(out, np.zeros((2, 3, 1)))


def test_non_contiguous_operands():
    img = normal(np.random.default_rng(1), (5, 6, 3, 2), "float64").transpose(3, 2, 1, 0)[..., ::-1]
    kern = normal(np.random.default_rng(2), (2, 2, 3, 4), "float64").transpose(3, 2, 1, 0)
    out = run_op(Conv(2), img, kern)
    assert_close(out, run_op(Conv(2), img.copy(), kern.copy()))


def test_float16_is_accumulated_in_float32():
    # In float16, 2048 + 1 is 2048: a sequential sum would stop there.
    img, one = np.ones((1, 1, 3000), dtype="float16"), np.ones((1, 1, 1), dtype="float16")
    assert run_op(Conv(1), img, img) == 3000
    assert run_op(ConvGradWeights(1), img, img, np.array([1])) == 3000
    op = ConvGradInputs(1, border_mode="full")
    assert run_op(op, img, img, np.array([1])) == 3000
    assert run_op(op, one, one, np.array([1])) == 1


def test_theanos_conv_flips_and_conv_mode_cross_does_not():
    img = np.arange(5.0).reshape(1, 1, 5)
    kern = np.array([[[1.0, 10.0]]])
    assert run_op(Conv(1), img, kern).tolist() == [[[1, 12, 23, 34]]]
    assert run_op(Conv(1, filter_flip=False), img, kern).tolist() == [[[10, 21, 32, 43]]]


# -- derivatives -------------------------------------------------------------------------


@fuzz(25, case=conv_cases(max_channels=2, max_size=4))
def test_the_three_ops_are_adjoint(case):
    img, kern, top = case.arrays()
    forward = np.vdot(run_op(Conv(**case.params), img, kern), top)
    by_inputs = run_op(ConvGradInputs(**case.params), *operands(case, ConvGradInputs))
    by_weights = run_op(ConvGradWeights(**case.params), *operands(case, ConvGradWeights))
    scale = np.linalg.norm(by_inputs.ravel()) * np.linalg.norm(img.ravel())
    assert abs(np.vdot(by_inputs, img) - forward) <= 1e-12 * scale
    assert abs(np.vdot(by_weights, kern) - forward) <= 1e-12 * scale


def differentiable(case: ConvCase, op_class: type):
    """Return an Op as a function of its two differentiable operands, and these."""
    first, second, *shape = operands(case, op_class)
    op = op_class(**case.params)
    return (lambda a, b: op(a, b, *shape)), [first, second]


@pytest.mark.parametrize("op_class", OPS)
@fuzz(8, case=conv_cases(max_channels=2, max_size=3))
def test_pullback_and_pushforward(op_class, case):
    fun, points = differentiable(case, op_class)
    check_gradient(fun, points, allow_zero=True)


@pytest.mark.parametrize("op_class", OPS)
@fuzz(5, case=conv_cases(max_channels=2, max_size=3))
def test_second_derivatives(op_class, case):
    fun, points = differentiable(case, op_class)
    check_second_derivatives(fun, points, allow_zero=True)


@pytest.mark.parametrize("op_class", OPS)
def test_verify_grad(op_class):
    case = ConvCase((2, 4, 5, 4), (2, 2, 2, 3), ((1, 0), (0, 2)), (2, 1), True, (1, 2), 2, seed=3)
    fun, points = differentiable(case, op_class)
    verify_grad(fun, points, rng=np.random.default_rng(4), mode=PERFORM_MODE)


@pytest.mark.parametrize("op_class", OPS)
def test_pushforward_along_one_operand(op_class):
    case = ConvCase((2, 2, 5), (3, 2, 2), "half", (2,), True, (1,), 1, seed=5)
    fun, (a, b) = differentiable(case, op_class)
    check_gradient(lambda x: fun(x, pt.constant(b)), [a], allow_zero=True)
    check_gradient(lambda x: fun(pt.constant(a), x), [b], allow_zero=True)


@pytest.mark.parametrize("op_class", OPS)
def test_pushforward_by_two_pullbacks(op_class):
    case = ConvCase((2, 2, 7), (3, 2, 2), "full", (2,), False, (2,), 1, seed=6)
    fun, values = differentiable(case, op_class)
    a, b = pt.tensor3("a", dtype="float64"), pt.tensor3("b", dtype="float64")
    found, expected = (
        pytensor.gradient.pushforward(fun(a, b), [a, b], [a + 2, b * 3], use_op_pushforward=direct)
        for direct in (False, True)
    )
    assert_close(*evaluate([found, expected], dict(zip((a, b), values, strict=True))))


@pytest.mark.parametrize("op_class", [ConvGradInputs, ConvGradWeights])
def test_shape_operand_is_disconnected(op_class):
    shape = pt.lvector()
    a, b = pt.tensor3(dtype="float64"), pt.tensor3(dtype="float64")
    node = op_class(1).make_node(a, b, shape)
    assert op_class(1).connection_pattern(node) == [[True], [True], [False]]
    with pytest.raises(DisconnectedInputError):
        pytensor.grad(node.outputs[0].sum(), shape.astype("float64"))
    tangent = op_class(1).pushforward(
        node.inputs, node.outputs, [pytensor.gradient.disconnected_type()] * 3
    )
    assert isinstance(tangent[0].type, pytensor.gradient.DisconnectedType)


# -- shapes ------------------------------------------------------------------------------


@pytest.mark.parametrize("op_class", OPS)
@fuzz(10, case=conv_cases(max_channels=2, max_size=3))
def test_infer_shape(op_class, case):
    check_infer_shape(op_class(**case.params), *operands(case, op_class))


def test_static_shapes():
    img = pt.tensor("img", shape=(None, 6, 9, None), dtype="float32")
    kern = pt.tensor("kern", shape=(8, None, 3, 3), dtype="float32")
    out = conv2d(img, kern, border_mode="half", subsample=2, num_groups=2)
    assert out.type.shape == (None, 8, 5, None)
    top = pt.tensor("top", shape=(4, None, 5, 3), dtype="float32")
    by_img = ConvGradInputs(2, "half", 2)(kern, top, [9, pt.lscalar()])
    assert by_img.type.shape == (4, None, 9, None)
    by_kern = ConvGradWeights(2, "half", 2, num_groups=2)(img, top, kern.shape[2:])
    assert by_kern.type.shape == (None, 3, None, None)
    sizes = pt.stack([kern.shape[2], kern.shape[3]])
    by_kern = ConvGradWeights(2, "half", 2, num_groups=2)(img, top, sizes)
    assert by_kern.type.shape == (None, 3, 3, 3)


def test_gradients_keep_static_shapes():
    img = pt.tensor("img", shape=(2, 3, 8, 8), dtype="float32")
    kern = pt.tensor("kern", shape=(4, 3, 3, 3), dtype="float32")
    by_img, by_kern = pytensor.grad(conv2d(img, kern, subsample=2).sum(), [img, kern])
    assert by_img.type.shape == img.type.shape
    assert by_kern.type.shape == kern.type.shape


def test_shape_arguments_narrow_the_type():
    img, kern = pt.tensor4("img"), pt.tensor4("kern")
    rows = pt.constant(9)
    out = conv2d(img, kern, (2, None, rows, pt.lscalar()), np.array([5, 3, 3, 3]))
    assert out.type.shape == (2, 5, 7, None)
    assert conv2d(img, kern, image_shape=(2, 3, 9, 9)).type.shape == (2, None, None, None)
    assert conv2d(img, kern).owner.inputs == [img, kern]


def test_wrong_shape_argument_fails_at_the_call():
    img, kern = pt.tensor4("img"), pt.tensor4("kern")
    out = conv2d(img, kern, (2, None, None, None))
    with pytest.raises(
        DnnValueError, match="shape of input does not match the input_shape argument"
    ):
        evaluate(out, {img: np.ones((3, 1, 2, 2)), kern: np.ones((1, 1, 1, 1))})


def test_conv_output_shape_takes_ints_symbols_and_none():
    assert conv_output_shape((2, 3, 7, None), (5, 3, 3, 3)) == (2, 5, 5, None)
    assert conv_output_shape((2, 3, 7), (5, 3, 3), "full", (2,), (2,)) == (2, 5, 6)
    rows = pt.lscalar()
    out = conv_output_shape((2, 3, rows), (5, 3, 4), "half", (3,))
    assert out[:2] == (2, 5)
    assert evaluate(out[2], {rows: 10}) == (10 + 4 - 4) // 3 + 1


def test_resolve_padding():
    assert resolve_padding("valid", (3, 4)) == ((0, 0), (0, 0))
    assert resolve_padding("half", (3, 4)) == ((1, 1), (2, 2))
    assert resolve_padding("half", (3, 4), (2, 3)) == ((2, 2), (5, 5))
    assert resolve_padding("full", (3, None), (2, 1)) == ((4, 4), (None, None))
    assert resolve_padding(2, (3,)) == ((2, 2),)
    assert resolve_padding((1, (0, 2)), (3, 3)) == ((1, 1), (0, 2))


# -- the public functions ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "ndim"),
    [(conv1d, 1), (conv2d, 2), (conv3d, 3)],
    ids=["conv1d", "conv2d", "conv3d"],
)
@fuzz(5, data=st.data())
def test_functions_apply_conv(function, ndim, data):
    case = data.draw(conv_cases(ndim=ndim))
    params = case.params
    del params["ndim"]
    img, kern, _ = case.arrays()
    assert_close(
        function(img, kern, **params).eval(mode=PERFORM_MODE), by_loops(case, Conv), allow_zero=True
    )


def test_ints_are_accepted_for_every_axis():
    img, kern = pt.tensor4("img"), pt.tensor4("kern")
    one = conv2d(img, kern, subsample=2, filter_dilation=3, border_mode=1)
    other = conv2d(
        img, kern, subsample=[2, 2], filter_dilation=(3, 3), border_mode=((1, 1), [1, np.int8(1)])
    )
    assert one.owner.op == other.owner.op
    assert hash(one.owner.op) == hash(other.owner.op)
    assert equal_computations([one], [other])


@pytest.mark.parametrize(
    "change",
    [
        {"ndim": 1},
        {"border_mode": "half"},
        {"border_mode": ((1, 0), (0, 0))},
        {"subsample": (2, 1)},
        {"filter_flip": False},
        {"filter_dilation": (1, 2)},
        {"num_groups": 2},
    ],
    ids=str,
)
def test_every_parameter_is_part_of_the_ops_identity(change):
    assert Conv(**change) != Conv(2)
    assert Conv(**change) == Conv(**change)
    assert pickle.loads(pickle.dumps(Conv(**change))) == Conv(**change)
    assert (Conv(**change).geometry() != Conv(2).geometry()).any()


def test_geometry():
    op = Conv(2, ((1, 2), (3, 4)), (5, 6), False, (7, 8), 9)
    assert op.geometry().tolist() == [2, 0, 9, 0, 5, 6, 1, 7, 8, 1, 1, 3, 0, 2, 4, 0]
    assert op.geometry().dtype == "int64"
    assert ConvGradInputs(3, "half").geometry().tolist() == [3, 1, 1, 1, *[1] * 6, *[0] * 6]
    assert ConvGradWeights(1, "full").geometry().tolist() == [1, 2, 1, 1, *[1] * 6, *[0] * 6]


@pytest.mark.parametrize("dtypes", [("float16", "float32"), ("float64", "float16")])
def test_mixed_dtypes_are_widened(dtypes):
    img, kern = (pt.tensor(shape=(1, 1, 2, 2), dtype=d) for d in dtypes)
    assert conv2d(img, kern).type.dtype == np.result_type(*dtypes)
    assert conv2d(pt.tensor4(dtype="float32"), np.ones((1, 1, 1, 1), "float32")).dtype == "float32"


@pytest.mark.parametrize("ndim", [2, 3])
@fuzz(6, data=st.data())
def test_gradient_functions(ndim, data):
    case = data.draw(conv_cases(ndim=ndim, max_channels=2, max_size=4))
    img, kern, top = (pt.constant(a) for a in case.arrays())
    params = case.params
    del params["ndim"]
    by_inputs = {2: conv2d_grad_wrt_inputs, 3: conv3d_grad_wrt_inputs}[ndim]
    by_weights = {2: conv2d_grad_wrt_weights, 3: conv3d_grad_wrt_weights}[ndim]
    transpose = {2: conv2d_transpose, 3: conv3d_transpose}[ndim]
    expected = by_loops(case, ConvGradInputs)
    out = by_inputs(top, kern, case.img_shape, case.kern_shape, **params)
    assert out.type.shape == case.img_shape
    assert_close(out.eval(mode=PERFORM_MODE), expected, allow_zero=True)
    params_of_transpose = {
        ("input_dilation" if k == "subsample" else k): v for k, v in params.items()
    }
    out = transpose(top, kern, (None, None, *case.img_shape[2:]), **params_of_transpose)
    assert_close(out.eval(mode=PERFORM_MODE), expected, allow_zero=True)
    out = by_weights(img, top, pt.constant(case.kern_shape), case.img_shape, **params)
    assert out.type.shape == case.kern_shape
    assert_close(out.eval(mode=PERFORM_MODE), by_loops(case, ConvGradWeights), allow_zero=True)


def test_transpose_spreads_pixels_and_cuts_padding():
    img = np.array([[[[1.0, 2.0]]]])
    kern = np.array([[[[1.0, 10.0, 100.0]]]])
    params = {"input_dilation": (1, 2), "filter_flip": False}
    out = conv2d_transpose(img, kern, (1, 1, 1, 5), **params)
    assert out.eval(mode=PERFORM_MODE).tolist() == [[[[1, 10, 102, 20, 200]]]]
    out = conv2d_transpose(img, kern, (1, 1, 1, 6), **params)
    assert out.eval(mode=PERFORM_MODE).tolist() == [[[[1, 10, 102, 20, 200, 0]]]]
    out = conv2d_transpose(img, kern, (1, 1, 1, 3), border_mode=(0, 1), **params)
    assert out.eval(mode=PERFORM_MODE).tolist() == [[[[10, 102, 20]]]]


def test_symbolic_output_shape():
    img, kern, like = pt.tensor4("img"), pt.tensor4("kern"), pt.tensor4("like")
    out = conv2d_transpose(img, kern, like.shape, input_dilation=2)
    values = {img: np.ones((2, 3, 4, 4)), kern: np.ones((3, 5, 2, 2)), like: np.ones((2, 5, 8, 9))}
    assert evaluate(out, values).shape == (2, 5, 8, 9)
    with pytest.raises(
        DnnValueError, match="shape of the result does not match the output_shape argument"
    ):
        evaluate(out, {**values, like: np.ones((1, 5, 8, 9))})


# -- errors ------------------------------------------------------------------------------

IMG = pt.tensor("img", shape=(2, 4, 5, 5), dtype="float32")
KERN = pt.tensor("kern", shape=(6, 4, 3, 3), dtype="float32")
TOP = pt.tensor("top", shape=(2, 6, 3, 3), dtype="float32")


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"border_mode": "same"}, DnnValueError, "'same'.*|.*'valid', 'half', 'full'"),
        ({"border_mode": -1}, DnnValueError, r"padding \(border_mode\) must be between 0 and"),
        ({"border_mode": (0, -2)}, DnnValueError, r"padding .* got -2"),
        ({"border_mode": ((0, 1), (2, -3))}, DnnValueError, r"padding .* got \(2, -3\)"),
        ({"border_mode": (1, 2, 3)}, DnnValueError, r"2 ints or pairs of ints, got \(1, 2, 3\)"),
        ({"border_mode": ((1, 2, 3), 0)}, DnnValueError, r"2 entries, got \(1, 2, 3\)"),
        ({"border_mode": 1.5}, DnnTypeError, "border_mode must be .* got 1.5"),
        ({"border_mode": (1.5, 1)}, DnnTypeError, "ints, got 1.5"),
        ({"border_mode": None}, DnnTypeError, "got None"),
        ({"border_mode": True}, DnnTypeError, "got True"),
        ({"subsample": (0, 1)}, DnnValueError, r"subsample must be between 1 and .* \(0, 1\)"),
        ({"subsample": 2**31}, DnnValueError, "subsample must be between 1 and 2147483647"),
        ({"subsample": (1, 1, 1)}, DnnValueError, "subsample must have 2 entries"),
        ({"subsample": "ab"}, DnnTypeError, "subsample must be an int or 2 ints, got 'ab'"),
        ({"filter_dilation": 0}, DnnValueError, "filter_dilation must be between 1 and"),
        ({"filter_dilation": (1.0, 1)}, DnnTypeError, "filter_dilation must be an int or 2 ints"),
        ({"num_groups": 0}, DnnValueError, "num_groups must be a positive int, got 0"),
        ({"num_groups": 2.0}, DnnValueError, "num_groups must be a positive int, got 2.0"),
        ({"num_groups": 3}, DnnValueError, "num_groups 3 does not divide the 4 input channels"),
        ({"num_groups": 4}, DnnValueError, "num_groups 4 does not divide the 6 filters"),
        ({"num_groups": 2}, DnnValueError, r"input has 4 channels, but filters of 4 channels in 2"),
        ({"filter_dilation": (1, 3)}, DnnValueError, "extent 7 on spatial axis 1 .* input's 5"),
        ({"input_shape": (2, 4, 5)}, DnnValueError, "input_shape must have 4 entries.*got 3"),
        ({"input_shape": (3, 4, 5, 5)}, DnnValueError, r"input_shape \(3, 4, 5, 5\) contradicts"),
        ({"input_shape": (2, 4, 5, -5)}, DnnValueError, "input_shape must not be negative, got -5"),
        ({"input_shape": (2, 4, 5, 5.0)}, DnnTypeError, "got the entry 5.0"),
        ({"input_shape": (2, 4, 5, pt.dscalar())}, DnnTypeError, "got an entry of type"),
        ({"input_shape": 7}, DnnTypeError, "got 7"),
        ({"input_shape": pt.lvector()}, DnnTypeError, "input_shape must have 4 entries"),
        ({"filter_shape": (6, 4, 3, 2)}, DnnValueError, r"contradicts the shape \(6, 4, 3, 3\)"),
        (
            {"input_shape": (2, 4, 5, 5), "image_shape": (2, 4, 5, 5)},
            DnnValueError,
            "pass only one of them",
        ),
        ({"unshared": True}, DnnNotSupportedError, "locally connected"),
    ],
    ids=str,
)
def test_wrong_parameters(kwargs, error, message):
    with pytest.raises(error, match=message):
        conv2d(IMG, KERN, **kwargs)


def test_messages_name_the_op_the_shapes_and_the_parameters():
    with pytest.raises(ValueError, match=r"^conv2d: ") as caught:
        conv2d(pt.tensor4(dtype="float32"), KERN, (None, 3, 5, None), subsample=2)
    message = str(caught.value)
    for part in ("input (?, 3, 5, ?)", "filters (6, 4, 3, 3)", "subsample=(2, 2)", "num_groups=1"):
        assert part in message


@pytest.mark.parametrize(
    ("img", "kern", "message"),
    [
        (pt.tensor3(), KERN, "input must have 4 dimensions, got 3"),
        (IMG, pt.tensor3(), "filters must have 4 dimensions, got 3"),
        (pt.tensor4(dtype="int64"), KERN, "input has dtype int64; expected one of float16"),
        (IMG, pt.tensor4(dtype="complex64"), "filters has dtype complex64"),
    ],
)
def test_wrong_operands(img, kern, message):
    with pytest.raises(DnnTypeError, match=message):
        conv2d(img, kern)


@pytest.mark.parametrize(
    "value", [None, "image", {}, [[1.0, 2.0], [3.0]], pt.random.type.RandomGeneratorType()("rng")]
)
def test_non_tensors_are_rejected(value):
    with pytest.raises(DnnTypeError, match="conv2d: input must be a tensor"):
        conv2d(value, KERN)
    with pytest.raises(DnnTypeError, match="conv2d: filters must be a tensor"):
        conv2d(IMG, value)
    with pytest.raises(DnnTypeError, match="Conv2d: the image must be a tensor"):
        Conv(2)(value, KERN)
    with pytest.raises(DnnTypeError, match="pool_2d: input must be a tensor"):
        pool_2d(value, (2, 2))


@pytest.mark.parametrize("value", ["no", None, 2, 1.0, [True]])
def test_filter_flip_is_a_bool(value):
    with pytest.raises(DnnTypeError, match="filter_flip must be True or False"):
        conv2d(IMG, KERN, filter_flip=value)


@pytest.mark.parametrize("value", [True, np.True_, 1, np.int8(1)])
def test_filter_flip_is_canonical(value):
    assert Conv(2, filter_flip=value) == Conv(2)
    assert Conv(2, filter_flip=value).filter_flip is True


def test_ops_want_one_dtype():
    with pytest.raises(DnnTypeError, match="image float32, filters float64"):
        Conv(2)(IMG, pt.tensor4(dtype="float64"))
    with pytest.raises(DnnTypeError, match="filters float32, gradient float64"):
        ConvGradInputs(2)(KERN, pt.tensor4(dtype="float64"), [5, 5])


@pytest.mark.parametrize("ndim", [0, 4, None])
def test_ndim(ndim):
    with pytest.raises(DnnValueError, match="must be 1, 2 or 3"):
        Conv(ndim)


@pytest.mark.parametrize(
    ("shape", "error", "message"),
    [
        ([6, 5], DnnValueError, r"the output must have the shape \(2, 6, 4, 3\)"),
        ([5, -1], DnnValueError, "image's size on spatial axis 1 is negative"),
        ([5, 2], DnnValueError, "extent 3 on spatial axis 1 is larger"),
        ([5, 5, 5], DnnValueError, "vector of 2 integers, got 3 entries"),
        ([], DnnValueError, "vector of 2 integers, got 0 entries"),
        ([5.0, 5.0], DnnTypeError, "vector of 2 integers"),
        (5, DnnTypeError, "vector of 2 integers"),
        (object(), DnnTypeError, "vector of 2 integers"),
    ],
    ids=lambda value: re.sub(" at 0x[0-9a-f]+", "", str(value)),
)
def test_wrong_image_shape(shape, error, message):
    with pytest.raises(error, match=f"ConvGradInputs2d.*{message}"):
        ConvGradInputs(2)(KERN, TOP, shape)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ([3, 2], r"gradient with respect to the output must have the shape \(2, 6, 3, 4\)"),
        ([3, 0], "filters' size on spatial axis 1 must be at least 1"),
        ([6, 3], "extent 6 on spatial axis 0 is larger"),
    ],
    ids=str,
)
def test_wrong_filter_shape(shape, message):
    with pytest.raises(DnnValueError, match=f"ConvGradWeights2d.*{message}"):
        ConvGradWeights(2)(IMG, TOP, shape)


def test_with_a_stride_several_sizes_fit_one_gradient():
    for size in (6, 7):
        op = ConvGradInputs(1, subsample=2)
        assert run_op(op, np.ones((1, 1, 2)), np.ones((1, 1, 3)), np.array([size])).shape[2] == size
    with pytest.raises(DnnValueError, match=r"must have the shape \(1, 1, 4\)"):
        run_op(op, np.ones((1, 1, 2)), np.ones((1, 1, 3)), np.array([8]))


def test_gradient_functions_need_the_spatial_shape():
    with pytest.raises(DnnValueError, match="input_shape must contain the 2 spatial sizes"):
        conv2d_grad_wrt_inputs(TOP, KERN, (2, 4, None, 5))
    with pytest.raises(DnnValueError, match="output_shape must contain the 2 spatial sizes"):
        conv2d_transpose(TOP, KERN, None)
    with pytest.raises(DnnValueError, match="input has 4 channels, but filter_shape of 3 channels"):
        conv2d_grad_wrt_weights(IMG, TOP, (6, 3, 3, 3))
    for function in (conv2d_grad_wrt_inputs, conv2d_grad_wrt_weights, conv2d_transpose):
        with pytest.raises(DnnNotSupportedError, match=function.__name__):
            function(TOP, KERN, (2, 4, 5, 5), unshared=True)


@pytest.mark.parametrize(
    ("op", "shapes", "vector", "message"),
    [
        (Conv(2), [(2, 3, 5, 5), (6, 4, 3, 3)], None, "image has 3 channels"),
        (Conv(2), [(2, 4, 5, 2), (6, 4, 3, 3)], None, "extent 3 on spatial axis 1"),
        (Conv(2, "full"), [(2, 4, 5, 5), (6, 4, 3, 0)], None, "must be at least 1"),
        (Conv(2, num_groups=2), [(2, 3, 5, 5), (6, 2, 3, 3)], None, "does not divide the 3"),
        (ConvGradInputs(2), [(6, 4, 3, 3), (2, 5, 3, 3)], [5, 5], r"shape \(2, 6, 3, 3\)"),
        (ConvGradInputs(2), [(6, 4, 3, 3), (2, 6, 3, 3)], [5, 6], r"shape \(2, 6, 3, 4\)"),
        (ConvGradInputs(2), [(6, 4, 3, 3), (2, 6, 3, 3)], [5, -6], "is negative"),
        (ConvGradWeights(2), [(2, 4, 5, 5), (3, 6, 3, 3)], [3, 3], r"shape \(2, 6, 3, 3\)"),
        (ConvGradWeights(2), [(2, 4, 5, 5), (2, 6, 3, 3)], [3, -1], "at least 1"),
    ],
)
def test_the_same_checks_at_the_call(op, shapes, vector, message):
    inputs = [pt.tensor4(dtype="float64") for _ in shapes]
    values = {x: np.ones(shape) for x, shape in zip(inputs, shapes, strict=True)}
    if vector is not None:
        inputs.append(pt.lvector())
        values[inputs[-1]] = np.array(vector)
    out = op(*inputs)
    with pytest.raises(DnnValueError, match=message):
        evaluate(out, values)


# -- the oracle itself -------------------------------------------------------------------


def test_assert_close_can_fail():
    ref = np.arange(1.0, 9.0)
    assert_close(ref, ref)
    for wrong in (ref + 1e-3, np.where(ref == 3, np.nan, ref)):
        with pytest.raises(AssertionError, match="relative error"):
            assert_close(wrong, ref)
    with pytest.raises(AssertionError, match="is zero"):
        assert_close(np.zeros(8), np.zeros(8))
    with pytest.raises(AssertionError, match="relative error"):
        assert_close(ref, np.zeros(8), allow_zero=True)
    with pytest.raises(AssertionError, match="shape"):
        assert_close(ref, ref[:4])


def test_check_gradient_can_fail():
    class WrongPullback(Conv):
        def pullback(self, inputs, outputs, cotangents):
            by_img, by_kern = super().pullback(inputs, outputs, cotangents)
            return [by_img, by_kern * 1.001]

        def _sibling(self, cls):
            return Conv._sibling(self, cls)

    class WrongPushforward(Conv):
        def pushforward(self, inputs, outputs, tangents):
            return [super().pushforward(inputs, outputs, tangents)[0] * 1.001]

    points = [np.arange(1.0, 7.0).reshape(1, 1, 6), np.ones((2, 1, 2))]
    check_gradient(Conv(1), points)
    with pytest.raises(AssertionError, match="by pullback"):
        check_gradient(WrongPullback(1), points)
    with pytest.raises(AssertionError, match="relative error"):
        check_gradient(WrongPushforward(1), points)


@pytest.mark.parametrize("symbolic", [False, True], ids=["static", "symbolic"])
def test_transpose_with_an_output_padding_of_a_stride_or_more(symbolic):
    """The size may be less than the stride or the dilation, whichever is larger."""
    rng = np.random.default_rng(8)
    img, kern = normal(rng, (2, 4, 5, 6), "float64"), normal(rng, (4, 3, 3, 2), "float64")
    static = (None,) * 4 if symbolic else img.shape
    x, w = pt.tensor("x", dtype="float64", shape=static), pt.dtensor4("w")
    for stride, dilation, pad, rest in [
        ((1, 1), (3, 2), (1, 0), (2, 1)),
        ((2, 1), (5, 3), (2, 1), (4, 2)),
        ((1, 2), (4, 1), (0, 1), (3, 1)),
        ((2, 3), (2, 3), (1, 1), (1, 2)),
    ]:
        axes = list(zip((5, 6), (3, 2), stride, dilation, pad, rest, strict=True))
        sizes = [(n - 1) * s - 2 * p + d * (k - 1) + r + 1 for n, k, s, d, p, r in axes]

        def transposed(x, w, sizes=sizes, stride=stride, dilation=dilation, pad=pad):
            return conv2d_transpose(
                x,
                w if symbolic else pt.specify_shape(w, kern.shape),
                (None, None, *sizes),
                border_mode=pad,
                input_dilation=stride,
                filter_dilation=dilation,
                filter_flip=False,
            )

        spread = np.zeros((2, 3, sizes[0] + 2 * pad[0] + 9, sizes[1] + 2 * pad[1] + 9))
        for place in np.ndindex(5, 6, 3, 2):
            row, column = (place[i] * stride[i] + place[2 + i] * dilation[i] for i in range(2))
            pixels, taps = img[:, :, place[0], place[1]], kern[:, :, place[2], place[3]]
            spread[:, :, row, column] += pixels @ taps
        expected = spread[:, :, pad[0] :, pad[1] :][:, :, : sizes[0], : sizes[1]]
        assert_close(evaluate(transposed(x, w), {x: img, w: kern}), expected, allow_zero=True)
        if symbolic:
            check_gradient(transposed, [img, kern], allow_zero=True)


def test_transpose_with_too_large_an_output_padding():
    params = {"filter_dilation": 3, "filter_flip": False}
    img, kern = np.ones((1, 1, 4, 4)), np.ones((1, 1, 2, 2))
    assert evaluate(conv2d_transpose(img, kern, (1, 1, 9, 9), **params), {}).shape == (1, 1, 9, 9)
    with pytest.raises(DnnValueError, match="conv2d_transpose: input must have the shape"):
        conv2d_transpose(img, kern, (1, 1, 10, 9), **params)


def test_extents_of_more_than_31_bits_are_refused():
    x, w = pt.tensor4("x"), pt.tensor("w", shape=(2, 2, 1, 3))
    with pytest.raises(DnnValueError, match="filters' extent 4294967293 on spatial axis 1 is more"):
        conv2d(x, w, filter_dilation=(1, 2**31 - 2))
    image = pt.tensor("image", shape=(1, 2, 4, 4))
    with pytest.raises(DnnValueError, match="padded input's extent 2147483651 on spatial axis 0"):
        conv2d(image, w, border_mode=((2**31 - 1, 0), (0, 0)))
