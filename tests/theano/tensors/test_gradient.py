"""Gradients of ``theano.grad`` have the types of the variables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from pytensor.gradient import pushforward
from pytensor.graph.replace import vectorize_graph

RNG = np.random.default_rng(9)
IMAGES, FILTERS = RNG.normal(size=(2, 3, 6, 5)), RNG.normal(size=(4, 3, 2, 3))


def costs(theano: Any) -> dict[str, tuple[Any, Any, Any]]:
    """Return costs and their variables, some sizes of whose gradients are known, and values."""
    tt = theano.tensor
    x, w, a = tt.dtensor4("x"), tt.dtensor4("w"), tt.dmatrix("a")
    declared = tt.nnet.conv2d(x, w, input_shape=IMAGES.shape, filter_shape=FILTERS.shape)
    return {
        "constant images": (tt.nnet.conv2d(tt.constant(IMAGES), w).sum(), [w], [FILTERS]),
        "constant filters": (tt.nnet.conv2d(x, tt.constant(FILTERS)).sum(), [x], [IMAGES]),
        "declared shapes": (declared.sum(), [x, w], [IMAGES, FILTERS]),
        "declared, squared": ((declared**2).sum(), [x, w], [IMAGES, FILTERS]),
        "product": (tt.dot(tt.constant(FILTERS[:, :, 0, 0]), a).sum(), [a], [IMAGES[0, :, 0]]),
    }


@pytest.mark.parametrize(
    "case",
    ["constant images", "constant filters", "declared shapes", "declared, squared", "product"],
)
def test_types_and_inputs(theano: Any, case: str):
    cost, variables, values = costs(theano)[case]
    cost.name = "cost"
    typed = theano.grad(cost, variables)
    for x, value, gradient in zip(variables, values, typed, strict=True):
        assert gradient.type == x.type
        assert gradient.name == f"(dcost/d{x.name})"
        # Each variable is an input of its gradient, even if it only gives the shape.
        f = theano.function(variables, gradient, on_unused_input="raise")
        assert not any("TypedGradient" in str(node.op) for node in f.maker.fgraph.toposort())
        found = f(*values)
        assert found.shape == value.shape
        step = RNG.normal(size=value.shape)
        near = theano.function(variables, cost)
        ways = ([v + far * step if v is value else v for v in values] for far in (1e-4, -1e-4))
        above, below = (near(*way) for way in ways)
        assert_allclose((above - below) / 2e-4, (found * step).sum(), rtol=1e-6)


def test_results_of_every_name(theano: Any):
    x, y = theano.tensor.dvectors("x", "y")
    cost = (x * y).sum()
    for grad in (theano.grad, theano.tensor.grad, theano.gradient.grad, theano.tensor.basic.grad):
        assert isinstance(grad(cost, [x, y]), list)
        assert grad(cost, x).type == x.type
    ignored = theano.grad(cost, [x, theano.tensor.dscalar()], None, "ignore")
    assert ignored[1].type.ndim == 0
    options = {"disconnected_inputs": "ignore", "return_disconnected": "none"}
    assert theano.grad(cost, theano.tensor.drow(), **options) is None


def test_derivatives_of_gradients(theano: Any):
    w = theano.tensor.dtensor4("w")
    convolved = theano.tensor.nnet.conv2d(theano.tensor.constant(IMAGES), w)
    gradient = theano.grad((convolved**3).sum(), w)
    (second,) = theano.grad(gradient.sum(), [w])
    assert second.type == w.type
    tangent = theano.tensor.dtensor4("tangent")
    along = pushforward(gradient, w, tangent)
    several = theano.tensor.tensor5("several", dtype="float64")
    f = theano.function([w, tangent], [gradient, second.sum(), along])
    g = theano.function([several], vectorize_graph(gradient, {w: several}))
    # The second derivative is symmetric, so with ones as the tangent both sums are equal.
    near = 1e-4 * np.ones_like(FILTERS)
    first, total, change = f(FILTERS, near * 1e4)
    assert_allclose(change.sum(), total, rtol=1e-9)
    both = g(np.stack([FILTERS + near, FILTERS - near]))
    assert_allclose((both[0] - both[1]) / 2e-4, change, rtol=1e-6)
    assert_allclose(g(FILTERS[None])[0], first, rtol=1e-12)
