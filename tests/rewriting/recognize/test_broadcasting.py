"""Whatever is recognized or fused, operands may broadcast: the values are those of NumPy."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import get_mode
from pytensor.tensor.special import log_softmax, softmax

from dnnops import nnet
from dnnops.modes import OneDnnMode
from tests.emulation.host_graphs import on_host
from tests.gpuarray.graphs import rewritten
from tests.oracle import PERFORM_MODE, SEED, assert_close

Form = Callable[..., Any]


def softmax_gradient(axis: Any) -> Form:
    def form(x: Any, g: Any) -> Any:
        sm = softmax(x, axis=axis)
        return g * sm - sm * (g * sm).sum(axis=axis, keepdims=True)

    return form


def log_softmax_gradient(axis: Any) -> Form:
    return lambda x, g: g - g.sum(axis=axis, keepdims=True) * softmax(x, axis=axis)


def normalized(x: Any, mean: Any, variance: Any, scale: Any, bias: Any) -> Any:
    return (x - mean) / pt.sqrt(variance**2 + 0.5) * scale + bias


def standardized(axes: Any) -> Form:
    def form(x: Any, scale: Any, bias: Any) -> Any:
        mean, variance = (f(axis=axes, keepdims=True) for f in (x.mean, x.var))
        return (x - mean) / pt.sqrt(variance + 0.5) * scale + bias

    return form


def attention(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return softmax(q @ k.mT / 2 + mask, axis=-1) @ v


def convolution(x: Any, w: Any, bias: Any, other: Any) -> Any:
    return pt.maximum(nnet.conv2d(x, w, border_mode="half") + bias + other, 0)


def pooled_sum(x: Any, other: Any) -> Any:
    return nnet.pool_2d(x, (2, 2), stride=(1, 1), ignore_border=True) + other


#: Each form with the number of operands that broadcast, their full shape, and the shapes of the
#: operands before them, which are fixed.
FORMS: dict[str, tuple[Form, int, tuple[int, ...], list[tuple[int, ...]]]] = {
    **{f"softmax' {a}": (softmax_gradient(a), 2, (6, 10), []) for a in (0, 1, None)},
    **{f"log_softmax' {a}": (log_softmax_gradient(a), 2, (6, 10), []) for a in (0, 1, None)},
    "weighted log": (lambda x, g: g * pt.log(softmax(x, axis=1)), 2, (6, 10), []),
    "weighted log_softmax": (lambda x, g: g * log_softmax(x, axis=0), 2, (6, 10), []),
    "exponentials": (lambda x, g: g * pt.exp(x) / pt.exp(x).sum(0, keepdims=True), 2, (6, 6), []),
    "inference": (normalized, 5, (3, 4, 5, 5), []),
    "batch": (standardized((0, 2, 3)), 3, (3, 4, 5, 5), []),
    "layer": (standardized(-1), 3, (6, 4), []),
    "attention": (attention, 1, (2, 3, 5, 5), [(2, 3, 5, 4)] * 3),
    "shared heads": (attention, 1, (2, 3, 5, 5), [(2, 3, 5, 4), (2, 1, 5, 4), (1, 3, 5, 4)]),
    "dense": (lambda x, w, b: pt.maximum(x @ w + b, 0), 1, (5, 5), [(5, 5)] * 2),
    "scaled": (lambda x, w, c, z: c * (x @ w) + z, 2, (5, 5), [(5, 5)] * 2),
    "gelu": (lambda x, w, b, r: nnet.gelu(x @ w + b, True) + r, 2, (5, 5), [(5, 5)] * 2),
    "convolution": (convolution, 2, (2, 3, 5, 5), [(2, 3, 5, 5), (3, 3, 3, 3)]),
    "pool": (pooled_sum, 1, (2, 3, 4, 4), [(2, 3, 5, 5)]),
    "maximum": (lambda x, y: pt.eq(pt.maximum(x, y), x) * x, 2, (4, 5), []),
    "relu": (lambda x, y: pt.maximum(x, 0) * y, 2, (4, 5), []),
    "sums": (lambda x, y, z: (x + y) * (x + y + z), 3, (4, 5), []),
    "norm": (lambda x, y: pt.sqrt(pt.sum(pt.sqr(x * y), axis=1)), 2, (4, 5), []),
}


def cases() -> tuple[list[Any], list[Any], list[np.ndarray]]:
    """Return inputs, results with gradients, and values of all forms.

    In one case of a form, each operand is known to have size 1 on axes of its own. In the other,
    all have size 1 on one axis, which no type knows.
    """
    rng, numbers = random.Random(SEED), np.random.default_rng(SEED)
    inputs, outputs, values = [], [], []
    for form, count, shape, fixed in FORMS.values():
        own = [[rng.random() < 0.4 for _ in shape] for _ in range(count)]
        alike = [i == rng.randrange(len(shape)) for i in range(len(shape))]
        for axes, is_known in ((own, True), ([alike] * count, False)):
            given = []
            for size, ones in ((shape, of) for of in axes):
                sizes = tuple(1 if one else n for n, one in zip(size, ones, strict=True))
                known = tuple(1 if one and is_known else None for one in ones)
                given.append((known, sizes))
            given = [*((s, s) for s in fixed), *given]
            if not is_known and len({sizes for _, sizes in given}) > 1:
                continue  # PyTensor refuses to broadcast sizes that no type knows
            xs = [pt.tensor(dtype="float32", shape=known) for known, _ in given]
            result = form(*xs)
            gradients = pytensor.grad(pt.sin(result).sum(), xs)
            inputs += xs
            outputs += [result, *gradients]
            values += [numbers.standard_normal(sizes).astype("float32") for _, sizes in given]
    return inputs, outputs, values


@pytest.fixture(autouse=True)
def without_a_device():
    with pytensor.config.change_flags(
        dnn__enabled="no_check", on_opt_error="raise", floatX="float32"
    ):
        yield


def test_operands_that_broadcast():
    inputs, outputs, values = cases()
    wanted = pytensor.function(inputs, outputs, mode=PERFORM_MODE)(*values)
    moved = rewritten(inputs, outputs, get_mode("CUDNN").excluding("inplace"))
    functions = {
        "CPU": pytensor.function(inputs, outputs, mode=OneDnnMode(linker="py")),
        # A softmax over one element does not depend on its input.
        "GPU": pytensor.function(
            moved.inputs, on_host(list(moved.outputs)), mode=PERFORM_MODE, on_unused_input="ignore"
        ),
    }
    for f in functions.values():
        for result, reference in zip(f(*values), wanted, strict=True):
            assert result.shape == reference.shape
            # Some gradients are zero, such as those of a softmax over one element.
            bound = 1e-4 * (1 + np.linalg.norm(reference))
            assert np.linalg.norm(result - reference) <= bound


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("is_static", [False, True])
def test_one_gradient_for_all_rows_or_columns(axis, is_static):
    """``g - sum(g) * softmax`` of one row or column of zeros is zero everywhere."""
    size = [6, 10]
    size[1 - axis] = 1
    x = pt.tensor(dtype="float32", shape=(6, 10) if is_static else (None, None))
    g = pt.tensor(dtype="float32", shape=[n if n == 1 or is_static else None for n in size])
    result = log_softmax_gradient(axis)(x, g)
    f = pytensor.function([x, g], result, mode=OneDnnMode(linker="py"))
    scores = np.zeros((6, 10), "float32")
    np.testing.assert_array_equal(f(scores, np.zeros(size, "float32")), scores)
    g_value = np.arange(max(size), dtype="float32").reshape(size)
    wanted = g_value - g_value.sum(axis) / (6, 10)[axis] * np.ones((6, 10))
    np.testing.assert_allclose(f(scores, g_value), wanted, atol=1e-5)


def test_a_column_that_broadcasts_over_the_summed_axis():
    """Its sum has one term, so this is not the gradient of a log-softmax."""
    x, g = pt.fmatrix(), pt.tensor(dtype="float32", shape=(None, 1))
    result = log_softmax_gradient(1)(x, g)
    f = pytensor.function([x, g], result, mode=OneDnnMode(linker="py"))
    column = np.arange(6, dtype="float32")[:, None]
    found = f(np.zeros((6, 10), "float32"), column)
    np.testing.assert_allclose(found, 0.9 * column * np.ones((1, 10)), rtol=1e-5)


@pytest.mark.parametrize("known", [1, None])
@pytest.mark.parametrize("rows", ["counted", "constant"])
def test_one_row_read_at_many_labels(rows, known):
    x, labels = pt.tensor(dtype="float32", shape=(known, None)), pt.lvector()
    logs = log_softmax(x, axis=1)
    picked = logs[pt.arange(x.shape[0]) if rows == "counted" else np.arange(1), labels]
    outputs = [-picked, pytensor.grad(-pt.sin(picked).sum(), x)]
    f, oracle = (
        pytensor.function([x, labels], outputs, mode=mode)
        for mode in (OneDnnMode(linker="py"), PERFORM_MODE)
    )
    given = np.arange(5, dtype="float32")[None], np.array([1, 4, 4])
    for result, reference in zip(f(*given), oracle(*given), strict=True):
        assert_close(result, reference, bound=1e-5)
