"""float16 on the CPU: computed in float32, under CVM and under Numba."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.builders import OpFromGraph

from dnnops import nnet
from dnnops.cpu.half_cast import OneDnnHalfCast
from dnnops.errors import DnnTypeError
from tests.cpu.conv.test_conv import restrided
from tests.oracle import assert_close

MODES = pytest.mark.parametrize(
    "mode", ["CVM", "ONEDNN", pytest.param(None, id="default", marks=pytest.mark.slow)]
)


def compile_quietly(*args: Any, **kwargs: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        return pytensor.function(*args, **kwargs)


def dtypes_of(fn: Any) -> set[str]:
    """Return the dtypes of all operands and results of Ops other than casts."""
    return {
        getattr(x.type, "dtype", "")
        for node in fn.maker.fgraph.apply_nodes
        if type(node.op).__name__ not in ("OneDnnHalfCast", "Shape", "Shape_i", "DeepCopyOp")
        for x in (*node.inputs, *node.outputs)
    }


def all_halves() -> np.ndarray:
    return np.arange(2**16, dtype="uint16").view("float16")


def run(x: np.ndarray) -> np.ndarray:
    op, storage = OneDnnHalfCast(), [[None]]
    op.perform(op.make_node(x), [x], storage)
    result: Any = storage[0][0]
    return result


def test_every_float16_is_widened():
    halves = all_halves()
    with np.errstate(invalid="ignore"):
        expected = halves.astype("float32")
    np.testing.assert_array_equal(run(halves), expected)
    np.testing.assert_array_equal(np.signbit(run(halves)), np.signbit(expected))


def test_float32_is_rounded_as_numpy_rounds():
    halves = all_halves()
    finite = np.sort(halves[np.isfinite(halves)].astype("float32"))
    between = (finite[1:] + finite[:-1]) / 2
    rng = np.random.default_rng(0)
    parts = [finite, between, np.nextafter(between, np.inf), np.nextafter(between, -np.inf)]
    parts.append(rng.integers(0, 2**32, 2**17, dtype="uint32").view("float32"))
    values = np.concatenate([*parts, np.float32([65519.996, 65520, 1e30, np.inf, -np.inf, np.nan])])
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        np.testing.assert_array_equal(run(values), values.astype("float16"))


def test_casts_of_any_strides_and_shapes():
    rng = np.random.default_rng(1)
    for shape in [(), (0, 3), (7,), (3, 5, 2), (40, 130, 3)]:
        x = rng.standard_normal(shape).astype("float16")
        np.testing.assert_array_equal(run(restrided(rng, x)), x.astype("float32"))


def network(dtype: str) -> tuple[list[Any], Any, list[tuple[Any, Any]]]:
    """Return a training step of dense layers."""
    rng = np.random.default_rng(0)
    x, labels = pt.matrix(dtype=dtype), pt.ivector()
    parameters, h = [], x
    for rows, columns in ((32, 64), (64, 64), (64, 10)):
        w = pytensor.shared((0.1 * rng.standard_normal((rows, columns))).astype(dtype))
        b = pytensor.shared(np.zeros(columns, dtype))
        h = pt.tanh(h @ w + b) if columns > 10 else h @ w + b
        parameters += [w, b]
    loss = nnet.cross_entropy(h, labels).mean()
    gradients = pytensor.grad(loss, parameters)
    rate = np.asarray(0.25, dtype)
    updates = [(p, p - rate * g) for p, g in zip(parameters, gradients, strict=True)]
    return [x, labels], loss, updates


@MODES
def test_a_network_is_trained_in_float32(mode):
    rng = np.random.default_rng(2)
    scores = rng.standard_normal((16, 32)).astype("float16")
    labels = rng.integers(0, 10, 16).astype("int32")
    losses = {}
    for dtype in ("float16", "float32"):
        inputs, loss, updates = network(dtype)
        fn = compile_quietly(inputs, loss, updates=updates, mode=mode)
        assert "float16" not in dtypes_of(fn)
        losses[dtype] = [fn(scores.astype(dtype), labels) for _ in range(5)]
        assert losses[dtype][0].dtype == dtype
        assert all(p.get_value().dtype == dtype for p, _ in updates)
    assert losses["float16"][-1] < 0.9 * losses["float16"][0]
    np.testing.assert_allclose(losses["float16"], losses["float32"], rtol=4e-3)


@MODES
def test_elementwise_ops_reductions_and_moves_of_data(mode):
    x, y = pt.matrix(dtype="float16"), pt.vector(dtype="float16")
    z = pt.concatenate([x * 2 + y, pt.exp(-(x**2))], axis=0)
    outputs = [
        z,
        z.sum(axis=0),
        z.max(axis=1),
        z.mean(),
        z[1:, ::2].T,
        pt.switch(z > 0.5, z, pt.cast(3, "float16")),
        pt.stack([z[0, 0], z[1, 1]]),
        pt.cast(pt.cast(z, "float64") / 3, "float16"),
        x,
    ]
    fn = compile_quietly([x, y], outputs, mode=mode)
    assert "float16" not in dtypes_of(fn)
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal(shape).astype("float16") for shape in ((5, 4), 4))
    c = np.concatenate([a * 2.0 + b, np.exp(-(a.astype("float64") ** 2))])
    expected = [c, c.sum(0), c.max(1), c.mean(), c[1:, ::2].T, np.where(c > 0.5, c, 3)]
    expected += [np.stack([c[0, 0], c[1, 1]]), c / 3, a]
    for found, reference in zip(fn(a, b), expected, strict=True):
        assert found.dtype == "float16"
        assert_close(found, np.asarray(reference))


def test_numba_says_what_it_has_not():
    """An Op that stays float16 raises an error with its name and does not misread its operands."""
    rng = pytensor.shared(np.random.default_rng(4))
    x = pt.random.normal(size=(3,), rng=rng, dtype="float16")
    with pytest.raises(DnnTypeError, match="float16, which PyTensor's default Numba linker"):
        pytensor.function([], x)


@MODES
def test_graphs_within_graphs(mode):
    """An `OpFromGraph` contains a graph with its own dtypes."""
    a, b = pt.vector(dtype="float16"), pt.vector(dtype="float16")
    inner = OpFromGraph([a, b], [a * b + 1, pt.tanh(a)])
    x, y = pt.vector(dtype="float16"), pt.vector(dtype="float16")
    fn = compile_quietly([x, y], inner(x, y * 2), mode=mode)
    assert "float16" not in dtypes_of(fn)
    values = np.float16([0.5, -2, 3]), np.float16([1, 0.25, -1])
    expected = values[0] * (values[1] * 2) + 1, np.tanh(values[0].astype("float64"))
    for found, reference in zip(fn(*values), expected, strict=True):
        assert found.dtype == "float16"
        assert_close(found, reference)
