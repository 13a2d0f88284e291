"""Pickled functions are loaded in other processes, with the implementations of dnnops."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from dnnops import nnet
from tests.oracle import PERFORM_MODE, assert_close

LOAD = """
import pathlib, pickle, sys
import numpy as np
function, arguments, expected = pickle.loads(pathlib.Path(sys.argv[1]).read_bytes())
for found, wanted in zip(function(*arguments), expected, strict=True):
    np.testing.assert_array_equal(np.asarray(found), wanted)
"""


def assert_loads_elsewhere(function, arguments, path):
    """Load a function in a new process, in which warnings are errors, and compare its results."""
    expected = [np.asarray(value) for value in function(*arguments)]
    path.write_bytes(pickle.dumps((function, arguments, expected)))
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", LOAD, str(path)],
        env={
            **os.environ,
            "PYTENSOR_FLAGS": f"base_compiledir={pytensor.config.base_compiledir}",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return expected


def test_numba_knows_the_ops_of_an_unpickled_function(tmp_path):
    """No rewrite runs there, and PyTensor would warn that it runs the Ops in object mode."""
    x = pt.dtensor4("x")
    pooled = nnet.pool_2d(x, (2, 2), ignore_border=True)
    function = pytensor.function([x], [pooled], mode="NUMBA")
    assert [type(node.op).__name__ for node in function.maker.fgraph.apply_nodes] == ["OneDnnPool"]
    image = np.random.default_rng(0).standard_normal((2, 1, 4, 4))
    assert_loads_elsewhere(function, [image], tmp_path / "function")


def results_of_each_family(x, filters):
    """Return results and gradients of all Ops that run on a CPU; `x` has shape (2, 4, 6, 6)."""
    ones = np.ones((1, 4, 1, 1))
    rows = x.reshape((48, 6))
    steps = x.reshape((12, 4, 6))
    block = nnet.RNNBlock("float64", hidden_size=2, num_layers=1, rnn_mode="lstm")
    state = np.zeros((1, 4, 2))
    weights = np.linspace(-1, 1, block.get_param_size((12, 4, 6)))
    results = [
        nnet.conv2d(x, filters, border_mode="half", subsample=(2, 1)),
        nnet.conv2d_transpose(x, filters, (2, 4, 8, 8)),
        nnet.pool_2d(x, (2, 2), ignore_border=True),
        nnet.pool_2d(x, (3, 3), ignore_border=False, mode="average_exc_pad"),
        nnet.batch_normalization_train(x, ones, ones, "spatial")[0],
        nnet.batch_normalization_test(x, ones, ones, ones, ones, "spatial"),
        nnet.group_norm(x, 2),
        nnet.local_response_normalization(x),
        nnet.divisive_normalization(x),
        nnet.softmax(x, axis=1),
        nnet.log_softmax(x, axis=1),
        nnet.cross_entropy(rows, np.arange(48) % 6),
        nnet.ctc(steps, np.ones((4, 2), "int32"), np.full(4, 12), np.full(4, 2)),
        nnet.scaled_dot_product_attention(x, x, x, is_causal=True),
        nnet.spatial_transformer(x, np.array([[[0.9, 0, 0], [0, 1, 0.1]]] * 2), 0.6, 0.7),
        nnet.dropout(x, 0.5, state=np.array([1, 0]))[0],
        block.apply(weights, steps, state, state)[0],
    ]
    # Ones, so that the gradients consist of the Ops' own.
    known = {y: pt.ones(y.shape, dtype=y.dtype) for y in results}
    return [*results, *pytensor.grad(None, [x, filters], known_grads=known)]


@pytest.mark.parametrize(
    "mode",
    [
        *(pytest.param(mode, marks=pytest.mark.slow) for mode in ("CVM", "DNN", "NUMBA")),
        # Not slow, because slow tests run before JAX is installed.
        pytest.param("JAX", marks=pytest.mark.needs("jax")),
    ],
)
def test_functions_of_all_ops(mode, tmp_path):
    """They can be pickled after a call, and give the same results in a new process."""
    rng = np.random.default_rng(0)
    arguments = rng.standard_normal((2, 4, 6, 6)), rng.standard_normal((4, 4, 3, 3))
    variables = [pt.tensor(dtype="float64", shape=value.shape) for value in arguments]
    results = results_of_each_family(*variables)
    function = pytensor.function(variables, results, mode=mode)
    expected = assert_loads_elsewhere(function, arguments, tmp_path / "function")
    wanted = pytensor.function(variables, results, mode=PERFORM_MODE)(*arguments)
    for value, reference in zip(expected, wanted, strict=True):
        assert_close(value, reference, bound=1e-9)
