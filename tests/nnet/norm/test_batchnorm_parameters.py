"""Ranks and dtypes of batch normalization's parameters, and updates of shared ones, as in Theano.

These are the functions of `dnnops.nnet`, and those of `dnnops.dnn` through the abstract Ops.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from dnnops import dnn, nnet
from tests.emulation.host_graphs import on_host
from tests.oracle import PERFORM_MODE, assert_close

RNG = np.random.default_rng(0)
IMAGE = RNG.standard_normal((4, 3, 5, 2)) + 1
FULL = {"spatial": (1, 3, 1, 1), "per-activation": (1, 3, 5, 2)}
KEPT = {"spatial": (3,), "per-activation": (3, 5, 2)}
AXES = {"spatial": (0, 2, 3), "per-activation": (0,)}
MODULES = pytest.mark.parametrize("module", ["nnet", "dnn"])
MODES = pytest.mark.parametrize("mode", ["spatial", "per-activation"])


def train(module: str, x: Any, gamma: Any, beta: Any, mode: str, *averages: Any) -> list[Any]:
    """Return the host variables that a module's function returns."""
    running = dict(zip(("running_mean", "running_var"), averages, strict=False))
    if module == "nnet":
        return list(nnet.batch_normalization_train(x, gamma, beta, mode, 1e-3, 0.2, **running))
    return on_host(dnn.dnn_batch_normalization_train(x, gamma, beta, mode, 1e-3, 0.2, **running))


def inference(module: str, *operands: Any) -> Any:
    if module == "nnet":
        return nnet.batch_normalization_test(*operands)
    return on_host([dnn.dnn_batch_normalization_test(*operands)])[0]


def expected(mode: str, gamma: Any, beta: Any, mean: Any, var: Any) -> list[np.ndarray]:
    """Compute in NumPy, with all parameters of full rank."""
    axes = AXES[mode]
    count = np.prod([IMAGE.shape[axis] for axis in axes])
    batch_mean, batch_var = (f(IMAGE, axis=axes, keepdims=True) for f in (np.mean, np.var))
    invstd = 1 / np.sqrt(batch_var + 1e-3)
    return [
        (IMAGE - batch_mean) * invstd * gamma + beta,
        batch_mean,
        invstd,
        0.8 * mean + 0.2 * batch_mean,
        0.8 * var + 0.2 * batch_var * count / (count - 1),
    ]


@MODULES
@MODES
@pytest.mark.parametrize("ranks", ["kept", "full", "kept averages", "full averages"])
def test_ranks(module, mode, ranks):
    """Statistics have gamma's rank, running averages keep their own, and values are the same."""
    values = [RNG.standard_normal(FULL[mode]) for _ in range(3)] + [RNG.random(FULL[mode])]
    kept = [ranks in ("kept", "full averages")] * 2 + [ranks in ("kept", "kept averages")] * 2
    given = [v.reshape(KEPT[mode]) if k else v for v, k in zip(values, kept, strict=True)]
    x, *parameters = (pt.tensor(dtype="float64", shape=(None,) * a.ndim) for a in (IMAGE, *given))
    results = train(module, x, *parameters[:2], mode, *parameters[2:])
    assert [z.type.ndim for z in results] == [4, *(given[i].ndim for i in (0, 0, 2, 3))]
    found = pytensor.function([x, *parameters], results, mode=PERFORM_MODE)(IMAGE, *given)
    like = (IMAGE, given[0], given[0], given[2], given[3])
    for out, wanted, shape in zip(found, expected(mode, *values), like, strict=True):
        assert out.shape == shape.shape
        assert_close(out, wanted.reshape(shape.shape), bound=1e-12)


@MODULES
def test_updates_of_shared_vectors(module):
    """As a network does it: running averages by the function, and written out."""
    x = pt.tensor4(dtype="float64")
    gamma, beta, mean, var, written = (
        pytensor.shared(value) for value in (np.ones(3), *(np.zeros(3) for _ in range(4)))
    )
    _, batch_mean, _, new_mean, new_var = train(module, x, gamma, beta, "spatial", mean, var)
    updates = {mean: new_mean, var: new_var, written: 0.8 * written + 0.2 * batch_mean}
    pytensor.function([x], updates=updates, mode=PERFORM_MODE)(IMAGE)
    flat = IMAGE.transpose(1, 0, 2, 3).reshape(3, -1)
    for shared in (mean, written):
        assert shared.get_value().shape == (3,)
        assert_close(shared.get_value(), 0.2 * flat.mean(axis=1), bound=1e-12)
    assert_close(var.get_value(), 0.2 * flat.var(axis=1, ddof=1), bound=1e-12)


@MODULES
def test_gradients_with_respect_to_vectors(module):
    """They have the vectors' shape, and so do gradients of statistics."""
    x = pt.tensor4(dtype="float64")
    gamma, beta = pt.dvector(), pt.dvector()
    out, mean, invstd = train(module, x, gamma, beta, "spatial")
    cost = (out * IMAGE).sum() + (mean * invstd).sum()
    found = pytensor.function(
        [x, gamma, beta], pytensor.grad(cost, [gamma, beta]), mode=PERFORM_MODE
    )(IMAGE, np.ones(3), np.zeros(3))
    centered = IMAGE - IMAGE.mean(axis=(0, 2, 3), keepdims=True)
    deviation = np.sqrt(IMAGE.var(axis=(0, 2, 3), keepdims=True) + 1e-3)
    assert_close(found[0], (centered / deviation * IMAGE).sum(axis=(0, 2, 3)), bound=1e-12)
    assert_close(found[1], IMAGE.sum(axis=(0, 2, 3)), bound=1e-12)


@MODULES
@pytest.mark.parametrize(
    ("x_dtype", "dtypes", "result", "statistics"),
    [
        ("float64", ["float32"] * 4, "float64", "float64"),
        ("float32", ["float64"] * 4, "float64", "float64"),
        ("float32", ["float32", "float32", "float32", "float64"], "float64", "float64"),
        ("float16", ["float32"] * 4, "float16", "float32"),
        ("float16", ["float16", "float32", "float32", "float32"], "float16", "float32"),
        ("float16", ["float64"] * 4, "float64", "float64"),
        ("float32", ["float16"] * 4, "float32", "float32"),
    ],
)
def test_dtypes(module, x_dtype, dtypes, result, statistics):
    """The widest dtype is taken, as in Theano, but float32 parameters keep float16 images."""
    x = pt.tensor4(dtype=x_dtype)
    vectors = [pt.vector(dtype=dtype) for dtype in dtypes]
    results = train(module, x, *vectors[:2], "spatial", *vectors[2:])
    assert [z.type.dtype for z in results] == [result] + [statistics] * 4
    assert inference(module, x, *vectors, "spatial").type.dtype == result


@pytest.mark.parametrize(
    ("x_dtype", "dtypes", "result"),
    [
        ("float32", ["int8", "float32"], "float32"),
        ("float32", ["uint16", "int16"], "float32"),
        ("float32", ["int64", "float32"], "float32"),
        ("int8", ["float32", "int8"], "float32"),
        ("int32", ["float32", "float32"], "float32"),
        ("int32", ["int64", "int8"], "float64"),
    ],
)
def test_integers(x_dtype, dtypes, result):
    """Integers get the dtype of the floats; without any, they are converted as in Theano."""
    gamma, beta = (np.array([1, 2, 3], dtype) for dtype in dtypes)
    image = np.round(IMAGE * 9).astype(x_dtype)
    x, *vectors = pt.tensor4(dtype=x_dtype), *(pt.vector(dtype=dtype) for dtype in dtypes)
    out = nnet.batch_normalization_train(x, *vectors, "spatial", 1e-3)[0]
    given = nnet.batch_normalization_test(x, *vectors, *vectors, "spatial")
    assert (out.type.dtype, given.type.dtype) == (result, result)
    found = pytensor.function([x, *vectors], [out, given], mode=PERFORM_MODE)(image, gamma, beta)
    scale, bias = (p.astype("float64").reshape(1, 3, 1, 1) for p in (gamma, beta))
    image = image.astype("float64")
    centered = image - image.mean(AXES["spatial"], keepdims=True)
    invstd = 1 / np.sqrt(image.var(AXES["spatial"], keepdims=True) + 1e-3)
    assert_close(found[0], centered * invstd * scale + bias, bound=1e-5)
    assert_close(found[1], (image - scale) / np.sqrt(bias + 1e-4) * scale + bias, bound=1e-5)
