"""Expressions that only look like batch normalizations, and graphs that need their parts."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.graph.fg import FunctionGraph

from dnnops.rewriting.recognize.batchnorm import RecognizeBatchNorm
from tests.rewriting.recognize.batchnorm_forms import (
    INFERENCE,
    PERFORM,
    SPATIAL,
    check,
    divided,
    moments,
    multiplied_first,
    ops,
    spread,
    tensor,
)

pytestmark = pytest.mark.usefixtures("float32_numbers")


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
    # A loss that contains the statistics has a different gradient.
    loss = pt.sqr(out).sum() + pt.sqr(var).sum()
    check([x, gamma, beta], [out, pytensor.grad(loss, x)], {}, 1e-4)
    # A derivative of the gradient contains its parts.
    grad = pytensor.grad(pt.sqr(out).sum() + (out**3).sum(), x)
    check([x, gamma, beta], [out, pytensor.grad(pt.sqr(grad).sum(), x)], {}, 1e-3)
