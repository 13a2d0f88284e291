"""Pickled functions are loaded in other processes, with the implementations of dnnops."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys

import numpy as np
import pytensor
import pytensor.tensor as pt

from dnnops import nnet

LOAD = """
import pathlib, pickle, sys
import numpy as np
function, x, expected = pickle.loads(pathlib.Path(sys.argv[1]).read_bytes())
for found, wanted in zip(function(x), expected, strict=True):
    np.testing.assert_array_equal(found, wanted)
"""


def assert_loads_elsewhere(function, x, path, *options):
    """Load a function in a new process and compare its results."""
    path.write_bytes(pickle.dumps((function, x, function(x))))
    done = subprocess.run(
        [sys.executable, *options, "-c", LOAD, str(path)],
        env={
            **os.environ,
            "PYTENSOR_FLAGS": f"base_compiledir={pytensor.config.base_compiledir}",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_numba_knows_the_ops_of_an_unpickled_function(tmp_path):
    """No rewrite runs there, and PyTensor would warn that it runs the Ops in object mode."""
    x = pt.dtensor4("x")
    pooled = nnet.pool_2d(x, (2, 2), ignore_border=True)
    function = pytensor.function([x], [pooled], mode="NUMBA")
    assert [type(node.op).__name__ for node in function.maker.fgraph.apply_nodes] == ["OneDnnPool"]
    image = np.random.default_rng(0).standard_normal((2, 1, 4, 4))
    assert_loads_elsewhere(function, image, tmp_path / "function", "-W", "error")
