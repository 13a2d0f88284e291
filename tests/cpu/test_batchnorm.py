"""Batch normalization on oneDNN against the abstract Ops' NumPy in float64."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from hypothesis import strategies as st
from pytensor.compile.mode import Mode

from dnnops.cpu.batchnorm import (
    OneDnnBatchNormInference,
    OneDnnBatchNormTrain,
    OneDnnBatchNormTrainGrad,
    has_neighboring_statistics,
)
from dnnops.errors import DnnError, DnnValueError
from dnnops.nnet import batch_normalization_test, batch_normalization_train
from dnnops.nnet.norm.batchnorm import BatchNormInference, BatchNormTrain, BatchNormTrainGrad
from tests.cpu.conv.test_conv import restrided
from tests.linkers import LINKERS
from tests.oracle import PERFORM_MODE, RELATIVE_ERROR, assert_close, fuzz

#: Axes for inputs of four dimensions; the remaining axes are adjacent.
AXES: list[tuple[int, ...]] = [(0, 2, 3), (0,), (3,), (0, 3), (1, 2, 3), (0, 1, 2, 3)]
DTYPES = pytest.mark.parametrize("dtype", ["float32", "float64"])
#: Number of remaining axes out of four.
RANKS: list[tuple[Any, int]] = [("spatial", 1), ("per-activation", 3), ((0, 1, 2, 3), 0)]


@st.composite
def shapes_and_axes(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return a strategy for an array's shape and axes, with the remaining axes adjacent."""
    ndim = draw(st.integers(1, 5))
    begin = draw(st.integers(0, ndim))
    end = draw(st.integers(begin, ndim))
    axes = tuple(axis for axis in range(ndim) if not begin <= axis < end)
    shape = tuple(draw(st.integers(1, 7)) for _ in range(ndim))
    return shape, axes or (draw(st.sampled_from([0, ndim - 1])),)


def make_arrays(
    rng: np.random.Generator,
    shape: tuple[int, ...],
    axes: tuple[int, ...],
    parameters: int,
    dtype: str = "float32",
) -> list[np.ndarray]:
    """Return data and parameters; the last are positive, so that they can be variances."""
    reduced = tuple(1 if axis in axes else size for axis, size in enumerate(shape))
    x = (3 + 2 * rng.standard_normal(shape)).astype(dtype)
    others = [rng.standard_normal(reduced).astype(dtype) for _ in range(parameters)]
    if parameters > 2:
        others[-1] = np.abs(others[-1]) + np.asarray(0.1, dtype)
    return [x, *others]


def run_all(op: Any, *arrays: Any) -> list[np.ndarray]:
    """Run an Op's `perform`, and check the types of its results."""
    node = op.make_node(*arrays)
    storage: list[list] = [[None] for _ in node.outputs]
    op.perform(node, [np.asarray(a) for a in arrays], storage)
    for variable, (value,) in zip(node.outputs, storage, strict=True):
        assert value.dtype.name == variable.type.dtype
        assert value.shape == variable.type.shape
    return [value for (value,) in storage]


def in_double(arrays: Any) -> list[np.ndarray]:
    return [np.asarray(a, dtype="float64") for a in arrays]


def restride_all(rng: np.random.Generator, arrays: Any) -> list[np.ndarray]:
    return [restrided(rng, a) if isinstance(a, np.ndarray) and a.ndim else a for a in arrays]


def assert_close_to_terms(
    result: np.ndarray, reference: np.ndarray, terms: np.ndarray, dtype: str
) -> None:
    """Compare a sum with its reference, relative to the sum or to its terms if they cancel."""
    assert result.shape == reference.shape
    error = np.linalg.norm(result - reference)
    allowed = max(np.linalg.norm(reference), 0.1 * np.linalg.norm(terms))
    assert error <= RELATIVE_ERROR[dtype] * allowed


def check_train(rng, shape, axes, running, dtype="float32"):
    x, scale, bias, mean, var = make_arrays(rng, shape, axes, 4, dtype)
    operands = [x, scale, bias, np.array(1e-3)]
    if running:
        operands += [np.array(0.3), mean, var]
    results = run_all(OneDnnBatchNormTrain(axes, running), *restride_all(rng, operands))
    expected = run_all(BatchNormTrain(axes, running), *in_double(operands))
    assert len(results) == len(expected) == (5 if running else 3)
    terms = np.linalg.norm(np.abs(x.astype("float64")).mean(axis=axes, keepdims=True))
    for number, (result, reference) in enumerate(zip(results, expected, strict=True)):
        assert result.flags.c_contiguous
        if number not in (1, 3):
            assert_close(result, reference, allow_zero=True)
            continue
        # The terms of a mean may cancel. Their sum is in float64, and is rounded once.
        assert np.isfinite(reference).all()
        allowed = RELATIVE_ERROR[dtype] * np.linalg.norm(reference) + 1e-14 * terms
        assert np.linalg.norm(result - reference) <= allowed


def check_train_grad(rng, shape, axes, dtype="float32"):
    x, scale, bias = make_arrays(rng, shape, axes, 2, dtype)
    gout = rng.standard_normal(shape).astype(dtype)
    _, mean, invstd = run_all(BatchNormTrain(axes), x, scale, bias, 1e-3)
    operands = [x, gout, scale, mean, invstd]
    results = run_all(OneDnnBatchNormTrainGrad(axes), *restride_all(rng, operands))
    expected = run_all(BatchNormTrainGrad(axes), *in_double(operands))
    # With few elements, these are differences of almost equal numbers, and those are rounded.
    normalized = (x.astype("float64") - mean) * invstd
    terms = [gout * (scale * invstd) * (1 + np.abs(normalized)), gout * normalized, gout]
    for result, reference, term in zip(results, expected, terms, strict=True):
        assert_close_to_terms(result, reference, term, dtype)


def check_inference(rng, shape, axes, dtype="float32"):
    operands = [*make_arrays(rng, shape, axes, 4, dtype), np.array(1e-3)]
    (result,) = run_all(OneDnnBatchNormInference(axes), *restride_all(rng, operands))
    (expected,) = run_all(BatchNormInference(axes), *in_double(operands))
    assert_close(result, expected, allow_zero=True)


@DTYPES
@fuzz(max_examples=150, case=shapes_and_axes(), running=st.booleans(), seed=st.integers(0, 2**32))
def test_train(case, running, seed, dtype):
    check_train(np.random.default_rng(seed), *case, running, dtype)


@DTYPES
@fuzz(max_examples=150, case=shapes_and_axes(), seed=st.integers(0, 2**32))
def test_train_grad(case, seed, dtype):
    check_train_grad(np.random.default_rng(seed), *case, dtype)


@DTYPES
@fuzz(max_examples=150, case=shapes_and_axes(), seed=st.integers(0, 2**32))
def test_inference(case, seed, dtype):
    check_inference(np.random.default_rng(seed), *case, dtype)


@DTYPES
@pytest.mark.parametrize("axes", AXES)
def test_sizes_for_several_threads(axes, dtype):
    rng = np.random.default_rng(1)
    for shape in [(5, 6, 31, 33), (1, 7, 50, 80), (300, 5, 3, 4)]:
        check_train(rng, shape, axes, True, dtype)
        check_train_grad(rng, shape, axes, dtype)
        check_inference(rng, shape, axes, dtype)


@pytest.mark.parametrize("shape", [(4096, 8), (1023, 37), (2, 20000), (5001, 5), (20001, 1)])
def test_matrices_for_several_threads(shape):
    """Some rows are handled together; not all of these numbers are multiples of that."""
    for seed in range(4):
        rng = np.random.default_rng(seed)
        check_train(rng, shape, (0,), True)
        check_train_grad(rng, shape, (0,))
        check_inference(rng, shape, (0,))


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(("offset", "first"), [(0, 0), (10, 10), (1000, 1000), (1, -5000)])
def test_statistics_of_many_elements(offset, first, channels_last):
    """oneDNN's own statistics, which are sums in float32, would miss the bound here."""
    rng = np.random.default_rng(2)
    x = (offset + rng.standard_normal((16, 2, 256, 256))).astype("float32")
    x[0, :, 0, 0] = first  # the origin of the values
    if channels_last:
        x = np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    axes, parameters = (0, 2, 3), make_arrays(rng, (1, 2, 1, 1), (0,), 2)[1:]
    results = run_all(OneDnnBatchNormTrain(axes), x, *parameters, 1e-4)
    expected = run_all(BatchNormTrain(axes), *in_double([x, *parameters]), 1e-4)
    for result, reference in zip(results, expected, strict=True):
        assert_close(result, reference, bound=5e-7)


@pytest.mark.parametrize("channels_last", [False, True])
def test_scale_gradient_with_a_large_mean(channels_last):
    """For 100 +- 0.01, the rounded mean is off by 4e-4 of the deviation."""
    rng = np.random.default_rng(3)
    x = (100 + 0.01 * rng.standard_normal((8, 3, 20, 20))).astype("float32")
    # The error is largest if the output's gradient has a nonzero mean.
    gout = (1 + 0.1 * rng.standard_normal(x.shape)).astype("float32")
    if channels_last:
        x, gout = (
            np.ascontiguousarray(a.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2) for a in (x, gout)
        )
    axes, scale = (0, 2, 3), np.ones((1, 3, 1, 1), "float32")
    _, mean, invstd = run_all(OneDnnBatchNormTrain(axes), x, scale, scale, 1e-8)
    exact = in_double([x, gout, scale])
    _, *statistics = run_all(BatchNormTrain(axes), exact[0], exact[2], exact[2], 1e-8)
    expected = run_all(BatchNormTrainGrad(axes), *exact, *statistics)
    for op in (OneDnnBatchNormTrainGrad(axes), BatchNormTrainGrad(axes)):
        results = run_all(op, x, gout, scale, mean, invstd)
        for result, reference in zip(results, expected, strict=True):
            assert_close(result, reference, bound=2e-6)


def test_a_nan_spoils_its_own_channel_only():
    rng = np.random.default_rng(3)
    x, scale, bias = make_arrays(rng, (4, 3, 5, 5), (0, 2, 3), 2)
    x[1, 2, 0, 4] = np.nan
    x[2, 0, 3, 3] = np.inf
    with np.errstate(invalid="ignore"):
        results = run_all(OneDnnBatchNormTrain((0, 2, 3)), x, scale, bias, 1e-4)
        expected = run_all(BatchNormTrain((0, 2, 3)), x, scale, bias, 1e-4)
    for result, reference in zip(results, expected, strict=True):
        np.testing.assert_array_equal(np.isfinite(result), np.isfinite(reference))
        np.testing.assert_allclose(result[:, 1], reference[:, 1], rtol=1e-4, atol=1e-5)


def test_constant_channels():
    x = np.full((3, 2, 4), 7, "float32")
    scale, bias = np.full((1, 2, 1), 2, "float32"), np.full((1, 2, 1), -1, "float32")
    out, mean, invstd = run_all(OneDnnBatchNormTrain((0, 2)), x, scale, bias, 1e-4)
    np.testing.assert_array_equal(out, np.full_like(x, -1))
    np.testing.assert_array_equal(mean, np.full_like(mean, 7))
    np.testing.assert_allclose(invstd, np.full_like(invstd, 100), rtol=1e-6)


# -- in graphs ---------------------------------------------------------------------------


def ops_of(fn) -> set[str]:
    return {type(node.op).__name__ for node in fn.maker.fgraph.apply_nodes}


def variables(ndim: int, count: int, dtype: str = "float32") -> list[Any]:
    return [pt.tensor(dtype=dtype, shape=(None,) * ndim) for _ in range(count)]


def compile_quietly(inputs: Any, outputs: Any, mode: Any) -> Any:
    """Make PyTensor's warnings about object mode errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        return pytensor.function(inputs, outputs, mode=mode)


@LINKERS
@pytest.mark.parametrize(("axes", "rank"), RANKS, ids=["spatial", "per-activation", "all"])
def test_training_and_gradients(mode, axes, rank):
    x, gout = variables(4, 2)
    parameters = variables(rank, 4)
    epsilon = pt.dscalar("epsilon")
    scale, bias, *averages = parameters
    results = batch_normalization_train(x, scale, bias, axes, epsilon, 0.2, *averages)
    grads = pytensor.grad(None, [x, scale, bias], known_grads={results[0]: gout})
    inputs = [x, gout, epsilon, *parameters]
    fn = compile_quietly(inputs, [*results, *grads], mode)
    assert {"OneDnnBatchNormTrain", "OneDnnBatchNormTrainGrad"} <= ops_of(fn)
    assert not {"BatchNormTrain", "BatchNormTrainGrad"} & ops_of(fn)
    plain = pytensor.function(inputs, [*results, *grads], mode=PERFORM_MODE)
    rng = np.random.default_rng(4)
    for epsilon_value in (1e-4, 1e-2, 1.0):
        shape = tuple(rng.integers(3, 9, 4))
        sizes = {1: shape[1:2], 3: shape[1:], 0: ()}[rank]
        arrays = [rng.standard_normal(shape).astype("float32") for _ in range(2)]
        arrays.append(np.array(epsilon_value))
        arrays += [np.asarray(rng.uniform(0.5, 2, sizes), "float32") for _ in range(4)]
        for result, expected in zip(fn(*arrays), plain(*arrays), strict=True):
            assert_close(result, expected, bound=2e-5)


@LINKERS
def test_inference_and_gradients(mode):
    x, gout = variables(4, 2)
    parameters = variables(1, 4)
    out = batch_normalization_test(x, *parameters, axes="spatial")
    grads = pytensor.grad(None, [x, *parameters], known_grads={out: gout})
    inputs = [x, gout, *parameters]
    fn = compile_quietly(inputs, [out, *grads], mode)
    assert "OneDnnBatchNormInference" in ops_of(fn)
    plain = pytensor.function(inputs, [out, *grads], mode=PERFORM_MODE)
    rng = np.random.default_rng(5)
    for _ in range(3):
        shape = tuple(rng.integers(1, 9, 4))
        arrays = [rng.standard_normal(shape).astype("float32") for _ in range(2)]
        arrays += [rng.uniform(0.5, 2, shape[1]).astype("float32") for _ in range(4)]
        for result, expected in zip(fn(*arrays), plain(*arrays), strict=True):
            assert_close(result, expected, bound=2e-5)


def test_gradients_of_statistics_and_second_derivatives():
    x, scale, bias = variables(2, 3)
    scale, bias = (pt.specify_broadcastable(v, 0) for v in (scale, bias))
    out, mean, invstd = batch_normalization_train(x, scale, bias)
    loss = (out**3).sum() + (mean * invstd).sum()
    grad = pytensor.grad(loss, x)
    second = pytensor.grad((grad**2).sum(), x)
    inputs = [scale.owner.inputs[0], bias.owner.inputs[0]]
    # Rewrite everything and run the oneDNN Ops, but compile nothing, which would take long and is
    # tested above.
    mode = Mode(linker="py", optimizer="fast_run")
    fn = pytensor.function([x, *inputs], [grad, second], mode=mode)
    assert {"OneDnnBatchNormTrain", "OneDnnBatchNormTrainGrad"} <= ops_of(fn)
    plain = pytensor.function([x, *inputs], [grad, second], mode=PERFORM_MODE)
    arrays = make_arrays(np.random.default_rng(6), (9, 5), (0,), 2)
    for result, expected in zip(fn(*arrays), plain(*arrays), strict=True):
        assert_close(result, expected, bound=1e-4)


def test_gradient_of_the_backend_op():
    """A graph that contains oneDNN Ops can be differentiated."""
    x, scale, bias = variables(2, 3)
    out = OneDnnBatchNormTrain((0,)).make_node(x, scale, bias, 1e-4).outputs[0]
    abstract = BatchNormTrain((0,)).make_node(x, scale, bias, 1e-4).outputs[0]
    grads = [pytensor.grad((o**2).sum(), [x, scale, bias]) for o in (out, abstract)]
    fn = pytensor.function([x, scale, bias], [*grads[0], *grads[1]], mode=PERFORM_MODE)
    results = fn(*make_arrays(np.random.default_rng(7), (9, 5), (0,), 2))
    np.testing.assert_allclose(results[0], results[3], atol=1e-4)
    assert_close(results[1], results[4])
    assert_close(results[2], results[5])


def test_mode_dnn():
    x, scale, bias = variables(4, 1) + variables(1, 2)
    out = batch_normalization_train(x, scale, bias, axes="spatial")[0]
    fn = pytensor.function([x, scale, bias], out, mode="DNN")
    assert "OneDnnBatchNormTrain" in ops_of(fn)


@pytest.mark.parametrize(
    ("dtype", "ndim", "axes"),
    [
        ("float64", 4, (1,)),
        ("float32", 4, (1,)),
        ("float32", 9, (0,)),
    ],
    ids=["float64, scattered axes", "scattered axes", "many dimensions"],
)
def test_left_to_numpy(dtype, ndim, axes):
    x, *parameters = variables(ndim, 1, dtype) + variables(ndim - len(axes), 4, dtype)
    results = batch_normalization_train(x, *parameters[:2], axes)
    out = batch_normalization_test(x, *parameters, axes=axes)
    fn = pytensor.function([x, *parameters], [*results, out], mode="CVM")
    assert {"BatchNormTrain", "BatchNormInference"} <= ops_of(fn)
    assert not any("OneDnn" in name for name in ops_of(fn))
    arrays = [a.astype(dtype) for a in make_arrays(np.random.default_rng(8), (2,) * ndim, axes, 4)]
    squeezed = [a.squeeze(axes) for a in arrays[1:]]
    (expected,) = run_all(BatchNormInference(axes), *in_double(arrays), 1e-4)
    assert_close(fn(arrays[0], *squeezed)[-1], expected, dtype=dtype)


def test_excluded():
    x, scale, bias = variables(4, 1) + variables(1, 2)
    mode = pytensor.compile.get_mode("CVM").excluding("onednn")
    out = batch_normalization_train(x, scale, bias, axes="spatial")[0]
    fn = pytensor.function([x, scale, bias], [out, pytensor.grad((out**2).sum(), x)], mode=mode)
    assert {"BatchNormTrain", "BatchNormTrainGrad"} <= ops_of(fn)


@pytest.mark.parametrize(
    ("axes", "ndim", "expected"),
    [
        ((0, 2, 3), 4, True),
        ((0,), 8, True),
        ((0,), 9, False),
        ((0, 1, 2), 3, True),
        ((1,), 3, False),
        ((0, 3), 4, True),
        ((0, 2), 4, False),
    ],
)
def test_neighboring_statistics(axes, ndim, expected):
    assert has_neighboring_statistics(axes, ndim) is expected


# -- what cannot be computed -------------------------------------------------------------


@LINKERS
def test_operands_that_do_not_fit(mode):
    x, scale, bias = variables(4, 1) + variables(1, 2)
    fn = pytensor.function(
        [x, scale, bias], batch_normalization_train(x, scale, bias, axes="spatial"), mode=mode
    )
    image, three, two = (np.ones(s, "float32") for s in ((2, 3, 4, 4), 3, 2))
    fn(image, three, three)
    with pytest.raises(DnnValueError, match=r"bias has shape \(1, 2, 1, 1\), expected \(1, 3"):
        fn(image, three, two)
    with pytest.raises(DnnValueError, match="scale has shape"):
        fn(image, np.ones(1, "float32"), three)
    with pytest.raises(DnnValueError, match="over no elements"):
        fn(image[:0], three, three)


@LINKERS
def test_gradient_of_another_shape(mode):
    x, gout, scale, mean, invstd = variables(4, 5)
    outputs = BatchNormTrainGrad((0, 2, 3)).make_node(x, gout, scale, mean, invstd).outputs
    fn = pytensor.function([x, gout, scale, mean, invstd], outputs, mode=mode)
    image, parameter = np.ones((2, 3, 4, 4), "float32"), np.ones((1, 3, 1, 1), "float32")
    with pytest.raises(DnnValueError, match="the output's gradient has shape"):
        fn(image, image[:1], parameter, parameter, parameter)


def test_scattered_axes_are_refused():
    operands = make_arrays(np.random.default_rng(9), (2, 3, 4), (1,), 2)
    with pytest.raises(DnnError, match="must be adjacent"):
        run_all(OneDnnBatchNormTrain((1,)), *operands, 1e-4)


def test_empty():
    empty = np.zeros((0, 3, 2), "float32")
    parameters = [np.ones((1, 3, 1), "float32")] * 4
    with pytest.raises(DnnValueError, match="over no elements"):
        run_all(OneDnnBatchNormTrain((0, 2)), empty, *parameters[:2], 1e-4)
    (out,) = run_all(OneDnnBatchNormInference((0, 2)), empty, *parameters, 1e-4)
    assert out.shape == empty.shape
    dx, dscale, dbias = run_all(OneDnnBatchNormTrainGrad((0, 2)), empty, empty, *parameters[:3])
    assert dx.shape == empty.shape
    assert not dscale.any()
    assert not dbias.any()


def test_no_channels():
    x, parameter = np.zeros((2, 0, 3), "float32"), np.zeros((1, 0, 1), "float32")
    out, mean, invstd = run_all(OneDnnBatchNormTrain((0, 2)), x, parameter, parameter, 1e-4)
    assert out.shape == x.shape
    assert mean.shape == invstd.shape == parameter.shape
