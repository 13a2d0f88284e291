"""Batch normalizations that are written out: which are recognized, and that results stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode
from pytensor.graph.fg import FunctionGraph

from dnnops.rewriting.batchnorm import RecognizeBatchNorm
from dnnops.rewriting.value_numbers import ValueNumbers
from tests.oracle import assert_close

SPATIAL = (0, 2, 3)
TRAIN, INFERENCE = "OneDnnBatchNormTrain", "OneDnnBatchNormInference"
GRAD = "OneDnnBatchNormTrainGrad"
#: Without compiled code, which only takes long.
PERFORM = Mode("py", "fast_run").excluding("fusion")
#: What a user's graph computes without the rewrite.
PLAIN = PERFORM.excluding("onednn")


@pytest.fixture(autouse=True)
def floats():
    """``1e-4`` is a float32 beside one."""
    with pytensor.config.change_flags(floatX="float32"):
        yield


def ops(function: Any) -> dict[str, int]:
    """How often each Op of batch normalization is in a compiled function."""
    names = sorted(type(node.op).__name__ for node in function.maker.fgraph.apply_nodes)
    return {name: names.count(name) for name in names if "BatchNorm" in name}


def tensor(ndim: int, dtype: str = "float32") -> Any:
    return pt.tensor(dtype=dtype, shape=(None,) * ndim)


def images(count: int = 1, ndim: int = 4) -> list[Any]:
    return [tensor(ndim) for _ in range(count)]


def values(inputs: list[Any], seed: int = 0) -> list[np.ndarray]:
    """Images of different sizes with 3 channels, and vectors of 3 positive numbers."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(4, 8, 4)
    arrays = []
    for x in inputs:
        shape = [int(n) for n in sizes[: x.type.ndim]]
        shape[0 if x.type.ndim == 1 else 1] = 3
        draw = rng.uniform(0.5, 2, shape) if x.type.ndim == 1 else 1 + rng.standard_normal(shape)
        arrays.append(draw.astype(x.type.dtype))
    return arrays


def check(
    inputs: list[Any],
    outputs: Any,
    expected: dict[str, int],
    bound: float = 1e-5,
    mode: Any = PERFORM,
) -> Any:
    """Check the Ops that a compiled function has; if any, compare results with those without."""
    outputs = outputs if isinstance(outputs, list) else [outputs]
    function = pytensor.function(inputs, outputs, mode=mode, on_unused_input="ignore")
    assert ops(function) == expected
    if not expected:
        return function
    plain = pytensor.function(inputs, outputs, mode=PLAIN, on_unused_input="ignore")
    assert not ops(plain)
    for seed in (0, 1):
        arrays = values(inputs, seed)
        for result, reference in zip(function(*arrays), plain(*arrays), strict=True):
            assert_close(result, reference, bound=bound, allow_zero=True)
    return function


def spread(vector: Any) -> Any:
    return vector.dimshuffle("x", 0, "x", "x")


def moments(x: Any, axes: Any = SPATIAL, keepdims: bool = True) -> tuple[Any, Any]:
    return x.mean(axis=axes, keepdims=keepdims), x.var(axis=axes, keepdims=keepdims)


# -- forms of the training expression ------------------------------------------------------


def multiplied_first(x: Any, gamma: Any, beta: Any) -> Any:
    mean, var = moments(x)
    return (x - mean) * spread(gamma) / pt.sqrt(var + 1e-4) + spread(beta)


def normalized_first(x: Any, gamma: Any, beta: Any) -> Any:
    mean, var = moments(x)
    normalized = (x - mean) / pt.sqrt(1e-4 + var)
    return gamma[None, :, None, None] * normalized + beta[None, :, None, None]


def by_inverse_root(x: Any, gamma: Any, beta: Any) -> Any:
    mean, var = moments(x)
    return spread(beta) + (x - mean) * (var + 1e-4) ** -0.5 * spread(gamma)


def by_reciprocal(x: Any, gamma: Any, beta: Any) -> Any:
    mean, var = moments(x)
    return (x - mean) * (pt.reciprocal((var + 1e-4) ** 0.5) * spread(gamma)) + spread(beta)


def vectors_of_statistics(x: Any, gamma: Any, beta: Any) -> Any:
    mean, var = moments(x, keepdims=False)
    factor = gamma / pt.sqrt(var + 1e-4)
    return (x - spread(mean)) * spread(factor) + spread(beta)


def folded(x: Any, gamma: Any, beta: Any) -> Any:
    mean, var = moments(x, keepdims=False)
    factor = gamma / pt.sqrt(var + 1e-4)
    return x * spread(factor) + spread(beta - mean * factor)


def squares_by_hand(x: Any, gamma: Any, beta: Any) -> Any:
    mean = x.mean(axis=SPATIAL, keepdims=True)
    centered = x - mean
    var = pt.mean(pt.sqr(centered), axis=SPATIAL, keepdims=True)
    return centered / pt.sqrt(var + 1e-4) * spread(gamma) + spread(beta)


def sums_and_counts(x: Any, gamma: Any, beta: Any) -> Any:
    count = (x.shape[0] * x.shape[2] * x.shape[3]).astype("float32")
    mean = x.sum(axis=SPATIAL, keepdims=True) / count
    centered = x - mean
    var = (centered * centered).sum(axis=SPATIAL, keepdims=True) / count
    return centered / pt.sqrt(var + 1e-4) * spread(gamma) + spread(beta)


def mean_of_squares(x: Any, gamma: Any, beta: Any) -> Any:
    mean = x.mean(axis=SPATIAL, keepdims=True)
    var = (x**2).mean(axis=SPATIAL, keepdims=True) - mean**2
    return (x - mean) / pt.sqrt(var + 1e-4) * spread(gamma) + spread(beta)


def without_parameters(x: Any, gamma: Any, beta: Any) -> Any:
    mean, var = moments(x)
    return (x - mean) / pt.sqrt(var + 1e-4)


def subtracted(x: Any, gamma: Any, beta: Any) -> Any:
    mean, var = moments(x)
    return -((mean - x) / pt.sqrt(var + 1e-4)) * spread(gamma) - spread(beta)


def one_scale_for_all(x: Any, gamma: Any, beta: Any) -> Any:
    mean, var = moments(x)
    return 2 * gamma[0] * (x - mean) / pt.sqrt(var + 1e-4)


TRAINING: list[Callable] = [
    multiplied_first,
    normalized_first,
    by_inverse_root,
    by_reciprocal,
    vectors_of_statistics,
    folded,
    squares_by_hand,
    sums_and_counts,
    mean_of_squares,
    without_parameters,
    subtracted,
    one_scale_for_all,
]


@pytest.mark.parametrize("written", TRAINING)
def test_training_forms_and_their_gradients(written):
    x, top = images(2)
    gamma, beta = tensor(1), tensor(1)
    out = written(x, gamma, beta)
    wrt = [v for v in (x, gamma, beta) if v in set(pytensor.graph.ancestors([out]))]
    grads = pytensor.grad(None, wrt, known_grads={out: top})
    check([x, gamma, beta, top], [out, *grads], {TRAIN: 1, GRAD: 1}, bound=1e-4)


@pytest.mark.parametrize("mode", ["CVM", None], ids=["CVM", "default"])
def test_modes_that_compile(mode):
    x, top = images(2)
    gamma, beta = tensor(1), tensor(1)
    out = normalized_first(x, gamma, beta)
    grads = pytensor.grad(None, [x, gamma, beta], known_grads={out: top})
    check([x, gamma, beta, top], [out, *grads], {TRAIN: 1, GRAD: 1}, bound=1e-4, mode=mode)


@pytest.mark.parametrize(("ndim", "axes"), [(2, 0), (3, (0, 2)), (4, 0), (4, (0, 1, 2, 3)), (1, 0)])
def test_axes(ndim, axes):
    x, top = images(2, ndim)
    mean, var = moments(x, axes)
    out = (x - mean) / pt.sqrt(var + 1e-3)
    function = check(
        [x, top], [out, pytensor.grad((out * top).sum(), x)], {TRAIN: 1, GRAD: 1}, 1e-4
    )
    (node,) = [n for n in function.maker.fgraph.apply_nodes if type(n.op).__name__ == TRAIN]
    assert node.op.axes == (
        tuple(range(ndim)) if axes == (0, 1, 2, 3) else tuple(np.atleast_1d(axes))
    )
    assert float(node.inputs[3].data) == np.float32(1e-3)


def test_axes_none_and_static_sizes():
    x = pt.tensor(dtype="float32", shape=(5, 3, 4, 2))
    out = (x - x.mean()) / pt.sqrt(x.var() + 1e-3)
    count = np.float32(5 * 4 * 2)
    mean = x.sum(axis=SPATIAL, keepdims=True) / count
    other = (x - mean) / pt.sqrt(pt.sqr(x - mean).sum(axis=SPATIAL, keepdims=True) / count + 1e-3)
    function = pytensor.function([x], [out, other], mode=PERFORM)
    assert ops(function) == {TRAIN: 2}
    array = np.random.default_rng(0).standard_normal((5, 3, 4, 2)).astype("float32")
    for result, reference in zip(
        function(array), pytensor.function([x], [out, other], mode=PLAIN)(array), strict=True
    ):
        assert_close(result, reference)


# -- what else is in a graph -----------------------------------------------------------------


def test_statistics_with_other_uses():
    x, top = images(2)
    gamma, beta, averages = tensor(1), tensor(1), [tensor(1), tensor(1)]
    mean, var = moments(x, keepdims=False)
    out = (x - spread(mean)) / pt.sqrt(spread(var) + 1e-4) * spread(gamma) + spread(beta)
    grad = pytensor.grad(None, x, known_grads={out: top})
    new = [0.9 * old + 0.1 * now for old, now in zip(averages, (mean, var), strict=True)]
    inputs = [x, gamma, beta, top, *averages]
    function = check(inputs, [out, grad, *new], {TRAIN: 1, GRAD: 1}, bound=2e-5)
    assert not any(type(n.op).__name__ == "Sum" for n in function.maker.fgraph.apply_nodes)
    check(inputs, [out, new[0]], {TRAIN: 1})
    # Of one element the variance is 0, and nothing is divided by 0.
    one = [np.ones((1, 3, 1, 1), "float32"), *[np.ones(3, "float32")] * 2]
    values_of_one = [*one, one[0], *one[1:]]
    np.testing.assert_allclose(function(*values_of_one)[3], np.full(3, 0.9), rtol=1e-6)


def test_some_of_the_gradients():
    x, top = images(2)
    parameters = [tensor(1), tensor(1)]
    out = normalized_first(x, *parameters)
    for count, wrt in ((1, parameters[:1]), (1, [x]), (1, parameters), (0, parameters[1:])):
        grads = pytensor.grad(None, wrt, known_grads={out: top})
        expected = {TRAIN: 1} | ({GRAD: 1} if count else {})
        check([x, *parameters, top], [out, *grads], expected, bound=1e-4)


def test_gradients_taken_apart_and_for_two_losses():
    x, top = images(2)
    parameters = [tensor(1), tensor(1)]
    out = normalized_first(x, *parameters)
    losses = [(out * top).sum(), (out**3).sum()]
    grads = [pytensor.grad(loss, v) for loss in losses for v in (x, *parameters)]
    check([x, *parameters, top], grads, {TRAIN: 1, GRAD: 2}, bound=1e-4)


def test_a_residual_around_it():
    """The gradient by `x` has terms of other origin, before, between and after."""
    x, top = images(2)
    gamma, beta = tensor(1), tensor(1)
    for out in (
        multiplied_first(x, gamma, beta) + x,
        pt.tanh(x) + multiplied_first(x, gamma, beta) * pt.exp(x),
    ):
        grads = pytensor.grad((out * top).sum(), [x, gamma, beta])
        check([x, gamma, beta, top], [out, *grads], {TRAIN: 1, GRAD: 1}, bound=1e-4)


def test_a_chain():
    x, top = images(2)
    gamma, beta = tensor(1), tensor(1)
    y = x
    for i, written in enumerate((multiplied_first, folded, normalized_first)):
        y = pt.maximum(written(y, gamma + i, beta), 0) + 0.1 * y
        y = y * top if i == 0 else y
    grads = pytensor.grad((y * top).sum(), [x, gamma, beta])
    check([x, gamma, beta, top], [y, *grads], {TRAIN: 3, GRAD: 3}, bound=2e-4)


def test_one_input_normalized_twice():
    x, top = images(2)
    gamma, beta = tensor(1), tensor(1)
    mean, var = moments(x)
    normalized = (x - mean) / pt.sqrt(var + 1e-4)
    out = normalized * spread(gamma) * pt.tanh(normalized + spread(beta))
    grads = pytensor.grad((out * top).sum(), [x, gamma, beta])
    check([x, gamma, beta, top], [out, *grads], {TRAIN: 1, GRAD: 1}, bound=1e-4)


def test_parameters_that_depend_on_the_input():
    x, top = images(2)
    gamma, beta = tensor(1), tensor(1)
    pooled = x.mean(axis=SPATIAL)
    out = multiplied_first(x, gamma * pt.tanh(pooled), beta)
    grads = pytensor.grad((out * top).sum(), [x, gamma, beta])
    check([x, gamma, beta, top], [out, *grads], {TRAIN: 1, GRAD: 1}, bound=1e-4)


def test_a_scale_that_is_the_mean_itself():
    """With it the Op would need its own result."""
    x = tensor(4)
    mean, var = moments(x)
    function = check([x], (x - mean) / pt.sqrt(var + 1e-4) * mean + var, {TRAIN: 1})
    (node,) = [n for n in function.maker.fgraph.apply_nodes if type(n.op).__name__ == TRAIN]
    assert not isinstance(node.inputs[1], pytensor.graph.Constant)
    assert not {*node.outputs} & {*pytensor.graph.ancestors(node.inputs)}


def test_an_output_that_is_its_own_gradient():
    x = tensor(4)
    gamma, beta = tensor(1), tensor(1)
    out = multiplied_first(x, gamma, beta)
    grads = pytensor.grad(None, [gamma, beta], known_grads={out: out})
    check([x, gamma, beta], grads, {TRAIN: 1, GRAD: 1}, bound=1e-4)


# -- with given statistics -------------------------------------------------------------------


def divided(x: Any, gamma: Any, beta: Any, mean: Any, var: Any) -> Any:
    return (x - spread(mean)) / pt.sqrt(spread(var) + 1e-4) * spread(gamma) + spread(beta)


def factor_of_vectors(x: Any, gamma: Any, beta: Any, mean: Any, var: Any) -> Any:
    return (x - spread(mean)) * spread(gamma * (var + 1e-4) ** -0.5) + spread(beta)


def folded_inference(x: Any, gamma: Any, beta: Any, mean: Any, var: Any) -> Any:
    factor = gamma / pt.sqrt(var + 1e-4)
    return x * spread(factor) + spread(beta - mean * factor)


def unscaled(x: Any, gamma: Any, beta: Any, mean: Any, var: Any) -> Any:
    return (x - spread(mean)) / pt.sqrt(spread(var) + 1e-4)


@pytest.mark.parametrize("written", [divided, factor_of_vectors, folded_inference, unscaled])
def test_inference(written):
    x, *parameters = [tensor(4), *(tensor(1) for _ in range(4))]
    out = written(x, *parameters)
    function = check([x, *parameters], pt.maximum(out, 0), {INFERENCE: 1})
    (node,) = [n for n in function.maker.fgraph.apply_nodes if type(n.op).__name__ == INFERENCE]
    assert node.op.axes == SPATIAL


def test_inference_whose_parts_a_gradient_needs():
    x, *parameters = [tensor(4), *(tensor(1) for _ in range(4))]
    out = divided(x, *parameters)
    # Here the normalized values are a part of both.
    grad = pytensor.grad(pt.sqr(out).sum(), parameters[0])
    check([x, *parameters], [out, grad], {INFERENCE: 1}, bound=1e-4)
    out = factor_of_vectors(x, *parameters)
    grad = pytensor.grad(pt.sqr(out).sum(), parameters[0])
    check([x, *parameters], [out, grad], {}, bound=1e-4)
    check([x, *parameters], [out, pytensor.grad(pt.sqr(out).sum(), x)], {INFERENCE: 1}, 1e-4)


# -- near misses -----------------------------------------------------------------------------


def epsilon_of_channels(x, p, q):
    mean, var = moments(x)
    return (x - mean) / pt.sqrt(var + np.float32([1, 2, 3]).reshape(1, 3, 1, 1))


def epsilon_variable(x, p, q):
    mean, var = moments(x)
    return (x - mean) / pt.sqrt(var + spread(p))


def negative_epsilon(x, p, q):
    mean, var = moments(x)
    return (x - mean) / pt.sqrt(var + -1e-4)


def no_epsilon(x, p, q):
    mean, var = moments(x)
    return (x - mean) / pt.sqrt(var)


def other_axes(x, p, q):
    return (x - moments(x)[0]) / pt.sqrt(moments(x, (0, 1, 2, 3))[1] + 1e-4)


def unbiased(x, p, q):
    var = x.var(axis=SPATIAL, keepdims=True, ddof=1)
    return (x - x.mean(axis=SPATIAL, keepdims=True)) / pt.sqrt(var + 1e-4)


def epsilon_outside(x, p, q):
    mean, var = moments(x)
    return (x - mean) / (pt.sqrt(var) + 1e-4)


def other_inputs_mean(x, p, q):
    _, var = moments(x)
    return (x - moments(pt.tanh(x))[0]) / pt.sqrt(var + 1e-4)


def other_inputs_variance(x, p, q):
    mean, _ = moments(x)
    return (x - mean) / pt.sqrt(moments(pt.tanh(x))[1] + 1e-4)


def wrong_count(x, p, q):
    mean = x.sum(axis=SPATIAL, keepdims=True) / (x.shape[0] * x.shape[2]).astype("float32")
    return (x - mean) / pt.sqrt(pt.sqr(x - mean).mean(axis=SPATIAL, keepdims=True) + 1e-4)


def cube(x, p, q):
    mean = x.mean(axis=SPATIAL, keepdims=True)
    return (x - mean) / pt.sqrt(((x - mean) ** 3).mean(axis=SPATIAL, keepdims=True) + 40)


def added_mean(x, p, q):
    mean, var = moments(x)
    return (x + mean) / pt.sqrt(var + 1e-4)


def scattered_axes(x, p, q):
    mean, var = moments(x, (0, 2))
    return (x - mean) / pt.sqrt(var + 1e-4)


def multiplied_by_the_root(x, p, q):
    mean, var = moments(x)
    return (x - mean) * pt.sqrt(var + 1e-4)


def double(x, p, q):
    x = x.astype("float64")
    mean, var = moments(x)
    return (x - mean) / pt.sqrt(var + 1e-4)


def folded_with_another_factor(x, p, q):
    mean, var = moments(x, keepdims=False)
    factor = p / pt.sqrt(var + 1e-4)
    return x * spread(factor) + spread(q - mean / pt.sqrt(var + 1e-4))


@pytest.mark.parametrize(
    "written",
    [
        epsilon_of_channels,
        epsilon_variable,
        negative_epsilon,
        no_epsilon,
        other_axes,
        unbiased,
        epsilon_outside,
        other_inputs_mean,
        other_inputs_variance,
        wrong_count,
        cube,
        added_mean,
        scattered_axes,
        multiplied_by_the_root,
        double,
        folded_with_another_factor,
    ],
)
def test_near_misses(written):
    x, p, q = tensor(4), tensor(1), tensor(1)
    out = written(x, p, q)
    check([x, p, q], [out, pytensor.grad(pt.sqr(out).sum(), x)], {}, bound=1e-4)


def test_parameters_that_broadcast_the_input():
    x = pt.tensor(dtype="float32", shape=(None, 1, None, None))
    gamma, beta = tensor(1), tensor(1)
    for out in (multiplied_first(x, gamma, beta), divided(x, gamma, beta, gamma, beta)):
        function = pytensor.function([x, gamma, beta], out, mode=PERFORM)
        three = np.ones(3, "float32")
        assert function(np.ones((2, 1, 4, 4), "float32"), three, three).shape == (2, 3, 4, 4)
        assert INFERENCE not in ops(function)


def test_long_sums_and_products():
    x = pt.vector()
    out = product = pt.sqrt(x)
    for _ in range(1500):
        out, product = out + x, product * x
    fgraph = FunctionGraph([x], [out, product])
    RecognizeBatchNorm().apply(fgraph)
    assert len(fgraph.apply_nodes) == 3001


def test_parts_with_other_uses():
    x, gamma, beta = tensor(4), tensor(1), tensor(1)
    mean, var = moments(x)
    centered = x - mean
    out = centered / pt.sqrt(var + 1e-4) * spread(gamma) + spread(beta)
    check([x, gamma, beta], [out, pt.tanh(centered)], {})
    # A loss that has the statistics in it: the gradient is another one.
    loss = pt.sqr(out).sum() + pt.sqr(var).sum()
    check([x, gamma, beta], [out, pytensor.grad(loss, x)], {}, 1e-4)
    # A derivative of the gradient has its parts in it.
    grad = pytensor.grad(pt.sqr(out).sum() + (out**3).sum(), x)
    check([x, gamma, beta], [out, pytensor.grad(pt.sqr(grad).sum(), x)], {}, 1e-3)


def test_excluded():
    x, gamma, beta = tensor(4), tensor(1), tensor(1)
    out = multiplied_first(x, gamma, beta)
    assert not ops(pytensor.function([x, gamma, beta], out, mode=PLAIN))


# -- numbers of values -----------------------------------------------------------------------


def test_value_numbers():
    a, b, c = (pt.vector(name) for name in "abc")
    x, y, z = (a + b) + pt.exp(c), pt.exp(c) + (b + a), a + pt.exp(b)
    numbers = ValueNumbers(FunctionGraph([a, b, c], [x, y, z], clone=False))
    assert numbers[x] == numbers[y] != numbers[z]
    assert numbers.terms(numbers[x]).total() == 3
    own = pt.vector()
    assert numbers.of([own + pt.exp(b)], {own: a, b: b})[own] == numbers[a]
    exp = pt.exp(own)
    terms = numbers.terms(numbers.of([exp], {own: c})[exp]) + numbers.terms(numbers[b])
    found = numbers.sums_with(terms)
    assert {v for v, _ in found} == {x, y}
    assert all(list(rest.elements()) == [numbers[a]] for _, rest in found)
