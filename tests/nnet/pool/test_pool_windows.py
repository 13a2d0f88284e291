"""Pooling with windows known only at the call, and the mode max_deterministic."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.nnet import MaxPoolGrad, MaxPoolGradGrad, Pool, pool_2d, pool_3d
from tests.linkers import LINKERS
from tests.oracle import evaluate, run_op

VECTORS = ("ws", "stride", "pad")
#: A value of each operand that makes a window of 2, 2 over an image of 6, 6 invalid.
WRONG = [
    ("ws", (0, 2)),
    ("ws", (2, -1)),
    ("stride", (0, 2)),
    ("stride", (2, -1)),
    ("pad", (2, 0)),
    ("pad", (0, -1)),
]


def windows(**changed: tuple[int, ...]) -> dict[str, np.ndarray]:
    values = {"ws": (2, 2), "stride": (2, 2), "pad": (0, 0)} | changed
    return {name: np.array(values[name]) for name in VECTORS}


def compiled(ignore_border: bool = True, mode: Any = "FAST_COMPILE") -> Any:
    """Compile a function of an image and its windows that returns only the pooled image's shape."""
    x = pt.tensor4("x", dtype="float32")
    vectors = [pt.lvector(name) for name in VECTORS]
    out = pool_2d(x, vectors[0], ignore_border, *vectors[1:])
    return pytensor.function([x, *vectors], out.shape, mode=mode)


@LINKERS
def test_the_shape_alone_is_checked_too(mode):
    """A shape's graph does not run the pooling, which would detect the error."""
    image = np.ones((1, 3, 6, 6), "float32")
    f = compiled(mode=mode)
    ops = {type(node.op).__name__ for node in f.maker.fgraph.apply_nodes}
    assert "CheckAndRaise" in ops
    assert not {"Pool", "OneDnnPool"} & ops
    assert f(image, **windows()).tolist() == [1, 3, 3, 3]
    assert f(image, **windows(ws=(6, 1), stride=(1, 9))).tolist() == [1, 3, 1, 1]
    assert f(image, **windows(ws=(2, 9))).tolist() == [1, 3, 3, 0]
    for name, value in WRONG:
        with pytest.raises(DnnValueError, match="windows don't fit their image"):
            f(image, **windows(**{name: value}))


def test_the_shape_alone_without_ignore_border():
    image = np.ones((1, 3, 6, 6), "float32")
    f = compiled(ignore_border=False)
    assert f(image, **windows(ws=(2, 9), stride=(4, 1))).tolist() == [1, 3, 2, 1]
    for name, value in (("pad", (1, 0)), ("stride", (0, 1)), ("ws", (0, 1))):
        with pytest.raises(DnnValueError, match="windows don't fit their image"):
            f(image, **windows(**{name: value}))


def test_constant_windows_are_not_checked_again():
    x = pt.tensor4("x", dtype="float32")
    f = pytensor.function([x], pool_2d(x, 2, True).shape)
    assert "CheckAndRaise" not in {type(node.op).__name__ for node in f.maker.fgraph.apply_nodes}


@pytest.mark.parametrize(("function", "ndim"), [(pool_2d, 2), (pool_3d, 3)])
def test_symbolic_scalars_are_for_all_axes(function, ndim):
    x = pt.tensor("x", shape=(None,) * (ndim + 2), dtype="float64")
    ws, stride, pad = (pt.iscalar(name) for name in VECTORS)
    out = function(x, ws, True, stride, pad, "sum")
    image = np.random.default_rng(0).standard_normal((2, 3, 5, 6, 4)[: ndim + 2])
    vectors = [np.full(ndim, n) for n in (3, 2, 1)]
    found = evaluate(out, {x: image, ws: 3, stride: 2, pad: 1})
    np.testing.assert_allclose(found, run_op(Pool(ndim, "sum", True), image, *vectors))


def test_float_scalars_are_refused():
    with pytest.raises(DnnTypeError, match="ws must be a vector of 2 integers"):
        pool_2d(pt.tensor4(), pt.dscalar())


# -- max_deterministic -------------------------------------------------------------------


@pytest.mark.parametrize("ndim", [1, 2, 3])
@pytest.mark.parametrize("ignore_border", [True, False])
def test_max_deterministic_computes_maxima(ndim, ignore_border):
    rng = np.random.default_rng(0)
    image = rng.integers(-3, 3, (2, 2, 5, 4, 6)[: ndim + 2]).astype("float64")
    vectors = [[3] * ndim, [2] * ndim, [int(ignore_border)] * ndim]
    x = pt.tensor("x", shape=(None,) * (ndim + 2), dtype="float64")
    results = []
    for mode in ("max", "max_deterministic"):
        out = Pool(ndim, mode, ignore_border)(x, *vectors)
        grad = pytensor.grad((out**2).sum(), x)
        second = pytensor.grad((grad**2).sum(), x)
        results.append(evaluate([out, grad, second], {x: image}))
    for plain, deterministic in zip(*results, strict=True):
        np.testing.assert_array_equal(plain, deterministic)
        assert plain.any()


def test_every_derivative_is_deterministic():
    x = pt.tensor4("x", dtype="float64")
    op = Pool(2, "max_deterministic", True)
    node = pool_2d(x, 2, True, mode="max_deterministic").owner
    assert node.op == op != Pool(2, "max", True)
    (grad, *_) = op.pullback(node.inputs, node.outputs, node.outputs)
    assert grad.owner.op == MaxPoolGrad(2, True, deterministic=True) != MaxPoolGrad(2, True)
    grad_node = grad.owner
    second = grad_node.op.pullback(grad_node.inputs, grad_node.outputs, [x])[2]
    assert second.owner.op == MaxPoolGradGrad(2, True, deterministic=True)
    third = second.owner.op.pullback(second.owner.inputs, [second], [second])[2]
    assert third.owner.op == grad_node.op
    (tangent,) = op.pushforward(node.inputs, node.outputs, [x, *node.inputs[1:]])
    assert tangent.owner.op == second.owner.op


def test_averages_have_no_deterministic_mode():
    with pytest.raises(DnnValueError, match="got 'average_deterministic'"):
        pool_2d(pt.tensor4(), 2, mode="average_deterministic")
