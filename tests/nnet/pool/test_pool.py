"""Pooling: against explicit loops, derivatives, shapes, errors."""

from __future__ import annotations

import pickle

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from hypothesis import strategies as st
from pytensor.gradient import (
    DisconnectedInputError,
    DisconnectedType,
    disconnected_type,
    verify_grad,
)

from dnnops.errors import DnnTypeError, DnnValueError, DnnWarning
from dnnops.nnet import (
    AveragePoolGrad,
    MaxPoolGrad,
    MaxPoolGradGrad,
    Pool,
    pool_2d,
    pool_3d,
    pool_output_shape,
)
from dnnops.nnet.pool.op import POOL_MODES
from tests.oracle import (
    PERFORM_MODE,
    PoolCase,
    assert_close,
    check_gradient,
    check_infer_shape,
    check_second_derivatives,
    evaluate,
    fuzz,
    pool_cases,
    run_op,
)

AVERAGES = POOL_MODES[1:]


def windows(case: PoolCase):
    """Yield each window: its position in the output, its pixels, and its number of elements."""
    for place in np.ndindex(*case.out_shape):
        pixels = []
        for offset in np.ndindex(*case.ws):
            pixel = [
                p * stride + i - pad
                for p, stride, i, pad in zip(place[2:], case.stride, offset, case.pad, strict=True)
            ]
            if all(0 <= p < n for p, n in zip(pixel, case.img_shape[2:], strict=True)):
                pixels.append((*place[:2], *pixel))
        assert pixels
        count = {"sum": 1, "average_inc_pad": np.prod(case.ws)}.get(case.mode, len(pixels))
        if not case.ignore_border and case.mode == "average_inc_pad":
            count = len(pixels)
        yield place, pixels, count


def first_maximum(x: np.ndarray, pixels: list) -> tuple:
    """Return the first of `pixels` where `x` is NaN, otherwise the first with the maximum."""
    best = pixels[0]
    for pixel in pixels[1:]:
        if np.isnan(x[best]):
            break
        if np.isnan(x[pixel]) or x[pixel] > x[best]:
            best = pixel
    return best


def pool_by_loops(case: PoolCase, x: np.ndarray) -> np.ndarray:
    out = np.zeros(case.out_shape)
    for place, pixels, count in windows(case):
        if case.mode == "max":
            out[place] = x[first_maximum(x, pixels)]
        else:
            out[place] = sum(float(x[p]) for p in pixels) / count
    return out


def gradient_by_loops(case: PoolCase, x: np.ndarray, gz: np.ndarray) -> np.ndarray:
    out = np.zeros(case.img_shape)
    for place, pixels, count in windows(case):
        if case.mode == "max":
            out[first_maximum(x, pixels)] += gz[place]
        else:
            for pixel in pixels:
                out[pixel] += gz[place] / count
    return out


def pool_op(case: PoolCase) -> Pool:
    return Pool(case.ndim, case.mode, case.ignore_border)


def gradient(case: PoolCase, x: np.ndarray, gz: np.ndarray) -> np.ndarray:
    """Run the gradient's Op."""
    if case.mode == "max":
        maxout = run_op(pool_op(case), x, *case.vectors)
        return run_op(MaxPoolGrad(case.ndim, case.ignore_border), x, maxout, gz, *case.vectors)
    op = AveragePoolGrad(case.ndim, case.mode, case.ignore_border)
    return run_op(op, x, gz, *case.vectors)


# -- values ------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", POOL_MODES)
@fuzz(60, data=st.data(), dtype=st.sampled_from(["float64", "float32", "float16"]))
def test_perform_against_loops(mode, data, dtype):
    case = data.draw(pool_cases(modes=[mode]))
    x, gz, _ = case.arrays(dtype)
    assert_close(
        run_op(pool_op(case), x, *case.vectors), pool_by_loops(case, x), dtype, allow_zero=True
    )
    assert_close(gradient(case, x, gz), gradient_by_loops(case, x, gz), dtype, allow_zero=True)


@fuzz(60, case=pool_cases(modes=["max"]), special=st.sampled_from([0.0, np.nan, -np.inf]))
def test_the_first_maximum_gets_the_gradient(case, special):
    x, gz, ggx = case.arrays(ties=True)
    x[x == 0] = special
    out = run_op(pool_op(case), x, *case.vectors)
    np.testing.assert_array_equal(out, pool_by_loops(case, x))
    np.testing.assert_allclose(gradient(case, x, gz), gradient_by_loops(case, x, gz), atol=1e-12)
    op = MaxPoolGradGrad(case.ndim, case.ignore_border)
    picked = run_op(op, x, out, ggx, *case.vectors)
    expected = [ggx[first_maximum(x, pixels)] for _, pixels, _ in windows(case)]
    np.testing.assert_array_equal(picked.ravel(), expected)


def test_padding_is_no_maximum():
    case = PoolCase((1, 1, 2), (3,), (1,), (2,), "max", True, seed=0)
    x = np.full((1, 1, 2), -np.inf)
    gz = np.arange(1.0, 5.0).reshape(1, 1, 4)
    assert run_op(pool_op(case), x, *case.vectors).tolist() == [[[-np.inf] * 4]]
    # The first pixel inside each of the windows: 0, 0, 0 and 1.
    assert gradient(case, x, gz).tolist() == [[[6.0, 4.0]]]


@pytest.mark.parametrize("mode", POOL_MODES)
@fuzz(20, data=st.data())
def test_empty_batch_and_channels(mode, data):
    case = data.draw(pool_cases(modes=[mode], empty=True))
    x, gz, _ = case.arrays()
    np.testing.assert_allclose(run_op(pool_op(case), x, *case.vectors), pool_by_loops(case, x))
    np.testing.assert_allclose(gradient(case, x, gz), gradient_by_loops(case, x, gz), atol=1e-12)


def test_non_contiguous_operand():
    x = np.random.default_rng(1).standard_normal((4, 5, 3, 2)).transpose(3, 2, 1, 0)[..., ::-1]
    vectors = [np.array(v) for v in ((2, 2), (1, 2), (1, 0))]
    for mode in POOL_MODES:
        op = Pool(2, mode, True)
        assert_close(run_op(op, x, *vectors), run_op(op, x.copy(), *vectors))


def test_float16_is_added_up_in_float32():
    ones = np.ones((1, 1, 4000), dtype="float16")
    vectors = [np.array([v]) for v in (4000, 1, 0)]
    assert run_op(Pool(1, "sum", True), ones, *vectors) == 4000
    assert run_op(Pool(1, "average_exc_pad", True), ones, *vectors) == 1
    one, vectors = ones[..., :1], [np.array([v]) for v in (3000, 1, 2999)]
    assert run_op(AveragePoolGrad(1, "sum", True), one, ones[..., :3000], *vectors) == 3000


@pytest.mark.parametrize(
    ("ignore_border", "ws", "stride", "expected"),
    [
        (True, 2, 2, [1, 3]),
        (False, 2, 2, [1, 3, 4]),
        (True, 3, 1, [2, 3, 4]),
        (False, 3, 1, [2, 3, 4]),
        (False, 3, 2, [2, 4]),
        (False, 4, 2, [3, 4]),
        (False, 9, 1, [4]),
        (False, 1, 3, [0, 3]),
        (False, 2, 4, [1, 4]),
        (True, 2, 4, [1]),
    ],
)
def test_borders(ignore_border, ws, stride, expected):
    out = run_op(
        Pool(1, "max", ignore_border),
        np.arange(5.0).reshape(1, 1, 5),
        np.array([ws]),
        np.array([stride]),
        np.array([0]),
    )
    assert out.ravel().tolist() == expected


def test_averages_with_and_without_the_padding():
    x = np.full((1, 1, 3), 6.0)
    vectors = [np.array([3]), np.array([2]), np.array([1])]
    assert run_op(Pool(1, "average_inc_pad", True), x, *vectors).ravel().tolist() == [4, 4]
    assert run_op(Pool(1, "average_exc_pad", True), x, *vectors).ravel().tolist() == [6, 6]
    assert run_op(Pool(1, "sum", True), x, *vectors).ravel().tolist() == [12, 12]
    partial = [np.array([2]), np.array([2]), np.array([0])]
    assert run_op(Pool(1, "average_inc_pad", False), x, *partial).ravel().tolist() == [6, 6]


# -- derivatives -------------------------------------------------------------------------


@pytest.mark.parametrize("mode", POOL_MODES)
@fuzz(8, data=st.data())
def test_derivatives_of_pool(mode, data):
    case = data.draw(pool_cases(modes=[mode], max_size=4))
    x, _, _ = case.arrays()

    def pool(x):
        return pool_op(case)(x, *case.vectors)

    check_gradient(pool, [x], allow_zero=True)
    check_second_derivatives(pool, [x], allow_zero=True)


@fuzz(8, case=pool_cases(modes=["max"], max_size=4))
def test_derivatives_of_the_max_pool_gradients(case):
    x, gz, ggx = case.arrays()
    for op_class, other in ((MaxPoolGrad, gz), (MaxPoolGradGrad, ggx)):
        op = op_class(case.ndim, case.ignore_border)

        def fun(x, other, op=op):
            return op(x, pool_op(case)(x, *case.vectors), other, *case.vectors)

        check_gradient(fun, [x, other], allow_zero=True)
        check_second_derivatives(fun, [x, other], allow_zero=True)


@pytest.mark.parametrize("mode", AVERAGES)
@fuzz(8, data=st.data())
def test_derivatives_of_the_average_pool_gradient(mode, data):
    case = data.draw(pool_cases(modes=[mode], max_size=4))
    x, gz, _ = case.arrays()
    op = AveragePoolGrad(case.ndim, mode, case.ignore_border)
    check_gradient(lambda gz: op(pt.constant(x), gz, *case.vectors), [gz], allow_zero=True)


@pytest.mark.parametrize("mode", POOL_MODES)
def test_verify_grad(mode):
    case = PoolCase((2, 1, 5, 4), (3, 2), (2, 2), (1, 0), mode, True, seed=3)
    rng = np.random.default_rng(4)
    fun = lambda x: pool_2d(x, case.ws, True, case.stride, case.pad, mode)  # noqa: E731
    verify_grad(fun, [case.arrays()[0]], rng=rng, mode=PERFORM_MODE)


@pytest.mark.parametrize("lead", [(), (2,), (2, 1, 3)], ids=str)
def test_derivatives_through_folded_axes(lead):
    x = np.random.default_rng(5).permutation(int(np.prod(lead)) * 20).reshape(*lead, 5, 4) / 8.0
    check_gradient(lambda x: pool_2d(x, 2, stride=1), [x], allow_zero=True)


def test_connection_patterns():
    x = pt.tensor3(dtype="float64")
    vectors = [[2], [2], [0]]
    patterns = {
        Pool(1, "max", True): [True],
        Pool(1, "sum", True): [True],
        MaxPoolGrad(1, True): [True, False, True],
        MaxPoolGradGrad(1, True): [True, False, True],
        AveragePoolGrad(1, "sum", True): [False, True],
    }
    for op, data in patterns.items():
        node = op.make_node(*[x] * len(data), *vectors)
        assert op.connection_pattern(node) == [[v] for v in (*data, False, False, False)]
        tangents = [disconnected_type() for _ in node.inputs]
        (tangent,) = op.pushforward(node.inputs, node.outputs, tangents)
        assert isinstance(tangent.type, DisconnectedType)


def test_max_pool_gradient_for_x_is_zero_not_disconnected():
    x, gz = pt.tensor3("x", dtype="float64"), pt.tensor3("gz", dtype="float64")
    op = MaxPoolGrad(1, True)
    out = op(x, Pool(1, "max", True)(x, [2], [2], [0]), gz, [2], [2], [0])
    values = {x: np.arange(4.0).reshape(1, 1, 4), gz: np.ones((1, 1, 2))}
    assert not evaluate(pytensor.grad(out.sum(), x), values).any()
    tangents = [x, *(disconnected_type() for _ in range(5))]
    forward = op.pushforward(out.owner.inputs, [out], tangents)
    assert evaluate(forward, values)[0].tolist() == [[[0.0] * 4]]


def test_average_pool_gradient_is_disconnected_from_x():
    x, gz = pt.tensor3("x", dtype="float64"), pt.tensor3("gz", dtype="float64")
    out = AveragePoolGrad(1, "sum", True)(x, gz, [2], [2], [0])
    with pytest.raises(DisconnectedInputError):
        pytensor.grad(out.sum(), x)


# -- shapes ------------------------------------------------------------------------------


@fuzz(40, case=pool_cases())
def test_infer_shape(case):
    x, gz, ggx = case.arrays()
    check_infer_shape(pool_op(case), x, *case.vectors)
    if case.mode == "max":
        check_infer_shape(MaxPoolGrad(case.ndim, case.ignore_border), x, gz, gz, *case.vectors)
        op = MaxPoolGradGrad(case.ndim, case.ignore_border)
        check_infer_shape(op, x, gz, ggx, *case.vectors)
    else:
        op = AveragePoolGrad(case.ndim, case.mode, case.ignore_border)
        check_infer_shape(op, x, gz, *case.vectors)


def test_static_shapes():
    x = pt.tensor("x", shape=(None, 3, 7, None), dtype="float32")
    out = pool_2d(x, (2, 3), True, stride=(2, 1))
    assert out.type.shape == (None, 3, 3, None)
    assert pool_2d(x, (pt.lscalar(), 3)).type.shape == (None, 3, None, None)
    assert pool_2d(pt.tensor4(dtype="float32"), 2).owner.op == Pool(2, "max", False)
    grad = pytensor.grad(out.sum(), x)
    assert grad.type.shape == x.type.shape
    gz = pt.tensor("gz", shape=(5, None, None, 4), dtype="float32")
    op = MaxPoolGradGrad(2, True)
    assert op(x, gz, x, [2, 3], [2, 1], [0, 0]).type.shape == (5, 3, 3, 4)
    assert MaxPoolGrad(2, True)(x, gz, gz, [2, 3], [2, 1], [0, 0]).type.shape == x.type.shape


def test_pool_output_shape_takes_ints_symbols_and_none():
    assert pool_output_shape((2, None, 7, None), (2, 2), (2, 2), (0, 0), True) == (2, None, 3, None)
    assert pool_output_shape((2, 3, 7), (2,), (2,), (0,), False) == (2, 3, 4)
    ws, rows = pt.lscalar(), pt.lscalar()
    for ignore_border in (True, False):
        for size, window, stride in ((7, 2, 2), (7, 3, 1), (2, 2, 1), (5, 4, 3), (9, 2, 4)):
            (out,) = pool_output_shape((1, 1, rows), (ws,), (stride,), (0,), ignore_border)[2:]
            expected = pool_output_shape((1, 1, size), (window,), (stride,), (0,), ignore_border)
            assert evaluate(out, {rows: size, ws: window}) == expected[2]


@pytest.mark.parametrize(
    ("function", "ndim"), [(pool_2d, 2), (pool_3d, 3)], ids=["pool_2d", "pool_3d"]
)
@pytest.mark.parametrize("lead", [(), (3,), (2, 3), (2, 1, 3), (2, 1, 2, 2), (0, 2, 3)], ids=str)
@pytest.mark.parametrize("static", [True, False])
def test_any_number_of_leading_axes(function, ndim, lead, static):
    rng = np.random.default_rng(6)
    value = rng.standard_normal((*lead, *(5, 4, 6)[:ndim]))
    x = pt.tensor("x", shape=value.shape if static else (None,) * value.ndim, dtype="float64")
    out = function(x, 2, ignore_border=True, stride=1, mode="sum")
    found = evaluate(out, {x: value})
    if static:
        assert out.type.shape == found.shape
    case = PoolCase(
        (1, int(np.prod(lead)), *value.shape[-ndim:]), (2,) * ndim, (1,) * ndim, (0,) * ndim,
        "sum", True, seed=0,
    )  # fmt: skip
    expected = pool_by_loops(case, value.reshape(case.img_shape))
    assert_close(found, expected.reshape(*lead, *expected.shape[2:]))


def test_symbolic_parameters():
    x, ws = pt.tensor4("x", dtype="float64"), pt.lvector("ws")
    out = pool_2d(x, ws, True, stride=ws, pad=(0, 1))
    grad = pytensor.grad(out.sum(), x)
    value = np.arange(24.0).reshape(1, 1, 4, 6)
    found, by_x = evaluate([out, grad], {x: value, ws: np.array([2, 3])})
    assert found.tolist() == [[[[7, 10], [19, 22]]]]
    assert by_x.sum() == 4


def test_defaults():
    x = pt.tensor4("x")
    node = pool_2d(x, (2, 3)).owner
    assert node.op == Pool(2, "max", False)
    assert [v.data.tolist() for v in node.inputs[1:]] == [[2, 3], [2, 3], [0, 0]]
    node = pool_3d(pt.tensor5("x"), 2, True, mode="sum").owner
    assert node.op == Pool(3, "sum", True)


@pytest.mark.parametrize(
    "op",
    [Pool(1, "max", True), Pool(2, "sum", True), Pool(2, "max", True), Pool(2, "max", False)],
    ids=str,
)
def test_every_parameter_is_part_of_the_ops_identity(op):
    assert op != Pool(3, "average_inc_pad", False)
    assert (op == Pool(2, "max", True)) == (str(op) == str(Pool(2, "max", True)))
    assert pickle.loads(pickle.dumps(op)) == op
    assert MaxPoolGrad(2, True) != MaxPoolGrad(2, False) != MaxPoolGradGrad(2, False)


# -- errors ------------------------------------------------------------------------------

X = pt.tensor("x", shape=(2, 4, 5, 5), dtype="float32")


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"mode": "min"}, DnnValueError, "mode must be one of max, sum, .* got 'min'"),
        ({"ws": None}, DnnValueError, "ws, the window size, must be given"),
        ({"ws": (0, 2)}, DnnValueError, "ws must be between 1 and"),
        ({"ws": (2, 2, 2)}, DnnValueError, "ws must be a vector of 2 integers, got 3"),
        ({"ws": (2.0, 2)}, DnnTypeError, "ws must be a vector of 2 integers"),
        ({"ws": "ab"}, DnnTypeError, "ws must be a vector of 2 integers"),
        ({"stride": 0}, DnnValueError, "stride must be between 1 and"),
        ({"stride": 2**31}, DnnValueError, "stride must be between 1 and 67108864"),
        ({"pad": -1}, DnnValueError, "pad must be between 0 and"),
        ({"pad": (0, 3)}, DnnValueError, r"pad must be smaller than ws.* \(spatial axis 1\)"),
        ({"pad": 1, "ignore_border": None}, DnnValueError, "padding needs ignore_border=True"),
    ],
    ids=str,
)
def test_wrong_parameters(kwargs, error, message):
    with pytest.raises(error, match=message):
        pool_2d(X, **{"ws": 3, "ignore_border": True, **kwargs})


def test_messages_name_the_op_the_shapes_and_the_parameters():
    with pytest.raises(ValueError, match="Pool2d") as caught:
        pool_2d(X, (2, 3), True, pad=(0, 3))
    for part in ("image (2, 4, 5, 5)", "ws=(2, 3)", "stride=(2, 3)", "ignore_border=True"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("function", "x", "message"),
    [
        (pool_2d, pt.vector(), "pool_2d: input must have at least 2 dimensions, got 1"),
        (pool_3d, pt.matrix(), "pool_3d: input must have at least 3 dimensions, got 2"),
        (pool_2d, pt.tensor4(dtype="complex64"), "pool_2d: input has dtype complex64"),
    ],
)
def test_wrong_inputs(function, x, message):
    with pytest.raises(DnnTypeError, match=message):
        function(x, 2)


def test_wrong_operands():
    vectors = [[2, 2], [2, 2], [0, 0]]
    with pytest.raises(DnnTypeError, match="expected the operands x, ws, stride, pad, got 3"):
        Pool(2, "max", True)(X, [2, 2], [2, 2])
    with pytest.raises(DnnTypeError, match="MaxPoolGrad2d: maxout must have 4 dimensions"):
        MaxPoolGrad(2, True)(X, pt.tensor3(), X, *vectors)
    with pytest.raises(DnnTypeError, match="x float32, gz float64"):
        AveragePoolGrad(2, "sum", True)(X, pt.tensor4(dtype="float64"), *vectors)
    wrong = pt.tensor("gz", shape=(2, 4, 3, 3), dtype="float32")
    with pytest.raises(DnnValueError, match=r"output \(2, 4, 2, 2\), gz \(2, 4, 3, 3\)"):
        AveragePoolGrad(2, "sum", True)(X, wrong, *vectors)
    with pytest.raises(DnnValueError, match=r"x \(2, 4, 5, 5\), ggx \(2, 4, 3, 3\)"):
        MaxPoolGradGrad(2, True)(X, pt.tensor4(dtype="float32"), wrong, *vectors)
    with pytest.raises(DnnValueError, match="mode must be one of sum, average_inc_pad"):
        AveragePoolGrad(2, "max", True)
    with pytest.raises(DnnValueError, match="must be 1, 2 or 3, got 4"):
        MaxPoolGrad(4, True)


@pytest.mark.parametrize(
    ("ignore_border", "shape", "ws", "stride", "pad", "message"),
    [
        (True, (1, 1, 4), 0, 1, 0, "ws must be between"),
        (True, (1, 1, 4), 2, 0, 0, "stride must be between"),
        (True, (1, 1, 4), 2, 1, 2, "pad must be smaller than ws"),
        (True, (1, 1, 4), 2, 1, -1, "pad must be between"),
        (False, (1, 1, 4), 2, 1, 1, "padding needs ignore_border"),
        (False, (1, 1, 0), 2, 1, 0, "image is empty on spatial axis 0"),
        (True, (1, 1, 0), 3, 1, 2, "image is empty on spatial axis 0"),
    ],
)
def test_the_same_checks_at_the_call(ignore_border, shape, ws, stride, pad, message):
    x, vectors = pt.tensor3(dtype="float64"), [pt.lvector() for _ in range(3)]
    values = {v: np.array([n]) for v, n in zip(vectors, (ws, stride, pad), strict=True)}
    for op in (Pool(1, "max", ignore_border), Pool(1, "sum", ignore_border)):
        with pytest.raises(DnnValueError, match=message):
            evaluate(op(x, *vectors), {x: np.ones(shape), **values})


def test_wrong_gradient_at_the_call():
    x, gz = pt.tensor3(dtype="float64"), pt.tensor3(dtype="float64")
    out = AveragePoolGrad(1, "sum", True)(x, gz, [2], [2], [0])
    with pytest.raises(DnnValueError, match=r"output \(1, 1, 2\), gz \(1, 1, 3\)"):
        evaluate(out, {x: np.ones((1, 1, 4)), gz: np.ones((1, 1, 3))})


@pytest.mark.parametrize("mode", POOL_MODES)
def test_no_window_fits(mode):
    """The result is empty, and not silently: a mean over it is NaN."""
    known, unknown = pt.tensor(dtype="float32", shape=(2, 3, 8, 8)), pt.ftensor4()
    with pytest.warns(DnnWarning, match=r"pool_2d: no window fits in input of shape \(2, 3, 8, 8"):
        out = pool_2d(known, 64, ignore_border=True, mode=mode)
    assert out.type.shape == (2, 3, 0, 0)
    out = pool_2d(unknown, 64, ignore_border=True, mode=mode)
    images = np.ones((2, 3, 8, 8), "float32")
    found, gradient = evaluate([out, pytensor.grad(out.sum(), unknown)], {unknown: images})
    assert found.shape == (2, 3, 0, 0)
    np.testing.assert_array_equal(gradient, 0 * images)
    assert pool_2d(known, 64, ignore_border=False, mode=mode).type.shape == (2, 3, 1, 1)
