"""Batch normalization against NumPy and PyTorch; shapes, and results for bad input."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from dnnops.compat import inferred_shapes
from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.nnet import (
    BatchNormInference,
    BatchNormTrain,
    BatchNormTrainGrad,
    batch_normalization_test,
    batch_normalization_train,
)

#: Dtypes of data and parameters.
from tests.nnet.norm.batchnorm_cases import (
    DTYPES,
    Case,
    assert_near,
    cases,
    gradient_by_jacobian,
    operands_of,
    ops_of,
    reference,
    run,
    train,
)
from tests.oracle import (
    PERFORM_MODE,
    evaluate,
    fuzz,
    normal,
)

# -- values ------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "parameter_dtype"), DTYPES)
@fuzz(60, case=cases())
def test_training_against_numpy(dtype, parameter_dtype, case):
    arrays = case.arrays(dtype, parameter_dtype)
    results = evaluate(list(train(case, arrays)), {})
    expected = reference(case, arrays)
    assert_near(results, expected, [dtype] + [parameter_dtype] * 4)
    without = evaluate(list(train(case, arrays, running=False)), {})
    assert len(without) == 3
    for out, same in zip(without, results, strict=False):
        np.testing.assert_array_equal(out, same)


@pytest.mark.parametrize(("dtype", "parameter_dtype"), DTYPES)
@fuzz(60, case=cases())
def test_inference_against_numpy(dtype, parameter_dtype, case):
    arrays = case.arrays(dtype, parameter_dtype)
    out = batch_normalization_test(*arrays, case.axes, case.epsilon)
    x, scale, bias, mean, var = (case.groups(a) for a in arrays)
    expected = case.ungroup((x - mean) * (var + case.epsilon) ** -0.5 * scale + bias)
    assert_near([evaluate(out, {})], [expected], [dtype])


@pytest.mark.parametrize(("dtype", "parameter_dtype"), DTYPES)
@fuzz(60, case=cases(max_ndim=4))
def test_gradient_against_the_jacobian(dtype, parameter_dtype, case):
    x, scale, bias, *_ = case.arrays(dtype, parameter_dtype)
    gout = normal(np.random.default_rng(case.seed + 1), case.shape, dtype)
    _, mean, invstd = evaluate(list(train(case, [x, scale, bias], running=False)), {})
    operands = (x, gout, *(a.reshape(case.full_shape) for a in (scale, mean, invstd)))
    expected = gradient_by_jacobian(case, *operands)
    results = run(BatchNormTrainGrad(case.canonical), *operands)
    # Sums of as many terms, and factors of up to 10 from invstd.
    assert_near(results, expected, [dtype] + [parameter_dtype] * 2, factor=10)


@pytest.mark.needs("torch")
@fuzz(60, case=cases(min_count=2))
def test_training_and_gradients_against_torch(case):
    import torch

    arrays = case.arrays()
    x, scale, bias = arrays[:3]
    gout = normal(np.random.default_rng(case.seed + 1), case.shape, "float64")
    tensors = [torch.tensor(case.groups(a)[:, 0]) for a in arrays[1:]]
    data = torch.tensor(case.groups(x).T.copy(), requires_grad=True)
    for tensor in tensors[:2]:
        tensor.requires_grad = True
    theirs = torch.nn.functional.batch_norm(
        data, *tensors[2:], *tensors[:2], True, case.factor, case.epsilon
    )
    theirs.backward(torch.tensor(case.groups(gout).T.copy()))

    inputs = [pt.constant(a).type() for a in arrays]
    results = train(case, inputs)
    gradients = pytensor.gradient.grad(
        None, inputs[:3], known_grads={results[0]: pt.constant(gout)}
    )
    values = dict(zip(inputs, arrays, strict=True))
    out, new_mean, new_var, *gradients = evaluate(
        [results[0], results[3], results[4], *gradients], values
    )
    bounds = {"rtol": 1e-9, "atol": 1e-9}
    np.testing.assert_allclose(case.groups(out), theirs.detach().numpy().T, **bounds)
    np.testing.assert_allclose(case.groups(new_mean)[:, 0], tensors[2].numpy(), **bounds)
    np.testing.assert_allclose(case.groups(new_var)[:, 0], tensors[3].numpy(), **bounds)
    np.testing.assert_allclose(case.groups(gradients[0]), data.grad.numpy().T, **bounds)
    for gradient, tensor, given in zip(gradients[1:], tensors[:2], (scale, bias), strict=True):
        assert gradient.shape == given.shape
        np.testing.assert_allclose(case.groups(gradient)[:, 0], tensor.grad.numpy(), **bounds)


@pytest.mark.needs("torch")
@fuzz(30, case=cases(min_count=2))
def test_inference_against_torch(case):
    import torch

    arrays = case.arrays()
    out = evaluate(batch_normalization_test(*arrays, case.axes, case.epsilon), {})
    x, scale, bias, mean, var = (torch.tensor(case.groups(a)) for a in arrays)
    theirs = torch.nn.functional.batch_norm(
        x.T, mean[:, 0], var[:, 0], scale[:, 0], bias[:, 0], False, 0.0, case.epsilon
    )
    np.testing.assert_allclose(case.groups(out), theirs.numpy().T, rtol=1e-9, atol=1e-9)


def test_statistics_of_one_element():
    x = np.array([[3.0, -2.0]])
    results = evaluate(
        list(batch_normalization_train(x, [5.0, 7.0], [1.0, 2.0], epsilon=0.25,
                                       running_average_factor=0.5,
                                       running_mean=[1.0, 0.0], running_var=[2.0, 4.0])), {}
    )  # fmt: skip
    expected = [[1.0, 2.0], [3.0, -2.0], [2.0, 2.0], [2.0, -1.0], [1.0, 2.0]]
    np.testing.assert_array_equal(results[0], [expected[0]])
    for out, ref in zip(results[1:], expected[1:], strict=True):
        np.testing.assert_array_equal(out, ref)
    dx, dscale, dbias = run(
        BatchNormTrainGrad((0,)), x, [[1.0, 4.0]], [[5.0, 7.0]], x, [[2.0, 2.0]]
    )
    np.testing.assert_array_equal([dx, dscale, dbias], [[[0, 0]], [[0, 0]], [[1, 4]]])


@pytest.mark.parametrize(("dtype", "offset"), [("float32", 4096), ("float16", 512)])
def test_variance_about_a_large_mean(dtype, offset):
    # The variance as the mean of squares less the square of the mean would be lost.
    x = (np.tile([-1.0, 1.0], 32)[:, None] + offset).astype(dtype)
    _, mean, invstd = run(BatchNormTrain((0,)), x, *np.ones((2, 1, 1), dtype), 0.0)
    assert (mean, invstd) == (offset, 1)


def test_half_precision_accumulates_in_single():
    # In float16, such a sum stops at 2048, and the squares overflow.
    x = np.full((5000, 1), 1.0, "float16")
    x[::2] = 301
    out, mean, _, new_mean, _ = run(
        BatchNormTrain((0,), True), x, *np.ones((2, 1, 1), "float32"), 1e-4, 1.0,
        *np.zeros((2, 1, 1), "float32"),
    )  # fmt: skip
    assert mean == new_mean == 151
    np.testing.assert_array_equal(np.unique(out), [0, 2])
    _, _, dbias = run(BatchNormTrainGrad((0,)), x, np.ones_like(x), *np.ones((3, 1, 1), "float32"))
    assert dbias == 5000


@fuzz(20, case=cases())
def test_scalars_may_be_variables(case):
    arrays = case.arrays()
    epsilon, factor = pt.fscalar("epsilon"), pt.lscalar("factor")
    x, scale, bias, mean, var = arrays
    results = batch_normalization_train(x, scale, bias, case.axes, epsilon, factor, mean, var)
    results = evaluate(list(results), {epsilon: np.float32(0.5), factor: 1})
    case = Case(case.shape, case.axes, case.full_rank, 0.5, 1.0, case.seed)
    assert_near(results, reference(case, arrays), ["float64"] * 5)
    out = batch_normalization_test(*arrays, case.axes, epsilon)
    expected = batch_normalization_test(*arrays, case.axes, 0.5)
    np.testing.assert_array_equal(evaluate(out, {epsilon: np.float32(0.5)}), evaluate(expected, {}))


def test_running_averages_as_updates():
    rng = np.random.default_rng(1)
    x = pt.tensor4("x", dtype="float64")
    mean, var = (
        pytensor.shared(np.full((1, 3, 1, 1), value), shape=(1, None, 1, 1)) for value in (0.0, 1.0)
    )
    ones = np.ones(3)
    results = batch_normalization_train(x, ones, ones, "spatial", 1e-4, 0.5, mean, var)
    updates = [(mean, results[3]), (var, results[4])]
    step = pytensor.function([x], results[0], updates=updates, mode=PERFORM_MODE)
    expected_mean, expected_var = np.zeros(3), np.ones(3)
    for _ in range(3):
        batch = normal(rng, (4, 3, 2, 5), "float64")
        step(batch)
        expected_mean = (expected_mean + batch.mean((0, 2, 3))) / 2
        expected_var = (expected_var + batch.var((0, 2, 3), ddof=1)) / 2
    np.testing.assert_allclose(mean.get_value().ravel(), expected_mean)
    np.testing.assert_allclose(var.get_value().ravel(), expected_var)


# -- shapes ------------------------------------------------------------------------------


@fuzz(15, case=cases())
def test_shapes(case):
    for op in ops_of(case):
        values = operands_of(op, case)
        inputs = [pt.tensor(dtype="float64", shape=(None,) * np.ndim(v)) for v in values]
        node = op.make_node(*inputs)
        expected = [case.shape if is_data else case.full_shape for is_data in op.data_results]
        for out, shape in zip(node.outputs, expected, strict=True):
            ones = tuple(1 if i in case.canonical else None for i in range(len(shape)))
            assert out.type.shape == ((None,) * len(shape) if shape == case.shape != case.full_shape
                                      or out is node.outputs[0] else ones)  # fmt: skip
        inferred = inferred_shapes(op, node, [tuple(v.shape) for v in node.inputs])
        sizes = [pt.as_tensor_variable(n, dtype="int64") for shape in inferred for n in shape]
        *sizes, first = evaluate([*sizes, node.outputs[0]], dict(zip(inputs, values, strict=True)))
        assert [int(n) for n in sizes] == [n for shape in expected for n in shape]
        assert first.shape == case.shape
        assert [o.shape for o in run(op, *values)] == expected


def test_static_shapes_are_put_together():
    x = pt.tensor("x", shape=(None, None, 4), dtype="float32")
    scale = pt.tensor("scale", shape=(None, 3, None), dtype="float32")
    node = BatchNormTrain((0, 2)).make_node(x, scale, scale, 0.1)
    assert [o.type.shape for o in node.outputs] == [(None, 3, 4), (1, 3, 1), (1, 3, 1)]
    gout = pt.tensor("gout", shape=(2, None, None), dtype="float32")
    node = BatchNormTrainGrad((0, 2)).make_node(x, gout, *node.outputs[1:], node.outputs[1])
    assert [o.type.shape for o in node.outputs] == [(2, 3, 4), (1, 3, 1), (1, 3, 1)]
    vector = pt.tensor("vector", shape=(3,), dtype="float32")
    out = batch_normalization_test(x, *[vector] * 4, "spatial")
    assert out.owner.op.axes == (0, 2)
    assert out.type.shape == (None, 3, 4)


def test_without_elements():
    empty = np.zeros((0, 3))
    ones = np.ones((1, 3))
    for running in (False, True):
        op = BatchNormTrain((0,), running)
        given = operands_of(op, Case((1, 3), (0,), True, 0.1, 0.5, seed=0))
        given[0] = empty
        with pytest.raises(
            DnnValueError, match=r"BatchNormTrain: there are no elements .* \(0, 3\), axes \(0,\)"
        ):
            run(op, *given)
    assert [o.shape for o in run(BatchNormTrain((1,)), empty, *np.ones((2, 0, 1)), 0.1)] == [
        (0, 3), (0, 1), (0, 1)
    ]  # fmt: skip
    assert run(BatchNormInference((0,)), empty, *[ones] * 4, 0.1)[0].shape == (0, 3)
    dx, dscale, dbias = run(BatchNormTrainGrad((0,)), empty, empty, *[ones] * 3)
    assert dx.shape == (0, 3)
    np.testing.assert_array_equal([dscale, dbias], np.zeros((2, 1, 3)))


# -- identity and errors -----------------------------------------------------------------


def test_axes_are_the_ops_identity():
    for op_class in (BatchNormTrain, BatchNormTrainGrad, BatchNormInference):
        assert op_class((2, 0)) == op_class([np.int64(0), 2])
        assert op_class((2, 0)).axes == (0, 2)
        assert op_class((0,)) != op_class((0, 2))
        assert pickle.loads(pickle.dumps(op_class((0, 2)))) == op_class((0, 2))
    running = BatchNormTrain((0,), True)
    assert running != BatchNormTrain((0,))
    assert pickle.loads(pickle.dumps(running)).operands == running.operands


@pytest.mark.parametrize("op_class", [BatchNormTrain, BatchNormTrainGrad, BatchNormInference])
def test_errors_of_ops(op_class):
    name = op_class.__name__
    for axes in (0, None, "spatial", (0, 1.5), (True,)):
        with pytest.raises(DnnTypeError, match=f"{name}: axes must be a tuple of ints"):
            op_class(axes)
    for axes in ((), (-1,), (0, 0)):
        with pytest.raises(DnnValueError, match=f"{name}: axes must be one or more distinct"):
            op_class(axes)
    case = Case((4, 3), (0,), True, 0.1, 0.5, seed=0)
    op = op_class((0,))
    good = operands_of(op, case, "float32")
    with pytest.raises(DnnTypeError, match=f"{name}: expected the operands {op.operands[0]}, "):
        op.make_node(*good[:-1])
    with pytest.raises(DnnValueError, match=rf"{name}: axes \(2,\) do not fit 2 dimensions"):
        op_class((2,)).make_node(*good)
    scale = op.operands.index("scale")
    parameters = [op.operands.index(o) for o in op.parameter_operands]

    def changed(**others: Any) -> list[Any]:
        return [others.get(o, g) for o, g in zip(op.operands, good, strict=True)]

    for bad, match in [
        (np.ones((4, 3), "int64"), "x has dtype int64"),
        (np.ones((4, 3), "complex64"), "x has dtype complex64"),
        (np.ones((4, 3), "float64"), "dtype"),
    ]:
        with pytest.raises(DnnTypeError, match=f"{name}: .*{match}"):
            op.make_node(*changed(x=bad))
    with pytest.raises(DnnTypeError, match=f"{name}: scale must have 2 dimensions, got 1"):
        op.make_node(*changed(scale=np.ones(3, "float32")))
    with pytest.raises(DnnTypeError, match=f"{name}: the operands must have one dtype, .*float64"):
        op.make_node(*changed(scale=np.ones((1, 3))))
    wide = [p.astype("float64") if i in parameters else p for i, p in enumerate(good)]
    with pytest.raises(DnnTypeError, match=f"{name}: .* have dtype float64; expected float32, as"):
        op.make_node(*wide)
    half = [p.astype("float16") if np.ndim(p) and i not in parameters else p
            for i, p in enumerate(wide)]  # fmt: skip
    with pytest.raises(DnnTypeError, match="expected float16, as x has, or float32"):
        op.make_node(*half)
    for shape in ((4, 3), (1, 2), (1, 1)):
        bad = changed(scale=np.ones(shape, "float32"))
        message = rf"{name}: scale must have size 1 on the axes \(0,\).*scale \({shape[0]}, "
        with pytest.raises(DnnValueError, match=message):
            op.make_node(*bad)
        inputs = [pt.tensor(dtype="float32", shape=(None,) * np.ndim(v)) for v in good]
        node = op.make_node(*inputs)
        with pytest.raises(DnnValueError, match=message):
            op.perform(node, [np.asarray(b) for b in bad], [[None] for _ in node.outputs])
    assert good[scale].shape == (1, 3)


def test_the_gradients_operands_have_one_shape():
    ones = np.ones((1, 3))
    with pytest.raises(DnnValueError, match=r"x \(4, 3\), gout \(2, 3\)"):
        BatchNormTrainGrad((0,)).make_node(np.ones((4, 3)), np.ones((2, 3)), *[ones] * 3)


@pytest.mark.parametrize("function", [batch_normalization_train, batch_normalization_test])
def test_errors_of_functions(function):
    name = function.__name__
    x, ones = np.ones((4, 3), "float32"), np.ones(3, "float32")
    more = 2 if function is batch_normalization_train else 4

    def call(inputs=x, first=ones, others=ones, **options):
        return function(inputs, first, *[others] * (more - 1), **options)

    for axes in ("everything", None, 0, (0.5,), (True,)):
        with pytest.raises(DnnTypeError, match=f"{name}: axes must be 'per-activation', 'spatial'"):
            call(axes=axes)
    for axes in ((2,), (-3,), (0, 0), (1, -1)):
        with pytest.raises(DnnValueError, match=rf"{name}: axes .* do not fit 2 dimensions"):
            call(axes=axes)
    with pytest.raises(DnnValueError, match=f"{name}: axes must not be empty"):
        call(axes=())
    with pytest.raises(DnnTypeError, match=f"{name}: inputs must have at least 1 dimension"):
        call(np.float32(1))
    for dtype in ("complex64", "complex128"):
        with pytest.raises(DnnTypeError, match=f"{name}: inputs has dtype {dtype}"):
            call(x.astype(dtype))
        with pytest.raises(DnnTypeError, match=f"{name}: gamma has dtype {dtype}"):
            call(first=ones.astype(dtype))
    for bad in (np.ones((1, 1, 3), "float32"), np.float32(1)):
        with pytest.raises(DnnTypeError, match=f"{name}: gamma must have 2 dimensions, or 1 with"):
            call(first=bad)
    with pytest.raises(DnnValueError, match="must have size 1 on the axes"):
        call(first=np.ones(4, "float32"))
    for epsilon in (-1e-4, np.nan, np.inf, pt.constant(-1.0), np.float32("-inf")):
        with pytest.raises(DnnValueError, match=f"{name}: epsilon must be finite and at least 0"):
            call(epsilon=epsilon)
    for epsilon in ("small", 1j, True, np.ones(1), pt.vector(), None):
        with pytest.raises(DnnTypeError, match=f"{name}: epsilon must be a number or a real"):
            call(epsilon=epsilon)
    for epsilon in (0, 1, 0.5, np.float32(0.5), pt.constant(0.5)):
        call(epsilon=epsilon)


def test_axes_may_be_an_array():
    x, parameter = pt.dtensor4(), pt.dvector()
    given = np.array([0, 2, 3])
    out, *_ = batch_normalization_train(x, parameter, parameter, given)
    assert out.owner.op.axes == (0, 2, 3)


def test_statistics_of_many_single_precision_elements():
    """Sums in float32 would leave three digits of the variance."""
    x = (10 + np.random.default_rng(4).standard_normal((1_000_000, 2))).astype("float32")
    parameters = np.ones((1, 2), "float32"), np.zeros((1, 2), "float32")
    out, mean, invstd = run(BatchNormTrain((0,)), x, *parameters, 1e-4)
    centered = x.astype("float64") - x.mean(axis=0, dtype="float64")
    expected = 1 / np.sqrt((centered**2).mean(axis=0) + 1e-4)
    np.testing.assert_allclose(invstd[0], expected, rtol=2e-7)
    np.testing.assert_allclose(out, centered * expected, rtol=0, atol=1e-6)
    np.testing.assert_allclose(mean[0], x.mean(axis=0, dtype="float64"), rtol=2e-7)


def test_errors_of_running_averages():
    x, ones = np.ones((4, 3), "float32"), np.ones(3, "float32")
    for present, missing in (("mean", "var"), ("var", "mean")):
        with pytest.raises(
            DnnValueError,
            match=rf"batch_normalization_train: .* together, running_{missing} is missing",
        ):
            batch_normalization_train(x, ones, ones, **{f"running_{present}": ones})
    with pytest.raises(DnnTypeError, match="running_mean must have 2 dimensions, or 1"):
        batch_normalization_train(x, ones, ones, running_mean=np.float32(0), running_var=ones)
    with pytest.raises(DnnValueError, match=r"running_average_factor must be finite.*got nan"):
        batch_normalization_train(x, ones, ones, running_average_factor=np.nan)
    with pytest.raises(DnnTypeError, match="running_average_factor must be a number"):
        batch_normalization_train(x, ones, ones, running_average_factor="half")


@pytest.mark.parametrize("mode", ["FAST_COMPILE", None])
def test_an_epsilon_that_is_known_at_the_call(mode):
    """Test NumPy and, in PyTensor's default mode, the runtime library."""
    x, epsilon = pt.fmatrix(), pt.dscalar()
    parameter = pt.ones(3, dtype="float32")
    outputs = [
        batch_normalization_train(x, parameter, parameter, epsilon=epsilon)[0],
        batch_normalization_test(x, *[parameter] * 4, epsilon=epsilon),
    ]
    for out in outputs:
        function = pytensor.function([x, epsilon], out, mode=mode)
        value = np.random.default_rng(0).standard_normal((4, 3)).astype("float32")
        assert np.isfinite(function(value, 0.0)).all()
        for wrong in (-1e-6, np.inf, np.nan):
            with pytest.raises(DnnValueError, match=r"epsilon .* finite and at least 0"):
                function(value, wrong)
