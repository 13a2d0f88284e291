"""Matrix products in oneDNN's threads."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from hypothesis import strategies as st

from dnnops.cpu.gemm import OneDnnDot, OneDnnGemm
from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.nnet import conv2d
from tests.cpu.conv.test_conv import restrided
from tests.linkers import LINKERS
from tests.oracle import assert_close, fuzz, run_op

SIZES = st.tuples(*(st.integers(0, 40) for _ in range(3)))
SEEDS = st.integers(0, 2**32 - 1)


@fuzz(max_examples=80, sizes=SIZES, seed=SEEDS)
def test_dot(sizes, seed):
    m, n, k = sizes
    rng = np.random.default_rng(seed)
    x, y = (rng.standard_normal(s).astype("float32") for s in ((m, k), (k, n)))
    out = run_op(OneDnnDot(), restrided(rng, x), restrided(rng, y))
    assert_close(out, x.astype("float64") @ y.astype("float64"), allow_zero=True)


@pytest.mark.parametrize("inplace", [False, True])
@fuzz(max_examples=80, sizes=SIZES, seed=SEEDS, beta=st.sampled_from([0.0, 1.0, 0.5]))
def test_gemm(inplace, sizes, seed, beta):
    m, n, k = sizes
    rng = np.random.default_rng(seed)
    shapes = ((m, n), (m, k), (k, n))
    z, x, y = (rng.standard_normal(s).astype("float32") for s in shapes)
    expected = beta * z.astype("float64") + -0.75 * (x.astype("float64") @ y.astype("float64"))
    if beta == 0:
        z = np.full_like(z, np.nan)  # a factor of zero ignores it
    operands = (restrided(rng, z), np.float32(-0.75), restrided(rng, x), restrided(rng, y))
    node_inputs = [np.asarray(a) for a in (*operands, np.float32(beta))]
    op = OneDnnGemm(inplace)
    storage = [[None]]
    op.perform(op.make_node(*node_inputs), node_inputs, storage)
    assert (storage[0][0] is node_inputs[0]) == inplace
    assert_close(storage[0][0], expected, allow_zero=True)


@LINKERS
def test_dense_layers_of_a_network(mode):
    """Run a step of gradient descent: products, the bias gradient, and an in-place update."""
    rng = np.random.default_rng(0)
    values = {
        "kern": rng.standard_normal((4, 2, 3, 3)),
        "bias": rng.standard_normal(4),
        "weights": rng.standard_normal((4 * 9, 5)),
    }

    def step(mode):
        kern, bias, weights = (
            pytensor.shared(value.astype("float32"), name) for name, value in values.items()
        )
        x = pt.tensor4("x", dtype="float32")
        hidden = pt.tanh(conv2d(x, kern) + bias[None, :, None, None]).flatten(2)
        loss = (pt.dot(hidden, weights) ** 2).mean()
        params = [kern, bias, weights]
        grads = pytensor.grad(loss, params)
        updates = [(p, p - np.float32(0.1) * g) for p, g in zip(params, grads, strict=True)]
        return pytensor.function([x], loss, updates=updates, mode=mode), params

    fn, params = step(mode)
    ops = [node.op for node in fn.maker.fgraph.apply_nodes]
    names = {type(op).__name__ for op in ops}
    assert {"OneDnnDot", "CpuSum"} <= names
    if mode == "CVM":  # Numba's linker has no gemm
        assert [op.inplace for op in ops if isinstance(op, OneDnnGemm)] == [True]
    plain, plain_params = step(pytensor.compile.get_mode("CVM").excluding("onednn"))
    for _ in range(3):
        x = rng.standard_normal((6, 2, 5, 5)).astype("float32")
        assert fn(x) == pytest.approx(plain(x), rel=1e-4)
    for param, reference in zip(params, plain_params, strict=True):
        assert_close(param.get_value(), reference.get_value(), bound=1e-4)


def test_products_without_other_ops_on_onednn_stay():
    x, y = pt.matrix("x", dtype="float32"), pt.matrix("y", dtype="float32")
    fn = pytensor.function([x, y], pt.dot(x, y), mode="CVM")
    assert not any("OneDnn" in type(node.op).__name__ for node in fn.maker.fgraph.apply_nodes)


def test_errors():
    with pytest.raises(DnnTypeError, match="float32 matrices"):
        OneDnnDot().make_node(np.zeros((2, 2)), np.zeros((2, 2)))
    with pytest.raises(DnnValueError, match=r"OneDnnDot: \(2, 3\) and \(2, 3\) do not match"):
        run_op(OneDnnDot(), np.zeros((2, 3), "float32"), np.zeros((2, 3), "float32"))
