"""Dropout on the CPU in compiled loops: equal to NumPy bit by bit, and in graphs with states."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from hypothesis import strategies as st

from dnnops.cpu.dropout import OneDnnDropout, OneDnnDropoutGrad
from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.nnet import Dropout, DropoutGrad, dropout, dropout_state
from tests.cpu.conv.test_conv import restrided
from tests.linkers import LINKERS
from tests.oracle import PERFORM_MODE, fuzz


def state(seed: int, offset: int = 0) -> np.ndarray:
    return np.array([seed, offset], dtype="uint64").view("int64")


def run(op: Any, *arrays: np.ndarray) -> list[np.ndarray]:
    node = op.make_node(*arrays)
    storage: list[list] = [[None] for _ in node.outputs]
    op.perform(node, list(arrays), storage)
    for variable, (value,) in zip(node.outputs, storage, strict=True):
        assert value.dtype.name == variable.type.dtype
        assert value.shape == variable.type.shape
    return [value for (value,) in storage]


def check(op: Any, abstract: Any, rng: np.random.Generator, *operands: np.ndarray) -> list:
    """Compare bit by bit, also in place, and with operands of other strides."""
    expected = run(abstract, *operands)
    first, *others = operands
    view = restrided(rng, first) if first.ndim else first.copy()
    for result, reference in zip(run(op, view, *others), expected, strict=True):
        np.testing.assert_array_equal(result, reference)
    result, *_ = run(type(op)(inplace=True), view, *others)
    assert result is view
    np.testing.assert_array_equal(view, expected[0])
    return expected


@fuzz(
    100,
    shape=st.lists(st.integers(0, 9), max_size=5).map(tuple),
    p=st.one_of(st.just(0.0), st.floats(0, 1, exclude_max=True)),
    dtype=st.sampled_from(["float32", "float64"]),
    seed=st.integers(0, 2**64 - 1),
    offset=st.integers(0, 2**64 - 1),
)
def test_results_equal_numpys(shape, p, dtype, seed, offset):
    rng = np.random.default_rng(seed)
    x, gy = (rng.standard_normal(shape).astype(dtype) for _ in range(2))
    probability = np.array(p)
    with np.errstate(over="ignore", invalid="ignore"):
        _, reserve, _ = check(OneDnnDropout(), Dropout(), rng, x, probability, state(seed, offset))
        check(OneDnnDropoutGrad(), DropoutGrad(), rng, gy, probability, reserve)
    # A vector of every second byte.
    spread = np.repeat(reserve, 2)[::2]
    (gx,) = run(OneDnnDropoutGrad(), gy, probability, spread)
    np.testing.assert_array_equal(gx, run(DropoutGrad(), gy, probability, reserve)[0])


@pytest.mark.parametrize("shape", [(16385,), (3, 40, 411), (4096 * 8,), (64, 64, 21)])
def test_sizes_for_several_threads(shape):
    rng = np.random.default_rng(1)
    x = rng.standard_normal(shape).astype("float32")
    for _ in range(4):
        _, reserve, _ = check(
            OneDnnDropout(), Dropout(), rng, x, np.array(0.4), state(3, 2**32 - 5)
        )
        check(OneDnnDropoutGrad(), DropoutGrad(), rng, x, np.array(0.4), reserve)


PROGRAM = """
import numpy as np
from dnnops.cpu.dropout import OneDnnDropout
op = OneDnnDropout()
arrays = [np.ones(100001, 'float32'), np.array(0.5), np.array([9, 0])]
storage = [[None], [None], [None]]
op.perform(op.make_node(*arrays), arrays, storage)
print(hash(storage[1][0].tobytes()), storage[2][0])
"""


def test_any_number_of_threads_gives_the_same():
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    outputs = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**environment, "OMP_NUM_THREADS": str(threads)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for threads in (1, 3)
    }
    assert len(outputs) == 1


# -- in graphs ---------------------------------------------------------------------------


def ops_of(fn: Any) -> list[str]:
    return [type(node.op).__name__ for node in fn.maker.fgraph.apply_nodes]


def compile_quietly(inputs: Any, outputs: Any, mode: Any, **kwargs: Any) -> Any:
    """Make PyTensor's warnings about object mode errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        return pytensor.function(inputs, outputs, mode=mode, **kwargs)


@LINKERS
def test_functions_gradients_and_states(mode):
    """Test a single state, a state that is passed on, and a symbolic p in one function."""
    x, p, top = pt.fmatrix("x"), pt.dscalar("p"), pt.fmatrix("top")

    # Only the sum of two gradients is elementwise, since more would only take time to compile.
    def build():
        shared = dropout_state(21)
        y, after_y = dropout(x, p, state=shared)
        z, after_z = dropout(y, 0.5, state=after_y)
        own = dropout(x, 0.25, seed=5)
        outputs = [y, z, own, pytensor.grad(None, x, known_grads={z: top, own: top})]
        return shared, outputs, {shared: after_z}

    shared, outputs, updates = build()
    fn = compile_quietly([x, p, top], outputs, mode, updates=updates)
    assert ops_of(fn).count("OneDnnDropout") == 3
    assert ops_of(fn).count("OneDnnDropoutGrad") == 3
    assert not {"Dropout", "DropoutGrad"} & set(ops_of(fn))
    other_shared, outputs, updates = build()
    plain = pytensor.function([x, p, top], outputs, mode=PERFORM_MODE, updates=updates)
    rng = np.random.default_rng(2)
    previous = None
    for probability in (0.1, 0.7, 0.7):
        values, gz = rng.standard_normal((2, 30, 41)).astype("float32")
        results = fn(values, probability, gz)
        for result, expected in zip(results, plain(values, probability, gz), strict=True):
            np.testing.assert_allclose(result, expected, rtol=1e-6)
        np.testing.assert_array_equal(shared.get_value(), other_shared.get_value())
        assert previous is None or ((results[2] == 0) != (previous == 0)).any()
        previous = results[2]
    np.testing.assert_array_equal(shared.get_value(), state(21, 3 * 2 * 20 * 16))
    with pytest.raises(DnnValueError, match="OneDnnDropout: p must be at least 0 and at most 1"):
        fn(values, 1.5, gz)
    results = fn(values, 1.0, gz)
    assert not np.any(results[0])
    assert not np.any(results[1])


@LINKERS
def test_in_place_where_nobody_needs_the_operand(mode):
    x = pt.fmatrix("x")
    h = x + 1
    y = dropout(h, 0.5, seed=1)
    assert "OneDnnDropout{inplace=True}" in map(str, node_ops([x], y, mode))
    assert "OneDnnDropout{inplace=False}" in map(str, node_ops([x], [y, h], mode))
    values = np.ones((20, 20), "float32")
    pytensor.function([x], dropout(x, 0.5, seed=1), mode=mode)(values)
    np.testing.assert_array_equal(values, 1)


def node_ops(inputs: Any, outputs: Any, mode: Any) -> list[Any]:
    fn = compile_quietly(inputs, outputs, mode)
    return [node.op for node in fn.maker.fgraph.apply_nodes]


def test_other_dtypes_and_excluded():
    half, double = pt.matrix(dtype="float16"), pt.dmatrix()
    arrays = [np.random.default_rng(3).standard_normal((20, 9)).astype(t) for t in ("f2", "f8")]
    variables = [half, double]
    outputs = [dropout(v, 0.3, seed=4) for v in variables]
    outputs += pytensor.grad(sum(o.sum(dtype="float64") for o in outputs), variables)
    fn = pytensor.function(variables, outputs, mode="CVM")
    assert ops_of(fn).count("OneDnnDropout") == ops_of(fn).count("OneDnnDropoutGrad") == 2
    y, z, gy, gz = fn(*arrays)
    assert (y.dtype, gy.dtype) == ("float16", "float16")
    np.testing.assert_array_equal((y == 0), (z == 0))
    np.testing.assert_allclose(y, (arrays[0] / 0.7) * (z != 0), rtol=2e-3)
    np.testing.assert_allclose(gz, (z != 0) / 0.7)
    np.testing.assert_allclose(gy, gz, rtol=2e-3)
    mode = pytensor.compile.get_mode("CVM").excluding("onednn")
    fn = pytensor.function([double], dropout(double, 0.3, seed=4), mode=mode)
    assert ops_of(fn) == ["Dropout"]
    np.testing.assert_array_equal(fn(arrays[1]), z)


# -- what cannot be computed -------------------------------------------------------------


def test_operands_that_do_not_fit():
    op, x, p = OneDnnDropoutGrad(), np.ones(9, "float32"), np.array(0.5)
    with pytest.raises(DnnValueError, match=r"reserve has 1 bytes, expected 2 for gy of shape \(9"):
        run(op, x, p, np.ones(1, "uint8"))
    for value in (1.5, np.nan, -1.0):
        v, s = pt.fvector(), pt.lvector()
        node = OneDnnDropout().make_node(v, pt.dscalar(), s)
        storage = [[None], [None], [None]]
        with pytest.raises(DnnValueError, match="p must be at least 0 and at most 1, got"):
            node.op.perform(node, [x, np.array(value), state(1)], storage)
    half = np.ones(9, "float16")
    with pytest.raises(DnnTypeError, match="dropout supports float32 and float64, got float16"):
        run(OneDnnDropout(), half, p, state(1))
